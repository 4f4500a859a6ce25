"""What looking at an episode holds goes when the looking ends, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from ropewalk.app.episodes import dropped_edit, outcome_of, play_again, release_forgotten, state_at
from ropewalk.app.records import task_of
from ropewalk.cli.episode import _welcome, outcome_lines
from ropewalk.core.records import canonical_bytes, decode_own, to_plain
from ropewalk.interface.episode import Step, ToolCall, ToolResult
from ropewalk.reward.verdict import Verdict
from ropewalk.rollout.begin import begin_run
from ropewalk.rollout.episodes import tools
from ropewalk.rollout.plan import Plan, PolicyName, RunPlan
from ropewalk.rollout.policies.fixed import NoopPolicy
from ropewalk.rollout.run import RunLoop
from tests.unit.rollout.worlds import Durable, Result

HOLDER = """
import fcntl, pathlib, sys
from ropewalk.app import episodes
from types import SimpleNamespace
with episodes._lease(SimpleNamespace(layout=SimpleNamespace(runs=pathlib.Path(sys.argv[1])))) as owner:
    print(owner, flush=True)
    sys.stdin.read()
"""


class Place:
    def __init__(self, folder: Path) -> None:
        self.durable = Durable(folder)
        self.world = self.durable.world()
        self.journal = self.durable.journal()
        self.runs = folder / "runs"
        self.custody: Any = SimpleNamespace(
            journal=self.journal, blobs=self.durable.blobs, layout=SimpleNamespace(runs=self.runs)
        )
        task = self.durable.task()
        self.run = begin_run(self.world, self.journal, Plan(run=RunPlan(policies=(PolicyName.NOOP,), group=1)), [task])
        self.task = task_of(self.journal, self.durable.blobs, self.run, task.id)  # type: ignore[arg-type]
        self.record: Any = SimpleNamespace(id="episode:1", steps=(), snapshot="snapshot:" + "0" * 32)

    def look(self) -> Any:
        sandboxes: Any = self.world.sandboxes
        return state_at(self.world, sandboxes, self.custody, self.record, self.task, step=0)

    async def release_forgotten(self) -> None:
        sandboxes: Any = self.world.sandboxes
        await release_forgotten(sandboxes, self.custody)

    def left(self) -> list[str]:
        return [*self.durable.snapshots, *self.journal.holds(), *(path.name for path in self.runs.glob("*attach*"))]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    from tests.unit.rollout.worlds import MemorySandbox

    async def enter(self: MemorySandbox) -> MemorySandbox:
        return self

    async def leave(self: MemorySandbox, *exc: object) -> None:
        await self.close()

    monkeypatch.setattr(MemorySandbox, "__aenter__", enter, raising=False)
    monkeypatch.setattr(MemorySandbox, "__aexit__", leave, raising=False)
    return Place(tmp_path)


def test_the_state_after_a_dropped_edit_is_called_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    tried = (ToolCall(name="try_edit"),)
    steps = (
        Step(index=1, calls=tried, files_changed={"a.py": "1" * 64}),
        Step(index=2, calls=tried),
        Step(index=3, calls=(ToolCall(name="shell"),)),
    )
    record: Any = SimpleNamespace(id="episode:1", steps=steps)
    assert [dropped_edit(record, step) for step in range(4)] == [False, False, True, False]
    task: Any = SimpleNamespace(test_command=("pytest",), visible_tests=("a::b",), workdir="/work")
    _welcome(record, task, 2, "rebuilt")
    assert "step 2 tried an edit in a fork and dropped it: this is the state before it" in capsys.readouterr().err
    _welcome(record, task, 1, "rebuilt")
    said = capsys.readouterr().err
    assert "dropped" not in said and "visible tests: pytest a\n" in said, "a whole command, also of sixty tests"


async def test_a_state_is_held_while_it_is_looked_at_and_no_longer(place: Place) -> None:
    async with place.look():
        assert len(place.durable.snapshots) == 1
        await place.release_forgotten()
        assert len(place.durable.snapshots) == 1, "somebody still looks at it"
    assert not place.left()


async def test_a_dropped_edit_is_the_kept_state_before_it(place: Place) -> None:
    sandboxes: Any = place.world.sandboxes
    sandbox = await sandboxes.create(SimpleNamespace())
    saved = [(await sandbox.snapshot()).id]
    await sandbox.write_many({"/work/pkg/code.py": b"kept"})
    saved.append((await sandbox.snapshot()).id)
    tried = (ToolCall(name="try_edit"),)
    kept = Step(index=1, calls=tried, files_changed={"pkg/code.py": "1" * 64}, snapshot=saved[1])
    place.record.steps = (kept, Step(index=2, calls=tried), Step(index=3, calls=tried))
    place.record.snapshot = saved[0]
    for steps, step in (((kept, *place.record.steps[1:]), 3), (place.record.steps[1:], 2)):
        place.record.steps = steps
        async with state_at(place.world, sandboxes, place.custody, place.record, place.task, step=step) as (_, how):
            assert how == f"the very state, from {saved[1] if steps[0] is kept else saved[0]}"


async def test_a_cancelled_look_leaves_nothing(place: Place) -> None:
    with anyio.CancelScope() as scope:
        async with place.look():
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert not place.left()


async def test_what_a_killed_process_held_is_let_go_of(place: Place) -> None:
    place.runs.mkdir()
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", HOLDER, str(place.runs)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        owner = (await anyio.to_thread.run_sync(holder.stdout.readline)).strip()
        sandboxes: Any = place.world.sandboxes
        sandbox = await sandboxes.create(SimpleNamespace())
        snapshot = "snapshot:" + "1" * 32
        place.durable.snapshots[snapshot] = SimpleNamespace(id=snapshot)  # type: ignore[assignment]
        await sandbox.close()
        place.journal.hold(snapshot, owner)
        await place.release_forgotten()
        assert place.journal.holds() == {snapshot: [owner]}
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    await place.release_forgotten()
    assert not place.left()


async def test_the_operator_reads_why_an_episode_was_not_paid_and_no_held_out_name(place: Place) -> None:
    custody = SimpleNamespace(**vars(place.custody), signed=place.durable.recorder)
    (row,) = place.journal.episodes(place.run)
    before = outcome_of(custody, row.id)  # type: ignore[arg-type]
    assert before.reward is None and outcome_lines(before) == ["reward  none yet: planned"]

    judge: Any = place.world.judge_on(place.world.sandboxes)
    grade = judge.grade

    async def graded(*words: Any, **more: Any) -> Verdict:
        plain = to_plain(await grade(*words, **more)) | {"outcomes": {"secret_a": False, "secret_b": True}}
        return decode_own(canonical_bytes(plain), Verdict)

    judge.grade = graded
    await RunLoop(place.world, place.journal, place.run, policies={"noop": NoopPolicy()}).work()
    outcome = outcome_of(custody, row.id)  # type: ignore[arg-type]
    assert outcome.reward is not None and (outcome.held_out, outcome.held_out_failed) == (2, 1)
    assert outcome_lines(outcome) == [
        f"reward  0: value_mismatch, {outcome.reward.id}", "judged  1 of 2 held-out tests failed",
    ]  # fmt: skip
    assert "secret" not in str(to_plain(outcome)), "the JSON is the operator's too, and names no held-out test"


async def test_a_replay_shows_what_is_different_and_forgives_the_time_a_test_run_took(place: Place) -> None:
    def step(index: int, output: str) -> Step:
        call = ToolCall(name="shell", arguments={"command": "pytest"})
        return Step(index=index, calls=(call,), results=(ToolResult(output=output, exit_code=0),))

    sandboxes: Any = place.world.sandboxes
    sandbox = await sandboxes.create(SimpleNamespace())
    sandbox._service.answer = lambda *_: Result(stdout="1 passed in 0.09s\n")
    shown = await _output(sandbox)
    record: Any = SimpleNamespace(
        steps=(step(1, shown.replace("0.09s", "0.06s")), step(2, shown.replace("passed", "failed")))
    )
    seen: list[Any] = []
    same = await play_again(sandbox, place.custody, record, place.task, lambda _, again: seen.append(again))
    assert not same and [again.same for again in seen] == [True, False]
    assert seen[0].outputs == () and seen[1].differences == ("shell: another output",)
    assert "-1 failed in 0.09s" in seen[1].outputs and "+1 passed in 0.09s" in seen[1].outputs


async def _output(sandbox: Any) -> str:
    call = ToolCall(name="shell", arguments={"command": "pytest"})
    return (await tools.perform(call, sandbox, workdir="/work", timeout_s_max=60.0)).output
