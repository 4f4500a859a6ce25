from __future__ import annotations

import textwrap

from ropewalk.tasks.bodies import BodyKeys, functions, without_parameters

SOURCE = textwrap.dedent('''
    import pytest


    class Base:
        def test_one(self):
            """Says what it does."""
            assert self.make() == 1

        def test_two(self):
            assert self.make() == 2


    class TestA(Base):
        pass


    class TestB(TestA):
        def test_two(self):
            assert self.make() == 3


    @pytest.mark.slow
    def test_alone():
        # a comment
        assert make(1) == (1,)


    if True:
        async def test_inside():
            def inner():
                """Text"""
                return 1
            assert inner()
''').encode()


def test_equal_bodies_have_equal_digests_whatever_surrounds_them() -> None:
    one = functions("def a(x):\n    'doc'\n    return x + 1\n")["a"]
    two = functions("class C:\n    @staticmethod\n    def b(x):\n        # why\n        return (x + 1)\n")["C.b"]
    assert one.digest == two.digest
    assert functions("def a(x):\n    return x + 2\n")["a"].digest != one.digest
    assert functions("def a(y):\n    return y + 1\n")["a"].digest != one.digest


def test_inner_docstrings_do_not_matter() -> None:
    one = functions("def a():\n    def b():\n        'x'\n        return 1\n    return b\n")["a"]
    two = functions("def a():\n    def b():\n        return 1\n    return b\n")["a"]
    assert one.digest == two.digest


def test_all_functions_with_lines() -> None:
    found = functions(SOURCE)
    assert set(found) == {
        "Base.test_one",
        "Base.test_two",
        "TestB.test_two",
        "test_alone",
        "test_inside",
        "test_inside.inner",
    }
    lines = SOURCE.decode().splitlines()
    assert lines[found["test_alone"].first_line - 1] == "@pytest.mark.slow"
    assert lines[found["test_alone"].last_line - 1].strip() == "assert make(1) == (1,)"
    assert set(functions(SOURCE, only={"test_two"})) == {"Base.test_two", "TestB.test_two"}


def test_source_that_does_not_parse_has_none() -> None:
    assert functions("def a(:\n") == {}
    assert functions(b"\0") == {}


def test_inherited_and_parametrised_tests_share_a_key() -> None:
    keys = BodyKeys({"tests/test_x.py": SOURCE})
    assert keys.key("tests/test_x.py::TestA::test_one") == keys.key("tests/test_x.py::TestB::test_one")
    assert keys.key("tests/test_x.py::TestA::test_two") != keys.key("tests/test_x.py::TestB::test_two")
    assert keys.key("tests/test_x.py::test_alone[1-a::b]") == keys.key("tests/test_x.py::test_alone[2]")


def test_bases_in_another_module_are_found() -> None:
    other = b"from test_x import Base\n\n\nclass TestC(Base):\n    pass\n"
    keys = BodyKeys({"tests/test_x.py": SOURCE, "tests/test_y.py": other})
    assert keys.key("tests/test_y.py::TestC::test_one") == keys.key("tests/test_x.py::TestA::test_one")


def test_what_cannot_be_found_shares_its_key_by_name() -> None:
    keys = BodyKeys({"test_x.py": SOURCE})
    assert keys.key("test_z.py::TestQ::test_lost") == keys.key("test_x.py::TestA::test_lost") == "unknown:test_lost"


def test_classes_that_inherit_in_a_circle_end() -> None:
    keys = BodyKeys({"t.py": b"class A(B):\n    pass\n\n\nclass B(A):\n    pass\n"})
    assert keys.key("t.py::A::test_x") == "unknown:test_x"


def test_ids_without_parameters() -> None:
    assert without_parameters("a.py::T::test_b[x[1]-::y]") == "a.py::T::test_b"
    assert without_parameters("a.py") == "a.py"
