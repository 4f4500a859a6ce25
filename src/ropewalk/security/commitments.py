"""Keyed commitments: how personal data is named where nothing can be erased.

A plain digest of a name or an address can be guessed from a list and stays in the log for ever. A commitment
under a cohort's key cannot, and once that key is destroyed it says nothing about anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from ropewalk.core.errors import CallerError

COHORT_KEY_BYTES = 32


def new_cohort_key() -> bytes:
    """A fresh key for one cohort; kept outside the log and destroyed to forget the cohort."""
    return secrets.token_bytes(COHORT_KEY_BYTES)


def commit_to(value: str | bytes, *, key: bytes, field: str) -> str:
    """`hmac-sha256:` and 64 hexadecimal characters for a value that must not be readable.

    Args:
        value: the personal data.
        key: the cohort's, COHORT_KEY_BYTES long.
        field: what the value is (`subject`, `site`): equal values of two fields must not look equal.

    Raises:
        CallerError: a key of another length, or no field name.
    """
    if len(key) != COHORT_KEY_BYTES or not field or "\0" in field:
        raise CallerError(f"A commitment needs a field's name and a key of {COHORT_KEY_BYTES} bytes.")
    data = value.encode() if isinstance(value, str) else value
    return "hmac-sha256:" + hmac.new(key, field.encode() + b"\0" + data, hashlib.sha256).hexdigest()


def check_commitment(commitment: str, value: str | bytes, *, key: bytes, field: str) -> bool:
    """Whether a commitment is to this value; in constant time."""
    return hmac.compare_digest(commitment, commit_to(value, key=key, field=field))
