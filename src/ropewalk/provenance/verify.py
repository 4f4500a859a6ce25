"""Checks a log and what its statements say, against keys and a checkpoint that were kept elsewhere.

What is checked, in this order: the checkpoint's signatures; every entry against the checkpoint's root; every stored
tile; the outside checkpoint (an older or equal size must have the same root, a newer one means a rollback); both
signatures of every statement and what rotation and revocation say about their keys; every chain down to raw files;
stored bytes against their digests. Nothing is believed because an earlier run checked it.

The log is read once from its beginning, and in outline only (`provenance.outline`); in whole are read the statements
that the question is about. So memory grows with the run, and by a hundred bytes with each entry of the log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from ropewalk.core.errors import CallerError, IntegrityError, RopewalkError
from ropewalk.core.limits import ARCHIVE_BYTES_MAX
from ropewalk.core.merkle import EMPTY_ROOT, HASH_BYTES, leaf_hash, root
from ropewalk.provenance.checkpoint import Checkpoint, parse_checkpoint, read_checkpoint, verify_checkpoint
from ropewalk.provenance.files import TILE_WIDTH, LogFiles, is_beside
from ropewalk.provenance.intoto import Statement, from_payload, kind_of
from ropewalk.provenance.lineage import MemoryLineage, gaps
from ropewalk.provenance.outline import Outline
from ropewalk.provenance.statement import Activity, Link
from ropewalk.provenance.verification import Verification, VerificationFinding, VerificationStatus
from ropewalk.security.signatures import SignatureError, Verifier, open_envelope, verify_envelope
from ropewalk.security.trust import TrustRoot, load_trust_root

STORED_KINDS = frozenset({"raw"})
"""Kinds of things that must be in the blob store; others are checked where they are."""
_TILE_BYTES = TILE_WIDTH * HASH_BYTES


class BlobSource(Protocol):
    """Bytes by digest; `store.contract.Blobs` is one."""

    def exists(self, digest: str) -> bool:
        """Whether it is stored."""
        ...

    def get(self, digest: str, *, bytes_max: int) -> bytes:
        """The bytes; raises an IntegrityError where they do not have this digest."""
        ...


class Anchors(NamedTuple):
    """What was kept elsewhere; None: nothing was."""

    trust_root: Path | None = None
    """Written by `export_trust_root`."""
    checkpoint: Path | None = None
    """Written by `Log.export_checkpoint`."""


class _Work:
    """What a verification gathers on its way."""

    def __init__(self) -> None:
        self.findings: list[VerificationFinding] = []
        self.unanchored: list[str] = []
        self.notes: list[str] = []
        self.time_s: dict[str, float] = {}
        self.checkpoint = Checkpoint("", 0, EMPTY_ROOT)
        self.anchored_size = 0
        self.statements: dict[int, Statement] = {}
        """The selected ones, without their facts."""
        self.selected: list[int] = []
        self.blobs = 0

    def found(self, code: str, message: str, index: int | None = None) -> None:
        statement = self.statements.get(index) if index is not None else None
        self.findings.append(
            VerificationFinding(
                code=code,
                message=message if index is None else f"entry {index}: {message}",
                index=index,
                statement=statement.digest if statement else None,
                name=statement.subjects[0].name if statement else "",
            )
        )

    def timed(self, stage: str, started_s: float) -> float:
        now = time.perf_counter()
        self.time_s[stage] = round(now - started_s, 6)
        return now

    def verification(self) -> Verification:
        status = VerificationStatus.UNANCHORED if self.unanchored else VerificationStatus.OK
        rewards = sum(self.statements[i].activity is Activity.REWARD for i in self.selected if i in self.statements)
        return Verification(
            status=VerificationStatus.FAILED if self.findings else status,
            findings=tuple(self.findings),
            unanchored_because=tuple(self.unanchored),
            notes=tuple(self.notes),
            origin=self.checkpoint.origin,
            log_size=self.checkpoint.size,
            root=self.checkpoint.root.hex(),
            anchored_size=self.anchored_size,
            statements=len(self.selected),
            blobs=self.blobs,
            rewards=rewards,
            time_s=self.time_s,
        )


def verify_run(
    log_folder: Path,
    *,
    anchors: Anchors,
    own: TrustRoot | None = None,
    subjects: Sequence[str] | Callable[[Outline], Sequence[str]] | None = None,
    blobs: BlobSource | None = None,
    stored_kinds: frozenset[str] = STORED_KINDS,
) -> Verification:
    """Verifies a log, and the chains of a run in it.

    Args:
        log_folder: `Layout.log`.
        anchors: what was kept elsewhere. Without both of them the status is `unanchored` at best.
        own: the host's own public keys: believed where none are pinned; where some are, its revocations are added.
        subjects: sha256 of everything the run says it made (rewards, episodes …): their chains are checked. None:
            every statement in the log. A function says them once the log was read, and gets what was read of it.
        blobs: where stored things are; None: they are not looked at.
        stored_kinds: which kinds of things must be there.

    Returns:
        Findings rather than an exception; see `Verification.raise_if_failed`.

    Raises:
        CallerError: an anchor is not a file of its kind, or there are neither pinned nor own keys. And what `subjects`
            raises.
    """
    work, files = _Work(), LogFiles(log_folder)
    started_s = time.perf_counter()
    verifier = _verifier(anchors, own, log_folder, work)
    outline = _check_log(files, verifier, anchors, work)
    now_s = work.timed("log", started_s)
    if callable(subjects):
        subjects = subjects(outline)
        now_s = work.timed("subjects", now_s)
    work.selected = list(range(len(outline))) if subjects is None else outline.ancestors(subjects)
    wrong = _read_selected(files, outline, verifier, work)
    now_s = work.timed("signatures", now_s)
    _check_lineage(subjects or (), MemoryLineage(work.statements), work)
    for index, error in wrong:
        work.found(f"signature_{error.cause}", error.message, index)
    now_s = work.timed("lineage", now_s)
    if blobs is not None:
        _check_blobs(blobs, stored_kinds, work)
        work.timed("blobs", now_s)
    beyond = [index for index in work.selected if index >= work.anchored_size]
    if beyond and work.anchored_size:
        work.unanchored.append(
            f"the outside checkpoint vouches for the first {work.anchored_size} entries; {len(beyond)} of the "
            "statements are newer (`ropewalk provenance anchor DIR` writes a new one)"
        )
    return work.verification()


def _verifier(anchors: Anchors, own: TrustRoot | None, folder: Path, work: _Work) -> Verifier:
    if anchors.trust_root is None:
        if own is None:
            raise CallerError(
                "There are no keys to verify with.",
                next_step="name the public keys of who signed: `--anchor DIR`, or `--keys FILE`.",
            )
        work.unanchored.append("no keys are pinned: the host's own were believed (`ropewalk provenance anchor DIR`)")
        return Verifier(own)
    pinned = load_trust_root(anchors.trust_root)
    if is_beside(anchors.trust_root, folder):
        work.unanchored.append(
            f"the trust root {anchors.trust_root} lies in the state directory that it should vouch for"
        )
    return Verifier(pinned.restricted_by(own) if own else pinned)


def _check_log(files: LogFiles, verifier: Verifier, anchors: Anchors, work: _Work) -> Outline:
    """The log in outline, as far as it is there; everything wrong with the log itself is noted."""
    try:
        data = read_checkpoint(files.checkpoint)
        work.checkpoint = parse_checkpoint(data)[0]  # where its signatures do not count, the rest is still looked at
        verify_checkpoint(data, verifier)
    except RopewalkError as error:
        work.found("checkpoint_invalid" if files.checkpoint.exists() else "log_unreadable", error.message)
    outline, strange = Outline(), list[tuple[int, str]]()
    try:
        for index, entry in enumerate(files.entries(0, work.checkpoint.size)):
            try:
                outline.add(entry)
            except CallerError as error:
                strange.append((index, error.message))
        for path, _end in files.torn(work.checkpoint.size):
            work.notes.append(f"{path} holds bytes behind the last entry that a crash left unacknowledged")
    except IntegrityError as error:
        work.found("entry_lost", error.message)
    if len(outline) == work.checkpoint.size and outline.root(len(outline)) != work.checkpoint.root:
        _name_changed_entries(files, outline, work)
    _check_tiles(files, outline, work)
    _check_outside(outline, verifier, anchors, work, files.folder)
    for index, message in strange:
        work.found("not_a_statement", message, index)
    return outline


def _name_changed_entries(files: LogFiles, outline: Outline, work: _Work) -> None:
    changed = []
    for number in range(0, -(-len(outline) // TILE_WIDTH)):
        stored = _read(files.tile(0, number))
        for offset in range(min(TILE_WIDTH, len(outline) - number * TILE_WIDTH)):
            index = number * TILE_WIDTH + offset
            if stored[offset * HASH_BYTES : (offset + 1) * HASH_BYTES] != outline.leaf(index):
                changed.append(index)
    for index in changed[:20]:
        work.found("entries_changed", "it is not what was logged", index)
    if len(changed) != 1:
        work.found("entries_changed", f"the entries do not have the root that was signed; {len(changed)} differ")


def _check_tiles(files: LogFiles, outline: Outline, work: _Work) -> None:
    level, hashes, full = 0, bytes(outline.leaves), outline.tiles
    while hashes:
        for number in range(-(-len(hashes) // _TILE_BYTES)):
            part = hashes[number * _TILE_BYTES : (number + 1) * _TILE_BYTES]
            path = files.tile(level, number)
            if _read(path)[: len(part)] != part:
                work.found("tile_damaged", f"{path} does not hold the hashes of the entries")
        level, hashes = level + 1, b"".join(full)
        full = [root(full[at : at + TILE_WIDTH]) for at in range(0, len(full) - TILE_WIDTH + 1, TILE_WIDTH)]


def _check_outside(outline: Outline, verifier: Verifier, anchors: Anchors, work: _Work, folder: Path) -> None:
    if anchors.checkpoint is None:
        work.unanchored.append("no outside checkpoint was given, so a rollback could not be seen (verify --anchor DIR)")
        return
    try:
        outside = verify_checkpoint(read_checkpoint(anchors.checkpoint), verifier)[0]
    except IntegrityError as error:
        work.found("outside_invalid", f"the outside checkpoint {anchors.checkpoint} does not count: {error.message}")
        return
    here = work.checkpoint
    if is_beside(anchors.checkpoint, folder):
        work.unanchored.append(
            f"the checkpoint {anchors.checkpoint} lies in the state directory that it should vouch for"
        )
    elif outside.size == 0:
        work.unanchored.append("the outside checkpoint is of an empty log")
    elif here.origin and outside.origin != here.origin:
        work.found("other_log", f"the outside checkpoint is of {outside.origin}, this log is {here.origin}")
    elif outside.size > here.size:
        work.found("rolled_back", f"the log had {outside.size} entries and has {here.size} now")
    elif len(outline) >= outside.size and outline.root(outside.size) != outside.root:
        work.found("forked", f"the first {outside.size} entries are not those that the outside checkpoint commits to")
    else:
        work.anchored_size = outside.size


def _read_selected(
    files: LogFiles, outline: Outline, verifier: Verifier, work: _Work
) -> list[tuple[int, SignatureError]]:
    """Reads the selected statements and checks that they are what was hashed; whose signatures do not count."""
    threads = min(os.cpu_count() or 1, 8)
    size = max(1, min(64, -(-len(work.selected) // threads)))
    parts = [work.selected[first : first + size] for first in range(0, len(work.selected), size)]

    def check(part: list[int]) -> list[_Looked]:
        looked = []
        for index, entry in files.entries_at(part):
            if leaf_hash(entry) != outline.leaf(index):
                raise IntegrityError(f"Entry {index} of the log changed while it was verified.")
            looked.append(_look(index, entry, verifier))
        return looked

    known = {finding.index for finding in work.findings if finding.code == "not_a_statement"}
    wrong = []
    try:
        with ThreadPoolExecutor(threads) as pool:
            for each in (each for looked in pool.map(check, parts) for each in looked):
                if each.statement is not None:
                    work.statements[each.entry] = each.statement
                elif each.entry not in known:
                    work.found("not_a_statement", each.message, each.entry)
                if each.error is not None:
                    wrong.append((each.entry, each.error))
    except IntegrityError as error:
        work.found("entry_lost", error.message)
    return wrong


class _Looked(NamedTuple):
    entry: int
    statement: Statement | None
    message: str
    """Why there is none."""
    error: SignatureError | None


def _look(index: int, entry: bytes, verifier: Verifier) -> _Looked:
    statement, message, wrong = None, "", None
    try:
        read = from_payload(open_envelope(entry)[1])
        statement = msgspec.structs.replace(read, facts={})  # the rest of it is small
    except (CallerError, IntegrityError) as error:
        message = error.message
    try:
        verify_envelope(entry, verifier, index=index)
    except SignatureError as error:
        wrong = error
    return _Looked(index, statement, message, wrong)


def _check_lineage(subjects: Sequence[str], lineage: MemoryLineage, work: _Work) -> None:
    """Every input has a maker before it, and every reward reaches a raw file; one pass in log order."""
    for digest in subjects:
        if digest not in lineage.makers:
            work.found("not_recorded", f"no statement in the log made {digest}")
    grounded: set[str] = set()
    for index, statement in sorted(work.statements.items()):
        reaches = statement.activity is Activity.INGEST or any(link.sha256 in grounded for link in statement.inputs)
        if reaches:
            grounded.update(link.sha256 for link in statement.subjects)
        for problem in gaps(index, statement, lineage.makers, work.statements):
            work.found("chain_incomplete", problem, index)
        if statement.activity is Activity.REWARD and not reaches:
            work.found("chain_incomplete", "the reward does not reach any raw file", index)


def _check_blobs(blobs: BlobSource, stored_kinds: frozenset[str], work: _Work) -> None:
    links: dict[str, tuple[Link, int]] = {}
    for index in work.selected:
        if statement := work.statements.get(index):
            for link in (*statement.subjects, *statement.inputs):
                known = links.get(link.sha256)
                if known is None or (kind_of(link) in stored_kinds and kind_of(known[0]) not in stored_kinds):
                    links[link.sha256] = (link, index)
    for digest, (link, index) in links.items():
        try:
            if blobs.exists(digest):
                blobs.get(digest, bytes_max=ARCHIVE_BYTES_MAX)
                work.blobs += 1
            elif kind_of(link) in stored_kinds:
                work.found("blob_missing", f"{link.name} ({digest[:12]}) is not in the blob store", index)
        except IntegrityError as error:
            work.found("blob_damaged", f"{link.name}: {error.message}", index)
        except CallerError as error:
            work.found("blob_missing", f"{link.name}: {error.message}", index)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
