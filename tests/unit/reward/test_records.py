"""The record that a probe sends, what is expected of it, and how it is judged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.outcomes import Termination
from ropewalk.reward.judge import judge
from ropewalk.reward.spec import GraderLimits
from ropewalk.reward.suite import Emission, SuiteRecord, TestOutcome, read_record
from ropewalk.reward.values.assertions import Kind
from ropewalk.reward.values.entropy import GUESS_BITS_MIN, guess_bits, outlines_in
from ropewalk.reward.values.expected import ExpectedRecord, ExpectedTest, ExpectedValue, differing, tolerance_of
from ropewalk.sandbox.contract import SandboxStats

LIMITS = GraderLimits(cpu_s=2.0, wall_s=10.0)


@dataclass
class Ended:
    """A command that ended."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = 0
    signal: int | None = None
    truncated: bool = False
    termination: Termination = Termination.FINISHED
    duration_s: float = 1.0
    cpu_s: float = 0.5


def lines(*parts: Any) -> str:
    return "".join(json.dumps(part) + "\n" for part in parts)


GOOD = [
    ["b", "t::a", ""],
    ["v", "a:0", 0, 7],
    ["e", "t::a", "passed", 0.1, ""],
    ["b", "t::b", ""],
    ["v", "b:0", 0, ["l", [1]]],
    ["v", "b:0", 1, ["l", []]],
    ["e", "t::b", "passed", 0.1, ""],
    ["z", 0, 7],
]
EXPECTED = ExpectedRecord(
    tests=(
        ExpectedTest(key="t::a", values=(ExpectedValue(point="a:0", occurrence=0, kind=Kind.EQUAL, value="7"),)),
        ExpectedTest(
            key="t::b",
            values=(
                ExpectedValue(point="b:0", occurrence=0, kind=Kind.EQUAL, value='["l", [1]]'),
                ExpectedValue(point="b:0", occurrence=1, kind=Kind.EQUAL, value='["l", []]'),
            ),
        ),
    )
)


def test_a_complete_record() -> None:
    record = read_record(Ended(lines(*GOOD)))
    assert record.complete and not record.problem
    assert [(test.key, test.outcome, len(test.emissions)) for test in record.tests] == [
        ("t::a", "passed", 1), ("t::b", "passed", 2),
    ]  # fmt: skip
    assert judge(record, EXPECTED, LIMITS).cause == "all_matched"
    assert record.passed == ("t::a", "t::b")


@given(st.integers(0, len(GOOD) - 1), st.sampled_from(["drop", "double", "swap", "garbage"]), st.data())
def test_a_record_that_was_touched_scores_nothing(at: int, how: str, data: st.DataObject) -> None:
    said = list(GOOD)
    if how == "drop":
        del said[at]
    elif how == "double":
        said.insert(at, said[at])
    elif how == "swap":
        other = data.draw(st.integers(0, len(GOOD) - 1).filter(lambda index: index != at))
        said[at], said[other] = said[other], said[at]
    else:
        said.insert(at, data.draw(st.sampled_from([[], {}, 1, ["q"], ["b", 1, ""], ["v", "a:0", "0", 7], "z"])))
    judgement = judge(read_record(Ended(lines(*said))), EXPECTED, LIMITS)
    assert judgement.score == 0.0


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_of_some_kind(data: bytes) -> None:
    record = read_record(Ended(data.decode("utf-8", "replace")))
    assert not record.complete
    assert judge(record, EXPECTED, LIMITS).score == 0.0


@pytest.mark.parametrize("text", [
    "[" * 100_000, '["z", 0, 0]\n["z", 0, 1]', '["z", NaN, 0]', '["b", "' + "x" * 2_000 + '", ""]',
    '["z", true, 0]x', "\ufffd", '["e", "t::a", "passed", 0.1, ""]', '["z", 0, 12]',
])  # fmt: skip
def test_malformed_records(text: str) -> None:
    assert not read_record(Ended(text)).complete


