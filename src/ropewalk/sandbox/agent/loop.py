"""The agent itself: one epoll loop over the socket, the connections, the commands' streams and the clock."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import posix
import resource
import select
import sys
import time

from . import wire
from .command import Command
from .connection import Connection
from .processes import STRAYS, Markers, end_processes, orphans, send_signal
from .spawn import find_user
from .wire import CHANNELS_MAX, CHUNK, F_KILLED, F_TIMED_OUT, Fields, Malformed, StartError, field, log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .files import Job

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
SWEEP_S = 0.002


class Agent:
    """State of the whole agent; see `run`."""

    def __init__(self, config: dict[str, object]) -> None:
        self.workdir = str(config.get("workdir") or "/").encode()
        env = config.get("env") or {}
        assert isinstance(env, dict)
        self.env: dict[bytes, bytes] = {str(key).encode(): str(value).encode() for key, value in env.items()}
        self.idle_timeout_s = float(str(config.get("idle_timeout_s") or 900))
        self.uid = posix.getuid()
        _, _, _, self.home, self.user = find_user(b"%d" % self.uid)
        self.first = posix.getpid() == 1
        self.features: list[bytes] = [b"first"] if self.first else []
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.masks: dict[int, int] = {}
        self.epoll = select.epoll()
        self.connections: set[Connection] = set()
        self.dirty: set[Connection] = set()
        self.commands: set[Command] = set()
        self.leaders: dict[int, Command] = {}
        self.kept: set[int] = set()  # markers of commands whose leftovers may live
        self.ending: set[Command] = set()
        self.sweep_at = 0.0
        self.jobs: list[Job] = []
        self.quiet_since = time.monotonic()
        self.markers = Markers()
        self.accept4 = 0
        self.null = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
        self.protect()
        self.listener = int(str(config.get("listen_fd", 3)))
        posix.set_blocking(self.listener, False)
        self.watch(self.listener, select.EPOLLIN, self.accept)

    def protect(self) -> None:
        """Against the commands, which may be the same user: no tracing, no inherited descriptors, no signals."""
        for fd in map(int, posix.listdir("/proc/self/fd")):
            try:
                if fd > 2:
                    posix.set_inheritable(fd, False)
            except OSError:
                pass
        for fd in (0, 1, 2):
            try:
                posix.fstat(fd)
            except OSError:
                posix.dup2(self.null, fd)
        posix.umask(0o022)
        self.oom_score, self.oom_base = -1, 0
        try:
            self.oom_score = posix.open("/proc/self/oom_score_adj", posix.O_RDWR | posix.O_CLOEXEC)
            self.oom_base = int(posix.read(self.oom_score, 16))
        except OSError:
            pass
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.files = (soft, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if self.first:  # as process 1 it gets from inside only signals it has a handler for; Python's is for SIGINT
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        wake, waker = posix.pipe2(posix.O_CLOEXEC | posix.O_NONBLOCK)
        _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
        _signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self.watch(wake, select.EPOLLIN, lambda mask: self.woken(wake))
        try:
            import _ctypes  # a missing one costs protection, never service

            libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
            prctl, self.accept4 = _ctypes.dlsym(libc, "prctl"), _ctypes.dlsym(libc, "accept4")
            if _ctypes.call_function(prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0)) == 0:
                self.features.append(b"untraceable")
            if not self.first:
                _ctypes.call_function(prctl, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
        except (ImportError, OSError):
            log("this Python has no _ctypes: the agent can be traced by its own user")

    def raise_oom_score(self, *, up: bool) -> None:
        """What the next child is born with; commands go before the agent when memory is short."""
        if self.oom_score >= 0:
            try:
                posix.write(self.oom_score, b"%d" % (max(self.oom_base, 500) if up else self.oom_base))
            except OSError:
                pass

    def watch(self, fd: int, mask: int, handler: Callable[[int], None]) -> None:
        self.handlers[fd] = handler
        if fd not in self.masks:
            self.epoll.register(fd, mask)
        elif self.masks[fd] != mask:
            self.epoll.modify(fd, mask)
        self.masks[fd] = mask

    def unwatch(self, fd: int) -> None:
        if self.masks.pop(fd, None) is not None:
            self.epoll.unregister(fd)
            del self.handlers[fd]

    def close_fd(self, fd: int) -> None:
        if fd >= 0:
            self.unwatch(fd)
            posix.close(fd)

    def discard(self, fd: int) -> None:
        """Reads what leftovers still print, so that they neither block nor die of it."""
        try:
            if posix.read(fd, CHUNK):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close_fd(fd)

    def accept_one(self) -> int:
        """The descriptor of a connection; negative: none came about."""
        if self.accept4:
            import _ctypes

            flags = posix.O_CLOEXEC | posix.O_NONBLOCK  # SOCK_CLOEXEC and SOCK_NONBLOCK have the same numbers
            return int(_ctypes.call_function(self.accept4, (self.listener, None, None, flags)))
        import _socket  # 0.5 ms

        listener = _socket.socket(fileno=self.listener)
        try:
            fd, _ = listener._accept()  # type: ignore[attr-defined]
            posix.set_blocking(fd, False)
            return int(fd)
        except OSError:
            return -1
        finally:
            listener.detach()

    def accept(self, mask: int) -> None:
        fd = self.accept_one()
        if fd < 0:  # gone already, or out of something
            time.sleep(0.01)
            return
        connection = Connection(self, fd)
        self.connections.add(connection)
        hello = field(wire.K_VERSION, wire.VERSION) + b"".join(field(wire.K_FEATURES, name) for name in self.features)
        connection.send(wire.HELLO, 0, hello + field(wire.K_PID, posix.getpid()))

    def dispatch(self, connection: Connection, kind: int, channel: int, payload: bytes) -> None:
        """One frame. A frame for a channel that is over is late, not wrong."""
        if kind == wire.PING:
            connection.send(wire.PONG, channel, payload)
        elif kind in (wire.EXEC, wire.READ, wire.LIST, wire.STAT, wire.REMOVE, wire.STATS) or (
            kind == wire.WRITE and channel not in connection.channels
        ):
            if channel == 0 or channel in connection.channels or len(connection.channels) >= CHANNELS_MAX:
                raise Malformed("the channel is taken, or there are too many")
            self.open_channel(connection, kind, channel, payload)
        elif task := connection.channels.get(channel):
            if isinstance(task, Command):
                self.steer(task, kind, payload)
            elif kind == wire.CLOSE:
                task.abandon()
                connection.channels.pop(channel, None)
            else:
                self.receive_file(task, kind, payload)
        elif not 0 < kind < 0x80:
            raise Malformed(f"unknown frame type {kind}")

    def open_channel(self, connection: Connection, kind: int, channel: int, payload: bytes) -> None:
        fields = Fields(b"" if kind == wire.STATS else payload)
        if kind == wire.EXEC:
            try:
                command = Command(self, connection, channel, fields)
            except StartError as error:
                why = str(error).encode("utf-8", "replace")[: wire.TEXT_MAX]
                connection.send(wire.EXIT, channel, field(wire.K_CODE, error.code) + field(wire.K_MESSAGE, why))
                return
            connection.channels[channel] = command
            connection.send(wire.STARTED, channel, field(wire.K_PID, command.pid))
        elif kind == wire.STATS:
            count = sum(name.isdigit() for name in posix.listdir("/proc"))
            connection.send(wire.DONE, channel, field(wire.K_COUNT, count))
        else:
            from . import files  # many sandboxes live without: 1 ms

            if kind == wire.WRITE:
                upload = files.Upload(self, connection, channel)
                connection.channels[channel] = upload
                upload.begin(fields)
            else:
                steps = {
                    wire.READ: files.read_files,
                    wire.LIST: files.list_folder,
                    wire.STAT: files.stat_file,
                    wire.REMOVE: files.remove,
                }[kind](connection, channel, self.workdir, fields)
                connection.channels[channel] = files.Job(self, connection, channel, steps)

    def receive_file(self, task: object, kind: int, payload: bytes) -> None:
        from .files import Upload

        if not isinstance(task, Upload):
            raise Malformed("this request takes no data")
        if kind == wire.DATA:
            task.data(payload)
        elif kind == wire.WRITE:
            task.begin(Fields(payload))
        elif kind == wire.END:
            task.end()
        else:
            raise Malformed(f"frame type {kind} in an upload")

    def steer(self, command: Command, kind: int, payload: bytes) -> None:
        if kind == wire.CREDIT:
            command.window += Fields(payload).number(wire.K_CREDIT)
            command.resume()
        elif kind == wire.STDIN:
            command.feed(payload)
        elif kind == wire.STDIN_EOF:
            command.end_input()
        elif kind == wire.CLOSE:
            command.end(F_KILLED)
        elif kind == wire.SIGNAL:
            number = Fields(payload).number(wire.K_SIGNAL)
            if not 0 < number < 65:
                raise Malformed("no such signal")
            if command.status is None:  # while it is not reaped its number is its own
                send_signal(-command.pid, number)
        elif kind == wire.RESIZE:
            command.resize(Fields(payload))
        else:
            raise Malformed(f"frame type {kind} for a command")

    def woken(self, wake: int) -> None:
        posix.read(wake, 4096)
        self.sweep_at = 0.0
        self.reap()

    def reap(self) -> None:
        """Every zombie; the CPU time of a command's orphans counts for it."""
        over = []
        none_left = False
        while True:
            try:
                info = posix.waitid(posix.P_ALL, 0, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT)
            except ChildProcessError:
                none_left = True
                break
            if info is None:
                break
            command = self.leaders.pop(info.si_pid, None)
            owner = command
            if owner is None:
                marker = self.markers.of(info.si_pid)
                owner = next((each for each in self.commands if each.marker == marker), None)
            _, status, usage = posix.wait4(info.si_pid, 0)
            if owner:
                owner.cpu_s += usage.ru_utime + usage.ru_stime
                owner.rss_bytes = max(owner.rss_bytes, usage.ru_maxrss * 1024)
            if command:
                command.status = status
                over.append(command)
        if not over:
            return
        leftovers = not none_left and orphans(set(self.leaders))
        for command in over:
            command.deadline = None
            if command.detached and not command.outcome:
                self.kept.add(command.marker)
                command.swept = True
            elif leftovers or command in self.ending:
                command.end(0)
            else:
                command.swept = True
            command.finish_if_done()

    def sweep(self, now: float) -> None:
        """Ends the processes of the commands that have to end; comes again until none is left."""
        doomed = {command.marker for command in self.ending}
        living = {command.marker for command in self.commands} - doomed | self.kept
        self.kept -= doomed
        left = end_processes(self.markers, doomed, living, strays=self.first)
        for command in list(self.ending):
            over = command.status is not None and not left & {command.marker, STRAYS}
            if over or now > command.give_up:
                self.ending.discard(command)
                command.swept = True
                command.finish_if_done()
        self.sweep_at = now + SWEEP_S if left else now + 10 * SWEEP_S

    def pause_s(self, now: float) -> float:
        """How long nothing will be due."""
        if self.jobs and any(not job.connection.congested() for job in self.jobs):
            return 0.0
        due = [command.deadline for command in self.commands if command.deadline is not None]
        if self.ending:
            due.append(self.sweep_at)
        if not self.connections and not self.commands:
            due.append(self.quiet_since + self.idle_timeout_s)
        return max(0.0, min(due) - now) if due else -1

    def run(self) -> None:
        """Until nothing ran and nobody was connected for the idle time."""
        while True:
            now = time.monotonic()
            if self.connections or self.commands:
                self.quiet_since = now
            elif now - self.quiet_since >= self.idle_timeout_s:
                return
            for fd, mask in self.epoll.poll(self.pause_s(now)):
                if handler := self.handlers.get(fd):
                    handler(mask)
            now = time.monotonic()
            for command in [each for each in self.commands if each.deadline is not None and each.deadline <= now]:
                command.end(F_TIMED_OUT)
                self.sweep_at = 0.0
            if self.ending and now >= self.sweep_at:
                self.sweep(now)
            self.jobs = [job for job in self.jobs if job.connection.open and job.step()]
            while self.dirty:
                self.dirty.pop().flush()


def parse(text: str) -> dict[str, object]:
    """The configuration, by json's scanner in C: the module json around it takes 8 ms to load."""
    try:
        from _json import make_scanner

        class Options:
            strict, object_hook, object_pairs_hook = True, None, None
            parse_float, parse_int, parse_constant = float, int, float
            memo: dict[str, str] = {}

        config = make_scanner(Options())(text, 0)[0]  # type: ignore[arg-type]
    except ImportError:
        import json

        config = json.loads(text)
    if not isinstance(config, dict):
        raise SystemExit("agent: the configuration is not an object")
    return config


def main(text: str) -> None:
    """Runs the agent; as process 1 its end is the sandbox's."""
    agent = Agent(parse(text))
    try:
        agent.run()
    finally:
        if not agent.first:
            markers = {command.marker for command in agent.commands} | agent.kept
            while end_processes(agent.markers, markers, set(), strays=False):
                pass
    sys.stdout.flush()
