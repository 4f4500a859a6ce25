"""An episode's record without its words: what counts and sums need of it, so that a whole run's fit into memory."""

from __future__ import annotations

import msgspec

from ropewalk.core.outcomes import Termination
from ropewalk.interface.episode import EpisodeRecord


def outline(record: EpisodeRecord) -> EpisodeRecord:
    """The record; its steps without messages, calls and results, which may be megabytes."""
    steps = tuple(msgspec.structs.replace(step, messages=(), calls=(), results=()) for step in record.steps)
    return msgspec.structs.replace(record, steps=steps)


def visible_tests_passed(record: EpisodeRecord) -> bool:
    """Whether the episode ended with all visible tests passing, as far as its own steps tell."""
    changed = [step for step in record.steps if step.files_changed]
    if not changed or record.termination is not Termination.FINISHED:
        return False
    if record.policy.startswith("search"):
        return True  # it finishes only when they all pass
    after = [step for step in record.steps if step.index >= changed[-1].index]
    runs = [
        result
        for step in after
        for call, result in zip(step.calls, step.results, strict=False)
        if call.name == "shell" and "pytest" in str(call.arguments.get("command"))
    ]
    return bool(runs) and runs[-1].exit_code == 0
