"""What a verification says: its status and what was found, each finding naming the statement."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from ropewalk.core.errors import IntegrityError
from ropewalk.core.records import Record, to_plain


class VerificationStatus(StrEnum):
    """Only `ok` means that everything is right and that something outside this host vouches for it."""

    OK = "ok"
    UNANCHORED = "unanchored"
    """Everything fits together, but whoever controls this host could have made it so."""
    FAILED = "failed"
    """Something was tampered with, or lost, or is missing."""


class VerificationFinding(Record):
    """One thing that is wrong."""

    code: str
    """Stable: `log_unreadable`, `checkpoint_invalid`, `rolled_back`, `forked`, `outside_invalid`, `other_log`,
    `entry_lost`, `entries_changed`, `tile_damaged`, `not_a_statement`, `signature_<cause>`, `blob_missing`,
    `blob_damaged`, `not_recorded`, `chain_incomplete`, `journal_differs` (a run's journal is not what was
    signed)."""
    message: str
    index: int | None = None
    """The log entry."""
    statement: str | None = None
    """Its digest."""
    name: str = ""
    """What the statement made."""


class Verification(Record):
    """The outcome."""

    status: VerificationStatus
    findings: tuple[VerificationFinding, ...]
    unanchored_because: tuple[str, ...]
    """Empty: pinned keys and an outside checkpoint vouch for every statement looked at."""
    notes: tuple[str, ...]
    """Worth knowing and harmless: bytes that a crash left behind."""
    origin: str
    log_size: int
    root: str
    """In hexadecimal."""
    anchored_size: int
    """Entries that the outside checkpoint vouches for."""
    statements: int
    """Whose signatures, digests and chains were checked."""
    blobs: int
    """Stored things whose bytes were compared with their digests."""
    rewards: int
    """Among the statements; each of them must reach a raw file."""
    time_s: dict[str, float]
    """Where the time went: `log`, `subjects` (finding a run's rewards), `signatures`, `lineage`, `blobs`."""

    @property
    def ok(self) -> bool:
        """Whether the status is `ok`."""
        return self.status is VerificationStatus.OK

    def plain(self) -> dict[str, Any]:
        """For `--json`."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    def raise_if_failed(self) -> Verification:
        """Itself, where nothing was found.

        Raises:
            IntegrityError: something was; the message names the first findings.
        """
        if self.status is VerificationStatus.FAILED:
            shown = "; ".join(finding.message for finding in self.findings[:5])
            more = f"; and {len(self.findings) - 5} more" if len(self.findings) > 5 else ""
            raise IntegrityError(f"Verification failed: {shown}{more}.", next_step="do not use these rewards.")
        return self
