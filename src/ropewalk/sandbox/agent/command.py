"""One running command."""

from __future__ import annotations

import posix
import select
import time

from . import wire
from .spawn import set_size, start
from .wire import CHUNK, F_DETACH, F_KILLED, F_PTY, STDIN_WINDOW, Fields, Malformed, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .connection import Connection
    from .loop import Agent


class Command:
    """A running command: its processes, its streams, its limits."""

    def __init__(self, agent: Agent, connection: Connection, channel: int, fields: Fields) -> None:
        self.agent = agent
        self.connection: Connection | None = connection
        self.channel = channel
        self.flags = fields.number(wire.K_FLAGS)
        self.cap = fields.number(wire.K_OUTPUT_MAX)
        self.window = fields.number(wire.K_CREDIT)
        self.paused = [False, False]
        self.total = [0, 0]
        self.kept = [0, 0]
        self.stdin_data = bytearray()
        self.stdin_room = STDIN_WINDOW
        self.stdin_done = False
        self.status: int | None = None
        self.outcome = 0
        self.swept = False
        self.cpu_s = 0.0
        self.rss_bytes = 0
        self.started = time.monotonic()
        timeout_ms = fields.number(wire.K_TIMEOUT_MS)
        self.deadline = self.started + timeout_ms / 1000 if timeout_ms else None
        self.give_up = 0.0
        self.pid, self.marker, self.outputs, self.stdin = start(agent, fields)
        agent.leaders[self.pid] = self
        agent.commands.add(self)
        for which, fd in enumerate(self.outputs):
            if fd >= 0:
                posix.set_blocking(fd, False)
                self.agent.watch(fd, select.EPOLLIN, self.pumper(which))
        if self.stdin >= 0:
            posix.set_blocking(self.stdin, False)

    @property
    def detached(self) -> bool:
        """Whether it, and what it leaves running, outlives its channel."""
        return bool(self.flags & F_DETACH)

    def pumper(self, which: int) -> Callable[[int], None]:
        return lambda mask: self.pump(which)

    def pump(self, which: int) -> None:
        """Moves output on: within the cap and the window to the host, past the cap to nowhere."""
        fd = self.outputs[which]
        for _ in range(4):
            if fd < 0:
                return
            room = self.cap - self.kept[which] if self.connection else 0
            size = CHUNK
            if room > 0 and self.connection:
                size = min(CHUNK, self.window)
                if size <= 0 or self.connection.congested():
                    self.paused[which] = True
                    self.agent.unwatch(fd)
                    return
            try:
                data = posix.read(fd, size)
            except BlockingIOError:
                if self.status is not None and self.swept:
                    self.release(which)
                return
            except OSError:  # EIO: the last process let go of the terminal
                data = b""
            if not data:
                self.close_output(which)
                return
            self.total[which] += len(data)
            if room > 0 and self.connection:
                piece = data[:room]
                self.kept[which] += len(piece)
                self.window -= len(piece)
                self.connection.send(wire.STDERR if which else wire.STDOUT, self.channel, piece)

    def resume(self) -> None:
        for which in (0, 1):
            if self.paused[which] and self.outputs[which] >= 0:
                self.paused[which] = False
                fd = self.outputs[which]
                self.agent.watch(fd, select.EPOLLIN, self.pumper(which))
                self.pump(which)

    def release(self, which: int) -> None:
        """The command is over and has written all it will; what it left running may still hold the pipe."""
        fd = self.outputs[which]
        if self.detached:
            self.outputs[which] = -1
            self.agent.watch(fd, select.EPOLLIN, lambda mask: self.agent.discard(fd))
            self.finish_if_done()
        else:
            self.close_output(which)

    def close_output(self, which: int) -> None:
        self.agent.close_fd(self.outputs[which])
        self.outputs[which] = -1
        self.finish_if_done()

    def feed(self, data: bytes) -> None:
        self.stdin_room -= len(data)
        if self.stdin_room < 0:
            raise Malformed("more input than the window allows")
        self.stdin_data += data
        self.push()

    def push(self, mask: int = 0) -> None:
        """Writes what input there is."""
        written = 0
        try:
            while self.stdin_data and self.stdin >= 0:
                count = posix.write(self.stdin, self.stdin_data[:CHUNK])
                del self.stdin_data[:count]
                written += count
        except BlockingIOError:
            self.agent.watch(self.stdin, select.EPOLLOUT, self.push)
        except OSError:
            self.close_stdin()
        if self.stdin < 0:  # nobody reads any more: take it and forget it
            written += len(self.stdin_data)
            self.stdin_data.clear()
        if written:
            self.stdin_room += written
            if self.connection:
                self.connection.send(wire.STDIN_CREDIT, self.channel, field(wire.K_CREDIT, written))
        if not self.stdin_data and self.stdin >= 0:
            self.agent.unwatch(self.stdin)
            if self.stdin_done and self.flags & F_PTY:
                self.stdin_done = False
                self.feed_end_of_file()
            elif self.stdin_done:
                self.close_stdin()

    def feed_end_of_file(self) -> None:
        try:
            posix.write(self.stdin, b"\x04")
        except OSError:
            pass

    def resize(self, fields: Fields) -> None:
        if self.flags & F_PTY and self.outputs[0] >= 0:
            set_size(self.outputs[0], fields)

    def end_input(self) -> None:
        self.stdin_done = True
        self.push()

    def close_stdin(self) -> None:
        self.agent.close_fd(self.stdin)
        self.stdin = -1

    def end(self, outcome: int) -> None:
        """Ends the whole tree; the result follows when nothing of it is left."""
        self.outcome |= outcome
        self.deadline = None
        self.swept = False
        self.give_up = time.monotonic() + 10
        self.agent.ending.add(self)

    def abandon(self) -> None:
        """The connection is lost."""
        self.connection = None
        self.resume()
        if not self.detached:
            self.end(F_KILLED)

    def finish_if_done(self) -> None:
        if self.status is None or not self.swept:
            return
        for which in (0, 1):
            if self.outputs[which] >= 0 and not self.paused[which]:
                self.pump(which)
        if self.outputs != [-1, -1] or self not in self.agent.commands:
            return
        self.agent.commands.discard(self)
        self.close_stdin()
        if self.connection:
            code = posix.waitstatus_to_exitcode(self.status)
            self.connection.channels.pop(self.channel, None)
            self.connection.send(wire.EXIT, self.channel, b"".join((
                field(wire.K_CODE, code) if code >= 0 else field(wire.K_SIGNAL, -code),
                field(wire.K_FLAGS, self.outcome),
                field(wire.K_CPU_US, int(self.cpu_s * 1e6)),
                field(wire.K_RSS_BYTES, self.rss_bytes),
                field(wire.K_STDOUT_BYTES, self.total[0]),
                field(wire.K_STDERR_BYTES, self.total[1]),
                field(wire.K_DURATION_US, int((time.monotonic() - self.started) * 1e6)),
            )))  # fmt: skip
