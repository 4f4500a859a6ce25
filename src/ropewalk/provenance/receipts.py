"""Receipts: one statement with the proof that it is in the log, to be checked without the log.

A receipt holds the signed envelope, its index, the audit path to the root, and the signed checkpoint with that
root. Whoever has the pinned keys can check it offline.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.merkle import leaf_hash, verify_inclusion
from ropewalk.core.records import Record, canonical_bytes, decode_own
from ropewalk.provenance.checkpoint import Checkpoint, read_checkpoint, verify_checkpoint
from ropewalk.provenance.intoto import Statement, from_payload
from ropewalk.provenance.log import Log
from ropewalk.security.signatures import Verifier, verify_envelope


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


def make_receipt(log: Log, index: int) -> bytes:
    """The receipt for a log entry, against the log as of now, as canonical JSON.

    Raises:
        CallerError: the log has no such entry.
        IntegrityError: the log is damaged.
    """
    data = read_checkpoint(log.files.checkpoint)
    checkpoint, _ = verify_checkpoint(data, Verifier(log.keys.trust_root()))
    return canonical_bytes(
        Receipt(
            envelope=log.entry(index).decode("utf-8"),
            index=index,
            proof=tuple(hash.hex() for hash in log.inclusion_proof(index, checkpoint.size)),
            checkpoint=data.decode("utf-8"),
        )
    )


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