@pytest.mark.parametrize(("change", "stats", "score", "cause"), [
    ({"exit_code": 1}, {}, 0.0, "incomplete_record"),
    ({"exit_code": None, "signal": 9}, {}, 0.0, "incomplete_record"),
    ({"exit_code": None, "signal": 9, "stdout": ""}, {"out_of_memory_kills": 1}, 0.0, "candidate_out_of_memory"),
    ({"termination": Termination.OUT_OF_MEMORY, "stdout": ""}, {}, 0.0, "candidate_out_of_memory"),
    ({"exit_code": None, "signal": 24, "stdout": ""}, {}, 0.0, "candidate_timeout"),
    ({"truncated": True}, {}, 0.0, "candidate_output"),
    ({"termination": Termination.TIMEOUT, "stdout": "", "duration_s": 10.0, "cpu_s": 2.0},
     {}, 0.0, "candidate_timeout"),
    ({"termination": Termination.TIMEOUT, "stdout": "", "duration_s": 10.0, "cpu_s": 0.1},
     {}, 0.0, "candidate_timeout"),
    ({"termination": Termination.TIMEOUT, "stdout": "", "duration_s": 10.0, "cpu_s": 0.1},
     {"cpu_s": 0.3, "cpu_wait_s": 1.0}, 0.0, "candidate_timeout"),
    ({"termination": Termination.TIMEOUT, "stdout": "", "duration_s": 10.0, "cpu_s": 0.1},
     {"cpu_s": 0.6, "cpu_wait_s": 6.0}, None, "starved"),
    ({"termination": Termination.TIMEOUT, "stdout": "", "duration_s": 10.0, "cpu_s": 0.1},
     {"cpu_s": 2.5, "cpu_wait_s": 60.0}, 0.0, "candidate_timeout"),
    ({"termination": Termination.INFRASTRUCTURE, "stdout": ""}, {}, None, "sandbox_lost"),
    ({"termination": Termination.EVICTED, "stdout": ""}, {}, None, "sandbox_lost"),
    ({}, {"out_of_memory_kills": 1}, 1.0, "all_matched"),
])  # fmt: skip
def test_blame(change: dict[str, Any], stats: dict[str, Any], score: float | None, cause: str) -> None:
    blank = dict.fromkeys(SandboxStats.__struct_fields__)
    record = read_record(Ended(**{"stdout": lines(*GOOD), **change}))
    judgement = judge(record, EXPECTED, LIMITS, SandboxStats(**{**blank, **stats}))
    assert (judgement.score, judgement.cause) == (score, cause)


@pytest.mark.parametrize(("kind", "value", "right", "wrong"), [
    (Kind.EQUAL, "7", 7, 8), (Kind.EQUAL, "1", True, None), (Kind.IDENTICAL, "true", True, 1),
    (Kind.IDENTICAL, "null", None, False), (Kind.MULTISET, '["l", [1, 2]]', ["t", [2, 1]], ["l", [1, 1]]),
    (Kind.SEQUENCE, '["l", [1, 2]]', ["t", [1, 2]], ["l", [2, 1]]), (Kind.CLOSE, '["f", "0x1p+0"]', 1, 2),
    (Kind.TRUTH, "null", True, 1),
    (Kind.RAISES, '["l", [["T", "builtins.LookupError"]]]', ["E", ["builtins.KeyError", "builtins.LookupError"], []],
     ["E", ["builtins.ValueError"], []]),
])  # fmt: skip
def test_kinds(kind: Kind, value: str, right: Any, wrong: Any) -> None:
    wanted = ExpectedValue(point="a:0", occurrence=0, kind=kind, value=value, tolerance=(0.1, 0.1))
    test = ExpectedTest(key="t::a", values=(wanted,))

    def said(actual: Any) -> TestOutcome:
        return TestOutcome(key="t::a", outcome="passed", emissions=(Emission(point="a:0", occurrence=0, value=actual),))

    assert differing(test, said(right)) == ()
    assert differing(test, said(wrong)) == (wanted,)
    assert differing(test, None) == (wanted,)


