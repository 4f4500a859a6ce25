"""The log: appends, several writers, crashes, damage."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.merkle import leaf_hash, root, verify_consistency, verify_inclusion
from ropewalk.provenance import files as files_module
from ropewalk.provenance import log as log_module
from ropewalk.provenance.checkpoint import parse_checkpoint, verify_checkpoint
from ropewalk.provenance.files import LogFiles, tile_name
from ropewalk.provenance.log import Log, revoke_keys, rotate_keys
from ropewalk.security.drivers.file import FileKeys
from ropewalk.security.signatures import SignatureError, Verifier


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> FileKeys:
    made = FileKeys(tmp_path_factory.mktemp("keys") / "keys")
    made.create()
    return made


@pytest.fixture
def log(tmp_path: Path, keys: FileKeys) -> Log:
    return Log(tmp_path / "state" / "log", keys)


def add(log: Log, *entries: bytes) -> int:
    with log.writing() as writer:
        return writer.append(entries)


def numbered(first: int, count: int) -> list[bytes]:
    return [b"entry %d" % i for i in range(first, first + count)]


def check(log: Log, entries: Sequence[bytes]) -> None:
    checkpoint = log.checkpoint()
    assert list(log.entries()) == list(entries)
    assert (checkpoint.size, checkpoint.root) == (len(entries), root(list(map(leaf_hash, entries))))


def test_tile_names() -> None:
    assert [tile_name(n) for n in (0, 999, 1000, 1234067)] == ["000", "999", "x001/000", "x001/x234/067"]


@pytest.mark.parametrize("batches", [[1], [255, 1, 1], [256, 256], [3, 700, 66], [600], [0, 5]])
def test_appending_across_bundles_and_tiles(log: Log, keys: FileKeys, batches: list[int]) -> None:
    entries: list[bytes] = []
    for count in batches:
        assert add(log, *numbered(len(entries), count)) == len(entries)
        entries += numbered(len(entries), count)
    check(log, entries)
    check(Log(log.files.folder, keys), entries)
    size, leaves = len(entries), [leaf_hash(entry) for entry in entries]
    for index in {0, size // 2, size - 1, min(255, size - 1), min(256, size - 1)}:
        assert log.entry(index) == entries[index]
        verify_inclusion(index, size, leaves[index], log.inclusion_proof(index, size), root(leaves))
        proof = log.consistency_proof(index + 1, size)
        verify_consistency(index + 1, size, proof, root(leaves[: index + 1]), root(leaves))
        assert log.root_at(index + 1) == root(leaves[: index + 1])
    with pytest.raises(CallerError, match="no entry"):
        log.entry(size)
    with pytest.raises(CallerError, match="no entry"):
        log.entry(-1)


def test_nothing_is_there_before_the_first_append(log: Log) -> None:
    assert not log.exists
    with pytest.raises(CallerError, match="no log"):
        log.checkpoint()


def test_entries_have_a_size(log: Log) -> None:
    add(log, b"x" * 65_535)
    for entry in (b"", b"x" * 65_536):
        with pytest.raises(CallerError, match="log entry"):
            add(log, b"good", entry)
    check(log, [b"x" * 65_535])


def test_many_writers(log: Log, keys: FileKeys) -> None:
    def write(mine: Log, name: bytes) -> None:
        for i in range(10):
            add(mine, *(b"%b %d %d" % (name, i, j) for j in range(3)))

    writers = [log, log, Log(log.files.folder, keys), Log(log.files.folder, keys)]
    threads = [threading.Thread(target=write, args=(w, b"%d" % n)) for n, w in enumerate(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = list(log.entries())
    assert sorted(entries) == sorted(b"%d %d %d" % (n, i, j) for n in range(4) for i in range(10) for j in range(3))
    check(Log(log.files.folder, keys), entries)


class Crash(BaseException):
    """As a power cut: nothing catches it."""


CRASH_POINTS = ["append_entries", "append_hashes", "replace_whole", "after"]


@pytest.mark.parametrize("before", [0, 3, 255, 256])
@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_crash_at_any_point_loses_only_what_was_not_acknowledged(
    log: Log, keys: FileKeys, monkeypatch: pytest.MonkeyPatch, before: int, point: str
) -> None:
    entries = numbered(0, before)
    add(log, *entries)

    def crash(*_: Any, **__: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        if point == "append_entries":
            patch.setattr(files_module.os, "fdatasync", crash)
        elif point == "append_hashes":
            patch.setattr(LogFiles, "append_hashes", crash)
        elif point == "replace_whole":
            patch.setattr(log_module, "replace_whole", crash)
        with log.writing() as writer:
            writer.append(numbered(before, 5))
            entries += numbered(before, 5)  # acknowledged: it must survive
            raise Crash
    fresh = Log(log.files.folder, keys)
    check(fresh, entries)
    for survivor in (log, fresh):
        add(survivor, b"after")
        entries.append(b"after")
        check(survivor, entries)
    torn = list(log.files.folder.glob("torn/*"))
    assert bool(torn) == (point != "after"), "set aside, not deleted"


@pytest.mark.parametrize("cut", [1, 2, 3, 9, 20])
def test_a_torn_tail_is_set_aside(log: Log, keys: FileKeys, cut: int) -> None:
    add(log, *numbered(0, 3))
    with log.files.bundle(0).open("ab") as file:
        file.write((b"\0\x20" + b"half written entry")[:cut])
    check(log, numbered(0, 3))
    add(log, b"next")
    check(Log(log.files.folder, keys), [*numbered(0, 3), b"next"])
    assert [path.stat().st_size for path in log.files.folder.glob("torn/*")] == [cut]


def test_a_full_disk_is_told_and_loses_nothing(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    add(log, *numbered(0, 3))
    pwrite = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if offset > 40:
            raise OSError(28, "No space left on device")
        return pwrite(descriptor, data[:7], offset)

    with monkeypatch.context() as patch:
        patch.setattr(files_module.os, "pwrite", full)
        with pytest.raises(UnavailableError, match="No space left"):
            add(log, *numbered(3, 9))
    check(log, numbered(0, 3))
    add(log, *numbered(3, 9))
    check(log, numbered(0, 12))


def test_a_place_that_cannot_be_written(tmp_path: Path, keys: FileKeys) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError):
        add(Log(tmp_path / "file" / "log", keys), b"x")


def test_tiles_are_computed_again(log: Log, keys: FileKeys) -> None:
    add(log, *numbered(0, 300))
    tile = log.files.tile(0, 1)
    for change in (lambda: tile.unlink(), lambda: tile.write_bytes(b"\0" * tile.stat().st_size)):
        change()
        fresh = Log(log.files.folder, keys)
        add(fresh, b"next")
        check(fresh, list(fresh.entries()))


def test_what_was_acknowledged_and_is_gone_is_never_passed_over(log: Log, keys: FileKeys) -> None:
    add(log, *numbered(0, 300))
    bundle = log.files.bundle(1)
    whole = bundle.read_bytes()
    for data in (whole[:-1], b"", whole[:-1] + b"\xff"):
        bundle.write_bytes(data)
        log.files.tile(0, 1).unlink(missing_ok=True)
        with pytest.raises(IntegrityError):
            add(Log(log.files.folder, keys), b"next")
    bundle.unlink()
    with pytest.raises(IntegrityError, match="has lost"):
        add(Log(log.files.folder, keys), b"next")
    bundle.write_bytes(whole)
    log.files.checkpoint.unlink()
    with pytest.raises(IntegrityError, match="has lost"):
        add(Log(log.files.folder, keys), b"next")


def test_a_log_of_other_keys_is_not_continued(log: Log, tmp_path: Path) -> None:
    add(log, b"x")
    other = FileKeys(tmp_path / "other")
    other.create()
    with pytest.raises(SignatureError, match="No trusted key pair"):
        add(Log(log.files.folder, other), b"y")


def test_checkpoints_are_notes_with_two_signatures(
    log: Log, keys: FileKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(log, b"x")
    exported = log.export_checkpoint(tmp_path / "outside")
    data = (tmp_path / "outside").read_bytes()
    origin, size, root64, empty, *lines = data.decode().split("\n")
    assert (size, empty, len(lines)) == ("1", "", 3)
    assert len(root64) == 44
    assert all(line.startswith(f"— {origin} ") for line in lines[:2])
    assert parse_checkpoint(data)[0] == exported == verify_checkpoint(data, Verifier(keys.trust_root()))[0]
    state = log.files.folder.parent
    (tmp_path / "way-in").symlink_to(state)
    (state / "way-out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "name-of").symlink_to(state / "checkpoint")
    monkeypatch.chdir(state)
    for inside in (state / "checkpoint", state / "log" / "other", tmp_path / "way-in" / "checkpoint", state / "way-out",
                   tmp_path / "name-of", tmp_path / "new" / ".." / "way-in" / "x", Path("checkpoint")):  # fmt: skip
        with pytest.raises(CallerError, match="inside the state directory"):
            log.export_checkpoint(inside)
    linked = Log(tmp_path / "way-in" / "log", keys)
    with pytest.raises(CallerError, match="inside the state directory"):
        linked.export_checkpoint(state / "checkpoint")
    assert linked.export_checkpoint(tmp_path / "beside") == exported


def test_rotation_and_revocation_of_a_log(tmp_path: Path) -> None:
    keys = FileKeys(tmp_path / "state" / "keys")
    keys.create()
    log = Log(tmp_path / "state" / "log", keys)
    add(log, b"0", b"1")
    first = keys.active().pair.id
    second = rotate_keys(log)
    assert verify_checkpoint(log.files.checkpoint.read_bytes(), Verifier(keys.trust_root()))[1].id == second.id
    assert second.from_index == 2
    add(log, b"2")
    old = revoke_keys(log, first, reason="retired badly", from_index=1)
    assert old.revoked is not None and (old.revoked.from_index, old.until_index) == (1, 2)
    add(log, b"3")
    gone = revoke_keys(log, second.id, reason="stolen")
    assert gone.revoked is not None
    assert (gone.revoked.from_index, gone.until_index) == (4, 4)
    add(log, b"4")
    check(log, [b"0", b"1", b"2", b"3", b"4"])
    assert [pair.from_index for pair in keys.trust_root().pairs] == [0, 2, 4]


def test_a_crash_between_rotation_and_signing_leaves_a_log_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = FileKeys(tmp_path / "state" / "keys")
    keys.create()
    log = Log(tmp_path / "state" / "log", keys)
    add(log, b"0")
    with monkeypatch.context() as patch, pytest.raises(Crash):

        def crash(*_: object) -> None:
            raise Crash

        patch.setattr(log_module.LogWriter, "resign", crash)
        revoke_keys(log, keys.active().pair.id, reason="stolen")
    fresh = Log(log.files.folder, keys)
    add(fresh, b"1")
    check(fresh, [b"0", b"1"])
