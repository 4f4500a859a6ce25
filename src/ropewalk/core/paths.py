"""Paths that others name: whether one stays below the folder it is put in. Nothing here looks at a disk."""

from __future__ import annotations


def parts_below(path: str) -> tuple[str, ...] | None:
    """The components of a relative path with forward slashes; empty ones and `.` are dropped.

    Returns:
        None where the path is absolute or has a `..` or a NUL, so that it could lead elsewhere or cannot be; `()` for
        the folder itself.
    """
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    return None if path.startswith("/") or ".." in parts or "\0" in path else parts


def is_plain_path(path: str) -> bool:
    """Whether a path leads below the folder it is put in, and is spelt in the one way that has nothing to drop."""
    parts = parts_below(path)
    return bool(parts) and path == "/".join(parts or ())
