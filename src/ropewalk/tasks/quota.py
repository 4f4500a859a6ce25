"""How many mutants a build may make beside its release tasks, known before they are made."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

import anyio
import msgspec

from ropewalk.interface.task import TaskKind
from ropewalk.tasks.records import BuildPlan, Reason, Rejection, SourceYield

UNBOUNDED: Final = sys.maxsize


def mutants_beside(releases: int, share_max: float) -> int:
    """Mutants that are at most their share of a catalogue with so many release tasks."""
    share = Fraction(share_max).limit_denominator(1000)
    return UNBOUNDED if share >= 1 else int(releases * share / (1 - share))


def within_quota(results: Sequence[SourceYield], share_max: float) -> list[SourceYield]:
    """Results whose mutants are at most their share of all tasks; those that are too many become rejections."""
    left = mutants_beside(sum(len(result.tasks) for result in results if result.kind is TaskKind.RELEASE), share_max)
    kept = []
    for result in results:
        if result.kind is TaskKind.MUTANT:
            over = tuple(
                Rejection(name=record.task.name, reason=Reason.QUOTA, detail=f"mutants are {share_max:.0%} at most")
                for record in result.tasks[left:]
            )
            result = msgspec.structs.replace(result, tasks=result.tasks[:left], rejections=(*result.rejections, *over))
            left -= len(result.tasks)
        kept.append(result)
    return kept


class Quota:
    """Places for release tasks, as many as the plan wants, and for mutants, as many as those may ever allow.

    Shared by all sources that are worked on at the same time. They get places in the plan's order, whichever is faster:
    one that comes later waits where those before it may need the last places, so that a plan always gives the same
    tasks. No mutant is made that could only be thrown away: before it is known how many units the pairs of releases
    have, each waits, unless release tasks that are there allow it.
    """

    def __init__(self, plan: BuildPlan) -> None:
        self._plan = plan
        self._unbounded = plan.control_only and not plan.pairs
        self._open: dict[int, int | None] = dict.fromkeys(range(len(plan.pairs)))
        """Units of each pair that may still become tasks; None: not known yet."""
        self._admitted = dict.fromkeys(self._open, 0)
        numbers = range(len(plan.pairs), len(plan.pairs) + len(plan.mutants))
        self._made = dict.fromkeys(numbers, 0)
        self._coming = {number: plan.mutants[number - len(plan.pairs)].count for number in numbers}
        """Mutants of each release that may still come."""
        self._told = anyio.Event()

    def is_spent(self, number: int) -> bool:
        """Whether the pairs before this one gave all release tasks that are wanted."""
        return self._before(self._admitted, number) >= self._plan.tasks_max

    def pair(self, number: int) -> PairPlaces:
        """The places of one pair, from the beginning."""
        self._admitted[number], self._open[number] = 0, None
        return PairPlaces(self, number)

    def mutants(self, number: int) -> MutantPlaces:
        """The places of one release's mutants, from the beginning."""
        self._made[number] = 0
        return MutantPlaces(self, number)

    def finish(self, number: int, tasks: int) -> None:
        """A source gives so many tasks, and no more."""
        if number in self._open:
            self._admitted[number], self._open[number] = tasks, 0
        else:
            self._made[number], self._coming[number] = tasks, 0
        self._tell()

    def _tell(self) -> None:
        self._told.set()
        self._told = anyio.Event()

    def _allowed(self, releases: int) -> int:
        return UNBOUNDED if self._unbounded else mutants_beside(releases, self._plan.mutant_share_max)

    def _before(self, counts: Mapping[int, int], number: int) -> int:
        return sum(count for earlier, count in counts.items() if earlier < number)

    def _most_before(self, number: int) -> int:
        """Release tasks that the pairs before this one may give at most."""
        known = {
            pair: self._plan.pairs[pair].tasks_max if units is None else units for pair, units in self._open.items()
        }
        return self._before(self._admitted, number) + self._before(known, number)


class PairPlaces:
    """Places for the tasks of one pair."""

    def __init__(self, quota: Quota, number: int) -> None:
        self._quota = quota
        self._number = number

    def expect(self, units: int) -> None:
        """So many may become tasks."""
        self._quota._open[self._number] = units
        self._quota._tell()

    async def take(self) -> bool:
        """Waits for a place for one that may come; False once no more can be wanted. `settle` follows a True."""
        quota, number = self._quota, self._number
        while True:
            own, wanted = quota._admitted[number], quota._plan.tasks_max
            if quota._before(quota._admitted, number) + own >= wanted:
                return False
            if quota._most_before(number) + own < wanted:
                return True
            await quota._told.wait()

    def settle(self, *, admitted: bool) -> None:
        """It came, or it did not."""
        quota = self._quota
        quota._open[self._number] = (quota._open[self._number] or 1) - 1
        quota._admitted[self._number] += admitted
        quota._tell()


class MutantPlaces:
    """Places for the mutants of one release."""

    def __init__(self, quota: Quota, number: int) -> None:
        self._quota = quota
        self._number = number

    async def take(self) -> bool:
        """Waits for a place for one that may come; False once no more can be wanted. `settle` follows a True."""
        quota, number = self._quota, self._number
        while True:
            sure = sum(quota._admitted.values())
            known = [units for units in quota._open.values() if units is not None]
            most = min(quota._plan.tasks_max, sure + sum(known))
            is_known = len(known) == len(quota._open)
            allowed = quota._allowed(most if is_known else sure)
            made = quota._before(quota._made, number) + quota._made[number]
            if allowed == UNBOUNDED or made + quota._before(quota._coming, number) < allowed:
                return True
            if is_known and made >= allowed:
                return False
            await quota._told.wait()

    def settle(self, *, admitted: bool) -> None:
        """It came, or it did not."""
        self._quota._made[self._number] += admitted
        self._quota._coming[self._number] = max(0, self._quota._coming[self._number] - admitted)
        self._quota._tell()
