"""Signed envelopes (DSSE v1) with one classical and one post-quantum signature by the same key pair set.

The policy is one signature per algorithm class, not a number of signatures: two classical ones are not enough, and
a third one is refused. Envelopes have one form only (RFC 8785), so nothing can be changed without being seen.
https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.limits import STATEMENT_BYTES_MAX
from ropewalk.core.records import Record
from ropewalk.security.contract import PairSignature, Signer
from ropewalk.security.trust import ALGORITHMS, Algorithm, PublicKey, PublicPair, TrustRoot

IN_TOTO_TYPE: Final = "application/vnd.in-toto+json"


class SignatureError(IntegrityError):
    """A signature does not count. `cause` is stable: `malformed`, `unknown_key`, `wrong_keys`, `outside_validity`,
    `revoked` or `invalid`."""

    def __init__(self, message: str, *, cause: str, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.cause = cause


class EnvelopeSignature(Record):
    """One signature of an envelope."""

    keyid: str
    sig: str
    """In base64."""


class Envelope(Record, rename="camel"):
    """DSSE v1. Fields in the order of their canonical form."""

    payload: str
    """In base64."""
    payload_type: str
    signatures: tuple[EnvelopeSignature, ...]


class Verified(NamedTuple):
    """What a good envelope says, and who signed it."""

    payload: bytes
    pair: PublicPair


class _Entry(NamedTuple):
    pair: PublicPair
    pair_id: str
    algorithm: Algorithm
    key: PublicKey


class Verifier:
    """A trust root with its keys loaded. Thread-safe: it does not change.

    Args:
        root: the keys to believe.
    """

    def __init__(self, root: TrustRoot) -> None:
        self.root = root
        self._entries: dict[str, _Entry] = {}
        for pair in root.pairs:
            pair_id, keyids = pair.id, pair.keyids
            for algorithm in ALGORITHMS:
                entry = _Entry(pair, pair_id, algorithm, pair.public_key(algorithm))
                self._entries[keyids[algorithm]] = entry

    def entry(self, keyid: str) -> _Entry:
        """The key of that id.

        Raises:
            SignatureError: `unknown_key`.
        """
        try:
            return self._entries[keyid]
        except KeyError:
            raise SignatureError(
                f"No trusted key has the id {keyid[:80]!r}.",
                cause="unknown_key",
                next_step="pin the current keys (`ropewalk keys export`) if they were rotated since.",
            ) from None

    def check_validity(self, pair: PublicPair, index: int | None) -> None:
        """Whether the pair may have signed the log entry `index`; None: something outside a log, signed now.

        Raises:
            SignatureError: `revoked` or `outside_validity`.
        """
        if pair.revoked and (index is None or index >= pair.revoked.from_index):
            raise SignatureError(
                f"The key pair {pair.id} is revoked from entry {pair.revoked.from_index} on: {pair.revoked.reason}.",
                cause="revoked",
            )
        if index is not None and (
            index < pair.from_index or (pair.until_index is not None and index >= pair.until_index)
        ):
            raise SignatureError(
                f"The key pair {pair.id} may sign entries from {pair.from_index} to before {pair.until_index}, "
                f"not entry {index}.",
                cause="outside_validity",
            )

    def verify_pair(self, signatures: tuple[tuple[str, bytes], ...], message: bytes) -> PublicPair:
        """Checks (key id, signature) of each algorithm class, in the order of `ALGORITHMS`, all by one pair.

        Raises:
            SignatureError: `malformed`, `unknown_key`, `wrong_keys` or `invalid`.
        """
        if len(signatures) != len(ALGORITHMS):
            raise SignatureError(f"{len(signatures)} signatures where 2 belong.", cause="malformed")
        entries = [self.entry(keyid) for keyid, _ in signatures]
        if tuple(entry.algorithm for entry in entries) != ALGORITHMS or len({entry.pair_id for entry in entries}) != 1:
            raise SignatureError("Not one signature of each class by one key pair.", cause="wrong_keys")
        for entry, (_, signature) in zip(entries, signatures, strict=True):
            verify_signature(entry.key, signature, message)
        return entries[0].pair


def verify_signature(key: PublicKey, signature: bytes, message: bytes, *, context: bytes = b"") -> None:
    """Checks one signature. `context` is ML-DSA's (FIPS 204); ours is empty.

    Raises:
        SignatureError: `invalid`.
    """
    try:
        if context:
            key.verify(signature, message, context)  # type: ignore[call-arg]
        else:
            key.verify(signature, message)
    except (InvalidSignature, ValueError, TypeError):
        raise SignatureError("A signature does not fit the bytes it stands under.", cause="invalid") from None


def pre_authentication_encoding(payload: bytes, payload_type: str) -> bytes:
    """The bytes that DSSE signs."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign_envelope(payload: bytes, signer: Signer, *, payload_type: str = IN_TOTO_TYPE) -> bytes:
    """A signed envelope in its canonical form.

    Raises:
        CallerError: larger than STATEMENT_BYTES_MAX.
    """
    signed: PairSignature = signer.sign(pre_authentication_encoding(payload, payload_type))
    keyids = signer.pair.keyids
    values: dict[Algorithm, bytes] = {"ed25519": signed.ed25519, "ml-dsa-65": signed.ml_dsa_65}
    envelope = Envelope(
        payload=base64.b64encode(payload).decode(),
        payload_type=payload_type,
        signatures=tuple(
            EnvelopeSignature(keyid=keyids[algorithm], sig=base64.b64encode(values[algorithm]).decode())
            for algorithm in ALGORITHMS
        ),
    )
    data = msgspec.json.encode(envelope)
    if len(data) > STATEMENT_BYTES_MAX:
        raise CallerError(
            f"A signed statement of {len(data)} bytes; {STATEMENT_BYTES_MAX} are allowed.",
            next_step="keep large facts in the blob store and name them by digest.",
        )
    return data


