"""What the lake hands out: raw files, what vouches for them, commits, and what an ingest did."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from ropewalk.core.records import Record, content_id, digest, to_plain

NO_HUMAN_DATA: Final = (
    "Published software and its tests. It was not collected from or about people, and holds no personal data "
    "but the names that its authors put there themselves."
)
"""What is attested of a raw file, unless the caller words it otherwise."""


class LicenceBasis(StrEnum):
    """Where a licence expression comes from, best first."""

    GIVEN = "given"
    """By the user, at ingest."""
    METADATA_EXPRESSION = "metadata_expression"
    """`License-Expression` (PEP 639), or `project.license` as a string."""
    METADATA_FIELD = "metadata_field"
    """The old free-text `License` field, where it can be read as SPDX."""
    CLASSIFIER = "classifier"
    """A `License ::` classifier."""


class LicenceRecord(Record):
    """Under what terms a raw file may be used."""

    expression: str
    """SPDX, canonical, e.g. `BSD-3-Clause`. `LicenseRef-…` where the source names a family of licences only."""
    basis: LicenceBasis
    stated: str
    """The words that the expression was read from."""
    found_in: str
    """The file in the archive that states it; "" where the user did."""


class Attestation(Record):
    """Who says that a raw file holds no human data. Signed as a part of the ingest statement."""

    who: str
    """A role or an organisation: never a natural person's name, which would survive erasure."""
    what: str
    when_s: float
    claim: str = "no_human_data"


class RawRecord(Record):
    """A file in the raw zone. Its bytes never change; another version is another record."""

    sha256: str
    bytes: int
    name: str
    """File name."""
    source: str
    """`pypi:NAME==VERSION`, `directory:NAME` or `archive:NAME`: no path, host or user of this machine."""
    path: str
    """Where lake commits hold it."""
    retrieved_s: float
    tenant: str
    data_class: str
    distribution: str
    """Normalised name (PEP 503); "" where the source states none."""
    version: str
    """As the source states it; "" where it states none."""
    licence: LicenceRecord
    attestation: Attestation

    @property
    def id(self) -> str:
        """`raw:` and the first 32 characters of the sha256 of its bytes."""
        return f"raw:{self.sha256[:32]}"


class Commit(Record):
    """A version of the lake: which raw file stands at which path. Immutable, addressed by its content."""

    parents: tuple[str, ...]
    """Digests of commits; empty for a branch's first."""
    entries: dict[str, str]
    """Path → sha256 of the raw file."""
    records: dict[str, str]
    """sha256 of a raw file → digest of its `RawRecord`, so that a commit fixes licences and attestations too."""
    message: str
    tenant: str
    created_s: float

    @property
    def digest(self) -> str:
        return digest(self)

    @property
    def id(self) -> str:
        """`commit:` and the first 32 characters of its digest."""
        return content_id("commit", self)


class Change(Record):
    """One path that differs between two commits: None where it is absent."""

    path: str
    before: str | None
    after: str | None


class Pin(Record):
    """A release whose bytes are known before they are fetched."""

    distribution: str
    version: str
    sha256: str


class Release(Record):
    """A source distribution that an index offers."""

    distribution: str
    version: str
    filename: str
    url: str
    """May hold a key of the index's user: not for logs or statements."""
    sha256: str
    bytes: int | None
    uploaded: str
    """RFC 3339; "" where the index does not say."""
    yanked: bool


class IngestStep(Record):
    """One activity, with everything that its statement needs; made of records alone, so repeating gives equal steps."""

    activity: str
    """`ingest` or `commit`."""
    subjects: tuple[tuple[str, str], ...]
    """Id and sha256 of what was made."""
    inputs: tuple[tuple[str, str], ...]
    facts: dict[str, Any]
    started_s: float
    ended_s: float


class IngestResult(Record):
    """What an ingest did, or found done already."""

    records: tuple[RawRecord, ...]
    """In the order asked for."""
    commit: Commit
    """The branch's head, which holds all of them."""
    stored: tuple[str, ...]
    """sha256 of the files that were not in the raw zone before."""
    committed: bool
    """False: the head held all of them already."""
    skipped: tuple[str, ...] = ()
    """Of a directory: what was left out (caches, version control), relative paths."""

    @property
    def steps(self) -> tuple[IngestStep, ...]:
        """See `steps_of`."""
        return steps_of(self.records, self.commit)


def steps_of(records: tuple[RawRecord, ...], commit: Commit) -> tuple[IngestStep, ...]:
    """What bringing these files into that commit consists of: one step per file, and last the commit's."""
    ingests = (
        IngestStep(
            activity="ingest",
            subjects=((record.id, record.sha256),),
            inputs=(),
            facts=to_plain(record),
            started_s=record.retrieved_s,
            ended_s=record.retrieved_s,
        )
        for record in records
    )
    last = IngestStep(
        activity="commit",
        subjects=((commit.id, commit.digest),),
        inputs=tuple((f"raw:{sha256[:32]}", sha256) for sha256 in sorted(set(commit.entries.values()))),
        facts={"message": commit.message, "tenant": commit.tenant, "parents": list(commit.parents)},
        started_s=commit.created_s,
        ended_s=commit.created_s,
    )
    return (*ingests, last)
