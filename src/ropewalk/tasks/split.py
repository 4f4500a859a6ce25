"""Which killers a policy may see, and which judge it.

Tests that share a body go to one side together: whoever sees one of them knows the other. The choice is random by
seed, so that nobody picks the easy ones, and the same on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record, digest


class SplitRefused(CallerError):
    """No split can have a killer with a body of its own on either side."""


class Split(Record):
    """Two disjoint sides; together all killers. Both sorted."""

    visible: tuple[str, ...]
    held_out: tuple[str, ...]


def split_killers(
    killers: Iterable[str],
    bodies: Mapping[str, str],
    *,
    may_judge: Iterable[str],
    seed: int,
    allows: Callable[[Iterable[str], Iterable[str]], bool] = lambda visible, held_out: True,
) -> Split:
    """Splits killers so that about half of their bodies are held out, at least one on each side.

    Args:
        killers: test ids.
        bodies: test id → digest of its body; a test without one shares its body with nobody.
        may_judge: killers that a grader can use. A body none of whose tests is among them stays visible.
        seed: decides, together with the killers' names.
        allows: whether tests may be held out (second) where others are visible (first). A body stays visible where it,
            or one that is held out already, would no longer be allowed.

    Raises:
        SplitRefused: fewer than two bodies, or none that may judge, or none that is allowed to.
    """
    judges = set(may_judge)
    groups = group_by_body(killers, bodies)
    if len(groups) < 2:
        raise SplitRefused(f"{_count(groups)} of one body cannot be split.", next_step="use another unit of tests.")
    able = [group for group in groups if judges.intersection(group)]
    if not able:
        raise SplitRefused(f"None of {_count(groups)} can judge.", next_step="use another unit of tests.")
    source = random.Random(f"{seed}:{digest(groups)}")
    source.shuffle(able)
    wanted = max(1, min(len(able), len(groups) // 2))
    every = {test for group in groups for test in group}
    held_out: set[str] = set()
    taken = 0
    for group in able:
        more = held_out | set(group)
        if taken < wanted and allows(sorted(every - more), sorted(more)):
            held_out, taken = more, taken + 1
    if not held_out:
        raise SplitRefused(
            f"Each of {_count(groups)} asks for something of its own.", next_step="use another unit of tests."
        )
    return Split(visible=tuple(sorted(every - held_out)), held_out=tuple(sorted(held_out)))


def group_by_body(tests: Iterable[str], bodies: Mapping[str, str]) -> list[list[str]]:
    """Tests with equal bodies together; groups and tests sorted."""
    groups: dict[str, list[str]] = {}
    for test in sorted(set(tests)):
        groups.setdefault(bodies.get(test, f"only {test}"), []).append(test)
    return sorted(groups.values())


def _count(groups: Sequence[Sequence[str]]) -> str:
    number = sum(len(group) for group in groups)
    return f"{number} test{'' if number == 1 else 's'}"
