"""What builders are asked for and what they hand back."""

from __future__ import annotations

from enum import StrEnum

from ropewalk.core.records import Record
from ropewalk.interface.task import Task, TaskKind


class ReleaseRef(Record):
    """One release in the lake."""

    distribution: str
    version: str
    raw: str
    """sha256 of its archive in the raw zone."""
    licence: str
    """SPDX expression."""
    commit: str
    """Digest of the lake commit that holds it."""
    data_class: str = "public"
    """Of the raw file; everything made from it has at least this class."""


class PairPlan(Record):
    """Adjacent releases: the older one's source, the newer one's tests."""

    before: ReleaseRef
    after: ReleaseRef
    modules: tuple[str, ...] = ()
    """Test modules to use, relative to the tree; empty: all."""
    tasks_max: int = 40

    @property
    def name(self) -> str:
        """For people: `toolz 0.11.2→0.12.0`."""
        return f"{self.after.distribution} {self.before.version}→{self.after.version}"

    @property
    def kind(self) -> TaskKind:
        """Of its tasks."""
        return TaskKind.RELEASE

    @property
    def distribution(self) -> str:
        """Whose releases they are."""
        return self.after.distribution


class MutantPlan(Record):
    """Mutants of one release."""

    release: ReleaseRef
    count: int
    modules: tuple[str, ...] = ()
    attempts_max: int = 40
    """Mutations tried."""

    @property
    def name(self) -> str:
        """For people: `toolz 1.1.0 mutants`."""
        return f"{self.release.distribution} {self.release.version} mutants"

    @property
    def kind(self) -> TaskKind:
        """Of its tasks."""
        return TaskKind.MUTANT

    @property
    def distribution(self) -> str:
        """Whose release it is."""
        return self.release.distribution


class BuildPlan(Record):
    """A catalogue to build."""

    pairs: tuple[PairPlan, ...]
    mutants: tuple[MutantPlan, ...] = ()
    tenant: str
    seed: int = 0
    tasks_max: int = 1000
    """Of release tasks."""
    mutant_share_max: float = 0.25
    """Of all tasks, unless the plan is a control only."""
    requirements: tuple[str, ...] = ()
    """Pinned wheels that every sandbox gets (`tasks.requirements`)."""
    plugins: tuple[str, ...] = ()
    """Pytest plugins by module name."""
    pytest_ini: dict[str, str] = {}
    """Settings of pytest (`tasks.pytest_settings`)."""
    control_only: bool = False
    """Mutants alone, since they were asked for by name or no source has two releases: no catalogue of real tasks, and
    reported as what it is. Everywhere else they are `mutant_share_max` at most."""


class Reason(StrEnum):
    """Why something did not become a task."""

    NO_KILLERS = "no_killers"
    """No test fails before and passes after."""
    HANGS = "hangs"
    """The older source hangs under too many tests."""
    NO_TESTS = "no_tests"
    BASELINE_FAILS = "baseline_fails"
    """No test of the newer release passes on it here: a missing requirement, another Python."""
    IMPORT_FAILS = "import_fails"
    """Test modules cannot be imported on the older source."""
    UNSTABLE = "unstable"
    """A killer did not fail and pass three times in a row."""
    ONE_BODY = "one_body"
    """All killers share one body, and the oracle made no further cases."""
    NOT_GRADABLE = "not_gradable"
    """No value that a killer compares can be judged outside."""
    LOW_ENTROPY = "low_entropy"
    """What could be judged can be guessed."""
    UNSPECIFIED = "unspecified"
    """Held-out tests ask for something that neither visible tests nor notes mention."""
    GRADER = "grader"
    """The grader was refused for another reason, named in the detail."""
    NOOP_PASSES = "noop_passes"
    ORACLE_FAILS = "oracle_fails"
    LEAK = "leak"
    SURVIVES = "survives"
    """A mutant that no selected test kills."""
    QUOTA = "quota"
    """Mutants would be more than their share."""
    UNREADABLE = "unreadable"
    """Something in the source is of a kind that cannot be worked with; the detail says what."""
    INFRASTRUCTURE = "infrastructure"
    """Our side failed; building again may work."""


class Rejection(Record):
    """One thing that did not become a task."""

    name: str
    reason: Reason
    detail: str = ""


class TaskRecord(Record):
    """An admitted task with what its admission showed."""

    task: Task
    unit: str
    level: str
    """How its killers belong together (`tasks.units`)."""
    held_out: tuple[str, ...]
    """Keys of the tests that judge. Trusted parts only."""
    killers_held_out: int
    points: int
    guess_bits: float
    fresh_cases: int = 0
    """Held-out cases that the oracle made."""
    verdicts: tuple[str, ...] = ()
    """Digests of the controls' verdicts: one no-op, then the oracle's."""
    scanned: tuple[str, ...] = ()
    """Digests of the layers that the leak scan went through."""
    started_s: float
    ended_s: float

    @property
    def id(self) -> str:
        """The task's."""
        return self.task.id


class SourceYield(Record):
    """What one pair, or one release's mutants, gave."""

    name: str
    kind: TaskKind
    distribution: str
    tests: int = 0
    """That pass on the newer release."""
    killers: int = 0
    units: int = 0
    tasks: tuple[TaskRecord, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    dropped: tuple[str, ...] = ()
    """Tests left out because they hang."""
    left_out: tuple[str, ...] = ()
    """What of the newer release's tests fails on its own source, in sentences (`tasks.baselines`)."""
    remarks: tuple[str, ...] = ()
    """What else whoever builds should know, in sentences."""
    seconds: float = 0.0


class YieldReport(Record):
    """What a build gave, and why not more."""

    sources: tuple[SourceYield, ...]
    seconds: float

    @property
    def control_only(self) -> bool:
        """Whether all that was admitted are mutants: a control without the real tasks that it belongs to."""
        return bool(self.tasks) and not self.count(TaskKind.RELEASE)

    @property
    def tasks(self) -> tuple[TaskRecord, ...]:
        """All admitted tasks, in the plan's order."""
        return tuple(record for source in self.sources for record in source.tasks)

    def count(self, kind: TaskKind) -> int:
        """Admitted tasks of one kind."""
        return sum(record.task.kind is kind for record in self.tasks)

    @property
    def reasons(self) -> dict[str, int]:
        """Rejections by reason."""
        found: dict[str, int] = {}
        for source in self.sources:
            for rejection in source.rejections:
                found[rejection.reason] = found.get(rejection.reason, 0) + 1
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    @property
    def distributions(self) -> dict[str, int]:
        """Admitted release tasks by distribution."""
        found: dict[str, int] = {}
        for record in self.tasks:
            if record.task.kind is TaskKind.RELEASE:
                name = record.task.origin.distribution
                found[name] = found.get(name, 0) + 1
        return dict(sorted(found.items()))


class BuildEvent(Record):
    """Progress, for whoever watches."""

    source: str
    """Name of the pair or release."""
    stage: str
    """`resolving` (requirements, before all else); `started`, `baseline`, `killers`, `units`, `task`, `rejected`,
    `left_out`, `remark`, `finished`, `resumed`; `fewer` of the whole build."""
    detail: str = ""
    done: int = 0
    """Sources finished so far, of `total`."""
    total: int = 0
    tasks: int = 0
    """Admitted so far."""
