"""Test modules taken apart: nothing expected is shipped, and both forms do what the original does."""

from __future__ import annotations

import ast
import sys
import textwrap
import types
from typing import Any

import pytest

from ropewalk.core.errors import CallerError
from ropewalk.reward.values.assertions import Kind
from ropewalk.reward.values.instrument import Instrumented, instrument


def instrumented(source: str, **options: Any) -> Instrumented:
    return instrument(textwrap.dedent(source), **options)


class Emitter:
    """What the probe puts in place of `_ropewalk`."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def value(self, point: str, actual: Any) -> None:
        self.said.append((point, actual))

    def truth(self, point: str, actual: Any) -> None:
        self.said.append((point, bool(actual)))

    def pair(self, point: str, *sides: Any) -> None:
        self.said.append((point, *sides))

    def raises(self, point: str, *expected: Any) -> Any:
        emitter = self

        class Context:
            def __enter__(self) -> None: ...

            def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
                emitter.said.append((point, kind and kind.__name__, *expected))
                return True

        return Context()

    def raised(self, point: str, expected: tuple[Any, ...], function: Any, *arguments: Any) -> None:
        with self.raises(point, *expected):
            function(*arguments)


def run(source: str, monkeypatch: pytest.MonkeyPatch, *calls: str, **names: Any) -> list[tuple[Any, ...]]:
    emitter = Emitter()
    monkeypatch.setitem(sys.modules, "_ropewalk", emitter)
    module = types.ModuleType("shipped")
    module.__dict__.update(names)
    exec(compile(source, "shipped", "exec"), module.__dict__)
    for call in calls:
        eval(call, module.__dict__)
    return emitter.said


@pytest.mark.parametrize(("statement", "kind", "gone"), [
    ("assert f(1) == 4711", Kind.EQUAL, "4711"),
    ("assert 4711 == f(1)", Kind.EQUAL, "4711"),
    ("assert f(1) == [4711, 'ab'] + [3]", Kind.EQUAL, "4711"),
    ("assert f(1) == {'a': range(4711)}", Kind.EQUAL, "4711"),
    ("assert f(1) == ','.join(['4711', '2'])", Kind.EQUAL, "4711"),
    ("assert f(1) == sorted(set('4711'))", Kind.EQUAL, "4711"),
    ("assert f(1) == [x * 4711 for x in range(3)]", Kind.EQUAL, "4711"),
    ("assert f(1) == list(map(str, (4711,)))", Kind.EQUAL, "4711"),
    ("assert f(1) == math.floor(4711.5)", Kind.EQUAL, "4711"),
    ("assert f(1) == Decimal('4711')", Kind.EQUAL, "4711"),
    ("assert f(1) == 4711, 'not 4711'", Kind.EQUAL, "4711"),
    ("assert f(1) == pytest.approx(4711, rel=0.25)", Kind.CLOSE, "4711"),
    ("assert f(1) is None", Kind.IDENTICAL, "is None"),
    ("assert f(1) is True", Kind.IDENTICAL, "True"),
    ("assert f(1) and f(2) == 4711", Kind.EQUAL, "4711"),
    ("self.assertEqual(f(1), 4711)", Kind.EQUAL, "4711"),
    ("self.assertEqual(4711, f(1), msg='4711')", Kind.EQUAL, "4711"),
    ("self.assertListEqual(f(1), [4711], '4711')", Kind.EQUAL, "4711"),
    ("self.assertCountEqual(f(1), [4711])", Kind.MULTISET, "4711"),
    ("self.assertSequenceEqual(f(1), [4711])", Kind.SEQUENCE, "4711"),
    ("self.assertAlmostEqual(f(1), 4711, places=3)", Kind.CLOSE, "4711"),
    ("self.assertAlmostEqual(f(1), 4711, delta=2)", Kind.CLOSE, "4711"),
    ("self.assertIsNone(f(1))", Kind.IDENTICAL, "assertIsNone"),
    ("self.assertTrue(f(1))", Kind.TRUTH, "assertTrue"),
    ("self.assertRaises(KeyError, f, 1)", Kind.RAISES, "KeyError"),
    ("with self.assertRaises((KeyError, ValueError)):\n        f(1)", Kind.RAISES, "KeyError"),
    ("with pytest.raises(KeyError):\n        f(1)", Kind.RAISES, "KeyError"),
    ("assert f(1) > 4711", Kind.TRUTH, ""),
    ("assert not f(1)", Kind.TRUTH, ""),
    ("assert f(1) == g(2)", Kind.TRUTH, ""),
])  # fmt: skip
def test_forms(statement: str, kind: Kind, gone: str) -> None:
    head = "import math, pytest\nfrom decimal import Decimal\nfrom package import f, g\n"
    result = instrument(f"{head}def test_a(self):\n    {statement}\n")
    assert kind in result.kinds.values()
    assert not gone or gone not in result.shipped
    assert not gone or kind in (Kind.TRUTH, Kind.IDENTICAL) or gone in result.recording
    for source in (result.recording, result.shipped):
        ast.parse(source)


@pytest.mark.parametrize("statement", [
    "with pytest.raises(KeyError, match='4711'):\n        f(1)",
    "with pytest.raises(KeyError) as caught:\n        f(1)",
    "with self.assertRaises(Custom):\n        f(1)",
    "try:\n        assert f(1) == 4711\n    except AssertionError:\n        pass",
    "with suppress(AssertionError):\n        assert f(1) == 4711",
    "self.assertIn(f(1), [4711])",
    "def inner():\n        assert f(1) == 4711\n    inner()",
    "self.assertEqual(*f(1))",
])  # fmt: skip
def test_what_cannot_be_taken_apart_stays(statement: str) -> None:
    source = f"import pytest\nfrom package import f, Custom\ndef test_a(self):\n    {statement}\n"
    result = instrument(source)
    assert not result.kinds
    assert ast.unparse(ast.parse(source)).split("\n")[2:] == result.shipped.rstrip("\n").split("\n")[3:]


LOCALS = """
    from package import f

    def test_a():
        '''Gives 111.'''
        expected = [111, 222]
        shared = [333, 444]
        assert f(shared) == expected
        assert f(1) == shared
        for given, wanted in [(1, 555), (2, 666)]:
            assert f(given) == wanted
        rows = [((7, 8), {"a": 777}), ((9, 10), {"b": 888})]
        for (x, y), wanted in rows:
            assert f(x + y) == wanted
        first, second = 1, 999
        assert f(first) == second
