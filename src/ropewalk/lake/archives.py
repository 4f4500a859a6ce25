"""Archives from outside: unpacked without trust, and packed so that equal files give equal bytes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import shutil
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.records import Record
from ropewalk.lake.members import DEFAULT_CAPS, ArchiveError, ArchiveFault, Caps, Ledger
from ropewalk.lake.readers import Member, walk

__all__ = ["DEFAULT_CAPS", "ArchiveError", "ArchiveFault", "Caps", "Unpacked", "canonical_tar", "read_first", "unpack"]

_CHUNK_BYTES: Final = 256 * 1024


class Unpacked(Record):
    """What came out of an archive."""

    files: dict[str, str]
    """Path relative to the destination → sha256 of the content."""
    bytes: int
    """Of all files together."""
    top: str | None
    """The one directory at the top that holds everything (source distributions: `name-version`), if there is one."""


def unpack(source: Path | bytes, destination: Path, *, caps: Caps = DEFAULT_CAPS, name: str = "") -> Unpacked:
    """Unpacks a tar, gzipped tar or zip (also a wheel) into a new directory; nothing runs.

    All or nothing: the destination appears at the end, whole. Regular files get mode 0644, or 0755 where the owner
    may execute them; directories 0755; everything belongs to the caller. A link to a regular file of the same
    archive becomes a copy of it; every other link, and whatever else `ArchiveFault` lists, refuses the archive.
    Nothing is flushed to the disk: what comes out can be made again.

    Args:
        source: the archive: a file, or its bytes.
        destination: must not exist yet, or be an empty directory; its parent must exist.
        name: of the archive, for messages.

    Raises:
        ArchiveError: the archive is refused; its `fault` says why.
        CallerError: no such file, or the destination is taken.
        UnavailableError: no room or no right to write there; nothing is left behind.
    """
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise CallerError(f"{destination} is there already.", next_step="unpack into a new directory.")
    with _staged(destination) as staging:
        writer = _Writer(staging, name or (source.name if isinstance(source, Path) else "<bytes>"))
        ledger = walk(source, caps, writer.visit, name=name)
        writer.copy_links(ledger)
        if not writer.files:
            raise ledger.fault(ArchiveFault.NOT_ARCHIVE, "it holds no file")
        for folder, _, _ in os.walk(staging):
            Path(folder).chmod(0o755)  # whatever the umask
        try:
            staging.rename(destination)
        except OSError as error:
            raise UnavailableError(f"{destination} cannot be made: {error.strerror}.") from error
    tops = {path.partition("/")[0] for path in writer.files}
    nested = all("/" in path for path in writer.files)
    return Unpacked(
        files=dict(sorted(writer.files.items())), bytes=ledger.bytes_unpacked,
        top=tops.pop() if len(tops) == 1 and nested else None,
    )  # fmt: skip


def read_first(
    source: Path | bytes, wanted: Callable[[str], bool], *, bytes_max: int, caps: Caps = DEFAULT_CAPS, name: str = ""
) -> tuple[str, bytes] | None:
    """Path and content of the first regular file whose path is wanted; None if there is none.

    Only what stands before that file is checked.

    Raises:
        ArchiveError: refused, or that file is larger than `bytes_max`.
        CallerError: no such file.
    """
    found: list[tuple[str, bytes]] = []

    def visit(member: Member, content: Callable[[], IO[bytes]]) -> bool:
        if member.directory or member.link is not None or not wanted(member.path):
            return True
        if member.size > bytes_max:
            raise ArchiveError(
                name, ArchiveFault.TOO_LARGE, f"{member.size} bytes, {bytes_max} allowed", member=member.path
            )
        with content() as reader:
            found.append((member.path, reader.read(bytes_max)))
        return False

    walk(source, caps, visit, name=name)
    return found[0] if found else None


def canonical_tar(files: Mapping[str, bytes], *, executable: Collection[str] = ()) -> bytes:
    """A tar (POSIX pax) that depends on nothing but its arguments: sorted, no times, no owners, no directories.

    Args:
        files: path → content. Paths are relative, with `/`, and fit `unpack`.
        executable: which of them may be executed.

    Raises:
        CallerError: a path that `unpack` would refuse (an `ArchiveError`), or more files or bytes than it allows.
    """
    ledger = Ledger("<new>", DEFAULT_CAPS, packed_bytes=sum(map(len, files.values())))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for path in sorted(files):
            if ledger.enter(path, directory=False) != path:
                raise ledger.fault(ArchiveFault.NAME, "not in its shortest form", member=path)
            ledger.count(len(files[path]), member=path)
            entry = tarfile.TarInfo(path)
            entry.size = len(files[path])
            entry.mode = 0o755 if path in executable else 0o644
            tar.addfile(entry, io.BytesIO(files[path]))
    return buffer.getvalue()


class _Writer:
    """Writes visited members below a staging directory that nobody else knows and that holds no links."""

    def __init__(self, root: Path, archive: str) -> None:
        self._root = root
        self._archive = archive
        self._links: list[Member] = []
        self._sizes: dict[str, int] = {}
        self.files: dict[str, str] = {}

    def visit(self, member: Member, content: Callable[[], IO[bytes]]) -> bool:
        if member.directory:
            with self._writing():
                (self._root / member.path).mkdir(parents=True, exist_ok=True, mode=0o755)
        elif member.link is not None:
            self._links.append(member)
        else:
            with content() as reader:
                self._write(member, reader)
        return True

    def copy_links(self, ledger: Ledger) -> None:
        """Gives links the content of the regular files they name, once those are all there."""
        regular = frozenset(self._sizes)
        for member in self._links:
            assert member.link is not None
            if member.link not in regular:
                raise ledger.fault(
                    ArchiveFault.LINK, f"a link to {member.link[:200]!r}, no file of it", member=member.path
                )
            ledger.count(self._sizes[member.link], member=member.path)
            with self._writing():
                target = self._root / member.path
                target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
                shutil.copy(self._root / member.link, target)
            self.files[member.path] = self.files[member.link]

    def _write(self, member: Member, reader: IO[bytes]) -> None:
        state = hashlib.sha256()
        path = self._root / member.path
        mode = 0o755 if member.executable else 0o644
        written = 0
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            while chunk := reader.read(_CHUNK_BYTES):
                state.update(chunk)
                written += len(chunk)
                with self._writing():
                    _write_all(descriptor, chunk)
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        if written != member.size:
            raise ArchiveError(self._archive, ArchiveFault.DAMAGED, "it is truncated", member=member.path)
        self._sizes[member.path] = written
        self.files[member.path] = state.hexdigest()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(
                f"Archive {self._archive} cannot be unpacked below {self._root.parent}: {error.strerror or error}.",
                next_step="free some space there, or unpack elsewhere.",
            ) from error


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def _staged(destination: Path) -> Iterator[Path]:
    staging = destination.parent / f".{destination.name}.{secrets.token_hex(8)}"
    try:
        staging.mkdir(mode=0o700)
    except OSError as error:
        raise UnavailableError(f"{destination} cannot be made: {error.strerror}.") from error
    try:
        yield staging
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
