"""Runs visible tests in a fork and reads what came back."""

from __future__ import annotations

import functools
import json
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record
from ropewalk.interface.task import Task
from ropewalk.reward.values import quick
from ropewalk.rollout.episodes.context import SearchFork
from ropewalk.rollout.policies.search.inside import MARK

FOLDER = "/tmp/.ropewalk-search"
_ENV = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}


class PytestAnswer(Record):
    """What `inside.py` says. Hearsay: it comes from where candidate code ran."""

    exit_code: int
    outcomes: dict[str, str]
    durations: dict[str, float]
    lines: dict[str, dict[str, list[int]]]
    stopped: str | None
    problems: list[str]


class TestRun(Record):
    """One run of visible tests."""

    __test__ = False

    answer: PytestAnswer | None
    """None: it timed out, crashed or said nothing readable."""
    termination: Termination
    duration_s: float

    def failing(self, tests: Sequence[str]) -> set[str]:
        """Those of `tests` that did not pass, for whatever reason."""
        outcomes = self.answer.outcomes if self.answer else {}
        return {test for test in tests if outcomes.get(test) != "passed"}


async def run_tests(
    fork: SearchFork,
    task: Task,
    *,
    first: Sequence[str],
    rest: Sequence[str],
    failing_max: int | None = None,
    trace: Sequence[str] = (),
    timeout_s: float,
    files: Mapping[str, bytes] | None = None,
) -> TestRun:
    """Writes `files`, runs the tests in one command, and returns what they did.

    Args:
        first: Run before the others; unless at most `failing_max` of them fail, the others do not run.
        rest: Stops at the first failure, where `failing_max` is given.
        trace: Files, relative to the workdir, whose executed lines are wanted. Slow.
        files: Content by path relative to the workdir.

    Raises:
        CallerError: the task's test command is not pytest.
        SandboxGoneError: the fork died.
    """
    interpreter, arguments = pytest_command(task)
    request = {
        "arguments": [*arguments, "--rootdir", task.workdir, "-q", "--tb=no", "--assert=plain"],
        "first": list(first),
        "rest": list(rest),
        "failing_max": failing_max,
        "trace": [posixpath.join(task.workdir, path) for path in trace],
    }
    await fork.write(
        {
            **(files or {}),
            f"{FOLDER}/request.json": json.dumps(request).encode(),
            **_programs(),
        }
    )
    command = [*interpreter, f"{FOLDER}/inside.py", f"{FOLDER}/request.json"]
    result = await fork.exec(command, env=_ENV, timeout_s=timeout_s)
    return TestRun(answer=_read(result.stdout), termination=result.termination, duration_s=result.duration_s)


def pytest_command(task: Task) -> tuple[list[str], list[str]]:
    """The interpreter with its options, and pytest's arguments.

    Raises:
        CallerError: another runner than pytest.
    """
    command = list(task.test_command)
    for index in range(len(command) - 1):
        if command[index : index + 2] == ["-m", "pytest"]:
            return command[:index], command[index + 2 :]
    if command and posixpath.basename(command[0]) in ("pytest", "py.test"):
        return ["python3"], command[1:]
    raise CallerError(
        f"{task.name}: a search needs pytest; this task's tests run by {command[:3]}.",
        next_step="choose another policy for it.",
    )


@functools.cache
def _programs() -> dict[str, bytes]:
    files = (Path(__file__).with_name("inside.py"), Path(quick.__file__))
    return {f"{FOLDER}/{path.name}": path.read_bytes() for path in files}


def _read(output: str) -> PytestAnswer | None:
    _, mark, rest = output.rpartition(MARK)
    if not mark or len(rest) > limits.OUTPUT_BYTES_MAX:
        return None
    try:
        plain: Any = json.loads(rest.splitlines()[0])
        return msgspec.convert(plain, PytestAnswer)
    except (ValueError, msgspec.ValidationError, RecursionError, IndexError):
        return None
