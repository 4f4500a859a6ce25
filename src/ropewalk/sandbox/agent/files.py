"""File requests; loaded with the first of them."""

from __future__ import annotations

import errno
import posix
import sys

from . import wire
from .wire import FILE_CHUNK, Fields, Malformed, failure, field, log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from .connection import Connection
    from .loop import Agent

    Steps = Generator[None, None, None]
DEPTH_MAX = 200
"""Of folders, in one request: each holds a descriptor."""
FOLDER_FLAGS = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC


class Job:
    """A file request in progress: a generator that yields after every bounded slice of work."""

    def __init__(self, agent: Agent, connection: Connection, channel: int, steps: Steps) -> None:
        self.agent, self.connection, self.channel, self.steps = agent, connection, channel, steps
        agent.jobs.append(self)

    def step(self) -> bool:
        """Whether there is more to do."""
        if self.connection.congested():
            return True
        try:
            next(self.steps)
            return True
        except StopIteration:
            pass
        except OSError as error:
            self.connection.send(wire.ERROR, self.channel, failure(error, b""))
        except Exception as error:  # a fault of this request alone
            log(f"request failed: {type(error).__name__}: {error}")
            self.connection.send(wire.ERROR, self.channel, failure(OSError(errno.EIO, str(error)), b""))
        self.connection.channels.pop(self.channel, None)
        return False

    def resume(self) -> None: ...

    def abandon(self) -> None:
        self.steps.close()
        if self in self.agent.jobs:
            self.agent.jobs.remove(self)


class Upload:
    """Files on their way in: each is written beside its place and renamed into it when it is whole."""

    counter = 0

    def __init__(self, agent: Agent, connection: Connection, channel: int) -> None:
        self.connection, self.channel, self.workdir = connection, channel, agent.workdir
        self.folder = self.fd = -1
        self.temporary = self.path = self.name = b""
        self.mode = self.count = 0
        self.failed = False

    def begin(self, fields: Fields) -> None:
        self.guard(self.commit)
        if not self.failed:
            self.path = absolute(self.workdir, fields.text(wire.K_PATH))
            self.mode = fields.number(wire.K_MODE, 0o644) & 0o777
            self.guard(self.open)

    def guard(self, action: Callable[[], None]) -> None:
        if not self.failed:
            try:
                action()
            except OSError as error:
                self.failed = True
                self.discard()
                self.connection.send(wire.ERROR, self.channel, failure(error, self.path))

    def open(self) -> None:
        parent, self.name = self.path.rsplit(b"/", 1)
        make_directories(parent)
        self.folder = posix.open(parent or b"/", FOLDER_FLAGS)
        try:
            mode = posix.stat(self.name or b".", dir_fd=self.folder, follow_symlinks=False).st_mode & 0o170000
            if mode not in (0o100000, 0o120000):
                raise OSError(errno.EISDIR if mode == 0o040000 else errno.EEXIST, "there is something else than a file")
        except FileNotFoundError:
            pass
        Upload.counter += 1
        self.temporary = b".upload-%d-%d" % (posix.getpid(), Upload.counter)
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
        self.fd = posix.open(self.temporary, flags, 0o600, dir_fd=self.folder)

    def data(self, payload: bytes) -> None:
        if self.fd < 0 and not self.failed:
            raise Malformed("data before a file")
        self.guard(lambda: write_all(self.fd, payload))

    def commit(self) -> None:
        if self.fd >= 0:
            posix.fchmod(self.fd, self.mode)
            posix.rename(self.temporary, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            self.temporary = b""
            self.count += 1
            self.discard()

    def end(self) -> None:
        self.guard(self.commit)
        if not self.failed:
            self.connection.send(wire.DONE, self.channel, field(wire.K_COUNT, self.count))
        self.connection.channels.pop(self.channel, None)

    def discard(self) -> None:
        if self.temporary:
            try:
                posix.unlink(self.temporary, dir_fd=self.folder)
            except OSError:
                pass
        for fd in (self.fd, self.folder):
            if fd >= 0:
                posix.close(fd)
        self.fd = self.folder = -1
        self.temporary = b""

    def resume(self) -> None: ...

    def abandon(self) -> None:
        self.discard()


def absolute(workdir: bytes, path: bytes) -> bytes:
    if not path:
        raise Malformed("no path")
    return path if path.startswith(b"/") else workdir + b"/" + path


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view) :]


