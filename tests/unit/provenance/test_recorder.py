"""Recording, and the index that follows the log."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from tests.unit.provenance.world import World, draft, graded, link, roots

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.provenance.graph import LineageIndex
from ropewalk.provenance.log import Log
from ropewalk.provenance.recorder import LogRecorder
from ropewalk.provenance.statement import Activity
from ropewalk.store.database import Database


def test_equal_drafts_are_recorded_once(world: World) -> None:
    first = world.recorder.record(roots())
    assert world.recorder.record(roots()) == first
    assert world.recorder.record((*roots()[:1], *roots()[:1], *graded(0)))[:2] == (first[0], first[0])
    assert world.log.checkpoint().size == 7
    assert world.recorder.record(()) == ()


def test_a_bad_draft_records_nothing(world: World) -> None:
    world.recorder.record(roots())
    with pytest.raises(CallerError):
        world.recorder.record((*graded(0), draft(Activity.REWARD, "no kind")))
    with pytest.raises(CallerError, match="are allowed"):
        world.recorder.record((*graded(0), draft(Activity.REWARD, "reward:big", text="x" * 60_000)))
    assert world.log.checkpoint().size == 4


def test_threads_and_processes_record_into_one_log(world: World) -> None:
    world.recorder.record(roots())
    other = Log(world.log.files.folder, world.keys)
    recorders = [world.recorder, LogRecorder(other, LineageIndex(Database.open(world.state / "ropewalk.db"), other))]
    failures: list[BaseException] = []

    def run(recorder: LogRecorder, first: int) -> None:
        try:
            for number in range(first, first + 6):
                assert len(recorder.record(graded(number))) == 3
        except BaseException as error:
            failures.append(error)

    # The second and the third thread record the same six episodes.
    threads = [threading.Thread(target=run, args=(recorders[i % 2], first)) for i, first in enumerate((0, 4, 4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert world.log.checkpoint().size == 4 + 3 * 10
    world.anchor()
    assert world.verify().ok


def test_the_index_is_made_again_from_the_log(world: World) -> None:
    world.fill()
    reward = link("reward:2").sha256
    before = world.index.ancestors(reward), world.index.descendants(link("task:1").sha256)
    world.index.rebuild()
    assert (world.index.ancestors(reward), world.index.descendants(link("task:1").sha256)) == before
    fresh = LineageIndex(Database.open(world.folder / "fresh.db"), world.log)
    assert (fresh.ancestors(reward), fresh.descendants(link("task:1").sha256)) == before
    assert fresh.find("reward:2") == reward
    with pytest.raises(CallerError, match="reward:9"):
        fresh.find("reward:9")


def test_the_index_catches_up_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.fill()
    monkeypatch.setattr("ropewalk.provenance.graph._BATCH", 3)
    fresh = LineageIndex(Database.open(world.folder / "fresh.db"), world.log)
    assert fresh.ancestors(link("reward:1").sha256) == world.index.ancestors(link("reward:1").sha256)
    world.recorder.record(graded(5))
    assert fresh.ancestors(link("reward:5").sha256) == (0, 1, 2, 3, 13, 14, 15)


def test_a_log_that_was_rolled_back_is_not_continued(world: World, tmp_path: Path) -> None:
    world.recorder.record(roots())
    shutil.copytree(world.log.files.folder, tmp_path / "old")
    world.recorder.record(graded(0))
    shutil.rmtree(world.log.files.folder)
    shutil.copytree(tmp_path / "old", world.log.files.folder)
    with pytest.raises(IntegrityError, match="not the one that was indexed"):
        world.recorder.record(graded(1))
    with pytest.raises(IntegrityError, match="not the one that was indexed"):
        world.index.ancestors(link("reward:0").sha256)


def test_a_log_that_was_rewritten_is_not_continued(world: World) -> None:
    world.recorder.record(roots())
    shutil.rmtree(world.log.files.folder)
    forged = Log(world.log.files.folder, world.keys)
    database = Database.open(world.folder / "forged.db")
    LogRecorder(forged, LineageIndex(database, forged)).record((*roots()[:2], *graded(0), *graded(1)))
    with pytest.raises(IntegrityError, match="not the one that was indexed"):
        world.index.catch_up()


def test_a_crash_between_log_and_index_is_made_good(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.recorder.record(roots())
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):

        def crash(*_: object) -> None:
            raise RuntimeError

        patch.setattr(LineageIndex, "add", crash)
        world.recorder.record(graded(0))
    digests = world.recorder.record(graded(0))
    assert world.log.checkpoint().size == 7
    assert set(world.index.recorded(digests).values()) == {4, 5, 6}
