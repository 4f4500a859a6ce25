"""The record that a probe sends, what is expected of it, and how it is judged."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.outcomes import Termination
from ropewalk.reward import judge as judging
from ropewalk.reward.judge import judge
from ropewalk.reward.spec import GraderLimits
from ropewalk.reward.suite import Emission, SuiteRecord, TestOutcome, read_record
from ropewalk.reward.values.assertions import Kind
from ropewalk.reward.values.codec import Work
from ropewalk.reward.values.encode import encode
from ropewalk.reward.values.entropy import GUESS_BITS_MIN, Telling, guess_bits
from ropewalk.reward.values.expected import (
    ExpectedRecord,
    ExpectedTest,
    ExpectedValue,
    differing,
    matches,
    tolerance_of,
)
from ropewalk.reward.values.literals import seen_in
from ropewalk.reward.values.visible import Visible, seen_among
from ropewalk.sandbox.contract import SandboxStats

LIMITS = GraderLimits(cpu_s=2.0, wall_s=10.0)
NOTHING = Visible()


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
    ({}, {"machine_kills": 1}, 1.0, "all_matched"),
    ({"exit_code": None, "signal": 9, "stdout": ""}, {"machine_kills": 1}, None, "sandbox_lost"),
    ({"exit_code": None, "signal": 9, "stdout": ""}, {"machine_kills": 1, "out_of_memory_kills": 1},
     0.0, "candidate_out_of_memory"),
    ({"termination": Termination.INFRASTRUCTURE, "stdout": ""}, {"machine_kills": 1}, None, "sandbox_lost"),
])  # fmt: skip
def test_blame(change: dict[str, Any], stats: dict[str, Any], score: float | None, cause: str) -> None:
    blank = dict.fromkeys(SandboxStats.__struct_fields__)
    record = read_record(Ended(**{"stdout": lines(*GOOD), **change}))
    judgement = judge(record, EXPECTED, LIMITS, SandboxStats(**{**blank, **stats}))
    assert (judgement.score, judgement.cause) == (score, cause)


def test_who_makes_comparing_long_earns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "Work", lambda: Work(10))
    assert judge(read_record(Ended(lines(*GOOD))), EXPECTED, LIMITS).score == 1.0
    long = [*GOOD[:1], ["v", "a:0", 0, ["D", "7." + "0" * 1_000]], *GOOD[2:]]
    judgement = judge(read_record(Ended(lines(*long))), EXPECTED, LIMITS)
    assert (judgement.score, judgement.cause) == (0.0, "too_much_to_compare")
    assert not any(judgement.outcomes.values())


@pytest.mark.parametrize(("kind", "value", "right", "wrong"), [
    (Kind.EQUAL, "7", 7, 8), (Kind.EQUAL, "1", True, None), (Kind.IDENTICAL, "true", True, 1),
    (Kind.IDENTICAL, "null", None, False), (Kind.MULTISET, '["l", [1, 2]]', ["t", [2, 1]], ["l", [1, 1]]),
    (Kind.SEQUENCE, '["l", [1, 2]]', ["t", [1, 2]], ["l", [2, 1]]), (Kind.CLOSE, '["f", "0x1p+0"]', 1, 2),
    (Kind.TRUTH, "null", True, 1),
    (Kind.RAISES, '["l", [["T", "builtins.LookupError"]]]', 
     ["E", ["builtins.KeyError", "builtins.LookupError", "builtins.Exception", "builtins.BaseException"], []],
     ["E", ["builtins.ValueError"], []]),
])  # fmt: skip
def test_kinds(kind: Kind, value: str, right: Any, wrong: Any) -> None:
    wanted = ExpectedValue(point="a:0", occurrence=0, kind=kind, value=value, tolerance=(0.1, 0.1))
    test = ExpectedTest(key="t::a", values=(wanted,))

    def said(actual: Any) -> TestOutcome:
        return TestOutcome(key="t::a", outcome="passed", emissions=(Emission(point="a:0", occurrence=0, value=actual),))

    assert differing(test, said(right)) == ()
    assert differing(test, said(wrong)) == (wanted,)
    assert differing(test, None) == (), "what was never asked for may be right"


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


def bits(*values: Any, visible: Visible = NOTHING) -> float:
    return guess_bits((Telling(Kind.EQUAL, value) for value in values), visible)


def test_bits_are_few_for_what_is_easily_guessed() -> None:
    assert bits(True, False, None) == 3.0
    assert guess_bits([Telling(Kind.TRUTH, None)] * 50, NOTHING) == 1.0
    assert bits(1, 2, 3) < GUESS_BITS_MIN
    assert bits(["l", []], ["t", []], ["d", []]) == 1.0, "empty is empty"
    assert bits(7, ["f", float.hex(7.0)]) == 4.0, "7 is 7.0"
    assert bits(["l", [5, 5, 5, 5]]) == 5.0
    assert bits("a longer text", ["l", [17, 4711, "x"]]) > GUESS_BITS_MIN
    assert bits(["l", list(range(500))]) <= 40.0


def test_what_can_be_seen_is_no_secret() -> None:
    visible = seen_in([
        "x = [101, 202]\ny = 'a secret text'\nz = range(4)",
        'def f():\n    """Doubles.\n\n    >>> f(3333)\n    6666\n    """',
        "not python at all (",
    ])  # fmt: skip
    assert bits(["t", [101, 202]], "a secret text", ["l", [0, 1, 2, 3]], 6666, visible=visible) == 0.0
    assert bits(["t", [101, 203]], visible=visible) > 0.0


SEEN = seen_among([encode(value) for value in (
    [31, 4159, 2653], {"alpha": 5897, "beta": 9323}, "Of the shore", datetime.date(2024, 5, 6), (81, 82, 83, 84), 0.5,
)])  # fmt: skip


@pytest.mark.parametrize("value", [
    [31, 4159, 2653], (31, 4159, 2653), [2653, 4159, 31], [31, 2653, 4159], [4159, 2653, 31], [4159, 2653], [31, 4159],
    4159, -4159, 4160, "4159", 31 + 4159 + 2653, {5897: "alpha", 9323: "beta"}, ["alpha", "beta"], [5897, 9323],
    [("alpha", 5897), ("beta", 9323)], "Of the shore", "OF THE SHORE", "erohs eht fO", ["Of", "the", "shore"],
    "alpha,beta", "alphabeta", len("Of the shore"), datetime.date(2024, 5, 6), {31, 4159, 2653}, 81 + 82 + 83 + 84,
    [-31, -4159, -2653], "the shore", [82, 83], "0.5",
], ids=lambda value: repr(sorted(value) if isinstance(value, set) else value))  # fmt: skip
def test_what_is_a_step_away_is_worth_little(value: Any) -> None:
    assert bits(encode(value), visible=SEEN) <= 4.0


def test_many_steps_may_be_one_rule() -> None:
    """Whoever finds that the answer is the last item needs no second guess."""
    lists = [[number, number * 7919] for number in range(100, 160)]
    visible = seen_among(map(encode, lists))
    assert bits(*(encode(items[-1]) for items in lists), visible=visible) < GUESS_BITS_MIN
    assert bits(*(encode(sum(items)) for items in lists), visible=visible) < GUESS_BITS_MIN
    assert bits(*(encode(items[::-1]) for items in lists), visible=visible) < GUESS_BITS_MIN


def test_many_arrangements_may_be_one_rule() -> None:
    pool = [encode(list(range(100 * number, 100 * number + 20))) for number in range(20)]
    turned = [["l", [["t", [item, item, None]] for item in items[1][::3]]] for items in pool]
    assert bits(turned[0], visible=seen_among(pool)) <= 4.0
    assert bits(*turned, visible=seen_among(pool)) <= 12.0


def test_what_is_put_together_is_worth_its_pieces() -> None:
    long = [encode(list(range(1000 + 100 * number, 1030 + 100 * number))) for number in range(3)]
    joined = ["l", [*long[0][1], *long[2][1]]]
    assert bits(joined, visible=seen_among(long)) < GUESS_BITS_MIN
    assert bits(joined) > GUESS_BITS_MIN
    mixed = ["l", [item for pair in zip(long[0][1], long[2][1][::-1], strict=True) for item in pair]]
    assert bits(mixed, visible=seen_among(long)) <= 4.0, "all of it can be seen but its order"
    assert bits(["l", [*mixed[1][:20], 47111, 98765]], visible=seen_among(long)) > GUESS_BITS_MIN
    assert bits("the shoreof the", visible=SEEN) < GUESS_BITS_MIN
    assert bits("something else", visible=SEEN) > GUESS_BITS_MIN


def close_bits(value: Any, *tolerance: float, visible: Visible = NOTHING) -> float:
    return guess_bits([Telling(Kind.CLOSE, encode(value), tolerance)], visible)


def test_room_for_error_is_room_for_guesses() -> None:
    assert close_bits(0.51, 0.0, 0.4) == 0.0
    assert close_bits(0.0, 0.0, 1.0) <= 1.0 and close_bits(1e-9, 0.0, 1e-7) <= 1.0
    assert close_bits(733.27, 0.0, 100.0) < 3.0
    assert close_bits(733.27, 0.5, 0.0) == 0.0
    assert 7.0 < close_bits(733.27, 1e-6, 0.0) <= 8.0
    assert close_bits([733.27, 0.123, 6.6], 1e-6, 0.0) > GUESS_BITS_MIN
    assert close_bits([733.27, 0.123, 6.6], 1.0, 5.0) == 0.0
    assert close_bits(733.27, 0.0, 1.0, visible=seen_among([733])) == 0.0, "near what can be seen"
    assert close_bits(733.27, 0.0, 0.1, visible=seen_among([733])) > 0.0
    assert close_bits(2.0, 0.0, 0.5, visible=seen_among([encode([1.0, 3.0])])) == 0.0, "a mean"


@given(st.floats(-1e9, 1e9), st.floats(1e-12, 1e9))
def test_more_room_is_never_worth_more(value: float, margin: float) -> None:
    assert close_bits(value, 0.0, margin * 2) <= close_bits(value, 0.0, margin) <= bits(encode(value))


def test_exceptions_are_worth_one_bit_together() -> None:
    kinds = [["l", [["T", f"builtins.{name}"]]] for name in ("KeyError", "TypeError", "OSError", "ValueError")]
    assert guess_bits([Telling(Kind.RAISES, kind) for kind in kinds], NOTHING) == 1.0


@pytest.mark.parametrize(("names", "fits"), [
    (["builtins.KeyError", "builtins.LookupError", "builtins.Exception", "builtins.BaseException"], True),
    (["p.E", "builtins.KeyError", "builtins.LookupError", "builtins.Exception", "builtins.BaseException"], True),
    (["builtins.KeyError", "builtins.Exception", "builtins.BaseException"], False),
    (["builtins.ValueError", "builtins.KeyError", "builtins.LookupError"], False),
    (["builtins.KeyError"] * 2, False), ([f"p.E{number}" for number in range(100)], False),
])  # fmt: skip
def test_an_exception_needs_a_possible_lineage(names: list[str], *, fits: bool) -> None:
    kind = ["l", [["T", name] for name in names]]
    wanted = ExpectedValue(point="a:0", occurrence=0, kind=Kind.RAISES, value=json.dumps(kind))
    assert matches(wanted, ["E", names, []]) == fits


def test_data_files_are_read_as_they_are() -> None:
    visible = seen_in(['{"answer": [4711, "x y z"], "other": 0.125}', "name = 8150\nlonger words here\n"])
    assert bits(4711, encode([4711, "x y z"]), encode(0.125), 8150, visible=visible) <= 6.0


def test_an_empty_record_is_not_complete() -> None:
    record = read_record(Ended(""))
    assert isinstance(record, SuiteRecord) and record.problem == "the record stops early"
