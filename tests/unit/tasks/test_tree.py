from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.core.errors import CallerError
from ropewalk.tasks.tree import NoTestsError, is_test_path, make_tree, read_tree


def test_flat_layout_with_tests_inside_the_package() -> None:
    tree = make_tree(
        {
            "toolbox/__init__.py": b"",
            "toolbox/core.py": b"x = 1\n",
            "toolbox/data.json": b"{}",
            "toolbox/tests/test_core.py": b"def test_x(): pass\n",
            "setup.py": b"",
            "docs/conf.py": b"",
            "scripts/__init__.py": b"",
        },
        distribution="Tool_Box",
        version="1.0",
    )
    assert tree.distribution == "tool-box"
    assert tree.import_names == ("toolbox",)
    assert set(tree.package_files) == {"toolbox/__init__.py", "toolbox/core.py", "toolbox/data.json"}
    assert set(tree.editable_files) == {"toolbox/__init__.py", "toolbox/core.py"}
    assert tree.test_modules == ("toolbox/tests/test_core.py",)


def test_src_layout() -> None:
    tree = make_tree(
        {"src/pkg/__init__.py": b"", "src/pkg/a.py": b"", "tests/test_a.py": b"", "tools/__init__.py": b""},
        distribution="pkg",
        version="1",
    )
    assert (tree.source_root, tree.import_names) == ("src", ("pkg",))
    assert set(tree.package_files) == {"src/pkg/__init__.py", "src/pkg/a.py"}


def test_single_module_distribution_with_tests_beside_it() -> None:
    tree = make_tree(
        {"setup.py": b"", "pointer.py": b"x = 1", "tests.py": b"", "conftest.py": b""},
        distribution="pointer",
        version="1",
    )
    assert tree.import_names == ("pointer",)
    assert tree.test_modules == ("tests.py",)
    assert set(tree.test_files) == {"tests.py", "conftest.py"}


def test_setuptools_list_of_names_decides_among_several() -> None:
    files = {"one/__init__.py": b"", "two/__init__.py": b"", "x.egg-info/top_level.txt": b"two\n"}
    assert make_tree(files, distribution="x", version="1").import_names == ("two",)


def test_compiled_and_huge_files_stay_out() -> None:
    tree = make_tree(
        {"pkg/__init__.py": b"", "pkg/fast.so": b"\x7fELF", "pkg/a.pyc": b"", "pkg/blob.bin": b"x" * (5 << 20)},
        distribution="pkg",
        version="1",
    )
    assert set(tree.package_files) == {"pkg/__init__.py"}


def test_package_without_tests_says_what_to_do() -> None:
    tree = make_tree({"pkg/__init__.py": b""}, distribution="pkg", version="3")
    with pytest.raises(NoTestsError, match=r"pkg 3 holds no tests") as caught:
        _ = tree.test_modules
    assert "release" in caught.value.next_step


def test_nothing_to_import_is_refused() -> None:
    with pytest.raises(CallerError, match="no package or module"):
        make_tree({"README": b"", "setup.py": b""}, distribution="x", version="1")


def test_reading_a_directory_follows_no_link_and_skips_caches(tmp_path: Path) -> None:
    top = tmp_path / "pkg-1.2"
    for name in ("pkg/__init__.py", "pkg/__pycache__/x.py", ".git/config", ".venv/lib/y.py", "test_pkg.py"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("x = 1\n")
    (top / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: The.Pkg\nVersion: 1.2\n\nVersion: 9\n")
    (top / "pkg" / "link.py").symlink_to("/etc/passwd")
    tree = read_tree(tmp_path)
    assert (tree.distribution, tree.version) == ("the-pkg", "1.2")
    assert set(tree.files) == {"PKG-INFO", "pkg/__init__.py", "test_pkg.py"}


def test_name_and_version_out_of_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "0.3"\n')
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "test_mine.py").write_text("")
    tree = read_tree(tmp_path)
    assert (tree.distribution, tree.version) == ("mine", "0.3")


def test_missing_directory() -> None:
    with pytest.raises(CallerError, match="not a directory"):
        read_tree(Path("/nonexistent/place"))


def test_digest_depends_on_every_byte() -> None:
    one = make_tree({"a.py": b"1"}, distribution="a", version="1")
    two = make_tree({"a.py": b"2"}, distribution="a", version="1")
    assert one.digest != two.digest
    assert one.digest == make_tree({"a.py": b"1"}, distribution="a", version="1").digest


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("tests/x.py", True),
        ("pkg/tests/data.json", True),
        ("pkg/test_a.py", True),
        ("pkg/a_test.py", True),
        ("conftest.py", True),
        ("pkg/testing.py", False),
        ("pkg/latest.py", False),
        ("pkg/contests/a.py", False),
    ],
)
def test_test_paths(path: str, expected: bool) -> None:
    assert is_test_path(path) is expected
