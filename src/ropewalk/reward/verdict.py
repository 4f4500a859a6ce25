"""What a grader says, and what a trainer gets from it."""

from __future__ import annotations

from enum import StrEnum

from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record


class VerdictStatus(StrEnum):
    """Only `scored` has a score. Trouble that the candidate caused is scored, with 0."""

    SCORED = "scored"
    TASK_INVALID = "task_invalid"
    """The task or its grader is broken; no candidate is to blame."""
    INFRA_ERROR = "infra_error"
    """The trusted side failed, provably, also after a retry."""


class Verdict(Record):
    """The judge's outcome with its evidence."""

    episode: str
    task: str
    grader: str
    """Digest of the grader's spec."""
    bundle: str | None
    """Digest of what was judged."""
    status: VerdictStatus
    score: float | None
    """In [0, 1]; None unless scored."""
    cause: str
    """Typed, stable, short: `all_matched`, `value_mismatch`, `incomplete_record`, `candidate_timeout`,
    `candidate_out_of_memory`, `bundle_refused`, `no_bundle`, `no_change`, `sandbox_lost`, `starved`,
    `too_much_to_compare` …"""
    detail: str = ""
    """For people, without any expected value."""
    outcomes: dict[str, bool] = {}
    """Held-out test → whether it counts as passed."""
    level: str = "H3"
    """Hardening reached: H3, the verdict is computed where candidate code never ran."""
    nonce: str
    """Of this grading; 128 random bits in hexadecimal."""
    termination: Termination = Termination.FINISHED
    """How the candidate's process in the grading sandbox ended."""
    limits: dict[str, float] = {}
    usage: dict[str, float] = {}
    """`duration_s`, `cpu_s`, `memory_bytes_peak`, `attempts`."""


class Reward(Record):
    """The scalar a trainer gets. None is unscored, never 0.0."""

    id: str
    """`reward:` and a ULID."""
    episode: str
    task: str
    run: str
    policy: str
    value: float | None
    cause: str
    verdict: str
    """Digest of the verdict."""
    termination: Termination
    """Of the episode; trainers mask by it."""
    truncated: bool
