"""Secrets by reference: configuration names where a secret is, never the secret itself."""

from __future__ import annotations

import os
from pathlib import Path

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.machinery.redaction import hide
from ropewalk.security.private_files import read_private


def check_reference(reference: str) -> str:
    """The reference itself, if it is one.

    Raises:
        CallerError: it is not. The message does not repeat it, since it may be the secret.
    """
    kind, separator, rest = reference.partition(":")
    if not separator or kind not in ("env", "file") or not rest:
        raise CallerError(
            "That is not a reference to a secret.",
            next_step="give `env:NAME` or `file:PATH`; a secret itself is never taken.",
        )
    return reference


def resolve_secret(reference: str) -> str:
    """What `env:NAME` or `file:PATH` refers to; a file's last line break is not part of it. Logs and errors hide it.

    Raises:
        CallerError: not a reference, or nothing is there, or it is empty or not UTF-8.
        DeniedError: others may read the file.
    """
    kind, _, rest = check_reference(reference).partition(":")
    if kind == "env":
        value, step = os.environ.get(rest, ""), f"set the variable {rest} where this command starts."
    else:
        try:
            value = read_private(Path(rest).expanduser(), bytes_max=limits.SECRET_BYTES_MAX).decode("utf-8")
        except UnicodeDecodeError:
            raise CallerError(f"{rest} is not UTF-8 text.") from None
        value, step = value.removesuffix("\n").removesuffix("\r"), f"write the secret into {rest}."
    if not value:
        raise CallerError(f"{reference} is empty or not set.", next_step=step)
    hide(value)
    return value
