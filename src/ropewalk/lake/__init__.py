"""Immutable raw zone and commits: what entered, from where, on what terms, and which version holds it."""

from __future__ import annotations

from ropewalk.lake.archives import Unpacked, canonical_tar, survey, unpack
from ropewalk.lake.commits import BranchMovedError, diff
from ropewalk.lake.downloads import Fetcher, Progress
from ropewalk.lake.index import index_url
from ropewalk.lake.ingest import Terms
from ropewalk.lake.lake import Lake, VerifiedCommit
from ropewalk.lake.members import ArchiveError, ArchiveFault, Caps
from ropewalk.lake.pypi import read_pins
from ropewalk.lake.records import (
    Attestation,
    Change,
    Commit,
    IngestResult,
    IngestStep,
    LicenceBasis,
    LicenceRecord,
    Pin,
    RawRecord,
    Release,
)

__all__ = [
    "ArchiveError",
    "ArchiveFault",
    "Attestation",
    "BranchMovedError",
    "Caps",
    "Change",
    "Commit",
    "Fetcher",
    "IngestResult",
    "IngestStep",
    "Lake",
    "LicenceBasis",
    "LicenceRecord",
    "Pin",
    "Progress",
    "RawRecord",
    "Release",
    "Terms",
    "Unpacked",
    "VerifiedCommit",
    "canonical_tar",
    "diff",
    "index_url",
    "read_pins",
    "survey",
    "unpack",
]
