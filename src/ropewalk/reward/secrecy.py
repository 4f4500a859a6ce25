"""What a forger must guess of a grader's values, out of what lies within reach of the code under test."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from ropewalk.reward.suite import SuiteRecord
from ropewalk.reward.values.entropy import GUESS_BITS_MIN, Telling, guess_bits, why_worth_little
from ropewalk.reward.values.expected import ExpectedValue
from ropewalk.reward.values.made import UNKNOWN_CALL, MadeIndex
from ropewalk.reward.values.notation import notation
from ropewalk.reward.values.visible import Visible, seen_among

_EXPLAINED: Final = 3
_SHOWN_CHARACTERS: Final = 40


class Asked(NamedTuple):
    """A value that tells the broken source from the reference."""

    key: str
    """The test that asks for it."""
    value: ExpectedValue
    call: int = UNKNOWN_CALL
    """Of the source, that it comes from."""


def weigh(values: Sequence[Asked], visible: Visible, computable: Collection[str]) -> tuple[float, str]:
    """Bits that a forger must guess, and, where they are too few, why.

    Args:
        values: Those that tell right from wrong.
        visible: What is no secret.
        computable: Points whose expected value the shipped test says how to compute; they count nothing.
    """
    bits = guess_bits([_telling(asked) for asked in values if asked.value.point not in computable], visible)
    if bits >= GUESS_BITS_MIN:
        return bits, ""
    told = f"{len(values)} telling values are worth {bits:.0f} bits of {GUESS_BITS_MIN:.0f}"
    if visible.unopened:
        unopened = ", ".join(sorted(visible.unopened)[:_EXPLAINED])
        return bits, f"{told}; within reach, and not to be looked into: {unopened}"
    return bits, "; ".join([told, *(_why_little(asked, visible, computable) for asked in values[:_EXPLAINED])])


def with_calls(values: list[Asked], record: SuiteRecord) -> list[Asked]:
    """The same values, each with the call that it came from while everything was looked at."""
    calls = {
        (test.key, emission.point, emission.occurrence): emission.call
        for test in record.tests
        for emission in test.emissions
    }
    return [
        asked._replace(call=calls.get((asked.key, asked.value.point, asked.value.occurrence), UNKNOWN_CALL))
        for asked in values
    ]


def within_reach(record: SuiteRecord) -> Visible:
    """What a trusted run found that looked around."""
    unopened = {*record.unopened} if record.complete else {*record.unopened, f"a run of which {record.problem}"}
    made = MadeIndex(record.made.values, record.made.calls, record.made.rows)
    return seen_among(record.seen) | Visible(made=made, unopened=frozenset(unopened))


def _why_little(asked: Asked, visible: Visible, computable: Collection[str]) -> str:
    value = asked.value
    why = "the test itself says how it is computed"
    if value.point not in computable:
        why = why_worth_little(_telling(asked), visible)
    shown = notation(json.loads(value.value))
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[: _SHOWN_CHARACTERS - 1]}…"
    return f"{shown} at {value.point.partition('.')[2]}: {why}"


def _telling(asked: Asked) -> Telling:
    value = asked.value
    return Telling(value.kind, json.loads(value.value), value.tolerance, asked.call)
