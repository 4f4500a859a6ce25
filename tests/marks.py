"""Marks for tests without keys."""

from __future__ import annotations

import hmac
import secrets

from ropewalk.core.records import canonical_bytes


class MemoryMarks:
    """See `ropewalk.security.marks.Marks`. Its key is its own."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def make(self, kind: str, facts: object) -> str:
        """See `Marks.make`."""
        return hmac.new(self._key, canonical_bytes([kind, facts]), "sha256").hexdigest()

    def fits(self, mark: str, kind: str, facts: object) -> bool:
        """See `Marks.fits`."""
        return mark == self.make(kind, facts)
