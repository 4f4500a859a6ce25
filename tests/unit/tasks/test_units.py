from __future__ import annotations

from ropewalk.tasks.bodies import BodyKeys
from ropewalk.tasks.units import changed_functions, make_units, short_name

TESTS = b"""
class TestChunk:
    def test_a(self): assert 1
    def test_b(self): assert 2

class TestLonely:
    def test_c(self): assert 3

def test_d(): assert 4
def test_e(): assert 5
def test_f(): assert 6
def test_g(): assert 7
def test_h(): assert 8
"""
BEFORE = {"pkg/m.py": b"def one():\n    return 1\n\n\ndef gone():\n    return 2\n", "pkg/same.py": b"def s(): ...\n"}
AFTER = {
    "pkg/m.py": b"""
def one():
    return 11


def two():
    return 2


class C:
    def __init__(self):
        self.x = 1
""",
    "pkg/same.py": b"def s(): ...\n",
}


def test_changed_functions() -> None:
    changed = changed_functions(BEFORE, AFTER)
    assert changed.changed == ("pkg/m.py::one",)
    assert changed.added == ("pkg/m.py::C.__init__", "pkg/m.py::two")
    assert changed.removed == ("pkg/m.py::gone",)
    assert short_name("pkg/m.py::C.__init__") == "C"
    assert short_name("pkg/m.py::C.go") == "go"
    assert changed_functions(AFTER, AFTER).after == frozenset()


def test_units_by_class_then_function_then_module_then_alone() -> None:
    path = "tests/test_m.py"
    bodies = BodyKeys({path: TESTS, "tests/test_other.py": b"def test_z(): assert 9\n"})
    one, two = "pkg/m.py::one", "pkg/m.py::two"
    reached = {
        f"{path}::test_d": (one, "pkg/same.py::s"),
        f"{path}::test_e": (one,),
        f"{path}::test_f": (two,),
        f"{path}::test_g": ("pkg/same.py::s",),
        f"{path}::TestLonely::test_c": (),
    }
    names = ["TestChunk::test_a", "TestChunk::test_b", "TestLonely::test_c", "test_d", "test_e", "test_f", "test_g"]
    killers = [f"{path}::{name}" for name in names] + ["tests/test_other.py::test_z"]
    units = make_units(killers, bodies, reached, changed_functions(BEFORE, AFTER))
    by_level = {unit.level: unit for unit in units}
    assert by_level["class"].name == "TestChunk"
    assert by_level["symbol"].name == "one"
    assert by_level["symbol"].killers == (f"{path}::test_d", f"{path}::test_e")
    assert by_level["module"].name == "test_m"
    assert by_level["module"].killers == (f"{path}::TestLonely::test_c", f"{path}::test_f", f"{path}::test_g")
    assert by_level["single"].killers == ("tests/test_other.py::test_z",)
    assert sorted(killer for unit in units for killer in unit.killers) == sorted(killers)


def test_large_units_are_cut_and_bodies_stay_together() -> None:
    source = "".join(f"def test_{number}(): assert {number}\n" for number in range(30))
    bodies = BodyKeys({"t.py": source.encode()})
    killers = [f"t.py::test_{number}" for number in range(30)] + ["t.py::test_0[again]"]
    units = make_units(killers, bodies, {}, changed_functions({}, {}))
    assert [unit.level for unit in units] == ["module"] * 3
    assert [unit.name for unit in units] == ["t 1/3", "t 2/3", "t 3/3"]
    assert sum(len(unit.killers) for unit in units) == 31
    home = next(unit for unit in units if "t.py::test_0" in unit.killers)
    assert "t.py::test_0[again]" in home.killers
