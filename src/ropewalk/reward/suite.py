"""Runs tests in a sandbox and brings back, test by test, what happened."""

from __future__ import annotations

from typing import Any

from ropewalk.core import limits
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record
from ropewalk.reward.box import Box


class SuitePlan(Record):
    """Which tests to run, and how."""

    workdir: str = "/work"
    """Absolute; pytest's root directory."""
    files: tuple[str, ...]
    """Test files or folders to collect, relative to `workdir`."""
    tests: tuple[str, ...] = ()
    """Node ids or keys to run, in collection order; empty: all that are collected."""
    import_paths: tuple[str, ...] = (".",)
    """Folders, relative to `workdir`, searched after the standard library and before site-packages."""
    plugins: tuple[str, ...] = ()
    """Pytest plugins by module name; none loads by itself."""
    ini: dict[str, str] = {}
    """Pytest options (`python_files`, …). The project's own configuration files are not read."""
    timeout_s: float = 60.0
    """Wall time."""
    cpu_s: float = 60.0
    """CPU time of the process that runs the tests."""
    output_bytes_max: int = 8 * limits.MIB
    hash_seed: int = 0
    reach: tuple[str, ...] = ()
    """Folders, relative to `workdir`: note which of their functions each test calls. Slow; empty: off."""
    collect_only: bool = False
    node_ids: bool = True
    """Report node ids and failure texts. Off when grading: a parametrised id can spell out an expected value."""


class Emission(Record):
    """One value handed out by a test."""

    point: str
    """The assertion: `TestA.test_b:3`."""
    occurrence: int
    """How many times this test came by this point, from 0."""
    value: Any
    """Encoded (`ropewalk.reward.values.codec`)."""
    expected: Any = None
    """Encoded expected side; recording runs only."""


class TestOutcome(Record):
    """One test."""

    __test__ = False

    key: str
    """Node id without parameters, and `#n` where the test has parameters: the n-th of them in collection order."""
    node_id: str = ""
    outcome: str
    """`passed`, `failed`, `skipped`, `xfailed`, `xpassed`, `error`; `started` if it never ended, `collected`."""
    seconds: float = 0.0
    emissions: tuple[Emission, ...] = ()
    reached: tuple[str, ...] = ()
    """`path:line:qualified name` of functions called, with the first line of each (decorators included)."""
    message: str = ""
    """Why it failed, one line."""


class SuiteRecord(Record):
    """What came back from one run."""

    tests: tuple[TestOutcome, ...]
    complete: bool
    """The end record came, once and last, and every line before it was well formed."""
    problem: str = ""
    """Why it is not complete, or what pytest could not collect."""
    exit_code: int | None
    signal: int | None
    termination: Termination
    truncated: bool
    """More output than the plan allows."""
    duration_s: float
    cpu_s: float

    @property
    def passed(self) -> tuple[str, ...]:
        """Node ids (keys where there are none) of tests that passed."""
        return tuple(test.node_id or test.key for test in self.tests if test.outcome == "passed")


class SuiteRunner:
    """Runs suites with the trusted probe; holds no state of its own."""

    async def run(self, box: Box, plan: SuitePlan) -> SuiteRecord:
        """Puts the probe into the sandbox and runs the tests.

        Whatever the code inside does is in the record, also that it died, hung or lied.

        Raises:
            SandboxGoneError: the sandbox died.
        """
        raise NotImplementedError
