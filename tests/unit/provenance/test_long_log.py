"""A log of many runs: what one run's rewards and its verification read of it, and what they keep."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import msgspec
import pytest
from tests.unit.provenance.world import World, draft, graded, link, roots

from ropewalk.benchmarks.long_log import RUN, fill
from ropewalk.core.errors import IntegrityError
from ropewalk.provenance import rewards
from ropewalk.provenance.bookmark import load_bookmark
from ropewalk.provenance.files import LogFiles
from ropewalk.provenance.log import Log, revoke_keys, rotate_keys
from ropewalk.provenance.outline import Outline
from ropewalk.provenance.rewards import SignedRewards
from ropewalk.provenance.statement import Activity
from ropewalk.provenance.verification import VerificationStatus
from ropewalk.provenance.verify import Anchors, verify_run
from ropewalk.security.drivers.file import FileKeys


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "BOOKMARK_EVERY", 4)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which entries were read one after the other."""
    seen: list[int] = []
    plain = LogFiles.entries

    def entries(self: LogFiles, start: int, stop: int) -> object:
        seen.extend(range(start, stop))
        return plain(self, start, stop)

    monkeypatch.setattr(LogFiles, "entries", entries)
    return seen


def filled(world: World, runs: int = 6) -> World:
    world.recorder.record(roots())
    for number in range(runs):
        world.recorder.record((draft(Activity.REWARD, f"reward:{number}", "task:1", run=f"run:{number}", value=1.0),))
    return world


def names(log: Log, run: str) -> list[str]:
    return [statement.subjects[0].name for statement in SignedRewards(log).of_run(run)]


def test_the_next_process_goes_on_where_one_ended(world: World, read: list[int]) -> None:
    filled(world)
    assert names(world.log, "run:1") == ["reward:1"] and len(read) == 10
    read.clear()
    assert names(world.log, "run:4") == ["reward:4"] and read == []
    world.recorder.record((draft(Activity.REWARD, "reward:late", "task:1", run="run:1", value=0.0),))
    assert names(world.log, "run:1") == ["reward:1", "reward:late"] and read == [10]


@pytest.mark.parametrize("change", ["forged", "torn", "foreign", "absent"])
def test_a_bookmark_that_nobody_signed_is_not_believed(world: World, tmp_path: Path, change: str) -> None:
    """Whoever can write beside the log, but has no keys, hides no reward and adds none."""
    filled(world)
    names(world.log, "run:1")
    file = world.state / "log" / "bookmark"
    data = file.read_bytes()
    if change == "forged":
        file.write_bytes(data.replace(b'"run:1":[5]', b'"run:1":[]'))
        assert file.read_bytes() != data
    elif change == "torn":
        file.write_bytes(data[: len(data) // 2])
    elif change == "foreign":
        (tmp_path / "other").mkdir()
        other = filled(World(tmp_path / "other"))
        names(other.log, "run:1")
        file.write_bytes((other.state / "log" / "bookmark").read_bytes())
        other.database.close()
    else:
        file.unlink()
    assert load_bookmark(world.log, world.log.checkpoint()) is None
    assert names(world.log, "run:1") == ["reward:1"]


def test_keys_that_were_revoked_keep_no_bookmark(world: World) -> None:
    filled(world)
    names(world.log, "run:1")
    old = world.keys.active().pair.id
    rotate_keys(world.log)
    revoke_keys(world.log, old, reason="stolen", from_index=8)
    assert load_bookmark(world.log, world.log.checkpoint()) is None
    assert names(world.log, "run:1") == ["reward:1"]


def test_entries_behind_a_bookmark_are_held_against_the_root(world: World) -> None:
    """A good bookmark says where the rewards are, not what they say."""
    filled(world)
    again = tuple(draft(Activity.REWARD, f"again:{n}", "task:1", run="run:1", value=0.0) for n in range(2))
    world.recorder.record(again)
    assert len(names(world.log, "run:1")) == 3
    bundle = world.log.files.bundle(0)
    entries = list(world.log.files.entries(0, 12))
    entries[5] = entries[10]  # of the same run, and well signed
    bundle.write_bytes(b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries))
    with pytest.raises(IntegrityError, match="checkpoint was signed for"):
        names(world.log, "run:1")


def test_tiles_that_a_crash_left_behind_cost_time_and_nothing_else(world: World, read: list[int]) -> None:
    filled(world)
    names(world.log, "run:1")
    world.log.files.tile(0, 0).write_bytes(b"")
    read.clear()
    assert names(world.log, "run:1") == ["reward:1"] and read == list(range(10))


def test_where_nothing_can_be_kept_the_rewards_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(world)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ropewalk.provenance.bookmark.replace_whole", full)
    assert names(world.log, "run:1") == ["reward:1"]


def test_ancestors_are_all_found_whatever_their_order(world: World) -> None:
    world.recorder.record((draft(Activity.REWARD, "reward:early", "verdict:late", "task:1", run="r"),))
    world.recorder.record((draft(Activity.VERDICT, "verdict:late", "episode:late"),))
    world.recorder.record((draft(Activity.EPISODE, "episode:late", "task:1"),))
    world.recorder.record((*roots(), *graded(0)))
    outline = Outline()
    for entry in world.log.entries():
        outline.add(entry)
    assert outline.ancestors([link("reward:early").sha256]) == [0, 1, 2, 3, 4, 5]
    assert outline.ancestors([link("reward:0").sha256]) == [3, 4, 5, 6, 7, 8, 9]
    assert outline.ancestors(["nothing", "0" * 64]) == []
    assert outline.root(len(outline)) == world.log.checkpoint().root


def test_what_is_stated_again_after_its_last_use_is_of_no_older_run(world: World) -> None:
    world.fill(episodes=1)
    before = world.verify("reward:0")
    world.recorder.record(
        (draft(Activity.INGEST, "raw:rope-1.0.tar.gz", licence="BSD-3-Clause"), draft(Activity.SNAPSHOT, "snapshot:1",
         "task:1", again=True), *graded(1))
    )  # fmt: skip
    after = world.anchor().verify("reward:0")
    assert (after.status, after.statements) == (before.status, before.statements), "other runs made no more of it"
    assert world.verify("reward:1").statements == before.statements + 1, "and theirs stands on what they used"


def test_memory_grows_with_the_run_and_not_with_the_log(tmp_path: Path) -> None:
    """One run of 24 episodes, in a log of 300 and in one six times as long."""
    peaks = []
    for size in (300, 1_800):
        folder = tmp_path / str(size)
        folder.mkdir(mode=0o700)
        fill(folder, size)
        keys = FileKeys(folder / "keys")
        tracemalloc.start()
        log = Log(folder / "log", keys)

        def rewards(read: Outline, log: Log = log) -> list[str]:
            return [each.subjects[0].sha256 for each in SignedRewards(log, read).of_run(RUN)]

        result = verify_run(log.files.folder, anchors=Anchors(), own=keys.trust_root(), subjects=rewards)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert result.status is VerificationStatus.UNANCHORED and not result.findings
        assert (result.rewards, result.statements) == (24, 74)
        assert msgspec.json.encode(result.plain())
    per_entry = (peaks[1] - peaks[0]) / 1_500
    assert per_entry < 1_000, f"{per_entry:.0f} bytes are kept of every entry of 6,500 bytes"
