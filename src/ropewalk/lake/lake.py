"""The lake: an immutable raw zone and its versions, over a blob store."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from ropewalk.core import limits
from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.errors import IntegrityError
from ropewalk.core.records import Record
from ropewalk.lake import pypi
from ropewalk.lake.commits import BranchMovedError, Commits, diff
from ropewalk.lake.downloads import Fetcher, Progress
from ropewalk.lake.index import index_url
from ropewalk.lake.ingest import Entrance, Offers, Terms, wanted_versions
from ropewalk.lake.raw import RawZone
from ropewalk.lake.records import Change, Commit, IngestResult, IngestStep, Pin, RawRecord, Release, steps_of
from ropewalk.lake.sources import PypiSource, parse_source
from ropewalk.store.contract import Blobs
from ropewalk.store.layout import Layout

_COMMIT_ATTEMPTS_MAX: Final = 20


class VerifiedCommit(Record):
    """What `Lake.verify` read and found whole."""

    commit: str
    files: int
    bytes: int


class Lake:
    """Synchronous and thread-safe; asynchronous callers use a thread. Every call names its tenant."""

    def __init__(self, layout: Layout, blobs: Blobs, clock: Clock | None = None) -> None:
        self._root = layout.lake
        self._blobs = blobs
        self._clock = clock or SystemClock()

    def ingest(
        self,
        source: str | Path,
        *,
        tenant: str,
        terms: Terms,
        versions: Sequence[str] = (),
        pins: Sequence[Pin] = (),
        branch: str = "main",
        message: str = "",
        index: str | None = None,
        fetcher: Fetcher | None = None,
        progress: Progress | None = None,
        record: Callable[[tuple[IngestStep, ...]], None] | None = None,
    ) -> IngestResult:
        """Brings a source into the raw zone and commits it.

        Every archive is read to its end, as strictly as `unpack` does, before it is stored. What is there already is
        neither fetched nor stored again, so that an interrupted ingest goes on where it stopped and a repeated one
        works without a network. Whatever fails leaves whole files or nothing, and never a commit that lacks some.

        Args:
            source: `pypi:NAME==VERSION`, `pypi:NAME` with `versions` or `pins`, a directory, or an archive.
            versions: releases of `pypi:NAME`.
            pins: what the bytes must be; those of other distributions are ignored.
            index: the package index; by default the one that pip uses here (`index_url`).
            progress: of downloads. May raise to give up.
            record: writes down what is done, before the branch moves and in the order in which it moves: so no
                version holds a file that was not written down before, whoever else ingests and whoever is killed.
                Where it raises, the branch stays.

        Raises:
            CallerError: no such source, release or licence; an archive that is refused (`ArchiveError`).
            DeniedError: nobody attests (rule `no_human_data`), no licence is known (rule `licence`), or a stored file
                would get a less restricted class (rule `data_class`).
            IntegrityError: bytes are not what index or pin say, or the raw zone is damaged.
            UnavailableError: the index does not answer; no room.
        """
        raw = self._zone(tenant)
        entrance = Entrance(raw, terms, self._clock)
        parsed = parse_source(source)
        skipped: tuple[str, ...] = ()
        if isinstance(parsed, PypiSource):
            with Offers(parsed.distribution, index, fetcher) as offers:
                for version, pin in wanted_versions(parsed, versions, pins):
                    entrance.enter_release(offers, version, pin, progress)
        else:
            skipped = entrance.enter_path(parsed)
        records = tuple(entrance.records)
        commit, committed = self._commit(raw, records, branch, message or f"Ingest {records[0].source}", record)
        return IngestResult(
            records=records, commit=commit, stored=tuple(entrance.stored), committed=committed, skipped=skipped
        )

    def list_releases(
        self, name: str, *, index: str | None = None, prereleases: bool = False, fetcher: Fetcher | None = None
    ) -> tuple[Release, ...]:
        """See `ropewalk.lake.pypi.list_releases`."""
        with contextlib.ExitStack() as stack:
            chosen = fetcher or stack.enter_context(Fetcher())
            return pypi.list_releases(name, index=index_url(index), fetcher=chosen, prereleases=prereleases)

    def raw(self, id: str, *, tenant: str) -> RawRecord:
        """A raw file's record by `raw:…` id or sha256. Raises `CallerError` where the tenant has none such."""
        return self._zone(tenant).resolve(id)

    def records(self, *, tenant: str) -> tuple[RawRecord, ...]:
        """All of a tenant's raw files, in order of sha256."""
        return tuple(self._zone(tenant).records())

    def read(self, id: str, *, tenant: str, bytes_max: int = limits.ARCHIVE_BYTES_MAX) -> bytes:
        """A raw file's bytes, verified, for work on this machine. Whoever writes them to a file elsewhere asks first
        whether their data class allows that (`ropewalk.app.exporting.export_raw`).

        Raises:
            CallerError: no such file, or larger than `bytes_max`.
            IntegrityError: changed or lost.
        """
        zone = self._zone(tenant)
        return zone.read(zone.resolve(id), bytes_max=bytes_max)

    def open(self, id: str, *, tenant: str) -> BinaryIO:
        """A raw file's reader, which verifies at its end."""
        zone = self._zone(tenant)
        return zone.open(zone.resolve(id))

    def head(self, branch: str = "main", *, tenant: str) -> Commit | None:
        """A branch's newest commit, None before its first."""
        return self._commits(tenant).head(branch)

    def commit(self, id: str, *, tenant: str) -> Commit:
        """A commit by `commit:…` id or digest, verified. Raises `CallerError` where the tenant has none such."""
        return self._commits(tenant).load(id)

    def branches(self, *, tenant: str) -> tuple[str, ...]:
        """Names, in order."""
        return self._commits(tenant).branches()

    def log(self, branch: str = "main", *, tenant: str, count_max: int = 1000) -> tuple[Commit, ...]:
        """A branch's commits, newest first."""
        return tuple(self._commits(tenant).log(branch, count_max=count_max))

    def diff(self, before: str | None, after: str, *, tenant: str) -> tuple[Change, ...]:
        """What changed between two commits; `before` None stands for an empty lake."""
        commits = self._commits(tenant)
        return diff(commits.load(before) if before is not None else None, commits.load(after))

    def verify(self, id: str, *, tenant: str) -> VerifiedCommit:
        """Reads a commit's every record and file.

        Raises:
            CallerError: no such commit.
            IntegrityError: something was changed or lost; names the first.
        """
        commit = self.commit(id, tenant=tenant)
        zone = self._zone(tenant)
        total = 0
        for path, sha256 in commit.entries.items():
            record = zone.load(commit.records.get(sha256, ""))
            if record.sha256 != sha256:
                raise IntegrityError(f"{commit.id}: the record of {path} is about another file, {record.sha256}.")
            with zone.open(record) as file:
                while chunk := file.read(limits.MIB):
                    total += len(chunk)
        return VerifiedCommit(commit=commit.id, files=len(commit.entries), bytes=total)

    def _zone(self, tenant: str) -> RawZone:
        return RawZone(self._root, self._blobs, tenant=tenant)

    def _commits(self, tenant: str) -> Commits:
        return Commits(self._root, self._blobs, tenant=tenant)

    def _commit(
        self,
        raw: RawZone,
        records: tuple[RawRecord, ...],
        branch: str,
        message: str,
        record: Callable[[tuple[IngestStep, ...]], None] | None,
    ) -> tuple[Commit, bool]:
        commits = self._commits(raw.tenant)
        entries = {record.path: record.sha256 for record in records}
        digests = {record.sha256: raw.record_digest(record.sha256) for record in records}

        def write_down(commit: Commit) -> None:
            if record is not None:
                record(steps_of(records, commit))

        for attempt in range(1, _COMMIT_ATTEMPTS_MAX + 1):
            head = commits.head(branch)
            known = head.entries if head else {}
            vouched = head.records if head else {}
            if head and entries.items() <= known.items() and digests.items() <= vouched.items():
                write_down(head)
                return head, False
            both = known | entries
            commit = Commit(
                parents=(head.digest,) if head else (), entries=both, tenant=raw.tenant, message=message,
                records={sha: d for sha, d in (vouched | digests).items() if sha in set(both.values())},
                created_s=self._clock.now_s(),
            )  # fmt: skip
            try:
                commits.append(
                    commit,
                    branch=branch,
                    expected=head.digest if head else None,
                    before=functools.partial(write_down, commit),
                )
            except BranchMovedError:
                if attempt == _COMMIT_ATTEMPTS_MAX:
                    raise
            else:
                return commit, True
        raise AssertionError("unreachable")
