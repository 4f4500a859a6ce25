"""Where the mistake may be: lines that failing tests execute and passing ones do not.

Suspiciousness is Ochiai's coefficient, failing / sqrt(all failing × (failing + passing)) of the tests that execute a
line (Abreu, Zoeteweij, van Gemund, "On the accuracy of spectrum-based fault localization", TAIC PART 2007).
"""

from __future__ import annotations

import math
import posixpath
from collections import Counter
from collections.abc import Collection

from ropewalk.core.records import Record
from ropewalk.interface.task import Task
from ropewalk.rollout.policies.search.visible_tests import PytestAnswer


class Localisation(Record):
    """What one traced run of the visible tests told."""

    failing: tuple[str, ...]
    """Visible tests that fail at the start."""
    passing: tuple[str, ...]
    suspicion: dict[str, dict[int, float]]
    """Path relative to the workdir → line → suspiciousness in (0, 1]."""
    seconds: float
    """The tests' own time, with tracing."""


def localise(task: Task, answer: PytestAnswer, failing: Collection[str]) -> Localisation:
    """Suspicious lines out of a traced run; `failing` of its tests are the ones to mend."""
    failed: Counter[tuple[str, int]] = Counter()
    passed: Counter[tuple[str, int]] = Counter()
    for test, files in answer.lines.items():
        counter = failed if test in failing else passed
        for path, lines in files.items():
            counter.update((posixpath.relpath(path, task.workdir), line) for line in lines)
    suspicion: dict[str, dict[int, float]] = {}
    for (path, line), count in failed.items():
        score = count / math.sqrt(len(failing) * (count + passed[path, line]))
        suspicion.setdefault(path, {})[line] = min(score, 1.0)
    passing = [test for test, outcome in answer.outcomes.items() if outcome == "passed"]
    return Localisation(
        failing=tuple(test for test in task.visible_tests if test in failing),
        passing=tuple(test for test in task.visible_tests if test in passing),
        suspicion=suspicion,
        seconds=sum(answer.durations.values()),
    )