def make_directories(path: bytes) -> None:
    made = b""
    for part in path.split(b"/"):
        if part:
            made += b"/" + part
            try:
                posix.mkdir(made, 0o755)
            except FileExistsError:
                pass
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):  # it may be there all the same
                    raise


def open_at(path: bytes, flags: int, *, follow: bool) -> int:
    """Opens without ever waiting; `follow` false: no component of the path may be a link."""
    flags |= posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY
    if follow:
        return posix.open(path, flags)
    folder = posix.open(b"/", FOLDER_FLAGS)
    try:
        parts = [part for part in path.split(b"/") if part not in (b"", b".")] or [b"."]
        for part in parts[:-1]:
            inner = posix.open(part, FOLDER_FLAGS | posix.O_NOFOLLOW, dir_fd=folder)
            posix.close(folder)
            folder = inner
        return posix.open(parts[-1], flags | posix.O_NOFOLLOW, dir_fd=folder)
    finally:
        posix.close(folder)


def regular(fd: int) -> posix.stat_result:
    found = posix.fstat(fd)
    if found.st_mode & 0o170000 != 0o100000:
        raise OSError(errno.EISDIR if found.st_mode & 0o170000 == 0o040000 else errno.EINVAL, "not a regular file")
    return found


def read_files(connection: Connection, channel: int, workdir: bytes, fields: Fields) -> Steps:
    """READ: some files one after the other, at most `length` bytes of all together."""
    flags, room, offset = fields.number(wire.K_FLAGS), fields.number(wire.K_LENGTH), fields.number(wire.K_OFFSET)
    for index, name in enumerate(fields.all(wire.K_PATH)):
        fd = -1
        try:
            fd = open_at(absolute(workdir, name), 0, follow=not flags & wire.F_NOFOLLOW)
            found = regular(fd)
            size, mode = field(wire.K_SIZE, found.st_size), field(wire.K_MODE, found.st_mode & 0o7777)
            connection.send(wire.FILE, channel, field(wire.K_INDEX, index) + size + mode)
            if offset:
                posix.lseek(fd, offset, 0)
            while True:
                whole = flags & wire.F_WHOLE
                data = posix.read(fd, min(FILE_CHUNK, room + 1 if whole else room))
                if len(data) > room:
                    raise OSError(errno.EFBIG, "larger than the reader allows")
                if not data:
                    break
                room -= len(data)
                connection.send(wire.FILE_DATA, channel, data)
                yield
        except OSError as error:
            connection.send(wire.FILE_FAILED, channel, field(wire.K_INDEX, index) + failure(error, name))
        finally:
            if fd >= 0:
                posix.close(fd)
        yield
    connection.send(wire.DONE, channel)


def entry(path: bytes, found: posix.stat_result, digest: bytes) -> bytes:
    kind = {0o100000: b"f", 0o040000: b"d", 0o120000: b"l"}.get(found.st_mode & 0o170000, b"o")
    return field(wire.K_ENTRY, b"".join((
        field(wire.K_PATH, path),
        field(wire.K_KIND, kind),
        field(wire.K_SIZE, found.st_size),
        field(wire.K_MODE, found.st_mode & 0o7777),
        field(wire.K_MTIME_NS, found.st_mtime_ns),
        field(wire.K_SHA256, digest) if digest else b"",
    )))  # fmt: skip


def stat_file(connection: Connection, channel: int, workdir: bytes, fields: Fields) -> Steps:
    path = absolute(workdir, fields.text(wire.K_PATH))
    connection.send(wire.ENTRIES, channel, entry(path, posix.stat(path, follow_symlinks=False), b""))
    connection.send(wire.DONE, channel)
    yield


def name_of(item: posix.DirEntry[str]) -> bytes:
    return item.name.encode(sys.getfilesystemencoding(), "surrogateescape")


