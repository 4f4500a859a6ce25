"""A sandbox in the hands of its user: commands, files, snapshots. Written once, above every driver's stream."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol, Self

import anyio

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, RopewalkError
from ropewalk.core.outcomes import Termination
from ropewalk.machinery.files import replacing
from ropewalk.sandbox import silence as silences
from ropewalk.sandbox.connection import Connection, copy_of
from ropewalk.sandbox.contract import (
    Lease,
    SandboxDriver,
    SandboxGoneError,
    SandboxRecord,
    SandboxStats,
    SnapshotRecord,
)
from ropewalk.sandbox.files import (
    FileEntry,
    FileError,
    list_folder,
    read_files,
    remove_path,
    stat_path,
    write_files,
)
from ropewalk.sandbox.process import SIGKILL, Command, ExecResult, Process, TerminalSize, as_env, shell
from ropewalk.sandbox.protocol import DATA_BYTES_MAX, ExitFlag, Fields, Key
from ropewalk.security.data_classes import Use, check_allowed

KILLED_BY_SHELL: Final = 128 + SIGKILL
STATS_TIMEOUT_S: Final = 5.0


class Service(Protocol):
    """What handles need of the service that made them."""

    async def fork(
        self,
        snapshot_id: str,
        *,
        lease: Lease = Lease.ATTACHED,
        id: str | None = None,
        idle_timeout_s: float = limits.SANDBOX_IDLE_TIMEOUT_S,
        labels: Mapping[str, str] | None = None,
    ) -> Sandbox:
        """A new sandbox in a saved state; repeated with the same `id`, the same one."""
        ...

    async def save(self, id: str, *, label: str, durable: bool) -> SnapshotRecord:
        """Snapshots a sandbox and keeps the record."""
        ...

    async def destroy(self, id: str) -> None:
        """Ends a sandbox and removes what belongs to it."""
        ...


class Sandbox:
    """An isolated computer. Leaving `async with` ends it, whatever happened inside; so does `close`.

    Any number of calls may run at once. All of them raise `SandboxGoneError` when the sandbox dies.
    """

    def __init__(self, driver: SandboxDriver, record: SandboxRecord, service: Service, *, fresh: bool = False) -> None:
        """`fresh`: nobody has used it yet."""
        self._driver = driver
        self._service = service
        self._connection: Connection | None = None
        self._connecting = anyio.Lock(fast_acquire=True)
        self._closed = False
        self._kills: tuple[int, int] | None = (0, 0) if fresh else None
        """For want of the sandbox's memory and of the machine's, as of the last look; None: not looked yet, and
        earlier ones are none of this handle's business."""
        self._end: SandboxGoneError | None = None
        """Why it was ended from here, though nobody asked for that."""
        self.record = record

    @property
    def id(self) -> str:
        """`sandbox:` and a ULID."""
        return self.record.id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str = b"",
        timeout_s: float | None = limits.EXEC_TIMEOUT_S,
        output_bytes_max: int = limits.OUTPUT_BYTES_MAX,
        detach: bool = False,
    ) -> ExecResult:
        """Runs a command to its end; a string is a line for /bin/sh.

        When it ends, is cancelled or runs out of time, so do all processes it started, in whatever way they hide.
        With `detach` those it leaves behind live on until the sandbox ends (a server in the background), except after
        a timeout. `user` is a name or number inside; None is the spec's, mostly root. Output past `output_bytes_max` of
        each stream is dropped and counted.

        Raises:
            CallerError: the call is wrong. A command that cannot be started is a result (`start_error`).
            SandboxGoneError: the sandbox died.
        """
        data = stdin.encode() if isinstance(stdin, str) else stdin
        asked = Command(
            argv=shell(command),
            cwd=cwd,
            env=as_env(env),
            user=user if user is not None else self.record.spec.user or None,
            stdin=bool(data),
            timeout_s=timeout_s,
            output_bytes_max=output_bytes_max,
            detach=detach,
        )
        return await Process(await self._connect(), asked, self._judge, collect=True).run(data)

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bool = False,
        timeout_s: float | None = None,
        output_bytes_max: int = limits.GIB,
        detach: bool = False,
        pty: TerminalSize | None = None,
    ) -> Process:
        """Like `exec`, for a command to talk to while it runs. With `pty` it gets a terminal: all output is stdout.

        A detached one outlives this handle and this process; otherwise it ends with the connection at the latest.
        """
        asked = Command(
            argv=shell(command),
            cwd=cwd,
            env=as_env(env),
            user=user if user is not None else self.record.spec.user or None,
            stdin=stdin or pty is not None,
            timeout_s=timeout_s,
            output_bytes_max=output_bytes_max,
            detach=detach,
            terminal=pty,
        )
        process = Process(await self._connect(), asked, self._judge)
        try:
            await process.started()
        except BaseException:
            await process.kill()
            raise
        return process

    async def read(
        self,
        path: str,
        *,
        bytes_max: int = limits.FILE_BYTES_MAX,
        offset: int = 0,
        whole: bool = True,
        follow: bool = True,
    ) -> bytes:
        """A file's content from `offset` on. Relative paths start at the workdir; `follow` false refuses links
        anywhere in the path. With `whole` false, what is past `bytes_max` is left unread instead of an error.

        Raises:
            FileError: missing, no regular file, or (EFBIG) more than `bytes_max` bytes.
        """
        contents = await read_files(
            await self._connect(), [path], bytes_max=bytes_max, offset=offset, whole=whole, follow=follow
        )  # fmt: skip
        return contents[0]

    async def read_many(
        self, paths: Sequence[str], *, bytes_max: int = limits.FILE_BYTES_MAX, follow: bool = True
    ) -> dict[str, bytes]:
        """Several files in one round trip, at most `bytes_max` together. All of them or an error."""
        names = list(dict.fromkeys(paths))
        contents = await read_files(await self._connect(), names, bytes_max=bytes_max, follow=follow)
        return dict(zip(names, contents, strict=True))

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """A file, whole or not at all, with the folders above it. A link in its place is replaced, not followed.

        Raises:
            CallerError: larger than `limits.FILE_BYTES_MAX`; use `upload`.
            FileError: there is a folder in its place, or the path leads nowhere.
            DiskFullError: no room.
        """
        await self.write_many({path: data}, mode=mode)

    async def write_many(self, files: Mapping[str, bytes | str], *, mode: int = 0o644) -> None:
        """Several files in one round trip. Each appears whole or not at all; the first failure ends the call."""
        encoded = [(path, data.encode() if isinstance(data, str) else data, mode) for path, data in files.items()]
        for path, data, _ in encoded:
            if len(data) > limits.FILE_BYTES_MAX:
                raise CallerError(
                    f"{path}: {len(data)} bytes, {limits.FILE_BYTES_MAX} are allowed.", next_step="use upload."
                )
        await write_files(await self._connect(), encoded)

    async def download(self, path: str, destination: Path, *, bytes_max: int = limits.ARCHIVE_BYTES_MAX) -> int:
        """A file of the sandbox to one of this machine, in pieces; returns its size. It appears when it is whole.

        Raises:
            DeniedError: the class of the sandbox's data does not allow that it leaves as a file.
            CallerError: there is no such file, or it is larger than `bytes_max`.
            UnavailableError: it cannot be written here.
        """
        check_allowed(self.record.spec.data_class, Use.EXPORT, "file")
        connection, size = await self._connect(), 0
        with replacing(destination, durable=False, mode=0o666) as target:
            while piece := (await read_files(connection, [path], bytes_max=4 * limits.MIB, offset=size, whole=False))[
                0
            ]:
                size += len(piece)
                if size > bytes_max:
                    raise FileError(f"{path} is larger than {bytes_max} bytes.", code="EFBIG", path=path)
                await anyio.to_thread.run_sync(target.write, piece)
        return size

    async def upload(self, source: Path, path: str, *, mode: int = 0o644) -> None:
        """A file of this machine, of any size, into the sandbox, in pieces.

        Raises:
            CallerError: it cannot be read, or is no regular file: of a pipe nobody knows when it ends.
            FileError, DiskFullError, SandboxGoneError: as `write`.
        """
        with await anyio.to_thread.run_sync(_open_regular, source) as opened:

            async def pieces() -> AsyncGenerator[bytes, None]:
                while piece := await anyio.to_thread.run_sync(opened.read, DATA_BYTES_MAX):
                    yield piece

            async with aclosing(pieces()) as content:
                await write_files(await self._connect(), [(path, content, mode)])

    async def list(
        self,
        path: str = ".",
        *,
        recursive: bool = False,
        digests: bool = False,
        entries_max: int = limits.LIST_ENTRIES_MAX,
        bytes_max: int = limits.LIST_BYTES_MAX,
    ) -> tuple[FileEntry, ...]:
        """What is in a folder, sorted by path; by lstat, links are never followed.

        Raises:
            FileError: no folder, or (EOVERFLOW) more than `entries_max` entries or `bytes_max` bytes of them.
        """
        return await list_folder(
            await self._connect(), path, recursive=recursive, digests=digests, entries_max=entries_max,
            bytes_max=bytes_max,
        )  # fmt: skip

    async def stat(self, path: str) -> FileEntry:
        """What lstat says about one path.

        Raises:
            FileError: there is nothing (ENOENT).
        """
        return await stat_path(await self._connect(), path)

    async def exists(self, path: str) -> bool:
        """Whether there is something, be it a dangling link."""
        try:
            await self.stat(path)
        except FileError as error:
            if error.code in ("ENOENT", "ENOTDIR"):
                return False
            raise
        return True

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """A file, a link itself, an empty folder, or with `recursive` any folder.

        Raises:
            FileError: there is nothing (ENOENT), or a folder is not empty (ENOTEMPTY).
        """
        await remove_path(await self._connect(), path, recursive=recursive)

    async def snapshot(self, label: str = "", *, durable: bool = True) -> Snapshot:
        """Saves the state; the sandbox keeps running. Not `durable`: sooner, and lost with the power.

        Raises:
            SandboxGoneError: it died before.
            UnavailableError: no room.
        """
        return Snapshot(await self._service.save(self.id, label=label, durable=durable), self._service)

    async def stats(self) -> SandboxStats:
        """Resources used so far, also after its death."""
        return await self._driver.stats(self.id)

    async def close(self) -> None:
        """Ends the sandbox and waits until nothing of it is left. Idempotent; shielded from cancellation."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            try:
                await self._service.destroy(self.id)
            finally:
                await self.disconnect()

    async def disconnect(self) -> None:
        """Lets go of the sandbox without ending it. Its commands end, but for detached ones; the next call connects
        again."""
        connection, self._connection = self._connection, None
        if connection:
            await connection.close()

    async def _connect(self) -> Connection:
        if self._connection and self._connection.usable and not self._closed:
            return self._connection
        async with self._connecting:
            if self._closed or self._end:
                raise await self.explain("it was closed")
            if self._connection and self._connection.usable:
                return self._connection
            await self.disconnect()
            self._connection = await Connection.open(await self._driver.stream(self.id), self)
            if self._kills is None:
                await self._killed_for_memory()
            return self._connection

    async def _killed_for_memory(self) -> Termination | None:
        """Whether shortage of memory ended processes since the last look: OUT_OF_MEMORY where the sandbox's own limit
        did, INFRASTRUCTURE where the machine had too little. None also where the driver cannot tell."""
        with anyio.move_on_after(STATS_TIMEOUT_S):
            stats = await self._driver.stats(self.id)
            before, now = self._kills, (stats.out_of_memory_kills or 0, stats.machine_kills or 0)
            self._kills = now if before is None else (max(before[0], now[0]), max(before[1], now[1]))
            if before is not None and now[0] > before[0]:
                return Termination.OUT_OF_MEMORY
            if before is not None and now[1] > before[1]:
                return Termination.INFRASTRUCTURE
        return None

    async def _judge(self, end: Fields) -> Termination:
        flags = end.number(Key.FLAGS)
        if flags & ExitFlag.TIMED_OUT:
            return Termination.TIMEOUT
        killed = end.number(Key.SIGNAL) == SIGKILL or end.number(Key.CODE) == KILLED_BY_SHELL
        if killed and not flags & ExitFlag.KILLED and (cause := await self._killed_for_memory()):
            return cause
        return Termination.FINISHED

    async def silence(self, answered: Callable[[], Awaitable[object]]) -> silences.Silence | None:
        """For its connection: why its agent does not answer in time; None: it is to be given the time anew."""
        return await silences.explain(self.stats, answered)

    async def give_up(
        self, reason: str, *, termination: Termination, silence: SandboxStats | None = None
    ) -> SandboxGoneError:
        """For its connection: ends the sandbox, since its agent does not do its duty (in time)."""
        if self._end is None:
            self._end = await self._explained(reason, termination)
            self._end.silence = silence if self._end.termination is termination else None
        with anyio.CancelScope(shield=True):
            await self._service.destroy(self.id)
        return copy_of(self._end)

    async def explain(self, reason: str) -> SandboxGoneError:
        """For its connection: why the sandbox is lost."""
        if self._end:
            return copy_of(self._end)
        return await self._explained(reason, Termination.INFRASTRUCTURE)

    async def _explained(self, reason: str, termination: Termination) -> SandboxGoneError:
        if self._closed:
            termination = Termination.EVICTED
        else:
            try:
                termination = await self._killed_for_memory() or termination
            except SandboxGoneError as error:
                if termination.ours:
                    termination = error.termination
            except RopewalkError as error:
                reason = f"{reason}; {error.message}"
        return SandboxGoneError(f"Sandbox {self.id} is gone: {reason}.", termination=termination)


def _open_regular(path: Path) -> BinaryIO:
    """Opens without ever waiting for another side."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise CallerError(f"{path} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CallerError(f"{path} is no regular file.", next_step="write what it gives to a file first.")
    return os.fdopen(descriptor, "rb")


