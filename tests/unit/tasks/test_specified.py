"""What a held-out test may ask for."""

from __future__ import annotations

import pytest

from ropewalk.tasks.changes import ChangedLine
from ropewalk.tasks.specified import Reached, Specification
from ropewalk.tasks.units import Changed, Unit

SIGN, THOUSANDS, COMMON, OTHER = "m.py:7", "m.py:9", "m.py:6", "m.py:30:4"
PLACES = {
    "t.py::test_minus": frozenset({COMMON, SIGN}),
    "t.py::test_minus_more": frozenset({COMMON, SIGN}),
    "t.py::test_kilo": frozenset({COMMON, THOUSANDS}),
    "t.py::test_blank": frozenset({COMMON}),
    "t.py::test_printed_widths": frozenset({OTHER}),
    "t.py::test_data": frozenset[str](),
}
FUNCTIONS = {**dict.fromkeys(PLACES, ("m.py::size", "m.py::same")), "t.py::test_printed_widths": ("m.py::C.show",)}
LINES = {
    "m.py": {
        **{line: ChangedLine("size", False) for line in (6, 7, 9)},
        30: ChangedLine("C.show", True),
    }
}


def specification(notes: str = "", level: str = "symbol") -> Specification:
    unit = Unit(name="size", killers=tuple(PLACES), symbols=("m.py::size",), level=level)
    changed = Changed(changed=("m.py::size", "m.py::C.show"), added=(), removed=())
    return Specification(unit, Reached(FUNCTIONS, PLACES), changed, LINES, notes)


def test_another_change_of_the_same_function_must_be_shown() -> None:
    told = specification()
    assert told.allows(["t.py::test_minus"], ["t.py::test_minus_more", "t.py::test_blank"])
    assert not told.allows(["t.py::test_minus"], ["t.py::test_blank", "t.py::test_kilo"])
    assert told.allows(["t.py::test_minus", "t.py::test_kilo"], ["t.py::test_minus_more"])
    why = told.unknown(["t.py::test_minus"], "t.py::test_kilo")
    assert why == "t.py::test_kilo needs m.py:9 (size), which no visible killer reaches"


@pytest.mark.parametrize(
    ("notes", "kilo", "widths"),
    [
        ("- `size` knows thousands", True, False),
        ("- `show` is faster", False, True),
        ("- Fixed the printed width of cells", False, True),
        ("- Faster", False, False),
    ],
)
def test_the_notes_may_show_it_instead(notes: str, kilo: bool, widths: bool) -> None:
    told = specification(notes)
    assert told.allows(["t.py::test_minus"], ["t.py::test_kilo"]) is kilo
    assert told.allows(["t.py::test_minus"], ["t.py::test_printed_widths"]) is widths


@pytest.mark.parametrize(("level", "allowed"), [("class", True), ("symbol", True), ("module", True)])
def test_what_no_changed_statement_tells_apart_is_judged_by_functions(level: str, allowed: bool) -> None:
    told = specification(level=level)
    assert told.allows(["t.py::test_minus"], ["t.py::test_data"]) is allowed
    alone = told.allows(["t.py::test_printed_widths"], ["t.py::test_data"])
    assert alone is (level != "module")


def test_cases_may_execute_what_is_shown_or_told() -> None:
    job = specification().cases(["t.py::test_minus", "t.py::test_printed_widths"]).job
    assert job["shown"] == {"/work/m.py": ["30:4", "6", "7"]}
    assert job["lines"] == {"/work/m.py": {"6": False, "7": False, "9": False, "30": True}}
    told = specification("- `size` knows thousands").cases(["t.py::test_minus"]).job
    assert told["lines"] == {"/work/m.py": {"30": True}}
