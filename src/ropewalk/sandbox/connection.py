"""One stream to a guest agent, shared by any number of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import anyio
from anyio.abc import ByteStream

from ropewalk.core import limits
from ropewalk.core.errors import RopewalkError
from ropewalk.core.outcomes import Termination
from ropewalk.sandbox.contract import SandboxGoneError, SandboxStats
from ropewalk.sandbox.protocol import VERSION, Decoder, Fields, Frame, FrameKind, Key, ProtocolError, encode
from ropewalk.sandbox.silence import Silence

HELLO_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 2.0
OUTBOX_BYTES_HIGH: Final = 1 * limits.MIB


def copy_of(error: SandboxGoneError) -> SandboxGoneError:
    """For every caller one of its own: a shared one would collect all their tracebacks."""
    return SandboxGoneError(error.message, termination=error.termination, silence=error.silence)


class ConnectedSandbox(Protocol):
    """The sandbox at the other end, as far as its connection knows it."""

    async def explain(self, reason: str) -> SandboxGoneError:
        """The error of a lost connection."""
        ...

    async def silence(self, answered: Callable[[], Awaitable[object]]) -> Silence | None:
        """Why its agent does not answer in time; None: it is to be given the time anew."""
        ...

    async def give_up(
        self, reason: str, *, termination: Termination, silence: SandboxStats | None = None
    ) -> SandboxGoneError:
        """Ends a sandbox whose agent does not do its duty (in time), and says so."""
        ...


class FrameChannel(Protocol):
    """Who takes the frames of one request."""

    def frame(self, kind: int, payload: bytes) -> None:
        """The next frame. What it raises ends the connection."""
        ...

    def lost(self, error: SandboxGoneError) -> None:
        """No more will come."""
        ...


class Connection:
    """Sends and sorts frames.

    It belongs to the event loop it was opened in. Two tasks serve it: one reads always, so that the agent can never
    be blocked by a slow taker (flow control is per channel), one writes what was queued.
    """

    def __init__(self, stream: ByteStream, owner: ConnectedSandbox) -> None:
        self._stream = stream
        self._owner = owner
        self._channels: dict[int, FrameChannel] = {}
        self._last_channel = 0
        self._outbox = bytearray()
        self._queued = asyncio.Event()
        self._drained = asyncio.Event()
        self._hello = asyncio.Event()
        self._error: SandboxGoneError | None = None
        self._closing = False
        self._doubting = anyio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, stream: ByteStream, owner: ConnectedSandbox) -> Connection:
        """Takes over the stream and waits for the agent's greeting.

        Raises:
            SandboxGoneError: nobody answers, or in another version.
        """
        connection = cls(stream, owner)
        connection._tasks = [asyncio.create_task(connection._read()), asyncio.create_task(connection._write())]
        try:
            await connection.owed(connection._hello.wait, HELLO_TIMEOUT_S, "its agent did not greet in time")
            if connection._error:
                raise connection._error
        except BaseException:
            await connection.close()
            raise
        return connection

    async def owed(
        self, answered: Callable[[], Awaitable[object]], patience_s: float | None, reason: str
    ) -> SandboxGoneError | None:
        """Waits for what the agent owes, at most `patience_s`. None: it has done it, or the connection is lost.

        Otherwise the error, and `reason` is a part of it: the sandbox was ended, and with it every call on this
        connection. A sandbox that is being saved owes nothing meanwhile.

        Args:
            answered: returns once the agent has done it; is called again, and may be cancelled.
        """
        while True:
            with anyio.move_on_after(patience_s):
                await answered()
                return None
            async with self._doubting:
                if self._error is not None:
                    continue  # somebody else has ended it meanwhile, and `answered` knows
                if (error := await self._doubt(answered, reason)) is not None:
                    return error

    async def _doubt(self, answered: Callable[[], Awaitable[object]], reason: str) -> SandboxGoneError | None:
        try:
            silence = await self._owner.silence(answered)
        except SandboxGoneError as gone:
            self._fail(gone)
            return gone
        except RopewalkError as failure:
            silence = Silence(Termination.INFRASTRUCTURE, failure.message)
        if silence is None:
            return None
        with anyio.CancelScope(shield=True):
            error = await self._owner.give_up(
                f"{reason}; {silence.detail}", termination=silence.termination, silence=silence.stats
            )  # fmt: skip
        self._fail(error)
        return error

    @property
    def usable(self) -> bool:
        """Whether new requests have a chance."""
        return self._error is None and not self._closing

    def request(self, kind: FrameKind, payload: bytes, channel: FrameChannel) -> int:
        """Sends a request; its frames go to `channel` until `release`.

        Raises:
            SandboxGoneError: the stream is lost.
            CallerError: the request is too long.
        """
        if self._error:
            raise copy_of(self._error)
        number = self._last_channel = self._last_channel % 0xFFFF_FFFF + 1
        frame = encode(kind, number, payload)
        self._channels[number] = channel
        self._queue(frame)
        return number

    def send(self, kind: FrameKind, channel: int, payload: bytes = b"") -> None:
        """Queues a frame without waiting: for short ones, or between two `drain`s."""
        if self.usable:
            self._queue(encode(kind, channel, payload))

    async def drain(self) -> None:
        """Waits until there is room for more data."""
        while len(self._outbox) > OUTBOX_BYTES_HIGH and self.usable:
            self._drained.clear()
            await self._drained.wait()

    def release(self, channel: int) -> None:
        """What still comes for this channel is dropped."""
        self._channels.pop(channel, None)

    async def close(self) -> None:
        """Ends it; commands that were not detached end with it. Idempotent.

        By the end of the stream rather than by cancelling the reader: anyio's sockets log an error when data arrives
        in the very moment of a cancellation.
        """
        self._closing = True
        self._queued.set()
        with anyio.CancelScope(shield=True):
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._stream.aclose()
        self._fail(SandboxGoneError("The connection to the sandbox was closed by this side."))

    def _queue(self, frame: bytes) -> None:
        self._outbox += frame
        self._queued.set()

    async def _write(self) -> None:
        try:
            while self._error is None:
                await self._queued.wait()
                self._queued.clear()
                data, self._outbox = self._outbox, bytearray()
                self._drained.set()
                if data:
                    await self._stream.send(bytes(data))
                if self._closing and not self._outbox:
                    await self._stream.send_eof()
                    return
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            return  # the reader finds out why

    async def _read(self) -> None:
        decoder = Decoder()
        try:
            while True:
                for frame in decoder.feed(await self._stream.receive()):
                    self._take(frame)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            await self._lose("its agent closed the connection")
        except ProtocolError as error:
            await self._lose(f"its agent sent nonsense ({error.message})", termination=error.termination)
        except Exception as error:  # whatever it is, nobody may wait for ever
            await self._lose(f"its agent sent nonsense ({error or type(error).__name__})")
        await self._stream.aclose()

    async def _lose(self, reason: str, *, termination: Termination | None = None) -> None:
        """`termination`: what its own doing is put down to; the sandbox is then ended."""
        error = SandboxGoneError(
            f"The connection to the sandbox is lost: {reason}.", termination=termination or Termination.INFRASTRUCTURE
        )
        if self._closing:  # by this side; looking for a reason would take longer than all the rest
            return
        try:
            if termination is None:
                error = await self._owner.explain(reason)
            else:
                error = await self._owner.give_up(reason, termination=termination)
        finally:
            self._fail(error)

    def _take(self, frame: Frame) -> None:
        if frame.kind == FrameKind.HELLO:
            fields = Fields(frame.payload)
            if fields.number(Key.VERSION) != VERSION:
                raise ProtocolError(f"version {fields.number(Key.VERSION)}, not {VERSION}")
            self._hello.set()
        elif channel := self._channels.get(frame.channel):
            channel.frame(frame.kind, frame.payload)

    def _fail(self, error: SandboxGoneError) -> None:
        self._error = self._error or error
        self._hello.set()
        self._drained.set()
        self._queued.set()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.lost(error)
