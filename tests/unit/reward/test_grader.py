"""The grader over sandboxes that fail as told: who is blamed, what is tried again, what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.reward.test_records import EXPECTED, GOOD, Ended, lines

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import canonical_bytes
from ropewalk.interface.task import FileSet, Task, TaskKind, TaskOrigin
from ropewalk.reward.build import GraderDraft, build_values_grader
from ropewalk.reward.bundle import Bundle
from ropewalk.reward.grader import Grader
from ropewalk.reward.spec import GraderLimits, GraderSpec
from ropewalk.reward.verdict import VerdictStatus
from ropewalk.sandbox.contract import Held, SandboxGoneError, SandboxSpec, SandboxStats
from ropewalk.sandbox.files import FileError
from ropewalk.store.blobs import open_blobs
from ropewalk.store.contract import Blobs

RIGHT = lines(*GOOD)
WRONG = lines(GOOD[0], ["v", "a:0", 0, 8], *GOOD[2:])
HUNG = Ended("", termination=Termination.TIMEOUT, exit_code=None, duration_s=10.0, cpu_s=0.2)
STARVING = {"cpu_s": 0.2, "cpu_wait_s": 7.0}


class FakeSandbox:
    def __init__(self, ending: Any, stats: Mapping[str, Any] | SandboxGoneError) -> None:
        self.ending, self._stats = ending, stats
        self.files: dict[str, bytes] = {}
        self.stdin: dict[str, Any] = {}
        self.closed = False

    async def exec(self, command: Any, *, stdin: bytes = b"", **_: Any) -> Any:
        self.stdin = json.loads(stdin)
        if isinstance(self.ending, Exception):
            raise self.ending
        return self.ending

    async def write_many(self, files: Mapping[str, bytes]) -> None:
        if isinstance(self.ending, FileError | IntegrityError):
            raise self.ending
        if isinstance(self.ending, Early):
            raise self.ending.error
        self.files |= files

    async def remove(self, path: str) -> None:
        self.files.pop(path, None)

    async def read_many(self, paths: Sequence[str], **_: Any) -> dict[str, bytes]:
        return {path: self.files[path] for path in paths}

    async def list(self, path: str, **_: Any) -> Sequence[Any]:
        return ()

    async def stats(self) -> SandboxStats:
        if isinstance(self._stats, SandboxGoneError):
            raise self._stats
        return SandboxStats(**{**BLANK, **self._stats})

    async def close(self) -> None:
        self.closed = True


class FakeSandboxes:
    """Each sandbox ends as the next one on the list."""

    def __init__(self, *endings: Any) -> None:
        self.endings = list(endings)
        self.made: list[FakeSandbox] = []
        self.specs: list[SandboxSpec] = []

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        self.specs.append(spec)
        ending = self.endings.pop(0)
        ending, stats = ending if isinstance(ending, tuple) else (ending, {})
        if isinstance(ending, UnavailableError) and not isinstance(ending, SandboxGoneError):
            raise ending
        self.made.append(FakeSandbox(ending, stats))
        return self.made[-1]


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return open_blobs(tmp_path / "blobs")


@pytest.fixture
def task(blobs: Blobs) -> Task:
    def put(files: dict[str, str]) -> str:
        stored = {path: blobs.put(text.encode()) for path, text in files.items()}
        return blobs.put(canonical_bytes(FileSet(files=stored)))

    spec = GraderSpec(
        name="g", version="1.0.0", image="0" * 64, layers=(), workdir="/work", editable=("src/**/*.py",),
        hidden=put({"tests/t.py": "shipped"}), probe=put({"probe.py": "probe"}),
        expected=blobs.put(canonical_bytes(EXPECTED)), tests=("t::a", "t::b"), guess_bits=20.0,
        limits=GraderLimits(cpu_s=2.0, wall_s=10.0),
    )  # fmt: skip
    return Task(
        name="t", kind=TaskKind.MUTANT, prompt="", image="0" * 64, layers=(), workdir="/work", visible_tests=(),
        visible_killers=(), test_command=(), editable=("src/**/*.py",), source=put({"src/a.py": "before"}),
        grader=blobs.put(canonical_bytes(spec)), oracle=put({"src/a.py": "after"}),
        origin=TaskOrigin(
            commit="c", distribution="d", version_before="1", version_after="2", raw=(), licence="MIT"
        ),
    )  # fmt: skip


def bundle_of(task: Task, blobs: Blobs, **files: str) -> Bundle:
    return Bundle(
        task=task.id,
        base=task.source,
        files={name.replace("__", "/") + ".py": blobs.put(text.encode()) for name, text in files.items()},
    )


BLANK = dict.fromkeys(SandboxStats.__struct_fields__)


def gone(termination: Termination = Termination.INFRASTRUCTURE, **silence: Any) -> SandboxGoneError:
    """`silence`: its agent did not answer, and so stood the sandbox."""
    stats = SandboxStats(**{**BLANK, **silence}) if silence else None
    return SandboxGoneError("It is gone.", termination=termination, silence=stats)


@dataclass
class Early:
    """An end of the sandbox before any code of the candidate runs."""

    error: SandboxGoneError


TIRED = gone(Termination.TIMEOUT, cpu_s=0.5)
MUTE = gone(cpu_s=0.0)
FROZEN = gone(cpu_s=0.0, held=Held.STOPPED)
STRAINED = Ended(WRONG, duration_s=19.0, cpu_s=0.5)


@pytest.mark.parametrize(("endings", "score", "cause", "attempts"), [
    ([Ended(RIGHT)], 1.0, "all_matched", 1),
    ([Ended(WRONG)], 0.0, "value_mismatch", 1),
    ([gone(), Ended(RIGHT)], 1.0, "all_matched", 2),
    ([gone(), Ended(WRONG)], 0.0, "value_mismatch", 2),
    ([gone(), gone()], None, "sandbox_lost", 2),
    ([gone(Termination.EVICTED), gone()], None, "sandbox_lost", 2),
    ([gone(Termination.OUT_OF_MEMORY)], 0.0, "candidate_out_of_memory", 1),
    ([gone(Termination.POLICY_STOP)], 0.0, "candidate_ended_sandbox", 1),
    # Its agent did not answer. Where it used up its time nobody else is to blame; else a control beside it tells.
    ([gone(Termination.TIMEOUT, cpu_s=2.5)], 0.0, "candidate_timeout", 1),
    ([TIRED, TIRED, Ended(RIGHT)], 0.0, "candidate_timeout", 2),
    ([TIRED, TIRED, MUTE], None, "unanswered", 2),
    ([TIRED, TIRED, STRAINED], None, "unanswered", 2),
    ([TIRED, Ended(RIGHT), Ended(WRONG)], 1.0, "all_matched", 2),
    ([MUTE, MUTE, Ended(WRONG)], 0.0, "candidate_timeout", 2),
    ([MUTE, MUTE, MUTE], None, "unanswered", 2),
    ([MUTE, Ended(WRONG), Ended(WRONG)], 0.0, "value_mismatch", 2),
    ([FROZEN, FROZEN], None, "sandbox_lost", 2),
    ([FROZEN, Ended(RIGHT)], 1.0, "all_matched", 2),
    # Before it ran nothing is its doing, unless the same never happens to the control.
    ([Early(gone(Termination.TIMEOUT, cpu_s=9.0)), Early(MUTE), Early(MUTE)], None, "unanswered", 2),
    ([Early(TIRED), Ended(RIGHT), Ended(WRONG)], 1.0, "all_matched", 2),
    ([Early(gone(Termination.OUT_OF_MEMORY)), Early(gone(Termination.OUT_OF_MEMORY)), Ended(WRONG)],
     0.0, "candidate_timeout", 2),
    ([Early(gone(Termination.OUT_OF_MEMORY)), Ended(RIGHT), Ended(WRONG)], 1.0, "all_matched", 2),
    ([Early(gone()), Ended(RIGHT)], 1.0, "all_matched", 2),
    # The agent kept no time limit, and so the sandbox is gone with all that was measured.
    ([(HUNG, gone()), (HUNG, gone()), Ended(WRONG)], 0.0, "candidate_timeout", 2),
    ([(HUNG, gone()), (HUNG, gone()), STRAINED], None, "starved", 2),
    ([(HUNG, gone()), Ended(RIGHT), Ended(WRONG)], 1.0, "all_matched", 2),
    ([UnavailableError("No room."), Ended(RIGHT)], 1.0, "all_matched", 2),
    ([UnavailableError("No room."), UnavailableError("No room.")], None, "infra_error", 2),
    ([HUNG], 0.0, "candidate_timeout", 1),
    ([(HUNG, STARVING), Ended(RIGHT), Ended(WRONG)], 1.0, "all_matched", 2),
    ([(HUNG, STARVING), (HUNG, STARVING), (HUNG, STARVING)], None, "starved", 2),
    ([(HUNG, STARVING), (HUNG, STARVING), Ended(WRONG, duration_s=0.6, cpu_s=0.5)], 0.0, "candidate_timeout", 2),
    ([(HUNG, STARVING), (HUNG, STARVING), Ended(WRONG, duration_s=19.0, cpu_s=0.5)], None, "starved", 2),
])  # fmt: skip
async def test_blame(
    task: Task, blobs: Blobs, endings: list[Any], score: float | None, cause: str, attempts: int
) -> None:
    sandboxes = FakeSandboxes(*endings)
    grader = Grader(sandboxes, blobs, tenant="tests")
    verdict = await grader.grade(task, episode="episode:1", bundle=bundle_of(task, blobs, src__a="x"))
    assert (verdict.score, verdict.cause, verdict.usage["attempts"]) == (score, cause, attempts)
    assert (verdict.status is VerdictStatus.SCORED) == (score is not None)
    assert all(sandbox.closed for sandbox in sandboxes.made) and not sandboxes.endings
    assert verdict.level == "H3" and len(verdict.nonce) == 32


async def test_only_keys_and_shipped_files_enter_the_sandbox(task: Task, blobs: Blobs) -> None:
    sandboxes = FakeSandboxes(Ended(RIGHT))
    await Grader(sandboxes, blobs, tenant="tests").grade(
        task, episode="e", bundle=bundle_of(task, blobs, src__a="mine")
    )
    sandbox = sandboxes.made[0]
    assert sandbox.files["/work/src/a.py"] == b"mine" and sandbox.files["/work/tests/t.py"] == b"shipped"
    assert sandbox.stdin["tests"] == ["t::a", "t::b"] and sandbox.stdin["node_ids"] is False
    assert sandboxes.specs[0].layers == () and sandboxes.specs[0].tenant == "tests"


async def test_without_a_bundle_nothing_runs(task: Task, blobs: Blobs) -> None:
    grader = Grader(FakeSandboxes(), blobs, tenant="tests")
    verdict = await grader.grade(task, episode="e", bundle=None)
    assert (verdict.score, verdict.cause) == (0.0, "no_bundle")
    refused = Bundle(task=task.id, base=task.source, refused="link", detail="src/a.py is a link")
    verdict = await grader.grade(task, episode="e", bundle=refused)
    assert (verdict.score, verdict.cause, verdict.detail) == (0.0, "bundle_refused", "link: src/a.py is a link")
    assert verdict.bundle == refused.digest


@pytest.mark.parametrize("path", ["tests__t", "src__..__..__etc", "__etc", "pytest"])
async def test_a_bundle_made_by_hand_is_checked_again(task: Task, blobs: Blobs, path: str) -> None:
    verdict = await Grader(FakeSandboxes(), blobs, tenant="t").grade(
        task, episode="e", bundle=bundle_of(task, blobs, **{path: "x"})
    )
    assert (verdict.score, verdict.cause) == (0.0, "bundle_refused")


async def test_the_bundle_of_another_task_is_the_callers_mistake(task: Task, blobs: Blobs) -> None:
    other = Bundle(task="task:" + "0" * 32, base=task.source)
    with pytest.raises(CallerError, match="belongs to"):
        await Grader(FakeSandboxes(), blobs, tenant="t").grade(task, episode="e", bundle=other)


async def test_a_task_without_its_hidden_data_is_invalid(task: Task, tmp_path: Path) -> None:
    empty = open_blobs(tmp_path / "empty")
    verdict = await Grader(FakeSandboxes(), empty, tenant="t").grade(
        task, episode="e", bundle=Bundle(task=task.id, base=task.source)
    )
    assert (verdict.status, verdict.score, verdict.cause) == (VerdictStatus.TASK_INVALID, None, "grader_missing")


async def test_hidden_data_that_were_changed_stop_everything(task: Task, blobs: Blobs, tmp_path: Path) -> None:
    (stored,) = [
        path for path in (tmp_path / "blobs").rglob("*") if path.is_file() and path.name.endswith(task.grader[4:])
    ]
    stored.chmod(0o600)
    stored.write_bytes(stored.read_bytes() + b" ")
    with pytest.raises(IntegrityError):
        await Grader(FakeSandboxes(), blobs, tenant="t").grade(
            task, episode="e", bundle=Bundle(task=task.id, base=task.source)
        )


async def test_what_changes_nothing_is_worth_nothing_without_a_run(task: Task, blobs: Blobs) -> None:
    sandboxes = FakeSandboxes()
    verdict = await Grader(sandboxes, blobs, tenant="t").grade(
        task, episode="e", bundle=Bundle(task=task.id, base=task.source)
    )
    assert (verdict.status, verdict.score, verdict.cause) == (VerdictStatus.SCORED, 0.0, "no_change")
    assert sandboxes.made == []


async def test_the_control_that_changes_nothing_is_run(task: Task, blobs: Blobs) -> None:
    """A task whose untouched source is right would otherwise be admitted."""
    sandboxes = FakeSandboxes(Ended(RIGHT))
    controls = await Grader(sandboxes, blobs, tenant="t").admit_controls(task)
    assert (controls.admitted, controls.reason) == (False, "noop_passes")
    assert len(sandboxes.made) == 1


HOSTILE = [
    ["x", "\ud800", ""], ["x", "\x1b[31mred", ""], ["b", "t::a", "\ud800"], ["e", "t::a", "passed", 0.1, "<b>"],
    ["c", "t::a", "\ud800"], ["b", "\ud800", ""], ["\ud800"], ["v", "\ud800", 0, "\ud800"], "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_no_word_of_the_candidate_reaches_a_verdict(task: Task, blobs: Blobs, line: Any, at: int) -> None:
    said = lines(*GOOD[:at], line, *GOOD[at:-1], ["z", 0, len(GOOD)])
    verdict = await Grader(FakeSandboxes(Ended(said)), blobs, tenant="t").grade(
        task, episode="e", bundle=bundle_of(task, blobs, src__a="x")
    )
    assert (verdict.status, verdict.score) == (VerdictStatus.SCORED, 0.0)
    assert canonical_bytes(verdict) and verdict.detail.isascii() and verdict.detail.isprintable()
    assert not any(word in verdict.detail for word in ("ud800", "red", "<b>"))


async def test_words_of_a_refused_bundle_are_escaped(task: Task, blobs: Blobs) -> None:
    refused = Bundle(task=task.id, base=task.source, refused="name", detail="\x1b[2J\u202e")
    verdict = await Grader(FakeSandboxes(), blobs, tenant="t").grade(task, episode="e", bundle=refused)
    assert verdict.detail == r"name: \x1b[2J\u202e"


@pytest.mark.parametrize("code", ["EISDIR", "ENOTDIR", "ENOENT", "ELOOP", "ENAMETOOLONG"])
async def test_a_bundle_in_the_way_of_the_tests_scores_nothing(task: Task, blobs: Blobs, code: str) -> None:
    sandboxes = FakeSandboxes(*[FileError("No.", code=code, path="/work/tests/t.py")] * 2)
    grader = Grader(sandboxes, blobs, tenant="tests")
    verdict = await grader.grade(task, episode="e", bundle=bundle_of(task, blobs, src__a="x"))
    assert (verdict.status, verdict.score, verdict.cause) == (VerdictStatus.SCORED, 0.0, "bundle_refused")
    with pytest.raises(FileError):
        await grader.admit_controls(task)  # without a bundle nobody but us can have put it there
    assert all(sandbox.closed for sandbox in sandboxes.made)


async def test_an_error_of_a_grading_beside_its_control_comes_alone(task: Task, blobs: Blobs) -> None:
    sandboxes = FakeSandboxes((HUNG, STARVING), IntegrityError("Changed."), IntegrityError("Changed."))
    with pytest.raises(IntegrityError, match="Changed"):
        await Grader(sandboxes, blobs, tenant="t").grade(task, episode="e", bundle=bundle_of(task, blobs, src__a="x"))


async def test_gradings_carry_the_data_class_of_the_task(task: Task, blobs: Blobs) -> None:
    sandboxes = FakeSandboxes(Ended(RIGHT))
    task = msgspec.structs.replace(task, data_class="internal")
    await Grader(sandboxes, blobs, tenant="t").grade(task, episode="e", bundle=bundle_of(task, blobs, src__a="x"))
    assert [spec.data_class for spec in sandboxes.specs] == ["internal"]


async def test_a_build_that_fails_leaves_no_sandbox(task: Task, blobs: Blobs) -> None:
    draft = GraderDraft(
        name="g", tenant="t", image="i", layers=(), editable=("**",), oracle=task.oracle, tests=("tests/t.py::test_a",),
        limits=GraderLimits(cpu_s=1.0, wall_s=4.0), data_class="internal",
    )  # fmt: skip
    sandboxes = FakeSandboxes(Ended(RIGHT), UnavailableError("No room."))
    with pytest.raises(UnavailableError):
        await build_values_grader(sandboxes, blobs, draft, test_files={}, visible_files={})
    assert [sandbox.closed for sandbox in sandboxes.made] == [True]
    assert {spec.data_class for spec in sandboxes.specs} == {"internal"}


@pytest.mark.parametrize(("endings", "reason"), [
    ([WRONG, RIGHT, RIGHT, RIGHT], "ok"), ([RIGHT], "noop_passes"), ([WRONG, RIGHT, WRONG], "oracle_fails"),
    ([WRONG, gone(), gone()], "infra_error"),
])  # fmt: skip
async def test_controls(task: Task, blobs: Blobs, endings: list[Any], reason: str) -> None:
    sandboxes = FakeSandboxes(*(Ended(ending) if isinstance(ending, str) else ending for ending in endings))
    controls = await Grader(sandboxes, blobs, tenant="t").admit_controls(task)
    assert (controls.reason, controls.admitted) == (reason, reason == "ok")
