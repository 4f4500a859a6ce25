# ruff: noqa: PTH105, PTH106, PTH108, PTH123
# pathlib would double the time that the spawner takes to start.
"""The spawner: one small process per driver that is the parent of its sandboxes.

It exists for three reasons. A process that enters namespaces must have one thread, which the driver's has not.
Whatever way the driver's process ends, this one notices, ends the attached sandboxes and removes what they held.
And bubblewrap's `--die-with-parent` needs a parent that lives exactly as long as the lease.

Standard library only; started by `driver` with `python -I -S`. It is sent one datagram per request over a
SOCK_SEQPACKET socket pair, JSON with descriptors beside it: a socket to answer on, and the listening socket that the
agent inside inherits. On the answering socket follow `started` or `failed`, and later `ended`.
"""

from __future__ import annotations

import array
import errno
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from ropewalk.sandbox.drivers.process import cgroups, kernel, processes, rootfs, seccomp

LISTEN_FD, SECCOMP_FD, INFO_FD, BOOT_ID_FD, CONFIGURATION_FD = 3, 4, 5, 6, 7
"""Descriptors of bubblewrap; the first and the last reach the agent too, and no command."""
REQUEST_BYTES_MAX = 128 * 1024
_IDS = 65_536
"""Of a tenant."""
DISREGARD = b"disregard"
"""From the driver, on the answering socket: it is about to destroy this sandbox."""
_STDERR_KEPT = 4096
_COUNTED = ("RLIMIT_MSGQUEUE", "RLIMIT_NPROC", "RLIMIT_SIGPENDING")
"""Limits of what the kernel counts per user and, since Linux 5.14, per user namespace."""
_OUT_OF_MEMORY_SCORE = "300"
"""Above anything of the host's own, so that a machine out of memory ends a sandbox first."""


class Sandbox:
    """What the spawner knows of one child."""

    def __init__(self, request: dict[str, Any], reply: socket.socket, pid: int) -> None:
        self.folder: str = request["folder"]
        self.base: int | None = request["base"]
        self.groups: cgroups.Groups = request["groups"]
        self.attached: bool = request["attached"]
        self.reply = reply
        self.pid = pid
        self.started = processes.start_time(pid) or 0
        self.init_pid = self.init_started = 0
        self.pidfd = os.pidfd_open(pid)
        self.failure = b""
        self.info = b""
        self.stderr = b""
        self.pipes: dict[int, Callable[[], None]] = {}
        self.announced = False

    def answer(self, message: dict[str, Any]) -> None:
        """Tells the driver, if it still listens."""
        with suppress(OSError):
            self.reply.send(json.dumps(message).encode())

    def disregarded(self) -> bool:
        """Whether the driver has said that nobody will ask how it ended."""
        with suppress(OSError):
            return self.reply.recv(64, socket.MSG_DONTWAIT) == DISREGARD
        return False


