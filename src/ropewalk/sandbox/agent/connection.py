"""One stream from the host, as the agent sees it."""

from __future__ import annotations

import posix
import select

from .wire import CHUNK, FRAME_MAX, OUT_HIGH, Malformed, log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .command import Command
    from .files import Job, Upload
    from .loop import Agent


class Connection:
    """One stream from the host: frames in, frames out, and the channels that live on it."""

    def __init__(self, agent: Agent, fd: int) -> None:
        self.agent = agent
        self.fd = fd
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.channels: dict[int, Command | Upload | Job] = {}
        self.open = True
        agent.watch(self.fd, select.EPOLLIN, self.on_event)

    def congested(self) -> bool:
        return len(self.outbox) > OUT_HIGH

    def send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        if self.open:
            self.outbox += len(payload).to_bytes(4, "big") + bytes((kind,)) + channel.to_bytes(4, "big") + payload
            self.agent.dirty.add(self)

    def on_event(self, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self.flush()
        if self.open and mask & ~select.EPOLLOUT:
            self.receive()

    def receive(self) -> None:
        try:
            data = posix.read(self.fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self.inbox += data
        try:
            while self.open and len(self.inbox) >= 9:
                length = int.from_bytes(self.inbox[:4], "big")
                if length > FRAME_MAX:
                    raise Malformed("a frame is too long")
                if len(self.inbox) < 9 + length:
                    break
                kind, channel = self.inbox[4], int.from_bytes(self.inbox[5:9], "big")
                payload = bytes(self.inbox[9 : 9 + length])
                del self.inbox[: 9 + length]
                self.agent.dispatch(self, kind, channel, payload)
        except Exception as error:  # whatever it was, it ends this connection alone
            log(f"connection closed: {type(error).__name__}: {error}")
            self.close()

    def flush(self) -> None:
        try:
            while self.outbox:
                sent = posix.write(self.fd, self.outbox[:OUT_HIGH])
                del self.outbox[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        if self.open:
            # Not read while it does not read: a flood of requests cannot pile up answers here.
            reads = 0 if len(self.outbox) > 4 * OUT_HIGH else select.EPOLLIN
            self.agent.watch(self.fd, reads | (select.EPOLLOUT if self.outbox else 0), self.on_event)
            if not self.congested():
                for task in list(self.channels.values()):
                    task.resume()

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        self.agent.close_fd(self.fd)
        self.agent.connections.discard(self)
        for task in list(self.channels.values()):
            task.abandon()
        self.channels.clear()
