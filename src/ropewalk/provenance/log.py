"""The transparency log: append-only, signed, and never in doubt about what was acknowledged.

An append is acknowledged when the checkpoint that covers it is durable. Entries are made durable first, so a crash
at any instant leaves either the old checkpoint, and perhaps bytes behind it that nobody was promised, or the new
one. Such bytes are moved to `torn/`, never deleted. What a checkpoint covers and is not there was lost or taken
away: an `IntegrityError`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.merkle import EMPTY_ROOT, CompactRange, consistency_proof, inclusion_proof, leaf_hash
from ropewalk.machinery.files import locked, replace_whole, sync_folder
from ropewalk.provenance.checkpoint import (
    ORIGIN_PREFIX,
    Checkpoint,
    read_checkpoint,
    sign_checkpoint,
    verify_checkpoint,
)
from ropewalk.provenance.files import TILE_WIDTH, LogFiles, TileReader, check_entry, is_beside
from ropewalk.security.contract import Keys, Signer
from ropewalk.security.signatures import Verifier
from ropewalk.security.trust import PublicPair, TrustRoot


class _State(NamedTuple):
    stamp: tuple[int, int, int]
    """Of the checkpoint file: inode, time, size."""
    checkpoint: Checkpoint
    edge: CompactRange
    offset: int
    """Where the last bundle ends."""


class Log:
    """The log in one folder. Thread-safe; several processes may append to one.

    Args:
        folder: made, with an empty log in it, on the first append.
        keys: sign the checkpoints; also what an existing log must have been signed with.
        pinned: what it must have been signed with instead, where it is only read: of a copy without the keys.
    """

    def __init__(self, folder: Path, keys: Keys, *, pinned: TrustRoot | None = None) -> None:
        self.files = LogFiles(folder)
        self.keys = keys
        self._pinned = pinned
        self._lock = threading.RLock()
        self._state: _State | None = None

    def trust_root(self) -> TrustRoot:
        """The public keys that its signatures are checked with."""
        return self._pinned or self.keys.trust_root()

    @property
    def exists(self) -> bool:
        """Whether anything was ever logged here."""
        return self.files.checkpoint.exists() or (self.files.folder / "tile").exists()

    def checkpoint(self) -> Checkpoint:
        """The log as of now.

        Raises:
            CallerError: there is no log yet.
            IntegrityError: its checkpoint is missing or not signed by these keys.
        """
        return self._read_checkpoint()[0]

    def entries(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Entries [start, stop) in order; `stop` defaults to the size as of now.

        Raises:
            IntegrityError: one of them is not there.
        """
        size = self.checkpoint().size
        return self.files.entries(start, size if stop is None else min(stop, size))

    def entry(self, index: int) -> bytes:
        """One entry.

        Raises:
            CallerError: the log has no such entry.
        """
        for found in self.entries(index, index + 1) if index >= 0 else ():
            return found
        raise CallerError(f"The log has no entry {index}.")

    def entries_at(self, indexes: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The entries at these indexes, which ascend; each bundle is read once.

        Raises:
            IntegrityError: one of them is not there.
        """
        size = self.checkpoint().size
        if indexes and not 0 <= indexes[0] <= indexes[-1] < size:
            raise IntegrityError(f"The log has {size} entries, not the ones that were asked for.")
        yield from self.files.entries_at(indexes)

    def root_at(self, size: int) -> bytes:
        """The root that the log had at a size that it reached."""
        return CompactRange.read(size, TileReader(self.files)).root()

    def inclusion_proof(self, index: int, size: int) -> tuple[bytes, ...]:
        """See `core.merkle.inclusion_proof`."""
        return inclusion_proof(index, size, TileReader(self.files))

    def consistency_proof(self, size1: int, size2: int) -> tuple[bytes, ...]:
        """See `core.merkle.consistency_proof`."""
        return consistency_proof(size1, size2, TileReader(self.files))

    def export_checkpoint(self, path: Path) -> Checkpoint:
        """Writes the signed checkpoint to a file to keep elsewhere: on another machine, in a mail, on paper.

        Raises:
            CallerError: there is no log, or `path` is inside the log's own state directory.
        """
        if is_beside(path, self.files.folder):
            raise CallerError(
                f"{path} is inside the state directory: whoever rolls that back takes the checkpoint along.",
                next_step="name a file elsewhere, best on another machine.",
            )
        checkpoint, data = self._read_checkpoint()
        replace_whole(path, data, mode=0o644)
        return checkpoint

    @contextlib.contextmanager
    def writing(self) -> Iterator[LogWriter]:
        """Holds the log still against other threads and processes; repairs first what a crash left.

        Raises:
            IntegrityError: what is stored does not fit its checkpoint.
            UnavailableError: the folder cannot be written.
        """
        with self._lock:
            try:
                self.files.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise UnavailableError(f"{self.files.folder} cannot be made: {error.strerror or error}.") from error
            with locked(self.files.folder / "lock"):
                if not self.exists:
                    origin = ORIGIN_PREFIX + os.urandom(16).hex()
                    first = sign_checkpoint(Checkpoint(origin, 0, EMPTY_ROOT), self.keys.active())
                    replace_whole(self.files.checkpoint, first)
                try:
                    yield LogWriter(self, self._current())
                except OSError as error:
                    raise UnavailableError(
                        f"The log in {self.files.folder} cannot be written: {error.strerror or error}.",
                        next_step="make room, then repeat: nothing that was acknowledged is lost.",
                    ) from error

    def _current(self) -> _State:
        """The state, read and repaired where it is not the one that this object left. Needs the lock."""
        if self._state is None or self._state.stamp != self._stamp() or self._has_torn_tail(self._state):
            self._state = self._reload()
        return self._state

    def _reload(self) -> _State:
        stamp = self._stamp()
        checkpoint, _ = self._read_checkpoint()
        self._set_torn_tail_aside(checkpoint.size)
        try:
            edge = CompactRange.read(checkpoint.size, TileReader(self.files))
        except IntegrityError:
            edge = CompactRange()
        if edge.size != checkpoint.size or edge.root() != checkpoint.root:
            edge = self._rebuild_tiles(checkpoint)
        offset = self.files.read_bundle(*divmod(checkpoint.size, TILE_WIDTH))[1]
        return _State(stamp, checkpoint, edge, offset)

    def _rebuild_tiles(self, checkpoint: Checkpoint) -> CompactRange:
        edge, start = CompactRange(), 0
        leaves = map(leaf_hash, self.files.entries(0, checkpoint.size))
        while batch := list(itertools.islice(leaves, 64 * TILE_WIDTH)):
            self.files.append_hashes(start, batch)
            start += len(batch)
            for leaf in batch:
                edge.append(leaf)
        if edge.root() != checkpoint.root:
            raise IntegrityError(
                f"The entries in {self.files.folder} are not those that its checkpoint commits to.",
                next_step="run `ropewalk verify` against an outside checkpoint; restore the log from a copy.",
            )
        return edge

    def _has_torn_tail(self, state: _State) -> bool:
        number, count = divmod(state.checkpoint.size, TILE_WIDTH)
        try:
            return self.files.bundle(number).stat().st_size != state.offset
        except FileNotFoundError:
            return count > 0

    def _set_torn_tail_aside(self, size: int) -> None:
        for path, end in list(self.files.torn(size)):
            with path.open("rb") as file:
                file.seek(end)
                tail = file.read()
            folder = self.files.folder / "torn"
            folder.mkdir(exist_ok=True, mode=0o700)
            name = f"{size}-{path.relative_to(self.files.folder / 'tile').as_posix().replace('/', '-')}"
            replace_whole(folder / f"{name}-{os.urandom(4).hex()}", tail)
            if end:
                os.truncate(path, end)
            else:
                path.unlink()
            sync_folder(path.parent)

    def _read_checkpoint(self) -> tuple[Checkpoint, bytes]:
        if not self.exists:
            raise CallerError(f"There is no log in {self.files.folder} yet.")
        if not self.files.checkpoint.exists():
            raise IntegrityError(f"The log has lost {self.files.checkpoint}.", next_step="restore it from a copy.")
        data = read_checkpoint(self.files.checkpoint)
        return verify_checkpoint(data, Verifier(self.trust_root()))[0], data

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = self.files.checkpoint.stat()
        except FileNotFoundError:
            return (0, 0, 0)
        return (found.st_ino, found.st_mtime_ns, found.st_size)


class LogWriter:
    """The right to append, as long as `Log.writing` holds."""

    def __init__(self, log: Log, state: _State) -> None:
        self._log, self._state = log, state

    @property
    def checkpoint(self) -> Checkpoint:
        """The log as of now."""
        return self._state.checkpoint

    @property
    def signer(self) -> Signer:
        """Who signs what is appended now."""
        return self._log.keys.active()

    def append(self, entries: Sequence[bytes]) -> int:
        """Adds entries, durably: all of them, or none is acknowledged. Returns the first one's index.

        Raises:
            CallerError: an entry is too large.
            OSError: the disk is full; `Log.writing` makes an `UnavailableError` of it.
        """
        size = self.checkpoint.size
        if not entries:
            return size
        for entry in entries:
            check_entry(entry)
        log, edge = self._log, self._state.edge.copy()
        leaves = [leaf_hash(entry) for entry in entries]
        for leaf in leaves:
            edge.append(leaf)
        log._state = None  # until it is known again what lies on the disk
        offset = log.files.append_entries(size, self._state.offset, entries)
        log.files.append_hashes(size, leaves)
        checkpoint = Checkpoint(self.checkpoint.origin, edge.size, edge.root())
        self._commit(checkpoint, edge, offset)
        return size

    def resign(self) -> None:
        """Signs the same size again, with whatever pair is active now."""
        self._commit(self.checkpoint, self._state.edge, self._state.offset)

    def _commit(self, checkpoint: Checkpoint, edge: CompactRange, offset: int) -> None:
        replace_whole(self._log.files.checkpoint, sign_checkpoint(checkpoint, self.signer))
        self._state = _State(self._log._stamp(), checkpoint, edge, offset)
        self._log._state = self._state


def rotate_keys(log: Log) -> PublicPair:
    """Makes a new key pair active from the next entry on; returns it. Earlier entries stay trusted."""
    with log.writing() as writer:
        pair = log.keys.rotate(at_index=writer.checkpoint.size)
        writer.resign()
        return pair


def revoke_keys(log: Log, pair_id: str, *, reason: str, from_index: int | None = None) -> PublicPair:
    """Ends the trust in a key pair from a log entry on (default: from the next one); returns it as it is then.

    Entries that it signed from there on no longer verify: that is what a revocation is for. Where it is the active
    pair, another one takes over.

    Raises:
        CallerError: see `security.contract.Keys.revoke`.
    """
    with log.writing() as writer:
        size = writer.checkpoint.size
        # In this order a crash in between leaves a rotation, never a log whose own checkpoint is revoked.
        if log.keys.active().pair.id == pair_id:
            log.keys.rotate(at_index=size)
        writer.resign()
        return log.keys.revoke(pair_id, reason=reason, from_index=size if from_index is None else from_index)
