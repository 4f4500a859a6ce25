"""Marks: keyed digests by which an installation knows what it wrote itself.

Work that was broken off goes on from what is stored. Whoever can write there, but not sign, could otherwise have
anything signed: so every step is marked under a key that follows from the signing keys, and what has no mark that fits
is not gone on from. A mark proves nothing to others: that is what statements are for.
"""

from __future__ import annotations

import hmac
from typing import Protocol

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.records import canonical_bytes
from ropewalk.security.contract import Keys


class Marks(Protocol):
    """Makes and checks marks for one purpose. Thread-safe."""

    def make(self, kind: str, facts: object) -> str:
        """The mark of facts that have a canonical form (`core.records`).

        Raises:
            CallerError, DeniedError, IntegrityError: the keys cannot be used.
        """
        ...

    def fits(self, mark: str, kind: str, facts: object) -> bool:
        """Whether this installation made the mark for these very facts."""
        ...


class KeyedMarks:
    """See `Marks`.

    Args:
        keys: whose secrets the marks are made under. After a rotation those of earlier pairs still fit, as long as they
            are guarded as the active one is and not revoked.
        purpose: marks for one purpose do not fit for another.
    """

    def __init__(self, keys: Keys, purpose: str) -> None:
        self._keys, self._purpose = keys, purpose

    def make(self, kind: str, facts: object) -> str:
        """See `Marks.make`: the pair's id, a slash and 64 hexadecimal characters (HMAC-SHA-256)."""
        signer = self._keys.active()
        return f"{signer.pair.id}/{_code(signer.secret(self._purpose), kind, facts)}"

    def fits(self, mark: str, kind: str, facts: object) -> bool:
        """See `Marks.fits`."""
        pair_id, _, code = mark.partition("/")
        if not code.isascii():
            return False
        try:
            secret = self._keys.signer(pair_id).secret(self._purpose)
        except (CallerError, IntegrityError):
            return False
        return hmac.compare_digest(code, _code(secret, kind, facts))


def _code(secret: bytes, kind: str, facts: object) -> str:
    return hmac.new(secret, canonical_bytes([kind, facts]), "sha256").hexdigest()
