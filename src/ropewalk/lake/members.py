"""What may stand in an archive: faults as types, caps, and the checks of names and amounts."""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record

_DRIVE = re.compile(r"[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class ArchiveFault(StrEnum):
    """Why an archive was refused."""

    NOT_ARCHIVE = "not_archive"
    """Neither a tar, a gzipped tar nor a zip, or one without a single file."""
    DAMAGED = "damaged"
    """Truncated, a wrong check sum, a broken header, bytes after the end."""
    UNSUPPORTED = "unsupported"
    """Encrypted, sparse, or packed by a method that is not read here."""
    ABSOLUTE = "absolute"
    TRAVERSAL = "traversal"
    NAME = "name"
    """Control characters, back slashes, a drive letter, not UTF-8, too long or too deep."""
    LINK = "link"
    """It leaves the archive, or leads to something else than one of its regular files."""
    SPECIAL = "special"
    """A device, a fifo, a socket."""
    SETUID = "setuid"
    """A file that would run with its owner's or group's rights."""
    DUPLICATE = "duplicate"
    COLLISION = "collision"
    """Two names that some file systems hold for one (case, Unicode form), or a file that is a directory too."""
    TOO_MANY = "too_many"
    TOO_LARGE = "too_large"
    BOMB = "bomb"
    """Unpacked over packed size."""


class ArchiveError(CallerError):
    """An archive was refused; nothing of it was kept. `member` is the name at fault, where there is one."""

    def __init__(self, archive: str, fault: ArchiveFault, detail: str, *, member: str = "") -> None:
        where = f" at {member[:200]!r}" if member else ""
        super().__init__(f"Archive {archive} is refused{where}: {detail} ({fault.value}).")
        self.fault = fault
        self.member = member


class Caps(Record):
    """Bounds of one archive."""

    members_max: int = limits.ARCHIVE_MEMBERS_MAX
    """Files, directories and links together."""
    bytes_max: int = limits.ARCHIVE_BYTES_MAX
    """Of all files, unpacked, links counted as the copies that they become."""
    ratio_max: float = limits.ARCHIVE_RATIO_MAX
    """Unpacked over packed size, past `ratio_free_bytes`."""
    ratio_free_bytes: int = limits.ARCHIVE_RATIO_FREE_BYTES
    depth_max: int = limits.ARCHIVE_DEPTH_MAX
    name_bytes_max: int = limits.ARCHIVE_NAME_BYTES_MAX


DEFAULT_CAPS = Caps()


class MemberLedger:
    """Checks an archive's members one after another and counts them."""

    def __init__(self, archive: str, caps: Caps, *, packed_bytes: int) -> None:
        """
        Args:
            archive: its name, for messages.
            packed_bytes: its size as it came.
        """
        self._archive = archive
        self._caps = caps
        self._packed_bytes = packed_bytes
        self._members = 0
        self._bytes = 0
        self._files: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._links: dict[str, str] = {}
        self._folders: set[str] = set()
        self._spellings: dict[str, str] = {}

    @property
    def bytes_unpacked(self) -> int:
        return self._bytes

    def fault(self, fault: ArchiveFault, detail: str, *, member: str = "") -> ArchiveError:
        """The error to raise, with the archive's name in it."""
        return ArchiveError(self._archive, fault, detail, member=member)

    def enter(self, name: str, *, directory: bool) -> str:
        """Checks a member's name against its form and all earlier ones, and counts the member.

        Returns:
            The name without `.` and empty components; "" for the archive's root.

        Raises:
            ArchiveError: see `ArchiveFault`.
        """
        self._members += 1
        if self._members > self._caps.members_max:
            raise self.fault(ArchiveFault.TOO_MANY, f"more than {self._caps.members_max} members")
        parts = self._parts(name)
        path = "/".join(parts)
        if not path and not directory:
            raise self.fault(ArchiveFault.NAME, "a file without a name", member=name)
        self._check_spelling(parts)
        folders = {"/".join(parts[:count]) for count in range(1, len(parts) + directory)}
        if folders & self._files:
            raise self.fault(ArchiveFault.COLLISION, "a file and a directory of one name", member=name)
        self._folders |= folders
        if directory:
            return path
        if path in self._files:
            raise self.fault(ArchiveFault.DUPLICATE, "the name stands in it twice", member=name)
        if path in self._folders:
            raise self.fault(ArchiveFault.COLLISION, "a file and a directory of one name", member=name)
        self._files.add(path)
        return path

    def count(self, size: int, *, member: str) -> None:
        """Counts a regular file's unpacked bytes.

        Raises:
            ArchiveError: too large, or out of proportion to the packed size.
        """
        self._bytes += size
        self._sizes[member] = size
        if size < 0:
            raise self.fault(ArchiveFault.DAMAGED, "a negative size", member=member)
        if self._bytes > self._caps.bytes_max:
            raise self.fault(ArchiveFault.TOO_LARGE, f"more than {self._caps.bytes_max} bytes unpacked", member=member)
        self.check_ratio(self._bytes, member=member)

    def link(self, target: str, *, member: str) -> None:
        """Notes a link, for `finish` to check: its target may come later."""
        self._links[member] = target

    def finish(self) -> None:
        """Checks that links lead to regular files, and counts the copies that they become.

        Raises:
            ArchiveError: one does not; or the copies are too large; or there was no file at all.
        """
        if not self._sizes:
            raise self.fault(ArchiveFault.NOT_ARCHIVE, "it holds no file")
        regular = dict(self._sizes)
        for member, target in self._links.items():
            if target not in regular:
                raise self.fault(ArchiveFault.LINK, f"a link to {target[:200]!r}, no file of it", member=member)
            self.count(regular[target], member=member)

    def check_ratio(self, unpacked: int, *, member: str = "") -> None:
        """Raises `ArchiveError` where so many bytes are out of proportion to the packed size."""
        caps = self._caps
        if unpacked > max(caps.ratio_free_bytes, caps.ratio_max * self._packed_bytes):
            raise self.fault(
                ArchiveFault.BOMB, f"{self._packed_bytes} bytes become more than {caps.ratio_max:g} times as many",
                member=member,
            )  # fmt: skip

    def _parts(self, name: str) -> list[str]:
        if name.startswith("/"):
            raise self.fault(ArchiveFault.ABSOLUTE, "an absolute path", member=name)
        if _CONTROL.search(name) or "\\" in name or _DRIVE.match(name):
            raise self.fault(ArchiveFault.NAME, "a name with characters that are not allowed", member=name)
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise self.fault(ArchiveFault.TRAVERSAL, "a path with '..'", member=name)
        if len(parts) > self._caps.depth_max:
            raise self.fault(ArchiveFault.NAME, f"deeper than {self._caps.depth_max} levels", member=name)
        if any(len(part.encode()) > self._caps.name_bytes_max for part in parts):
            raise self.fault(ArchiveFault.NAME, f"a name past {self._caps.name_bytes_max} bytes", member=name)
        return parts

    def _check_spelling(self, parts: list[str]) -> None:
        for count in range(1, len(parts) + 1):
            path = "/".join(parts[:count])
            known = self._spellings.setdefault(_folded(path), path)
            if known != path:
                raise self.fault(ArchiveFault.COLLISION, f"differs only in spelling from {known!r}", member=path)


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