class Spawner:
    """One epoll loop."""

    def __init__(self, control: socket.socket, parent_pid: int) -> None:
        self.control = control
        self.epoll = select.epoll()
        self.handlers: dict[int, Callable[[], None]] = {}
        self.sandboxes: dict[int, Sandbox] = {}
        self.users: dict[int, int] = {}
        self.account = int.from_bytes(os.urandom(2))
        """Counts up: of all sandboxes of a tenant that live at once, hardly two share one, whoever made them."""
        self.parents: cgroups.Groups = {}
        self.filter = seccomp.program()
        self.done = False
        self.watch(control.fileno(), self.on_request)
        # A copy of the control socket in some fork of the driver would hide the driver's death: watch it itself.
        self.watch(os.pidfd_open(parent_pid), self.on_orphaned)

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        self.handlers[fd] = handler
        self.epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        if self.handlers.pop(fd, None):
            with suppress(OSError):  # not registered any more
                self.epoll.unregister(fd)
            os.close(fd)

    def run(self) -> None:
        while not self.done:
            for fd, _ in self.epoll.poll():
                if handler := self.handlers.get(fd):
                    handler()
        self.end_attached()

    def on_orphaned(self) -> None:
        self.done = True

    def on_request(self) -> None:
        data, ancillary, _, _ = self.control.recvmsg(REQUEST_BYTES_MAX, socket.CMSG_SPACE(2 * 4))
        if not data:
            self.done = True
            return
        fds = array.array("i")
        for _, _, payload in ancillary:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        reply = socket.socket(fileno=fds[0])
        listener = fds[1]
        for fd in fds:
            os.set_inheritable(fd, False)
        try:
            self.start(json.loads(data), reply, listener)
        except (OSError, ValueError) as error:
            with suppress(OSError):
                reply.send(
                    json.dumps({"event": "failed", "error": str(error), "errno": getattr(error, "errno", 0)}).encode()
                )
            reply.close()
        finally:
            os.close(listener)

    def start(self, request: dict[str, Any], reply: socket.socket, listener: int) -> None:
        """Forks the process that becomes bubblewrap."""
        base: int | None = request["base"]
        mapping = None if base is None else self.user_namespace(base)
        self.parents = request["parents"]
        groups = cgroups.create(request["parents"], request["name"], **request["limits"]) if request["parents"] else {}
        request["groups"] = groups
        pipes: list[tuple[int, int]] = []
        parent = os.getpid()
        try:
            pipes.extend(os.pipe() for _ in range(3))
            if base is not None:
                here, there = socket.socketpair()
                pipes.append((here.detach(), there.detach()))
            pid = cgroups.fork(groups)
        except OSError as error:
            if os.getpid() != parent:
                report(pipes[0][1], "control groups", error)
            for ends in pipes:
                for fd in ends:
                    os.close(fd)
            cgroups.remove(groups)
            raise
        if pid == 0:
            for read, _ in pipes:  # else it would not see the spawner's end
                os.close(read)
            identity = None
            if base is not None and mapping is not None:
                identity = rootfs.Identity(mapping, base + self.account, partial(ask_for_ids, pipes[3][1]))
            become(request, self.filter, identity, listener, [write for _, write in pipes[:3]])
        self.account = (self.account + 1) % _IDS
        for _, write in pipes:
            os.close(write)
        sandbox = Sandbox(request, reply, pid)
        self.sandboxes[pid] = sandbox
        if not sandbox.attached:  # an attached one dies with this process, so that nobody else need know it this early
            write_down(sandbox)
        for (read, _), handler in zip(
            pipes, (self.on_failure, self.on_info, self.on_stderr, self.on_ids), strict=False
        ):
            os.set_blocking(read, False)
            sandbox.pipes[read] = partial(handler, sandbox, read)
            self.watch(read, sandbox.pipes[read])
        self.watch(sandbox.pidfd, partial(self.on_end, sandbox))

    def user_namespace(self, base: int) -> int:
        """A descriptor of a user namespace in which 0 … 65535 are `base` … on the host, as in a tenant's sandboxes:
        by it the owners of files are translated. It lives as long as the descriptor."""
        if base not in self.users:
            ready, go = os.pipe(), os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    kernel.unshare(kernel.CLONE_NEWUSER)
                    os.write(ready[1], b"\0")
                    os.read(go[0], 1)
                except OSError as error:
                    os.write(ready[1], bytes((error.errno or 1,)))
                finally:
                    os._exit(0)
            try:
                os.close(ready[1])
                if refusal := os.read(ready[0], 1)[0]:
                    raise OSError(refusal, f"user namespace: {os.strerror(refusal)}")
                kernel.map_ids(pid, base, _IDS)
                self.users[base] = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            finally:
                os.write(go[1], b"1")
                os.waitpid(pid, 0)
                for fd in (ready[0], *go):
                    os.close(fd)
        return self.users[base]

    def on_ids(self, sandbox: Sandbox, fd: int) -> None:
        """Its process has made its user namespace and waits for the ids: 0, or an errno."""
        if os.read(fd, 1) and sandbox.pid in self.sandboxes and sandbox.base is not None:
            refusal = 0
            try:
                kernel.map_ids(sandbox.pid, sandbox.base, _IDS)
            except OSError as error:
                refusal = error.errno or 1
            with suppress(OSError):
                os.write(fd, bytes((refusal,)))
        self.close_pipe(sandbox, fd)

    def on_failure(self, sandbox: Sandbox, fd: int) -> None:
        data = os.read(fd, 4096)
        sandbox.failure += data
        if not data:
            self.close_pipe(sandbox, fd)

    def on_info(self, sandbox: Sandbox, fd: int) -> None:
        """Bubblewrap writes in many small pieces, the first of which says all that is asked for. The pipe stays open
        for the others, and nobody wakes up for them."""
        data = os.read(fd, 4096)
        sandbox.info += data
        words = sandbox.info.partition(b'"child-pid":')[2].replace(b",", b" ").split()
        if not sandbox.announced and words:
            self.epoll.unregister(fd)
            sandbox.init_pid = int(words[0])
            sandbox.init_started = processes.start_time(sandbox.init_pid) or 0
            if not write_down(sandbox):  # destroyed before it was known
                kill_rest(sandbox)
            sandbox.announced = True
            sandbox.answer({"event": "started", "pid": sandbox.pid, "init": sandbox.init_pid})
        elif not data:
            self.close_pipe(sandbox, fd)

    def on_stderr(self, sandbox: Sandbox, fd: int) -> None:
        data = os.read(fd, 65536)
        sandbox.stderr = (sandbox.stderr + data)[-_STDERR_KEPT:]
        if not data:
            self.close_pipe(sandbox, fd)

    def close_pipe(self, sandbox: Sandbox, fd: int) -> None:
        """Forgets it in both places: its number will soon be another sandbox's."""
        sandbox.pipes.pop(fd, None)
        self.unwatch(fd)

    def on_end(self, sandbox: Sandbox) -> None:
        """It is over: keep the last figures, remove its groups, tell the driver."""
        _, status, used = os.wait4(sandbox.pid, 0)
        self.unwatch(sandbox.pidfd)
        self.sandboxes.pop(sandbox.pid, None)
        for fd, handler in list(sandbox.pipes.items()):
            with suppress(OSError):
                handler()  # the end may be seen before what was written before it
            if fd in sandbox.pipes:
                self.close_pipe(sandbox, fd)
        kill_rest(sandbox)
        end: dict[str, Any] = {"status": os.waitstatus_to_exitcode(status)}
        if not sandbox.disregarded():
            end |= cgroups.measure(sandbox.groups)
            if end["cpu_s"] is None:  # of all that were waited for, up to the sandbox's first process
                end["cpu_s"] = used.ru_utime + used.ru_stime
            write_file(sandbox.folder, "end.json", end)
        cgroups.remove(sandbox.groups)
        text = sandbox.stderr.decode("utf-8", "replace").strip()
        if not sandbox.announced:
            error: dict[str, Any] = {"error": f"bubblewrap: {text or 'ended at once'}", "errno": 0}
            with suppress(ValueError):
                error = json.loads(sandbox.failure)
            sandbox.answer({"event": "failed", **error})
        sandbox.answer({"event": "ended", "stderr": text, **end})
        sandbox.reply.close()

    def end_attached(self) -> None:
        """The driver is gone: so is the lease of all that was attached to it."""
        attached = [sandbox for sandbox in self.sandboxes.values() if sandbox.attached]
        for sandbox in attached:
            kill_rest(sandbox)
        for sandbox in attached:
            processes.wait(sandbox.pid, sandbox.started, 5.0)
            with suppress(OSError):
                os.kill(sandbox.pid, signal.SIGKILL)
            with suppress(OSError):
                os.waitpid(sandbox.pid, 0)
            cgroups.remove(sandbox.groups)
            remove_folder(sandbox.folder)
        cgroups.tidy(self.parents)


