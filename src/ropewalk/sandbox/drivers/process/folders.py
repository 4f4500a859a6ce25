"""What is written down of each sandbox, so that other processes can reach it and clean up after a crash.

`sandboxes/<ulid>/`: `record.json`, `owner.json` (the process that holds the lease), `agent.sock`, and, by the
spawner, `processes.json` (pids with start times, control groups) and `end.json` (the last figures of a dead one).
The folder appears whole by a rename; while it exists the sandbox exists.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import msgspec

from ropewalk.core.errors import UnavailableError
from ropewalk.core.ids import check_id
from ropewalk.core.records import Record, canonical_bytes, decode_own
from ropewalk.machinery.files import replace_whole
from ropewalk.sandbox.contract import SandboxGoneError, SandboxRecord
from ropewalk.sandbox.drivers.process import processes
from ropewalk.sandbox.drivers.process.spawner import remove_folder
from ropewalk.store.layout import Layout

_FRESH = ".new-"
_BASE_FIRST = 200_000
IDS = 65_536
"""User ids of one tenant."""
_DELEGATED = (Path("/etc/subuid"), Path("/etc/subgid"))
"""Ranges that belong to users of this machine (subuid(5)): lines of name, first id and count."""


class LeaseHolder(Record):
    """The process that holds a lease."""

    pid: int
    started: int
    boot: str

    @staticmethod
    def me() -> LeaseHolder:
        """This process."""
        return _process(os.getpid())

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.boot == processes.boot_id() and processes.alive(self.pid, self.started)


@cache
def _process(pid: int) -> LeaseHolder:
    return LeaseHolder(pid=pid, started=processes.start_time(pid) or 0, boot=processes.boot_id())


class Processes(Record):
    """Written by the spawner."""

    pid: int
    """Bubblewrap outside, the parent of the sandbox's first process."""
    started: int
    init_pid: int
    init_started: int
    groups: dict[str, str]

    def alive(self) -> bool:
        """Whether the sandbox still runs."""
        return processes.alive(self.pid, self.started)

    def init_alive(self) -> bool:
        """Whether the sandbox's first process still runs."""
        return processes.alive(self.init_pid, self.init_started)


class End(msgspec.Struct, frozen=True):
    """The last figures, written by the spawner. Any may be missing."""

    status: int | None = None
    cpu_s: float | None = None
    cpu_wait_s: float | None = None
    memory_bytes_peak: int | None = None
    out_of_memory_kills: int | None = None
    machine_kills: int | None = None


class Folder:
    """One sandbox's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def record(self) -> SandboxRecord | None:
        """None: no such sandbox."""
        try:
            return decode_own((self.path / "record.json").read_bytes(), SandboxRecord)
        except OSError:
            return None

    def owner(self) -> LeaseHolder | None:
        """None: no such sandbox."""
        try:
            return decode_own((self.path / "owner.json").read_bytes(), LeaseHolder)
        except OSError:
            return None

    def is_being_made(self) -> bool | None:
        """Of a folder that is not whole yet: whether the process at work on it lives. None: it is whole."""
        if not self.path.name.startswith(_FRESH):
            return None
        words = self.path.name.removeprefix(_FRESH).split("-")
        return len(words) == 4 and all(map(str.isdigit, words[1:3])) and processes.alive(int(words[1]), int(words[2]))

    @contextmanager
    def saving(self, *, wait: bool) -> Iterator[bool]:
        """One at a time saves the sandbox, in whatever process. Gives whether the turn is ours."""
        try:
            lock = os.open(self.path / "record.json", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SandboxGoneError(f"There is no sandbox {self.path.name}.") from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(lock)

    def disown(self) -> None:
        """From now on only the sandbox's own life keeps its folder."""
        with suppress(OSError):
            (self.path / "owner.json.new").write_bytes(
                canonical_bytes(LeaseHolder(pid=0, started=0, boot=processes.boot_id()))
            )
            (self.path / "owner.json.new").replace(self.path / "owner.json")

    def processes(self) -> Processes | None:
        """None: not started yet, or no such sandbox."""
        try:
            return decode_own((self.path / "processes.json").read_bytes(), Processes)
        except OSError:
            return None

    def end(self) -> End | None:
        """None: it still runs, or nobody saw it end."""
        with suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode((self.path / "end.json").read_bytes(), type=End)
        return None

    def listen(self) -> socket.socket:
        """The socket that the agent will accept on. Paths of sockets are short: it is bound through its folder."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listener.bind(f"/proc/self/fd/{folder}/agent.sock")
            listener.listen(128)
        finally:
            os.close(folder)
        return listener

    def connect(self) -> socket.socket:
        """A connection to the agent, non-blocking.

        Raises:
            SandboxGoneError: nobody listens.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                connection.settimeout(5.0)
                connection.connect(f"/proc/self/fd/{folder}/agent.sock")
            finally:
                os.close(folder)
        except OSError as error:
            connection.close()
            raise SandboxGoneError(f"Sandbox {self.path.name} does not answer: {error.strerror or error}.") from error
        connection.setblocking(False)
        return connection

    def remove(self) -> None:
        """Nothing where it is gone."""
        remove_folder(str(self.path))


