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

from ropewalk.app.episodes import dropped_edit, release_forgotten, state_at
from ropewalk.app.records import task_of
from ropewalk.cli.episode import _welcome
from ropewalk.interface.episode import Step, ToolCall
from ropewalk.rollout.begin import begin_run
from ropewalk.rollout.plan import Plan, PolicyName, RunPlan
from tests.unit.rollout.worlds import Durable

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
    assert "dropped" not in capsys.readouterr().err


async def test_a_state_is_held_while_it_is_looked_at_and_no_longer(place: Place) -> None:
    async with place.look():
        assert len(place.durable.snapshots) == 1
        await place.release_forgotten()
        assert len(place.durable.snapshots) == 1, "somebody still looks at it"
    assert not place.left()


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
