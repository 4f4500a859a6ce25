"""The expected record: what every required test must report, in order. Never enters a sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ropewalk.core.records import Record
from ropewalk.reward.suite import Emission, TestOutcome
from ropewalk.reward.values.assertions import Kind
from ropewalk.reward.values.codec import Work, close, exception_names, is_lineage, number_of, same
from ropewalk.reward.values.multisets import same_multiset


class ExpectedValue(Record):
    """One value."""

    point: str
    occurrence: int
    kind: Kind
    value: str = "null"
    """Encoded, as JSON text; for RAISES a list of types, for TRUTH unused."""
    tolerance: tuple[float, ...] = ()
    """For CLOSE: relative and absolute."""
    votes: bool = True
    """False: it must be reported, and whatever it is will do (it changes from run to run)."""


class ExpectedTest(Record):
    """One required test."""

    key: str
    values: tuple[ExpectedValue, ...]


class ExpectedRecord(Record):
    """Stored as a blob (`GraderSpec.expected`)."""

    tests: tuple[ExpectedTest, ...]
    """In the order in which they run."""


def matches(expected: ExpectedValue, actual: Any, work: Work | None = None) -> bool:
    """Whether a reported value, which may be anything, is the expected one.

    Raises:
        TooMuchWorkError: `work` is used up.
    """
    if not expected.votes:
        return True
    wanted = json.loads(expected.value)
    match expected.kind:
        case Kind.TRUTH:
            return actual is True
        case Kind.IDENTICAL:
            return type(wanted) is type(actual) and bool(wanted == actual)
        case Kind.MULTISET:
            return same_multiset(wanted, actual, work)
        case Kind.SEQUENCE:
            return _same_sequence(wanted, actual, work)
        case Kind.CLOSE:
            return close(wanted, actual, relative=expected.tolerance[0], absolute=expected.tolerance[1], work=work)
        case Kind.RAISES:
            names = exception_names(actual)
            return is_lineage(names) and any(
                isinstance(kind, list) and kind[:1] == ["T"] and kind[1] in names for kind in wanted[1]
            )
    return same(wanted, actual, work)


def record_matches(expected: ExpectedTest, actual: TestOutcome, work: Work | None = None) -> bool:
    """The complete-record rule for one test: it passed, and reported every value, in order, and nothing else.

    Raises:
        TooMuchWorkError: `work` is used up.
    """
    return (
        actual.key == expected.key
        and actual.outcome == "passed"
        and len(actual.emissions) == len(expected.values)
        and all(map(_in_place, expected.values, actual.emissions))
        and all(
            matches(value, emission.value, work)
            for value, emission in zip(expected.values, actual.emissions, strict=True)
        )
    )


def differing(expected: ExpectedTest, actual: TestOutcome | None) -> tuple[ExpectedValue, ...]:
    """Voting values that a wrong source was asked for and reported otherwise.

    What it was never asked for may be right in it.
    """
    emissions: Sequence[Emission] = actual.emissions if actual else ()
    reported = {(emission.point, emission.occurrence): emission.value for emission in emissions}
    return tuple(
        value
        for value in expected.values
        if value.votes
        and (value.point, value.occurrence) in reported
        and not matches(value, reported[value.point, value.occurrence])
    )


def tolerance_of(emission: Emission) -> tuple[float, ...]:
    """The recorded tolerance as finite numbers; empty where it is not one.

    A comparison without a usable tolerance cannot vote.
    """
    try:
        numbers = [number_of(part) for part in emission.tolerance]
        values = tuple(float(number) for number in numbers if isinstance(number, (int, float)))
    except (ValueError, OverflowError):
        return ()
    usable = len(values) == 2 and len(numbers) == 2 and all(0 <= value < 1e300 for value in values)
    return values if usable else ()


def _in_place(expected: ExpectedValue, emission: Emission) -> bool:
    return (expected.point, expected.occurrence) == (emission.point, emission.occurrence)


def _same_sequence(wanted: Any, actual: Any, work: Work | None) -> bool:
    if not (isinstance(wanted, list) and isinstance(actual, list) and len(wanted) == len(actual) == 2):
        return same(wanted, actual, work)
    return wanted[0] in ("l", "t") and actual[0] in ("l", "t") and same(["l", wanted[1]], ["l", actual[1]], work)