class Folders:
    """All sandboxes below one state directory."""

    def __init__(self, layout: Layout) -> None:
        self._root = layout.sandboxes
        self._tenants = layout.tenants
        self._bases: dict[str, int] = {}

    def of(self, id: str) -> Folder:
        """The folder of an id, whether it exists or not.

        Raises:
            CallerError: not the id of a sandbox.
        """
        return Folder(self._root / check_id(id, "sandbox").partition(":")[2])

    def all(self) -> Iterator[Folder]:
        """Every folder, also half-made ones."""
        for path in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            yield Folder(path)

    def make(self, record: SandboxRecord) -> Folder | None:
        """A new sandbox's folder; None: the id is taken.

        Raises:
            UnavailableError: no room.
        """
        folder = self.of(record.id)
        me = LeaseHolder.me()
        fresh = self._root / f"{_FRESH}{folder.path.name}-{me.pid}-{me.started}-{secrets.token_hex(4)}"
        try:
            fresh.mkdir(mode=0o700)
            (fresh / "owner.json").write_bytes(canonical_bytes(me))
            (fresh / "record.json").write_bytes(canonical_bytes(record))
            try:
                fresh.rename(folder.path)
            except OSError:
                if folder.path.exists():
                    return None
                raise
        except OSError as error:
            raise UnavailableError(f"No sandbox can be made in {self._root}: {error.strerror or error}.") from error
        finally:
            if fresh.exists():
                shutil.rmtree(fresh, ignore_errors=True)
        return folder

    def base(self, tenant: str) -> int:
        """The first of the tenant's user ids on the host; allocated once and for good.

        Raises:
            UnavailableError: no ids are left, or the file cannot be written.
        """
        if tenant in self._bases:
            return self._bases[tenant]
        try:
            lock = os.open(self._tenants.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                text = self._tenants.read_bytes() if self._tenants.exists() else b"{}"
                bases = decode_own(text, dict[str, int])
                if tenant not in bases:
                    bases[tenant] = _free_from(max(bases.values(), default=_BASE_FIRST - IDS) + IDS)
                    if bases[tenant] > 2**32 - 2 * IDS:
                        raise UnavailableError("No user ids are left for another tenant.")
                    replace_whole(self._tenants, canonical_bytes(bases))
                self._bases = bases
                return bases[tenant]
            finally:
                os.close(lock)
        except OSError as error:
            raise UnavailableError(f"{self._tenants} cannot be used: {error.strerror or error}.") from error


def _free_from(base: int) -> int:
    """The first id from `base` on at which a tenant's range meets none that this machine gave to one of its users:
    their rootless containers would run under the same ids."""
    for first, count in sorted(_delegated()):
        if first < base + IDS and base < first + count:
            base = first + count
    return base


def _delegated() -> Iterator[tuple[int, int]]:
    for path in _DELEGATED:
        with suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines():
                fields = line.split(b":")
                if len(fields) == 3 and all(field.strip().isdigit() for field in fields[1:]):
                    yield int(fields[1]), int(fields[2])


def require(folder: Folder, id: str) -> SandboxRecord:
    """The record of a sandbox that must exist.

    Raises:
        SandboxGoneError: it does not.
    """
    record = folder.record()
    if record is None:
        raise SandboxGoneError(f"There is no sandbox {id}.")
    return record
