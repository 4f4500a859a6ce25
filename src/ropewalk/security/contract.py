"""What a key driver must do. The docstrings are the specification.

Private keys stay behind the driver: what leaves it is signatures and public halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ropewalk.core.records import Record
from ropewalk.security.trust import PublicPair, TrustRoot


class PairSignature(Record):
    """Two signatures over the same bytes, by the two keys of one set."""

    ed25519: bytes
    """64 bytes (RFC 8032)."""
    ml_dsa_65: bytes
    """3,309 bytes (FIPS 204, empty context)."""


class Signer(Protocol):
    """One key pair set that signs. Thread-safe."""

    @property
    def pair(self) -> PublicPair:
        """Its public half."""
        ...

    def sign(self, message: bytes) -> PairSignature:
        """Both signatures over the message.

        Raises:
            UnavailableError: the keys cannot be reached.
        """
        ...

    def secret(self, purpose: str) -> bytes:
        """32 bytes that follow from the private keys, always the same for a purpose, and say nothing about them."""
        ...


class Keys(Protocol):
    """The key pair sets of one installation: at most one is active, none is ever forgotten. Thread-safe.

    Log indexes are arguments: whoever rotates or revokes holds the log still meanwhile (`provenance.log`).
    """

    @property
    def exists(self) -> bool:
        """Whether there are any."""
        ...

    def create(self) -> PublicPair:
        """Makes the first pair and activates it; returns the active one where there is one already.

        Raises:
            CallerError: new keys are to be encrypted, and the active ones, which exist already, are not.
            DeniedError: others may read where the keys lie.
            UnavailableError: nothing can be written.
        """
        ...

    def active(self) -> Signer:
        """The signer as of now, also after another process rotated.

        Raises:
            CallerError: there is none yet.
            DeniedError: others may read the keys.
            IntegrityError: what is stored is damaged.
        """
        ...

    def signer(self, pair_id: str) -> Signer:
        """The signer of a pair that is active, or was and is not revoked and guarded just as the active one is: whoever
        can write where the keys lie, and no more, cannot have made it.

        Raises:
            CallerError: there is no such pair.
            DeniedError: others may read the keys.
            IntegrityError: what is stored is damaged.
        """
        ...

    def rotate(self, *, at_index: int) -> PublicPair:
        """Makes a new pair that signs from this log entry on; the one before stays trusted for earlier entries.

        A new pair is never less protected than the one before: what encrypts that one encrypts it too, where nothing
        else was named.

        Raises:
            CallerError: there is none to rotate, or it signs from a later entry.
        """
        ...

    def revoke(self, pair_id: str, *, reason: str, from_index: int) -> PublicPair:
        """Ends the trust in a pair from the entry `from_index` on.

        A revocation can be made to reach further back later, never less far.

        Raises:
            CallerError: no such pair, no reason, it is the active one (rotate first), or it is already revoked from
                an earlier entry.
        """
        ...

    def encrypted_by(self) -> Mapping[str, str | None]:
        """By pair id, the reference to what encrypts its private keys; None: nothing does.

        Raises:
            CallerError: there is none yet.
        """
        ...

    def trust_root(self) -> TrustRoot:
        """The public halves of all pairs, oldest first, as of now.

        Raises:
            CallerError: there is none yet.
        """
        ...
