"""What vouches for the data: blobs, keys, the log and what is derived from them. Needs no sandbox driver.

Commands that only look (`trace`, `verify`, `report`, `keys`) open this part alone, so that they work also on a
machine that cannot run a sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from ropewalk.app.configuration import BlobSettings, KeySettings, LakeSettings, check_drivers
from ropewalk.app.evidence import Evidence
from ropewalk.app.ground import Ground, open_ground
from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.lake.ingest import Terms
from ropewalk.lake.lake import Lake
from ropewalk.lake.records import IngestResult, IngestStep
from ropewalk.lake.sources import PypiSource, parse_source
from ropewalk.machinery import drivers
from ropewalk.provenance.answers import taint_of, trace_of
from ropewalk.provenance.graph import LineageIndex
from ropewalk.provenance.log import Log, revoke_keys, rotate_keys
from ropewalk.provenance.outline import Outline
from ropewalk.provenance.receipts import make_receipt
from ropewalk.provenance.recorder import LogRecorder
from ropewalk.provenance.rewards import SignedRewards
from ropewalk.provenance.statement import Activity, Link, StatementDraft
from ropewalk.provenance.trace import Taint, Trace
from ropewalk.provenance.verification import Verification, VerificationFinding, VerificationStatus
from ropewalk.provenance.verify import Anchors, verify_run
from ropewalk.rollout.journal import RunJournal
from ropewalk.rollout.loaded import read_episodes
from ropewalk.security.contract import Keys
from ropewalk.security.data_classes import data_class
from ropewalk.security.drivers import DRIVERS as KEY_DRIVERS
from ropewalk.security.marks import KeyedMarks
from ropewalk.security.trust import PublicPair, export_trust_root, load_trust_root
from ropewalk.store.blobs import open_blobs
from ropewalk.store.database import Database
from ropewalk.store.layout import Layout

TRUST_ROOT_NAME: Final = "ropewalk-trust-root.json"
CHECKPOINT_NAME: Final = "ropewalk-checkpoint"
STORED_KINDS: Final = frozenset({"raw", "commit", "bundle", "episode", "verdict", "reward", "plan"})
"""Whose bytes `verify` compares with the digests in the statements."""
NOT_COMPARED: Final = "not compared: layers on disk and the report; times, use and cost are the host's word, unsigned"


class Custody:
    """One state directory under one profile. Use `Custody.open`."""

    def __init__(self, ground: Ground, *, passphrase: str = "") -> None:
        self.profile, self.layout, self.tenant = ground
        self.blobs = open_blobs(self.profile.family(BlobSettings).uri or self.layout.blobs)
        self.keys = _open_keys(self.profile.family(KeySettings), self.layout, passphrase=passphrase)
        self.log = Log(self.layout.log, self.keys)
        self.lake = Lake(self.layout, self.blobs)

    @classmethod
    @contextmanager
    def open(cls, profile: str | None = None, *, state: Path | None = None, passphrase: str = "") -> Iterator[Custody]:
        """Opens what vouches, until the block ends.

        Args:
            profile: name or path; see `open_ground`.
            state: the state directory; see `open_ground`.
            passphrase: reference to what encrypts new keys; replaces the profile's.

        Raises:
            CallerError: no such profile.
            UnavailableError: the state directory cannot be used.
        """
        opened = cls(open_ground(profile, state=state), passphrase=passphrase)
        try:
            yield opened
        finally:
            opened.close()

    @cached_property
    def database(self) -> Database:
        """The state database, opened on first use."""
        return Database.open(self.layout.database)

    @cached_property
    def journal(self) -> RunJournal:
        """Of all runs."""
        return RunJournal(self.database, locks=self.layout.runs)

    @cached_property
    def lineage(self) -> LineageIndex:
        """Who made what out of what; caught up with the log when first used."""
        index = LineageIndex(self.database, self.log)
        if self.log.exists:
            index.catch_up()
        return index

    def rebuild_lineage(self) -> int:
        """Makes the lineage index anew from the log, whatever it says; returns how many statements are in it.

        Raises:
            IntegrityError: an entry of the log is no statement.
        """
        if not self.log.exists:
            return 0
        LineageIndex(self.database, self.log).rebuild()
        return self.log.checkpoint().size

    @property
    def attested_by(self) -> str:
        """Who vouches for what enters the lake, where the caller names nobody; empty: nobody does."""
        return self.profile.family(LakeSettings).attested_by

    @cached_property
    def recorder(self) -> LogRecorder:
        """Signs and logs. The first use makes keys where there are none."""
        self.keys.create()
        return LogRecorder(self.log, self.lineage)

    def marks(self, purpose: str) -> KeyedMarks:
        """For what goes on from what it stored. The first use makes keys where there are none."""
        self.keys.create()
        return KeyedMarks(self.keys, purpose)

    def ingest(
        self, source: str, *, terms: Terms, versions: Sequence[str] = (), message: str = "", **settings: Any
    ) -> IngestResult:
        """Brings a source into the lake and signs what it did.

        Args:
            source: `pypi:NAME`, `pypi:NAME==VERSION`, a directory or an archive.
            terms: who vouches, and the licence where the source states none.
            versions: releases of `pypi:NAME`.
            message: of the commit.
            settings: further ones of `Lake.ingest`.

        Raises:
            DeniedError: the profile does not allow such sources, or the class not where the lake's bytes lie.
            CallerError, IntegrityError, UnavailableError: as `Lake.ingest`. Also IntegrityError where the lake holds
                what nobody signed for: what was asked for is signed then, and the lake's version is not.
        """
        self.profile.allow_source(source_kind(source))
        if terms.data_class is not None:
            check_drivers(self.profile, data_class(terms.data_class).name, ("blobs", "keys"))
        return self.lake.ingest(
            source,
            tenant=self.tenant,
            terms=terms,
            versions=versions,
            message=message,
            record=self._sign_ingest,
            **settings,
        )

    def _sign_ingest(self, steps: tuple[IngestStep, ...]) -> None:
        *entered, commit = steps
        recorder, inputs = self.recorder, [sha256 for _, sha256 in commit.inputs]
        known = {sha256 for step in entered for _, sha256 in step.subjects}
        if self.log.exists:
            known |= self.lineage.made(inputs)
        gaps = [sha256 for sha256 in inputs if sha256 not in known]
        recorder.record(tuple(_draft(step) for step in (entered if gaps else steps)))
        if gaps:
            # A commit that was signed over them could never be verified, whatever is signed later.
            raise IntegrityError(
                f"The lake holds {len(gaps)} raw files that no statement vouches for, raw:{gaps[0][:32]} among them.",
                next_step="ingest each from its source again: what vouches for it is signed then.",
            )

    def trace(self, name: str) -> Trace:
        """The chain behind a reward, verdict, task … by its name or sha256; signatures are checked on the way.

        Raises:
            CallerError: nothing of that name was ever made.
            IntegrityError: a statement is not what was signed, or the index not what the log says.
        """
        self._check_recorded()
        return trace_of(name, log=self.log, index=self.lineage)

    def taint(self, name: str) -> Taint:
        """Everything that was made from a raw file, a task … by its name or sha256."""
        self._check_recorded()
        return taint_of(name, log=self.log)

    def verify(
        self, subjects: Sequence[str] | Callable[[Outline], Sequence[str]] | None, anchors: Anchors
    ) -> Verification:
        """Checks the log and the chains of these things (sha256; None: of everything) and their stored bytes.

        Raises:
            CallerError: nothing was ever recorded, or an anchor is not a file of its kind. And what `subjects` raises.
        """
        self._check_recorded()
        return verify_run(
            self.layout.log,
            anchors=anchors,
            own=self.keys.trust_root() if self.keys.exists else None,
            subjects=subjects,
            blobs=self.blobs,
            stored_kinds=STORED_KINDS,
        )

    @cached_property
    def signed(self) -> SignedRewards:
        """Which rewards the log holds."""
        return SignedRewards(self.log)

    def verify_run(self, run: str, anchors: Anchors) -> Verification:
        """Like `verify`, of every reward of a run: those in the log, which must be the very ones in the journal.

        Raises:
            CallerError: no such run.
        """
        evidence = Evidence(self.blobs)
        found = evidence.findings
        # A copy of the state on another machine has no keys, and needs none: the pinned ones say who signed.
        pinned = None if self.keys.exists or anchors.trust_root is None else load_trust_root(anchors.trust_root)
        whole = Log(self.layout.log, self.keys, pinned=pinned)

        def rewards(read: Outline) -> Sequence[str]:
            subjects: dict[str, None] = {}
            # Not `self.signed`: its bookmark says as much as the keys of this host, and these may be stolen.
            log = SignedRewards(whole, read)
            try:
                subjects.update((statement.subjects[0].sha256, None) for statement in log.of_run(run))
                loaded, differences = read_episodes(self.journal, self.blobs, run, log=log)
                found.extend(
                    VerificationFinding(code="journal_differs", message=each.message, name=each.name)
                    for each in differences
                )
                evidence.follow(loaded)
            except (IntegrityError, CallerError) as error:
                if isinstance(error, CallerError) and not subjects:
                    raise
                found.append(VerificationFinding(code="journal_differs", message=error.message))
            return tuple(subjects)

        verified = self.verify(rewards, anchors)
        return msgspec.structs.replace(
            verified,
            status=VerificationStatus.FAILED if found else verified.status,
            findings=(*verified.findings, *found),
            notes=(*verified.notes, NOT_COMPARED),
            blobs=verified.blobs + evidence.count,
        )

    def receipt(self, name: str, *, outside: Path | None = None) -> bytes:
        """One thing's statement with the proof that it is in the log; see `provenance.receipts`.

        Args:
            name: the thing's.
            outside: see `make_receipt`.

        Raises:
            CallerError: nothing of that name was ever made; or as `make_receipt`.
            IntegrityError: the log is damaged, or the index not what the log says; or as `make_receipt`.
        """
        return make_receipt(self.log, self.trace(name).nodes[0].made_by[-1].index, outside=outside)

    def check_anchor(self, folder: Path) -> None:
        """Returns if the log still continues what an anchor folder vouches for, or if that folder is empty.

        Raises:
            IntegrityError: the log was rolled back or changed since, or is another one.
        """
        anchors = anchors_in(folder)
        if anchors == Anchors():
            return
        if not self.log.exists:
            raise IntegrityError(
                f"{folder} vouches for a log, and there is none in {self.layout.root}.",
                next_step="name the state directory that the anchor belongs to, or another anchor folder.",
            )
        self.verify((), anchors).raise_if_failed()

    def export_anchor(self, folder: Path) -> Anchors:
        """Writes public keys and checkpoint into a folder outside, under the names that `anchors_in` looks for.

        Raises:
            CallerError: the folder is inside the state directory, or nothing was ever recorded.
            IntegrityError: the folder vouches for a log that this one does not continue; then it stays as it is.
            UnavailableError: it cannot be written.
        """
        self.check_anchor(folder)
        self._check_recorded()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UnavailableError(f"The folder {folder} cannot be made: {error.strerror or error}.") from error
        self.log.export_checkpoint(folder / CHECKPOINT_NAME)
        export_trust_root(self.keys.trust_root(), folder / TRUST_ROOT_NAME)
        return anchors_in(folder)

    def _check_recorded(self) -> None:
        if not self.log.exists:
            raise CallerError("Nothing was ever recorded here.", next_step="`ropewalk demo` makes a first run.")

    def rotate_keys(self) -> PublicPair:
        """See `provenance.log.rotate_keys`."""
        return rotate_keys(self.log)

    def revoke_keys(self, pair_id: str, *, reason: str, from_index: int | None = None) -> PublicPair:
        """See `provenance.log.revoke_keys`."""
        return revoke_keys(self.log, pair_id, reason=reason, from_index=from_index)

    def close(self) -> None:
        """Lets go of the database."""
        if "database" in self.__dict__:
            self.database.close()


def anchors_in(folder: Path) -> Anchors:
    """What an anchor folder holds; what is not there is None."""
    found = [folder / name for name in (TRUST_ROOT_NAME, CHECKPOINT_NAME)]
    return Anchors(*(path if path.exists() else None for path in found))


def anchors_from(folder: Path) -> Anchors:
    """Like `anchors_in`, of a folder that somebody relies on.

    Raises:
        CallerError: there is nothing in it.
    """
    found = anchors_in(folder)
    if found == Anchors():
        raise CallerError(
            f"{folder} holds neither {TRUST_ROOT_NAME} nor {CHECKPOINT_NAME}.",
            next_step=f"`ropewalk provenance anchor {folder}` writes both.",
        )
    return found


def source_kind(source: str) -> str:
    """What a profile calls a source: `pypi`, `directory` or `archive`.

    Raises:
        CallerError: it is none of them.
    """
    parsed = parse_source(source)
    return "pypi" if isinstance(parsed, PypiSource) else "directory" if parsed.directory else "archive"


def _draft(step: IngestStep) -> StatementDraft:
    return StatementDraft(
        activity=Activity(step.activity),
        subjects=tuple(Link(name=name, sha256=sha256) for name, sha256 in step.subjects),
        inputs=tuple(Link(name=name, sha256=sha256) for name, sha256 in step.inputs),
        predicate=step.facts,
        started_s=step.started_s,
        ended_s=step.ended_s,
    )


def _open_keys(settings: KeySettings, layout: Layout, *, passphrase: str) -> Keys:
    keys: Keys = drivers.load("keys", KEY_DRIVERS, settings.driver)(
        layout.keys, passphrase=passphrase or settings.passphrase or None
    )
    return keys
