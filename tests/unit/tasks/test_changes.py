"""Which statements a release changed, and which of them a run executes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from ropewalk.tasks.changes import ChangedLine, changed_lines, for_probe, read_places
from ropewalk.tasks.line_probe import Lines, wanted_lines

OLD = '''
LIMIT = 3

def size(text):
    """Doc."""
    text = text.strip()
    return int(text)

def moved(a):
    if a:
        return 1
    return 2
'''


def differing(old: str, new: str) -> dict[int, str]:
    """Line → text of what differs, of a module."""
    texts = new.splitlines()
    found = changed_lines({"m.py": old.encode()}, {"m.py": new.encode()})
    return {line: texts[line - 1].strip() for line in found.get("m.py", {})}


def test_what_is_new_in_a_function_is_told_statement_by_statement() -> None:
    new = OLD.replace(
        "    return int(text)",
        """    if text.startswith("-"):
        return -size(text[1:])
    if text.endswith("k"):
        return 1000 * size(text[:-1])
    return int(text)""",
    )
    assert [*differing(OLD, new).values()] == [
        'if text.startswith("-"):', "return -size(text[1:])",
        'if text.endswith("k"):', "return 1000 * size(text[:-1])",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "new",
    [
        OLD,
        OLD.replace("LIMIT = 3", "LIMIT = 4"),
        OLD.replace("Doc.", "Another text.").replace("text.strip()", "text.strip(\n    )  # said otherwise"),
        OLD + "\nasync = 3 (\n",
    ],
    ids=["equal", "outside", "only its looks", "unparsed"],
)
def test_what_says_the_same_is_not_new(new: str) -> None:
    assert differing(OLD, new) == {}


def test_what_was_taken_out_is_told_by_what_comes_after_it() -> None:
    assert [*differing(OLD, OLD.replace("    text = text.strip()\n", "")).values()] == ["return int(text)"]
    assert [*differing(OLD, OLD.replace("    return 2\n", "")).values()] == ["return 1"]


def test_new_parameters_are_told_where_the_body_begins() -> None:
    assert [*differing(OLD, OLD.replace("size(text)", "size(text, base=10)", 1)).values()] == ["text = text.strip()"]


def test_a_function_that_was_moved_is_no_new_one() -> None:
    body = OLD[OLD.index("def moved") :]
    after = {"m.py": OLD.replace(body, "").encode(), "n/other.py": body.replace("return 2", "return 3").encode()}
    found = changed_lines({"m.py": OLD.encode()}, after)
    assert found == {"n/other.py": {4: ChangedLine("moved", False)}}


def test_every_kind_of_statement_has_a_place() -> None:
    new = """
def f(a):
    with open(a) as b, open(b):
        pass
    for c in a:
        d = c
    else:
        e = 1
    try:
        g()
    except (KeyError,
            ValueError) as error:
        h()
    finally:
        i()
    match a:
        case 1 if b:
            j()
        case _:
            k()
    while a:
        def inner():
            return a or b
        class C:
            x = 1
"""
    assert [*differing("", new)] == [3, 4, 5, 6, 8, 10, 11, 12, 13, 15, 16, 17, 18, 19, 20, 21, 22, 24, 23]
    lines = changed_lines({}, {"m.py": new.encode()})["m.py"]
    assert {lines[line].function for line in (22, 23)} == {"f", "f.inner"}
    assert [line for line, what in lines.items() if what.forks] == [23]


def executed(source: str, call: Callable[[dict[str, Any]], object], old: str = "") -> set[str]:
    """Places of a module that a call executes, of what the older source lacks."""
    lines = changed_lines({"m.py": old.encode()}, {"m.py": source.encode()})
    names: dict[str, Any] = {}
    exec(compile(source, "/work/m.py", "exec"), names)
    follower = Lines(wanted_lines(json.loads(json.dumps(for_probe(lines)))))
    with follower.following():
        call(names)
    return {
        place.removeprefix("m.py:")
        for place in read_places([json.dumps({p: [*s] for p, s in follower.seen.items()})], lines)
    }


def test_a_run_tells_which_of_the_new_lines_it_executes() -> None:
    source = OLD.replace("    return int(text)", '    if text == "x":\n        return 0\n    return int(text)')
    assert executed(source, lambda names: names["size"]("x"), OLD) == {"7", "8"}
    assert executed(source, lambda names: names["size"]("5"), OLD) == {"7"}
    assert executed(source, lambda names: names["moved"](1), OLD) == set()


@pytest.mark.parametrize(
    ("body", "one", "other"),
    [
        ("return -1 if a == 1 else a + 5 if a == 2 else 0", 1, 2),
        ("return a == 1 or a == 2", 1, 2),
        ("return [b + 1 for b in range(9) if b == a + 7]", 1, 2),
        ("if a == 1: return 5", 1, 2),
    ],
)
def test_parts_of_a_line_count_on_their_own(body: str, one: int, other: int) -> None:
    source = f"def f(a):\n    {body}\n"
    first, second = (executed(source, lambda names, a=a: names["f"](a)) for a in (one, other))
    assert {"2"} <= first & second
    assert first != second


def test_generators_and_threads_are_followed_and_a_tracer_that_was_there_comes_back() -> None:
    source = """
import threading
def numbers(n):
    for i in range(n):
        yield i
    done = 1
def elsewhere(n):
    thread = threading.Thread(target=lambda: list(numbers(n)))
    thread.start()
    thread.join()
"""
    before = sys.gettrace()

    def mine(frame: FrameType, event: str, argument: Any) -> None:
        return None

    sys.settrace(mine)
    try:
        assert {"4", "5", "6"} <= executed(source, lambda names: names["elsewhere"](2))
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)


def test_what_a_sandbox_says_is_held_against_what_was_asked() -> None:
    lines = {"m.py": {3: ChangedLine("f", True)}}
    said = [
        '{"/work/m.py": ["3", "3:5", "4", "x", 7, "3:5:1"], "/etc/m.py": ["3"], "/work/n.py": 1}',
        "[",
        "[]",
        None,
        "{" * 9,
    ]
    assert read_places(said, lines) == {"m.py:3", "m.py:3:5"}
