"""From what came back of a grading to its outcome, and to who is to blame. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from ropewalk.core.outcomes import Termination
from ropewalk.reward.spec import GraderLimits
from ropewalk.reward.suite import SuiteRecord
from ropewalk.reward.values.codec import TooMuchWorkError, Work
from ropewalk.reward.values.expected import ExpectedRecord, record_matches
from ropewalk.sandbox.contract import SandboxStats


@dataclass(frozen=True)
class Judgement:
    """What one attempt says."""

    score: float | None
    """None: the machine is to blame, not the candidate."""
    cause: str
    detail: str = ""
    outcomes: dict[str, bool] = field(default_factory=dict)
    termination: Termination = Termination.FINISHED


def judge(
    record: SuiteRecord, expected: ExpectedRecord, limits: GraderLimits, stats: SandboxStats | None = None
) -> Judgement:
    """Scores a record, or finds the machine at fault.

    Score 1 needs a positive record: the process ended by itself with code 0, every required test ran, in order, and
    handed out every value, in order, and each that votes is the expected one. Everything else that the candidate can
    bring about is 0. `stats` covers the whole sandbox.
    """
    try:
        outcomes = _outcomes(record, expected)
    except TooMuchWorkError as error:
        return Judgement(0.0, "too_much_to_compare", str(error), _none(expected))
    ended_well = record.termination is Termination.FINISHED and record.exit_code == 0 and record.signal is None
    if record.complete and ended_well and not record.problem and all(outcomes.values()):
        if len(record.tests) == len(expected.tests):
            return Judgement(1.0, "all_matched", "", outcomes)
        return Judgement(0.0, "incomplete_record", "a test ran that was not asked for", _none(expected))
    if record.termination is Termination.OUT_OF_MEMORY or (
        not record.complete and stats is not None and (stats.out_of_memory_kills or 0) > 0
    ):
        return Judgement(0.0, "candidate_out_of_memory", "", outcomes, Termination.OUT_OF_MEMORY)
    if record.termination.ours:
        return Judgement(None, "sandbox_lost", "the sandbox was taken away", {}, record.termination)
    if not record.complete and stats is not None and (stats.machine_kills or 0) > 0:
        return Judgement(None, "sandbox_lost", "the machine ran out of memory", {}, Termination.INFRASTRUCTURE)
    if record.signal == signal.SIGXCPU:
        return Judgement(0.0, "candidate_timeout", "used up its CPU time", outcomes, Termination.TIMEOUT)
    if record.termination is Termination.TIMEOUT:
        return _timed_out(record, limits, stats, outcomes)
    if record.truncated:
        return Judgement(0.0, "candidate_output", "more output than allowed", outcomes, record.termination)
    if not record.complete or len(outcomes) != len(record.tests):
        return Judgement(0.0, "incomplete_record", record.problem, outcomes, record.termination)
    wrong = [key for key, matched in outcomes.items() if not matched]
    if not wrong:
        return Judgement(0.0, "incomplete_record", "the process did not end well", _none(expected), record.termination)
    return Judgement(0.0, "value_mismatch", f"{len(wrong)} of {len(outcomes)} tests", outcomes, record.termination)


def _outcomes(record: SuiteRecord, expected: ExpectedRecord) -> dict[str, bool]:
    ran, work = dict(enumerate(record.tests)), Work()
    return {
        test.key: index in ran and record_matches(test, ran[index], work) for index, test in enumerate(expected.tests)
    }


def _none(expected: ExpectedRecord) -> dict[str, bool]:
    return dict.fromkeys((test.key for test in expected.tests), False)


def _timed_out(
    record: SuiteRecord, limits: GraderLimits, stats: SandboxStats | None, outcomes: dict[str, bool]
) -> Judgement:
    """CPU time tells a candidate that burns or sleeps from a machine that did not let it run. Without `stats` (its
    agent kept no time limit, and so its sandbox had to be ended) how long it waited is not known."""
    used_s = max(record.cpu_s, (stats.cpu_s or 0.0) if stats else 0.0)
    waited_s = (stats.cpu_wait_s or 0.0) if stats else 0.0
    if used_s >= limits.cpu_s:
        return Judgement(0.0, "candidate_timeout", "used up its CPU time", outcomes, Termination.TIMEOUT)
    if stats is None or used_s + waited_s >= record.duration_s / 2:
        detail = f"{used_s:.1f} s of CPU and {waited_s:.1f} s of waiting for it in {record.duration_s:.1f} s"
        return Judgement(None, "starved", detail, {}, Termination.INFRASTRUCTURE)
    return Judgement(0.0, "candidate_timeout", "slept or waited", outcomes, Termination.TIMEOUT)
