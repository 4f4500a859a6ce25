from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.tasks.bodies import parse, walk
from ropewalk.tasks.operators import OPERATORS, Edit, mutate, mutations

TABLE = [
    ("comparison", "return a < b", "return a <= b"),
    ("comparison", "return a == b", "return a != b"),
    ("comparison", "return a not  in b", "return a in b"),
    ("comparison", "return a is not b", "return a is b"),
    ("comparison", "return (a) >= (b)", "return (a) > (b)"),
    ("arithmetic", "return a + b", "return a - b"),
    ("arithmetic", "return a // b", "return a * b"),
    ("arithmetic", "return a ** b", "return a * b"),
    ("arithmetic", "a += b", "a -= b"),
    ("boolean", "return a and b", "return a or b"),
    ("boolean", "return not a", "return a"),
    ("constant", "return 3", "return 4"),
    ("constant", "return True", "return False"),
    ("constant", "return 'ab'", "return 'a'"),
    ("constant", "return b'x'", "return b'xx'"),
    ("slice_or_range_off_by_one", "return a[1:]", "return a[2:]"),
    ("slice_or_range_off_by_one", "return a[:b]", "return a[:(b) - 1]"),
    ("slice_or_range_off_by_one", "return range(b)", "return range((b) - 1)"),
    ("swapped_arguments", "return f(a, b)", "return f(b, a)"),
    ("dropped_statement", "a.append(b)", "pass"),
    ("dropped_statement", "a[0] = b", "pass"),
    ("dropped_statement", "del a[0]", "pass"),
    ("dropped_statement", "if a:\n        b = 1", "pass"),
]


def all_of(source: str) -> list[Edit]:
    tree = parse(source)
    assert tree is not None
    return [edit for name, node in walk(tree) for edit in mutations(source.encode(), name, node)]


@pytest.mark.parametrize(("operator", "before", "after"), TABLE)
def test_operator(operator: str, before: str, after: str) -> None:
    source = f"def f(a, b):\n    {before}  # why\n"
    wanted = f"def f(a, b):\n    {after}  # why\n".encode()
    found = [mutate(source.encode(), edit) for edit in all_of(source) if edit.operator == operator]
    assert wanted in found


def test_wrong_default() -> None:
    source = "def f(a, b=None, *, c=2, d=call()):\n    return a\n"
    found = {mutate(source.encode(), edit) for edit in all_of(source) if edit.operator == "wrong_default"}
    assert found == {source.replace("None", "0").encode(), source.replace("c=2", "c=3").encode()}


def test_early_return_keeps_indentation() -> None:
    source = "class C:\n    def f(self):\n        a = 1\n        b = 2\n        return a + b\n"
    found = [mutate(source.encode(), edit) for edit in all_of(source) if edit.operator == "early_return"]
    assert source.replace("        b = 2", "        return\n        b = 2").encode() in found


def test_every_operator_is_in_the_table() -> None:
    assert {operator for operator, _, _ in TABLE} | {"wrong_default", "early_return"} == set(OPERATORS)


def test_docstrings_annotations_decorators_and_inner_functions_are_left_alone() -> None:
    source = (
        "@cache(1)\ndef f(a: Literal[1], *, b: int) -> Literal[2]:\n    'text'\n    c: Literal[3] = a\n"
        "    'another'\n    def inner():\n        return 4\n    return f'{a!r:>10}'\n"
    )
    outer = [edit for edit in all_of(source) if edit.function == "f" and edit.operator == "constant"]
    assert outer == []
    assert [edit.function for edit in all_of(source) if edit.operator == "constant"] == ["f.inner"]


def test_operands_with_a_comment_between_are_left_alone() -> None:
    source = "def f(a, b):\n    return (a  # less <\n        < b)\n"
    assert [edit for edit in all_of(source) if edit.operator == "comparison"] == []


def test_text_before_the_place_may_be_of_any_alphabet() -> None:
    source = "def f(a, b):\n    return 'ünïcödé', a < b\n"
    found = [mutate(source.encode(), edit) for edit in all_of(source) if edit.operator == "comparison"]
    assert found == [source.replace("<", "<=").encode()]


def test_a_mutation_that_means_nothing_is_none() -> None:
    source = b"def f():\n    return 1\n"
    edit = Edit(operator="constant", function="f", line=2, start=20, end=21, text="1")
    assert mutate(source, edit) is None
    assert mutate(source, Edit(operator="x", function="f", line=2, start=20, end=21, text="(")) is None


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", "1", "'x'", "None", "[1, 2]"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "<", "and", "in", "**", "is not"]), inner),
        st.builds("f({}, {})".format, inner, inner),
        st.builds("b[{}:{}]".format, inner, inner),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(EXPRESSIONS)
def test_mutants_parse_differ_and_change_one_span(expression: str) -> None:
    source = f"def f(a, b=1):\n    a.x = {expression}\n    b.y()\n    return {expression}\n".encode()
    for edit in all_of(source.decode()):
        mutated = mutate(source, edit)
        if mutated is None:
            continue
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))
        assert mutated.startswith(source[: edit.start])
        assert mutated.endswith(source[edit.end :])