def test_a_value_without_a_vote_must_still_be_there() -> None:
    quiet = ExpectedValue(point="a:0", occurrence=0, kind=Kind.EQUAL, votes=False)
    expected = ExpectedRecord(tests=(ExpectedTest(key="t::a", values=(quiet,)),))

    def score(*said: Any) -> float | None:
        body = [["b", "t::a", ""], *said, ["e", "t::a", "passed", 0.1, ""]]
        return judge(read_record(Ended(lines(*body, ["z", 0, len(body)]))), expected, LIMITS).score

    assert score(["v", "a:0", 0, 1]) == 1.0
    assert score(["v", "a:0", 0, ["x"]]) == 1.0
    assert score() == 0.0
    assert score(["v", "a:0", 0, 1], ["v", "a:0", 1, 1]) == 0.0


@pytest.mark.parametrize("outcome", ["failed", "skipped", "xfailed", "xpassed", "error"])
def test_only_passed_is_passed(outcome: str) -> None:
    said = [[*GOOD[0]], GOOD[1], ["e", "t::a", outcome, 0.1, ""], *GOOD[3:]]
    assert judge(read_record(Ended(lines(*said))), EXPECTED, LIMITS).score == 0.0


def test_details_do_not_tell_what_was_expected() -> None:
    said = [GOOD[0], ["v", "a:0", 0, 8], *GOOD[2:]]
    judgement = judge(read_record(Ended(lines(*said))), EXPECTED, LIMITS)
    assert judgement.cause == "value_mismatch" and judgement.outcomes == {"t::a": False, "t::b": True}
    assert "7" not in judgement.detail and "8" not in judgement.detail


def test_tolerances() -> None:
    def emission(*parts: Any) -> Emission:
        return Emission(point="a:0", occurrence=0, value=1, expected=1, tolerance=parts)

    assert tolerance_of(emission(0, ["f", "0x1p-3"])) == (0.0, 0.125)
    for parts in ((), (0,), (0, "x"), (0, -1), (0, ["f", "inf"]), (0, ["f", "nan"]), (0, None), (0, ["i", "zz"])):
        assert tolerance_of(emission(*parts)) == ()


def bits(*values: Any, visible: frozenset[str] = frozenset()) -> float:
    return guess_bits(((Kind.EQUAL, value) for value in values), visible)


def test_bits_are_few_for_what_is_easily_guessed() -> None:
    assert bits(True, False, None) == 3.0
    assert guess_bits([(Kind.TRUTH, None)] * 50, frozenset()) == 1.0
    assert bits(1, 2, 3) < GUESS_BITS_MIN
    assert bits(["l", []], ["t", []], ["d", []]) == 1.0, "empty is empty"
    assert bits(7, ["f", float.hex(7.0)]) == 4.0, "7 is 7.0"
    assert bits(["l", [5, 5, 5, 5]]) == 5.0
    assert bits("a longer text", ["l", [17, 4711, "x"]]) > GUESS_BITS_MIN
    assert bits(["l", list(range(500))]) <= 40.0


def test_what_can_be_seen_is_no_secret() -> None:
    visible = outlines_in([
        "x = [101, 202]\ny = 'a secret text'\nz = range(4)",
        'def f():\n    """Doubles.\n\n    >>> f(3333)\n    6666\n    """',
        "not python at all (",
    ])  # fmt: skip
    assert bits(["t", [101, 202]], "a secret text", ["l", [0, 1, 2, 3]], 6666, visible=visible) == 0.0
    assert bits(["t", [101, 203]], visible=visible) > 0.0


def test_an_empty_record_is_not_complete() -> None:
    record = read_record(Ended(""))
    assert isinstance(record, SuiteRecord) and record.problem == "the record stops early"
