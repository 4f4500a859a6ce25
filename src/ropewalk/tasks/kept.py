"""What a build finds out once and keeps by content: scan indexes of images, what suites come to on right source.

Signed statements follow from it ("no leak was found"), so it is believed only with a mark of this installation's
(`security.marks`). What has none that fits is found out again.
"""

from __future__ import annotations

from pathlib import Path

from ropewalk.core.records import digest_bytes
from ropewalk.machinery.files import replace_whole
from ropewalk.security.marks import Marks


class Kept:
    """Findings of one kind, by name: a line with the mark, then the bytes.

    Args:
        folder: where they lie; made when needed.
        marks: for `tasks.journal.PURPOSE`.
        kind: marks of one kind do not fit for another.
    """

    def __init__(self, folder: Path, marks: Marks, kind: str) -> None:
        self._folder, self._marks, self._kind = folder, marks, kind

    def load(self, name: str) -> bytes | None:
        """What was kept under that name; None where nothing was, or it is damaged or not ours."""
        try:
            mark, _, data = (self._folder / name).read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        fits = self._marks.fits(mark.decode("ascii", "replace"), self._kind, [name, digest_bytes(data)])
        return data if fits else None

    def store(self, name: str, data: bytes) -> None:
        """Keeps it, durably."""
        mark = self._marks.make(self._kind, [name, digest_bytes(data)])
        replace_whole(self._folder / name, mark.encode() + b"\n" + data, parents=True)