def list_folder(connection: Connection, channel: int, workdir: bytes, fields: Fields) -> Steps:
    """LIST: what is in a folder, by lstat; links are named, never followed."""
    flags, room = fields.number(wire.K_FLAGS), fields.number(wire.K_ENTRIES_MAX)
    bytes_room = fields.number(wire.K_LENGTH, 1 << 62)
    given = fields.text(wire.K_PATH)
    root = open_at(absolute(workdir, given), posix.O_DIRECTORY, follow=not flags & wire.F_NOFOLLOW)
    stack = [(b"" if given == b"." else given.rstrip(b"/") + b"/", root, posix.scandir(root))]
    batch: list[bytes] = []
    batch_bytes = 0
    try:
        while stack:
            prefix, folder, items = stack[-1]
            item = next(items, None)
            if item is None:
                stack.pop()
                posix.close(folder)
                continue
            name, digest = name_of(item), b""
            try:
                found = posix.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:  # gone meanwhile
                continue
            if flags & wire.F_DIGESTS and found.st_mode & 0o170000 == 0o100000:
                digest = yield from sha256(folder, name)
            room -= 1
            if room < 0:
                raise OSError(errno.EOVERFLOW, "more entries than the caller allows")
            batch.append(entry(prefix + name, found, digest))
            batch_bytes += len(batch[-1])
            bytes_room -= len(batch[-1])
            if bytes_room < 0:
                raise OSError(errno.EOVERFLOW, "more bytes of entries than the caller allows")
            if flags & wire.F_RECURSIVE and found.st_mode & 0o170000 == 0o040000:
                if len(stack) >= DEPTH_MAX:
                    raise OSError(errno.EOVERFLOW, "folders nested too deep")
                inner = posix.open(name, FOLDER_FLAGS | posix.O_NOFOLLOW, dir_fd=folder)
                stack.append((prefix + name + b"/", inner, posix.scandir(inner)))
            if len(batch) >= 128 or batch_bytes >= wire.BATCH_MAX:
                connection.send(wire.ENTRIES, channel, b"".join(batch))
                batch.clear()
                batch_bytes = 0
                yield
    finally:
        for _, folder, items in stack:
            items.close()
            posix.close(folder)
    connection.send(wire.ENTRIES, channel, b"".join(batch))
    connection.send(wire.DONE, channel)


def sha256(folder: int, name: bytes) -> Generator[None, None, bytes]:
    import hashlib  # 5 ms that only digests need

    flags = posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC
    try:
        fd = posix.open(name, flags, dir_fd=folder)
    except OSError:  # not readable, or no longer what it was: an entry without a digest
        return b""
    try:
        regular(fd)
        state = hashlib.sha256()
        while data := posix.read(fd, FILE_CHUNK):
            state.update(data)
            yield
        return state.digest()
    finally:
        posix.close(fd)


def remove(connection: Connection, channel: int, workdir: bytes, fields: Fields) -> Steps:
    """REMOVE: a file, a link (not what it points to), or with the flag a folder with all that is in it."""
    path = absolute(workdir, fields.text(wire.K_PATH)).rstrip(b"/") or b"/"
    parent, name = path.rsplit(b"/", 1)
    if name in (b"", b".", b".."):
        raise OSError(errno.EINVAL, "this has no name of its own")
    count = 0
    stack = [(posix.open(parent or b"/", FOLDER_FLAGS), [name])]
    try:
        while stack:
            folder, names = stack[-1]
            if not names:
                posix.close(stack.pop()[0])
                if stack:
                    posix.rmdir(stack[-1][1].pop(), dir_fd=stack[-1][0])
                    count += 1
                continue
            mode = posix.stat(names[-1], dir_fd=folder, follow_symlinks=False).st_mode
            if mode & 0o170000 != 0o040000:
                posix.unlink(names.pop(), dir_fd=folder)
                count += 1
            elif not fields.number(wire.K_FLAGS) & wire.F_RECURSIVE:
                posix.rmdir(names.pop(), dir_fd=folder)
                count += 1
            elif len(stack) >= DEPTH_MAX:
                raise OSError(errno.EOVERFLOW, "folders nested too deep")
            else:
                inner = posix.open(names[-1], FOLDER_FLAGS | posix.O_NOFOLLOW, dir_fd=folder)
                with posix.scandir(inner) as items:
                    stack.append((inner, [name_of(item) for item in items]))
            yield
    finally:
        for folder, _ in stack:
            posix.close(folder)
    connection.send(wire.DONE, channel, field(wire.K_COUNT, count))
