"""Whose signatures count: public keys to pin, with the part of the log that each may have signed.

A key pair set is one Ed25519 and one ML-DSA-65 key that sign together. A key's id is the sha256 of its DER
SubjectPublicKeyInfo; the set's id is made of both. Validity is counted in entries of the log, not in time: the
log orders what happened, a clock can be set.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Literal

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key

from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record, canonical_bytes, content_id, decode, digest_bytes
from ropewalk.machinery.files import replace_whole

Algorithm = Literal["ed25519", "ml-dsa-65"]
ALGORITHMS: tuple[Algorithm, ...] = ("ed25519", "ml-dsa-65")
"""One classical, one post-quantum; the order in which signatures are written."""

PublicKey = Ed25519PublicKey | MLDSA65PublicKey
_CLASSES: dict[Algorithm, type[PublicKey]] = {"ed25519": Ed25519PublicKey, "ml-dsa-65": MLDSA65PublicKey}


class Revocation(Record):
    """From when on a pair's signatures count no more."""

    reason: str
    from_index: int
    """The first log entry that is not accepted from it; 0: none is."""
    time_s: float
    """When it was revoked; for people."""


class PublicPair(Record):
    """The public half of a key pair set, and what it may sign."""

    ed25519: str
    """DER SubjectPublicKeyInfo in base64."""
    ml_dsa_65: str
    """DER SubjectPublicKeyInfo in base64."""
    created_s: float
    from_index: int = 0
    """The first log entry that it may sign."""
    until_index: int | None = None
    """The first log entry that it may no longer sign, since it was rotated; None: it is the active one."""
    revoked: Revocation | None = None

    @property
    def keyids(self) -> dict[Algorithm, str]:
        """sha256 of each key's DER SubjectPublicKeyInfo."""
        return {algorithm: digest_bytes(base64.b64decode(self.spki(algorithm))) for algorithm in ALGORITHMS}

    @property
    def id(self) -> str:
        """`keypair:` and 32 characters of the digest of both key ids."""
        return content_id("keypair", self.keyids)

    def spki(self, algorithm: Algorithm) -> str:
        """The DER SubjectPublicKeyInfo of one of the two, in base64."""
        return self.ed25519 if algorithm == "ed25519" else self.ml_dsa_65

    def public_key(self, algorithm: Algorithm) -> PublicKey:
        """The key, ready to verify.

        Raises:
            CallerError: the bytes are no such key.
        """
        return load_public_key(algorithm, self.spki(algorithm))


class TrustRoot(Record):
    """Pinned public keys. Kept outside the host that signs, it is what `verify` believes."""

    format: Literal["ropewalk-trust-root/1"] = "ropewalk-trust-root/1"
    pairs: tuple[PublicPair, ...]
    """Oldest first."""

    @property
    def digest(self) -> str:
        """sha256 of what `to_bytes` gives: short enough to read out over the phone."""
        return digest_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Canonical JSON and a line break."""
        return canonical_bytes(self) + b"\n"

    def restricted_by(self, other: TrustRoot) -> TrustRoot:
        """This root with whatever the other one ends earlier (a rotation, a revocation); it never trusts more."""
        theirs = {pair.id: pair for pair in other.pairs}
        return TrustRoot(pairs=tuple(_restrict(pair, theirs.get(pair.id)) for pair in self.pairs))


def load_public_key(algorithm: Algorithm, spki: str) -> PublicKey:
    """A public key out of its DER SubjectPublicKeyInfo in base64.

    Raises:
        CallerError: not strict base64, or no key of that algorithm.
    """
    try:
        key = load_der_public_key(base64.b64decode(spki, validate=True))
    except (ValueError, UnsupportedAlgorithm, binascii.Error) as error:
        raise CallerError(f"No {algorithm} public key: {error}.") from error
    if not isinstance(key, _CLASSES[algorithm]):
        raise CallerError(f"A key of another kind stands where an {algorithm} public key belongs.")
    return key


def parse_trust_root(data: bytes, *, what: str = "trust root") -> TrustRoot:
    """A trust root out of JSON, strictly.

    Raises:
        CallerError: not such a document, no pair in it, a key that does not load, one key in two pairs, or an end
            before a beginning.
    """
    root = decode(data, TrustRoot, what=what)
    seen: set[str] = set()
    for pair in root.pairs:
        for algorithm in ALGORITHMS:
            pair.public_key(algorithm)
        seen.update(pair.keyids.values())
        ends = [end for end in (pair.until_index, pair.revoked.from_index if pair.revoked else None) if end is not None]
        if pair.from_index < 0 or any(end < 0 for end in ends):
            raise CallerError(f"{what}: {pair.id} counts log entries below zero.")
        if pair.until_index is not None and pair.until_index < pair.from_index:
            raise CallerError(f"{what}: {pair.id} ends before it begins.")
    if not root.pairs or len(seen) != len(ALGORITHMS) * len(root.pairs):
        raise CallerError(f"{what}: it holds no key pair, or one key twice.")
    return root


def load_trust_root(path: Path) -> TrustRoot:
    """The trust root in a file.

    Raises:
        CallerError: no such file, or it is not one.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CallerError(
            f"The trust root {path} cannot be read: {error.strerror or error}.",
            next_step="make one with `ropewalk keys export` on the host that signs.",
        ) from error
    return parse_trust_root(data, what=str(path))


def export_trust_root(root: TrustRoot, path: Path) -> None:
    """Writes the public keys to a file to pin elsewhere; it holds no secret.

    Raises:
        UnavailableError: the file cannot be written.
    """
    replace_whole(path, root.to_bytes(), mode=0o644)


def _restrict(pair: PublicPair, other: PublicPair | None) -> PublicPair:
    if other is None:
        return pair
    untils = [until for until in (pair.until_index, other.until_index) if until is not None]
    revocations = [revoked for revoked in (pair.revoked, other.revoked) if revoked is not None]
    return PublicPair(
        ed25519=pair.ed25519,
        ml_dsa_65=pair.ml_dsa_65,
        created_s=pair.created_s,
        from_index=max(pair.from_index, other.from_index),
        until_index=min(untils) if untils else None,
        revoked=min(revocations, key=lambda revoked: revoked.from_index) if revocations else None,
    )
