"""What diagnosis finds: typed, each with evidence and a next step."""

from __future__ import annotations

from enum import StrEnum

from ropewalk.core.records import Record


class FindingKind(StrEnum):
    """What is the matter."""

    NO_ADVANTAGE = "no_advantage"
    """All rewards of a group are equal: a group-relative trainer gets no gradient from it."""
    TOO_EASY = "too_easy"
    TOO_HARD = "too_hard"
    UNSCORED = "unscored"
    """Rewards that are None."""
    INFRASTRUCTURE = "infrastructure"
    """Attempts that our side failed, also where a later attempt made up for it."""
    JOURNAL_CHANGED = "journal_changed"
    """Episodes that were played again because the journal said of them what no run of ours wrote."""
    TRUNCATED = "truncated"
    NEVER_CHANGED = "never_changed"
    """Episodes that handed in no changed file."""
    OVERFITTED = "overfitted"
    """All visible tests pass, held-out ones fail."""
    CAUSE = "cause"
    """One cause stands behind most zeros."""
    HELD_OUT = "held_out"
    """How many of a task's held-out tests fail in most of its unpaid verdicts."""
    SLOW_STAGE = "slow_stage"
    """One stage takes most of the time."""
    ORACLE_FAILS = "oracle_fails"
    """The right answer is not paid: task or grader is broken."""
    NOOP_PAID = "noop_paid"
    """Doing nothing is paid: task or grader is broken."""
    GROUP_REFUSED = "group_refused"
    OPEN = "open"
    """The run was broken off, or goes on."""
    NOTHING_PAID = "nothing_paid"
    """No policy that is no control was paid, for what no other finding explains."""
    HEALTHY = "healthy"


class Severity(StrEnum):
    """How much it matters."""

    SERIOUS = "serious"
    """A task or grader is broken: its rewards teach the wrong thing."""
    WARNING = "warning"
    NOTE = "note"


class Finding(Record):
    """One observation about a run."""

    kind: FindingKind
    severity: Severity
    title: str
    """One sentence with its numbers."""
    next_step: str
    """What to do about it, as a command or a setting where there is one."""
    subjects: tuple[str, ...] = ()
    """Ids of the tasks, groups or episodes it speaks of; at most SUBJECTS_MAX."""
    numbers: dict[str, float] = {}


SUBJECTS_MAX = 1000