def ask_for_ids(spawner: int) -> None:
    """In the child, which is in a fresh user namespace: waits until the spawner has mapped its ids."""
    os.write(spawner, b"1")
    refusal = os.read(spawner, 1) or bytes((errno.EPIPE,))
    if refusal != b"\0":
        raise OSError(refusal[0], f"user namespace: {os.strerror(refusal[0])}")


def become(
    request: dict[str, Any], filter_: bytes, identity: rootfs.Identity | None, listener: int, pipes: list[int]
) -> NoReturn:
    """In the child: from a fork of the spawner to bubblewrap. Never returns."""
    failure, info, stderr = pipes
    step = "start"
    try:
        os.setsid()
        if request["attached"]:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.write("/proc/self/oom_score_adj", _OUT_OF_MEMORY_SCORE)
        step = "limits"
        if identity is not None:  # what holds here holds for all users of the namespace to come together
            limit({name: value for name, value in request["rlimits"].items() if name in _COUNTED})
        step = "root file system"
        rootfs.build(request["plan"], identity)
        step = "limits"
        limit(request["rlimits"])
        step = "bubblewrap"
        # The configuration holds a token and the sandbox's variables; everybody on the host may read a command line.
        seccomp_fd, boot_id, configuration = map(
            data_file, (filter_, request["boot_id"].encode(), request["configuration"].encode())
        )
        sources = [os.open("/dev/null", os.O_RDWR), stderr, stderr, listener, seccomp_fd, info, boot_id, configuration]
        # First out of the way of the numbers that they are to have.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in sources]
        failure = fcntl.fcntl(failure, fcntl.F_DUPFD_CLOEXEC, 16)
        for at, fd in enumerate(high):
            os.dup2(fd, at, inheritable=True)
        os.execve(request["program"], request["argv"], {})
    except BaseException as error:
        report(failure, step, error)