"""


def test_locals_and_tables_lose_their_expected_parts() -> None:
    shipped = instrumented(LOCALS).shipped
    for number in (111, 222, 555, 666, 777, 888, 999):
        assert str(number) not in shipped
    assert "333" in shipped, "an input is shipped, even if something is compared with it"
    assert "[(1, None), (2, None)]" in shipped


def test_what_is_read_elsewhere_too_stays() -> None:
    shipped = instrumented("""
        from package import f, g
        def test_a():
            expected = [111]
            g(expected)
            assert f(1) == expected
            grown = [222]
            grown.append(f(2))
            assert f(3) == grown
            for given, wanted in [(1, 333)]:
                assert f(given) == wanted
                assert wanted in f(given)
    """).shipped
    assert "111" in shipped and "222" in shipped and "333" in shipped


def test_module_constants_and_pure_helpers() -> None:
    result = instrumented("""
        import itertools
        from package import f
        EXPECTED = {"a": 111}
        SHARED = 222
        def double(x):
            return x * 2
        def impure(x):
            return f(x)
        def test_a():
            assert f(1) == EXPECTED
            assert f(SHARED) == double(333)
            assert f(2) == impure(444)
            assert f(3) == list(itertools.islice(itertools.count(555), 2))
    """)
    assert "111" not in result.shipped and "333" not in result.shipped and "555" not in result.shipped
    assert "222" in result.shipped and "444" in result.shipped
    assert list(result.kinds.values()) == [Kind.EQUAL, Kind.EQUAL, Kind.TRUTH, Kind.EQUAL]


def test_functions_that_are_shipped_can_be_called_by_anybody() -> None:
    result = instrumented("""
        import functools
        from package import f, g
        def slow(x):
            return helper(x) * 11111
        def helper(x):
            return x + 22222
        def shared(x):
            return x * 33333
        quick = lambda x: x * 44444
        kept = lambda x: x * 55555
        twice = functools.partial(shared, 2)
        def test_a():
            expected = slow(1) + 1
            assert f(1) == expected
            assert f(2) == quick(2)
            assert f(3) == shared(3)
            assert f(4) == kept(4)
            g(shared, kept)
            assert f(5) == twice()
            later = shared(7)
            assert f(6) == later
            assert f(7) == 7
    """)
    for number in ("11111", "22222", "44444"):
        assert number not in result.shipped, "read on expected sides alone"
    assert "33333" in result.shipped and "55555" in result.shipped
    assert result.computable == {"test_a:2", "test_a:3", "test_a:4", "test_a:5"}
    assert len(result.kinds) == 7


def test_deep_nesting_is_an_error() -> None:
    with pytest.raises(CallerError):
        instrument("def test_a():\n    assert f(1) == " + "1 + " * 5000 + "1\n")


def test_parameters() -> None:
    result = instrumented("""
        import pytest
        from package import f
        CASES = [(1, 111), pytest.param(2, 222, id="two gives 222")]
        @pytest.mark.parametrize("given, expected", CASES)
        def test_table(given, expected):
            assert f(given) == expected
        @pytest.mark.parametrize(("given", "expected"), [(3, 333)], ids=["333"])
        @pytest.mark.parametrize("flag", [True, False])
        def test_more(given, flag, expected):
            assert f(given, flag) == expected
        @pytest.mark.parametrize("given, expected", [(4, 444)], indirect=True)
        def test_fixture(given, expected):
            assert f(given) == expected
    """)
    for number in ("111", "222", "333"):
        assert number not in result.shipped
    assert "444" in result.shipped, "a fixture may do anything with it"


def test_messages_and_labels_are_dropped() -> None:
    shipped = instrumented("""
        from package import f
        class T:
            def test_a(self):
                for given, expected in ((1, 111), (2, 222)):
                    with self.subTest(given=given, expected=expected):
                        self.assertEqual(f(given), expected, msg=f"{expected}")
    """).shipped
    assert "111" not in shipped and "222" not in shipped and "self.subTest()" in shipped


def test_only_the_needed_tests_are_kept() -> None:
    result = instrumented("""
        from package import f
        class Base:
            def test_a(self):
                self.assertEqual(f(1), 111)
            def test_b(self):
                self.assertEqual(f(2), 222)
            def test_c(self):
                self.test_d()
            def test_d(self):
                pass
        class Empty:
            def test_e(self):
                pass
    """, only=frozenset({"test_a"}))  # fmt: skip
    assert "test_a" in result.shipped and "test_d" in result.shipped
    for name in ("test_b", "test_c", "test_e", "222"):
        assert name not in result.shipped and name not in result.recording


def test_excluded_points_stay_as_they_were_with_all_they_need() -> None:
    source = (
        "from package import f\ndef test_a():\n    wanted = 111\n    assert f(1) == wanted\n    assert f(2) == 222\n"
    )
    points = list(instrument(source).kinds)
    result = instrument(source, excluded=frozenset(points[:1]))
    assert list(result.kinds) == points[1:], "names of points do not move"
    assert "111" in result.shipped and "222" not in result.shipped


def test_both_forms_do_what_the_original_does(monkeypatch: pytest.MonkeyPatch) -> None:
    result = instrumented("""
        from __future__ import annotations
        def test_a():
            expected = [2, 4]
            assert f([1, 2]) == expected
            for given, wanted in (([], []), ([5], [10])):
                assert f(given) == wanted
            with raises(TypeError):
                pass
    """)
    calls = {"f": lambda values: [value * 2 for value in values], "raises": pytest.raises}
    shipped = run(result.shipped.replace("with raises(TypeError)", "if True"), monkeypatch, "test_a()", **calls)
    recorded = run(result.recording.replace("with raises(TypeError)", "if True"), monkeypatch, "test_a()", **calls)
    assert shipped == [("test_a:0", [2, 4]), ("test_a:1", []), ("test_a:1", [10])]
    assert recorded == [("test_a:0", [2, 4], [2, 4]), ("test_a:1", [], []), ("test_a:1", [10], [10])]


def test_exceptions_are_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    result = instrumented("""
        import pytest
        class T:
            def test_a(self):
                with self.assertRaises(KeyError):
                    {}[1]
                self.assertRaises(ValueError, int, "x")
    """)
    assert run(result.shipped, monkeypatch, "T().test_a()") == [
        ("T.test_a:0", "KeyError"),
        ("T.test_a:1", "ValueError"),
    ]
    recorded = run(result.recording, monkeypatch, "T().test_a()")
    assert recorded == [("T.test_a:0", "KeyError", KeyError), ("T.test_a:1", "ValueError", ValueError)]


@pytest.mark.parametrize("source", ["def test_a(:", "x = '\0'", "(" * 1000, "x" * 3_000_000])
def test_what_does_not_parse_is_an_error(source: str) -> None:
    with pytest.raises(CallerError):
        instrument(source)