class Snapshot:
    """A saved state that new sandboxes start from."""

    def __init__(self, record: SnapshotRecord, service: Service) -> None:
        self._service = service
        self.record = record

    @property
    def id(self) -> str:
        """`snapshot:` and a digest; equal states have equal ids."""
        return self.record.id

    async def fork_one(
        self,
        *,
        lease: Lease = Lease.ATTACHED,
        id: str | None = None,
        idle_timeout_s: float = limits.SANDBOX_IDLE_TIMEOUT_S,
        labels: Mapping[str, str] | None = None,
    ) -> Sandbox:
        """One new sandbox in this state.

        Args:
            id: makes the call idempotent: repeated with the same one it gives the same sandbox (`new_id("sandbox")`).
            idle_timeout_s, labels: its own; a state does not hold those of the sandbox it was saved from, since equal
                states of several sandboxes are one snapshot.
        """
        return await self._service.fork(self.id, lease=lease, id=id, idle_timeout_s=idle_timeout_s, labels=labels)

    @asynccontextmanager
    async def fork(
        self,
        count: int,
        *,
        lease: Lease = Lease.ATTACHED,
        idle_timeout_s: float = limits.SANDBOX_IDLE_TIMEOUT_S,
        labels: Mapping[str, str] | None = None,
    ) -> AsyncIterator[list[Sandbox]]:
        """`count` new sandboxes in this state, made at the same time; all of them or the first one's error.

        All are destroyed on leaving, also after an error or a cancellation.
        """
        if count < 1:
            raise CallerError(f"{count} forks were asked for; at least one is needed.")
        made: list[Sandbox] = []

        async def make() -> None:
            made.append(await self._service.fork(self.id, lease=lease, idle_timeout_s=idle_timeout_s, labels=labels))

        try:
            try:
                async with anyio.create_task_group() as group:
                    for _ in range(count):
                        group.start_soon(make)
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
            yield made
        finally:
            with anyio.CancelScope(shield=True):
                ends = await asyncio.gather(*(sandbox.close() for sandbox in made), return_exceptions=True)
            for error in ends:
                if isinstance(error, BaseException):
                    raise error
