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
from ropewalk.lake.members import DEFAULT_CAPS, ArchiveError, ArchiveFault, Caps, MemberLedger
from ropewalk.lake.readers import Member, walk

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
        writer.copy_links()
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


def survey(
    source: Path | bytes, wanted: Callable[[str], bool], *, bytes_max: int, caps: Caps = DEFAULT_CAPS, name: str = ""
) -> dict[str, bytes]:
    """Reads an archive to its end without writing it, as strictly as `unpack`, and returns some of its files.

    Args:
        wanted: which paths' contents to return; links are not followed.
        bytes_max: of each of these.

    Raises:
        ArchiveError: refused, or a wanted file is too large.
        CallerError: no such file.
    """
    found: dict[str, bytes] = {}
    label = name or (source.name if isinstance(source, Path) else "<bytes>")

    def visit(member: Member, content: Callable[[], IO[bytes]]) -> None:
        if member.directory or member.link is not None:
            return
        keep = wanted(member.path)
        if keep and member.size > bytes_max:
            detail = f"{member.size} bytes, {bytes_max} allowed"
            raise ArchiveError(label, ArchiveFault.TOO_LARGE, detail, member=member.path)
        with content() as reader:
            if keep:
                found[member.path] = reader.read()
            while reader.read(_CHUNK_BYTES):
                pass

    walk(source, caps, visit, name=label)
    return found


def canonical_tar(files: Mapping[str, bytes], *, executable: Collection[str] = ()) -> bytes:
    """A tar (POSIX pax) that depends on nothing but its arguments: sorted, no times, no owners, no directories.

    Args:
        files: path → content. Paths are relative, with `/`, and fit `unpack`.
        executable: which of them may be executed.

    Raises:
        CallerError: a path that `unpack` would refuse (an `ArchiveError`), or more files or bytes than it allows.
    """
    ledger = MemberLedger("<new>", DEFAULT_CAPS, packed_bytes=sum(map(len, files.values())))
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
        self._links: dict[str, str] = {}
        self.files: dict[str, str] = {}

    def visit(self, member: Member, content: Callable[[], IO[bytes]]) -> None:
        if member.directory:
            with self._writing():
                (self._root / member.path).mkdir(parents=True, exist_ok=True, mode=0o755)
        elif member.link is not None:
            self._links[member.path] = member.link
        else:
            with content() as reader:
                self._write(member, reader)

    def copy_links(self) -> None:
        """Gives links the content of the regular files they name, which are all there by now."""
        for path, target in self._links.items():
            with self._writing():
                (self._root / path).parent.mkdir(parents=True, exist_ok=True, mode=0o755)
                shutil.copy(self._root / target, self._root / path)
            self.files[path] = self.files[target]

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