def limit(rlimits: dict[str, int]) -> None:
    """As given, or less where this machine gives less: nobody may raise a limit after entering a user namespace."""
    for name, value in rlimits.items():
        kind = getattr(resource, name)
        most = resource.getrlimit(kind)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, value))


def report(failure: int, step: str, error: BaseException) -> NoReturn:
    """In the child: tells the spawner why there will be no sandbox. Never returns."""
    try:
        text = json.dumps({"error": f"{step}: {error}", "errno": getattr(error, "errno", 0) or 0, "step": step})
        os.write(failure, text.encode())
    finally:
        os._exit(127)


def data_file(data: bytes) -> int:
    """A descriptor that reads these bytes."""
    fd = os.memfd_create("ropewalk", os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def kill_rest(sandbox: Sandbox) -> None:
    """The first process of a process namespace takes all others with it; before there is one, bubblewrap has none."""
    if sandbox.init_pid:
        processes.kill(sandbox.init_pid, sandbox.init_started)
    else:
        processes.kill(sandbox.pid, sandbox.started)


def write_down(sandbox: Sandbox) -> bool:
    """Who the sandbox's processes are, for whoever cleans up after a crash. False: its folder is gone."""
    return write_file(sandbox.folder, "processes.json", {
        "pid": sandbox.pid, "started": sandbox.started,
        "init_pid": sandbox.init_pid, "init_started": sandbox.init_started, "groups": sandbox.groups,
    })  # fmt: skip


def write_file(folder: str, name: str, value: dict[str, Any]) -> bool:
    """Whole or not at all; False where the folder is gone, or there is no room."""
    text = json.dumps(value)
    with suppress(OSError):
        with open(f"{folder}/{name}.new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{folder}/{name}.new", f"{folder}/{name}")
        return True
    return False


def remove_folder(folder: str) -> None:
    """A sandbox's folder holds files alone."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                os.unlink(entry.path)
        os.rmdir(folder)


def main() -> None:
    """argv: the control socket's descriptor, the driver's process id."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0o022)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    spawner = Spawner(control, int(sys.argv[2]))
    # No collection: it would touch, and so copy, every page that a fork still shares.
    gc.disable()
    gc.freeze()
    spawner.run()
