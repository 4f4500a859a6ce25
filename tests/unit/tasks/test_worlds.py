from __future__ import annotations

from ropewalk.reward.globs import matches_any
from ropewalk.tasks.prompts import mutant_prompt, release_prompt
from ropewalk.tasks.tree import make_tree
from ropewalk.tasks.worlds import (
    TEST_COMMAND,
    editable_globs,
    import_paths,
    layer_files_of_tests,
    reach_folders,
    source_files,
)

FLAT = make_tree(
    {
        "pkg/__init__.py": b"x = 1\n", "pkg/sub/a.py": b"", "pkg/data.json": b"{}", "pkg/tests/test_a.py": b"",
        "pkg/conftest.py": b"", "setup.cfg": b"[tool:pytest]\naddopts=--cov\n", "CHANGELOG.md": b"secret plans",
        "PKG-INFO": b"Name: pkg\n",
    },
    distribution="pkg", version="1.0",
)  # fmt: skip
SRC = make_tree({"src/pkg/__init__.py": b"", "tests/test_a.py": b""}, distribution="my-pkg", version="2")
MODULE = make_tree({"single.py": b"", "test_single.py": b""}, distribution="single", version="1")


def test_a_source_layer_holds_the_package_and_nothing_else() -> None:
    assert set(source_files(FLAT)) == {
        "work/pkg/__init__.py", "work/pkg/sub/a.py", "work/pkg/data.json", "work/pkg-1.0.dist-info/METADATA",
    }  # fmt: skip
    changed = source_files(FLAT, {"pkg/__init__.py": b"x = 2\n"})
    assert changed["work/pkg/__init__.py"] == b"x = 2\n"
    assert "work/pkg/sub/a.py" not in changed
    assert source_files(SRC)["work/src/my_pkg-2.dist-info/METADATA"].endswith(b"Name: my-pkg\nVersion: 2\n")


def test_the_project_s_own_configuration_stays_out() -> None:
    files = layer_files_of_tests(
        {"tests/test_a.py": b"", "tox.ini": b"", "pytest.ini": b"[pytest]\naddopts=-x\n"}, import_paths=("src", "."),
        plugins=("mine.plugin",),
    )  # fmt: skip
    assert files == {
        "work/tests/test_a.py": b"",
        "work/pytest.ini": b"[pytest]\npythonpath = src .\naddopts = -p mine.plugin\n",
    }


def test_globs_open_the_package_and_no_tests() -> None:
    globs = editable_globs(FLAT, SRC)
    assert matches_any("pkg/new.py", globs)
    assert matches_any("pkg/sub/a.py", globs)
    assert matches_any("src/pkg/b.py", globs)
    assert not matches_any("pkg/tests/test_a.py", globs)
    assert not matches_any("pkg/tests/conftest.py", globs)
    assert not matches_any("conftest.py", globs)
    assert not matches_any("pkg/data.json", globs)
    assert editable_globs(MODULE) == ("single.py",)


def test_where_imports_start_and_what_is_reached() -> None:
    assert import_paths(FLAT) == (".",)
    assert import_paths(SRC) == ("src", ".")
    assert reach_folders(FLAT) == ("pkg",)
    assert reach_folders(SRC) == ("src/pkg",)
    assert reach_folders(MODULE) == (".",)


def test_prompts_name_the_tests_and_how_to_run_them() -> None:
    killers = ["tests/test_a.py::test_x[1]", "tests/test_a.py::test_x[2]", "tests/test_a.py::test_y"]
    text = release_prompt(
        distribution="pkg", before="1.0", notes="- `go` refuses zero", killers=killers, command=TEST_COMMAND
    )
    assert "pkg 1.0" in text
    assert "- `go` refuses zero" in text
    assert text.count("    tests/test_a.py::test_x\n") == 1
    assert "python3 -m pytest -q -p no:cacheprovider tests/test_a.py::test_x" in text
    many = [f"t.py::test_{number}" for number in range(20)]
    assert "and 8 more" in mutant_prompt(distribution="pkg", version="1", killers=many, command=TEST_COMMAND)
