"""Settings of pytest that are given for a package's tests."""

from __future__ import annotations

from configparser import ConfigParser

import pytest

from ropewalk.core.errors import CallerError
from ropewalk.tasks.pytest_settings import check_settings, ini_file, matches, options, parse_settings
from ropewalk.tasks.tree import NoTestsError, make_tree
from ropewalk.tasks.worlds import import_paths, layer_files_of_tests


def test_pairs_are_settings_and_lines_add_up() -> None:
    pairs = ["asyncio_mode=auto", "markers=slow: takes long", " markers =fast", "addopts=-k 'a=b'"]
    assert parse_settings(pairs) == {
        "asyncio_mode": "auto", "markers": "slow: takes long\nfast", "addopts": "-k 'a=b'",
    }  # fmt: skip


@pytest.mark.parametrize("pair", ["asyncio_mode", "=auto", "a.b=c", "two words=x", ""])
def test_what_is_no_pair_is_refused_with_an_example(pair: str) -> None:
    with pytest.raises(CallerError) as caught:
        parse_settings([pair])
    assert "--pytest-ini asyncio_mode=auto" in caught.value.next_step


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("testpaths", "tests", "all test modules"),
        ("python_functions", "check_", "call test functions test"),
        ("required_plugins", "pytest-asyncio", "--plugin MODULE"),
        ("a b", "x", "asyncio_mode"),
        ("markers", "a\x1b[2J", "without"),
        ("pythonpath", "lib ../other", "relative"),
        ("pythonpath", "/usr/lib", "relative"),
    ],
)
def test_what_has_no_use_is_refused_with_the_next_step(name: str, value: str, said: str) -> None:
    with pytest.raises(CallerError) as caught:
        check_settings({name: value})
    assert said in caught.value.next_step


def test_a_policy_and_the_grader_have_the_same_settings() -> None:
    settings = {
        "asyncio_mode": "auto",
        "addopts": "--import-mode=importlib",
        "markers": "a: b\nc",
        "pythonpath": "lib .",
    }
    check_settings(settings)
    tree = make_tree({"src/pkg/__init__.py": b"", "tests/test_a.py": b""}, distribution="pkg", version="1")
    paths = import_paths(tree, settings)
    assert paths == ("src", ".", "lib")
    files = layer_files_of_tests({}, import_paths=paths, plugins=("mine.plugin",), settings=settings)
    assert files["work/pytest.ini"] == ini_file(settings, paths=paths, plugins=("mine.plugin",))
    reader = ConfigParser()
    reader.read_string(files["work/pytest.ini"].decode())
    written = dict(reader["pytest"])
    assert written.pop("addopts") == "-p mine.plugin --import-mode=importlib"
    assert written.pop("pythonpath") == "src . lib"
    assert written == {name: value for name, value in options(settings).items() if name != "addopts"}


@pytest.mark.parametrize(
    ("path", "pattern", "fits"),
    [
        ("tests/check_a.py", "check_*.py", True),
        ("check_a.py", "check_*.py", True),
        ("tests/unit/a.py", "unit/*.py", True),
        ("tests/subunit/a.py", "unit/*.py", False),
        ("tests/test_a.py", "check_*.py", False),
    ],
)
def test_globs_are_pytest_s(path: str, pattern: str, fits: bool) -> None:
    assert matches(path, [pattern]) is fits


def test_test_modules_may_be_called_otherwise() -> None:
    files = {
        "pkg/__init__.py": b"", "pkg/check_inside.py": b"", "checks/check_a.py": b"", "checks/helper.py": b"",
        "tests/check_b.py": b"", "tests/test_c.py": b"",
    }  # fmt: skip
    tree = make_tree(files, distribution="pkg", version="1", test_patterns=("check_*.py",))
    assert tree.test_modules == ("checks/check_a.py", "pkg/check_inside.py", "tests/check_b.py")
    assert set(tree.editable_files) == {"pkg/__init__.py"}
    every = make_tree(files, distribution="pkg", version="1", test_patterns=("*.py",))
    assert every.test_modules == ("tests/check_b.py", "tests/test_c.py")
    assert "pkg/__init__.py" in every.editable_files
    with pytest.raises(NoTestsError, match=r"no `spec_\*\.py`"):
        make_tree(files, distribution="pkg", version="1", test_patterns=("spec_*.py",)).test_modules  # noqa: B018