def open_envelope(data: bytes, *, payload_type: str = IN_TOTO_TYPE) -> tuple[Envelope, bytes]:
    """An envelope and its payload, **without** checking any signature.

    Raises:
        SignatureError: `malformed`: too large, not JSON, not canonical, or of another payload type.
    """
    try:
        if len(data) > STATEMENT_BYTES_MAX:
            raise ValueError("too large")
        envelope = msgspec.json.decode(data, type=Envelope)
        # One form only: refuses duplicate keys, spaces, escapes and any other order with one comparison.
        if msgspec.json.encode(envelope) != data:
            raise ValueError("not in canonical form")
        if envelope.payload_type != payload_type:
            raise ValueError(f"payload type {envelope.payload_type[:80]!r}")
        return envelope, _strict_base64(envelope.payload)
    except (ValueError, msgspec.DecodeError) as error:
        raise SignatureError(f"No signed envelope: {error}.", cause="malformed") from error


def verify_envelope(
    data: bytes, verifier: Verifier, *, index: int | None = None, payload_type: str = IN_TOTO_TYPE
) -> Verified:
    """What a signed envelope says, once everything about it is right.

    Args:
        data: the envelope in its canonical form.
        verifier: the keys to believe.
        index: where it stands in the log; decides whether rotated and revoked keys count.
        payload_type: the only one accepted.

    Raises:
        SignatureError: it does not count; see its `cause`.
    """
    envelope, payload = open_envelope(data, payload_type=payload_type)
    try:
        signatures = tuple((signature.keyid, _strict_base64(signature.sig)) for signature in envelope.signatures)
    except ValueError as error:
        raise SignatureError(f"No signature: {error}.", cause="malformed") from error
    pair = verifier.verify_pair(signatures, pre_authentication_encoding(payload, payload_type))
    verifier.check_validity(pair, index)
    return Verified(payload, pair)


def _strict_base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
    if base64.b64encode(data).decode() != text:  # unused bits in the last character
        raise ValueError("not canonical base64")
    return data
