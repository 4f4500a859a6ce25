"""Receipts: one statement with the proof that it is in the log, to be checked without the log.

A receipt holds the signed envelope, its index, the audit path to the root, and the signed checkpoint with that
root. Whoever has the pinned keys can check it offline; that this log was not rewritten on its host is shown only by a
checkpoint that was kept elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, NamedTuple

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.merkle import leaf_hash, verify_inclusion
from ropewalk.core.records import Record, canonical_bytes, decode_own
from ropewalk.provenance.checkpoint import Checkpoint, read_checkpoint, verify_checkpoint
from ropewalk.provenance.intoto import Statement, from_payload
from ropewalk.provenance.log import Log
from ropewalk.security.signatures import Verifier, verify_envelope

_VERIFY: Final = "do not use these rewards; see `ropewalk verify --anchor`."


class Receipt(Record):
    """See the module's text."""

    format: Literal["ropewalk-receipt/1"] = "ropewalk-receipt/1"
    envelope: str
    """The log entry."""
    index: int
    proof: tuple[str, ...]
    """Hashes in hexadecimal, nearest sibling first."""
    checkpoint: str
    """The signed note."""


class VerifiedReceipt(NamedTuple):
    """What a good receipt shows."""

    statement: Statement
    log_index: int
    checkpoint: Checkpoint
    """The log that holds the statement, as it was when the receipt was made."""


def make_receipt(log: Log, index: int, *, outside: Path | None = None) -> bytes:
    """The receipt for a log entry, as canonical JSON.

    Args:
        log: holds it.
        index: the entry.
        outside: a checkpoint of the log that was kept elsewhere, for the proof to lead to; None: the log's as of now.

    Raises:
        CallerError: the log has no such entry, or had none at the outside checkpoint; or there is no such file.
        IntegrityError: the log is damaged, or not the one that the outside checkpoint is of.
    """
    data = read_checkpoint(outside or log.files.checkpoint)
    checkpoint, _ = verify_checkpoint(data, Verifier(log.trust_root()))
    if outside is not None:
        now = log.checkpoint()
        known = now.origin == checkpoint.origin and checkpoint.size <= now.size
        if not known or (checkpoint.size and log.root_at(checkpoint.size) != checkpoint.root):
            raise IntegrityError(f"The log does not continue the one that {outside} is of.", next_step=_VERIFY)
        if index >= checkpoint.size:
            raise CallerError(
                f"{outside} was written before this was logged: it vouches for {checkpoint.size} entries.",
                next_step="write a new one (`ropewalk provenance anchor DIR`), and give that.",
            )
    return canonical_bytes(
        Receipt(
            envelope=log.entry(index).decode("utf-8"),
            index=index,
            proof=tuple(hash.hex() for hash in log.inclusion_proof(index, checkpoint.size)),
            checkpoint=data.decode("utf-8"),
        )
    )


def unanchored(shown: VerifiedReceipt, outside: Checkpoint | None) -> str:
    """Why nothing outside its host vouches for a receipt's log; empty: the outside checkpoint does.

    Args:
        shown: from `verify_receipt`.
        outside: kept elsewhere, and verified; None: nothing was.

    Raises:
        IntegrityError: the outside checkpoint is of another log, or of another history.
    """
    log = shown.checkpoint
    if outside is None:
        return "no outside checkpoint was given, so a rewritten log could not be seen (--checkpoint or --anchor)"
    if outside.origin != log.origin:
        raise IntegrityError(f"The outside checkpoint is of {outside.origin}, the receipt of {log.origin}.")
    if outside.size != log.size:
        return (
            f"the outside checkpoint is of {outside.size} entries and the receipt's of {log.size}: nothing shows that "
            "one continues the other (`ropewalk reward receipt REWARD --anchor DIR` makes a receipt for an anchor)"
        )
    if outside.root != log.root:
        raise IntegrityError(
            f"The receipt's log of {log.size} entries is not the one that the outside checkpoint commits to.",
            next_step=_VERIFY,
        )
    return ""


def verify_receipt(data: bytes, verifier: Verifier) -> VerifiedReceipt:
    """What a receipt shows, once everything about it is right.

    Raises:
        IntegrityError: it is no receipt, not in its one form, or a signature or the proof is wrong.
    """
    receipt = decode_own(data, Receipt, what="receipt")
    if canonical_bytes(receipt) != data:
        raise IntegrityError("The receipt is not in canonical form.")
    envelope = receipt.envelope.encode()
    checkpoint, _ = verify_checkpoint(receipt.checkpoint.encode(), verifier)
    try:
        proof = [bytes.fromhex(text) for text in receipt.proof]
    except ValueError as error:
        raise IntegrityError(f"The receipt's proof is not hexadecimal: {error}.") from error
    if any(hash.hex() != text for hash, text in zip(proof, receipt.proof, strict=True)):
        raise IntegrityError("The receipt's proof is not lower-case hexadecimal.")
    verify_inclusion(receipt.index, checkpoint.size, leaf_hash(envelope), proof, checkpoint.root)
    verified = verify_envelope(envelope, verifier, index=receipt.index)
    try:
        return VerifiedReceipt(from_payload(verified.payload), receipt.index, checkpoint)
    except CallerError as error:
        raise IntegrityError(f"The receipt holds no statement. {error.message}") from error
