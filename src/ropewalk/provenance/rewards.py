"""Which rewards of a run were signed, as the log alone has it: what any other table says of them is checked by this.

The log is read once and in whole, and then only what it has gained; its entries must have the root that its signed
checkpoint states. That the log itself was not rolled back is what `verify` is for: it has the outside checkpoint.

How far it was read is kept beside the log, signed by the keys that sign the log, so that the next process goes on
there (`provenance.bookmark`). A bookmark that does not fit, or that no trusted keys signed, is not believed. Whoever
has the keys can sign one that leaves a reward out, so a verification goes on from its own reading of the log instead.
"""

from __future__ import annotations

import base64
import threading
from typing import Any, Final

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.merkle import CompactRange, inclusion_proof, leaf_hash, verify_inclusion
from ropewalk.provenance.bookmark import Bookmark, load_bookmark, save_bookmark
from ropewalk.provenance.checkpoint import Checkpoint
from ropewalk.provenance.files import TileReader
from ropewalk.provenance.intoto import PREDICATE_TYPE, Statement, from_payload
from ropewalk.provenance.log import Log
from ropewalk.provenance.outline import Outline
from ropewalk.provenance.statement import Activity
from ropewalk.security.signatures import Verifier, open_envelope, verify_envelope

BOOKMARK_EVERY: Final = 2_048
"""Entries that the log gains before what was read of it is kept anew. Reading so many takes about 50 ms."""


class SignedRewards:
    """The reward statements of one log, by run. Thread-safe.

    Args:
        log: whose entries they are.
        read: what the caller has read of it; no bookmark is looked for then.
    """

    def __init__(self, log: Log, read: Outline | None = None) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._edge = CompactRange()
        self._indexes: dict[str, list[int]] = {}
        self._verified: dict[int, Statement] = {}
        self._kept: int | None = None
        """How many entries the bookmark covers; None: nobody looked for one yet."""
        self._unread = 0
        """Entries before this one were not read by this object: the bookmark, or its maker, stands for them."""
        if read is not None:
            self._edge = read.edge(len(read))
            self._indexes = {run: list(indexes) for run, indexes in read.rewards.items()}
            self._kept = self._unread = len(read)

    def of_run(self, run: str) -> tuple[Statement, ...]:
        """Every reward statement whose facts name this run, in log order, signatures checked.

        Raises:
            IntegrityError: the log is not what its checkpoint says, or a signature does not count.
        """
        if not self._log.exists:
            return ()
        with self._lock:
            now = self._log.checkpoint()
            try:
                self._read_on(now)
                return self._verify(run, now)
            except IntegrityError:
                if not self._unread:
                    raise
            # Bookmark or tiles do not fit the log. Only the entries themselves say what it holds, so they are all read.
            self._edge, self._unread, self._kept = CompactRange(), 0, 0
            self._indexes.clear()
            self._verified.clear()
            self._read_on(now)
            return self._verify(run, now)

    def _verify(self, run: str, now: Checkpoint) -> tuple[Statement, ...]:
        indexes = self._indexes.get(run, [])
        fresh = [index for index in indexes if index not in self._verified]
        verifier = Verifier(self._log.trust_root()) if fresh else None
        tiles = TileReader(self._log.files)
        for index, entry in self._log.entries_at(fresh):
            assert verifier is not None
            if index < self._unread:
                proof = inclusion_proof(index, now.size, tiles)
                verify_inclusion(index, now.size, leaf_hash(entry), proof, now.root)
            statement = _read(verify_envelope(entry, verifier, index=index).payload, index)
            if statement.facts.get("run") != run:
                raise IntegrityError(f"Entry {index} of the log changed while it was read.")
            self._verified[index] = statement
        return tuple(self._verified[index] for index in indexes)

    def _read_on(self, now: Checkpoint) -> None:
        if now.size < self._edge.size:
            raise IntegrityError(f"The log had {self._edge.size} entries and has {now.size} now.")
        if self._kept is None:
            self._begin(now)
        edge, found = self._edge.copy(), list[tuple[str, int]]()
        for index, entry in enumerate(self._log.entries(edge.size, now.size), edge.size):
            edge.append(leaf_hash(entry))
            # Nearly all entries are told apart by their bytes; only what may be a reward is decoded.
            if any(text in entry for text in _REWARD):
                statement = _read(open_envelope(entry)[1], index)
                if statement.activity is Activity.REWARD:
                    found.append((_run_of(statement.facts), index))
        if edge.root() != now.root:
            raise IntegrityError(
                "The log's entries are not what its checkpoint was signed for.", next_step="see `ropewalk verify`."
            )
        self._edge = edge
        for run, index in found:
            self._indexes.setdefault(run, []).append(index)
        if edge.size - (self._kept or 0) >= BOOKMARK_EVERY:
            self._kept = edge.size
            save_bookmark(self._log, Bookmark(now.origin, edge.size, edge.hashes, self._indexes))

    def _begin(self, now: Checkpoint) -> None:
        """Where a bookmark of this log says that an earlier process ended."""
        self._kept = 0
        bookmark = load_bookmark(self._log, now)
        if bookmark is not None:
            self._edge = CompactRange(bookmark.size, bookmark.edge)
            self._indexes = bookmark.indexes
            self._kept = self._unread = bookmark.size


def _read(payload: bytes, index: int) -> Statement:
    try:
        return from_payload(payload)
    except CallerError as error:
        raise IntegrityError(f"Entry {index} of the log is no statement. {error.message}") from error


def _run_of(facts: dict[str, Any]) -> str:
    run = facts.get("run")
    return run if isinstance(run, str) else ""


def _in_base64(text: bytes) -> tuple[bytes, ...]:
    """What base64 makes of a text wherever it may begin: without the characters that its neighbours share."""
    shifted = []
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + text)
        shifted.append(encoded[-(-shift * 8 // 6) : (shift + len(text)) * 8 // 6])
    return tuple(shifted)


_REWARD: Final = _in_base64(PREDICATE_TYPE.format(activity=Activity.REWARD.value).encode())
