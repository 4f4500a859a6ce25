"""Small state files that change."""

from __future__ import annotations

from pathlib import Path

from ropewalk.core.errors import UnavailableError
from ropewalk.machinery.files import NEXT_STEP


def read_text(path: Path) -> str | None:
    """The content without white space around it, None where there is no such file.

    Raises:
        UnavailableError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror}.", next_step=NEXT_STEP) from error
