"""Commands in a sandbox: how to ask for one, what comes back, and one that still runs."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Self

import anyio

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record
from ropewalk.sandbox.connection import Connection, copy_of
from ropewalk.sandbox.contract import SandboxGoneError
from ropewalk.sandbox.protocol import (
    DATA_BYTES_MAX,
    WINDOW_BYTES,
    ExecFlag,
    Fields,
    FrameKind,
    Key,
    ProtocolError,
    field,
)

LAST_CHANCE_S: Final = 1.0
"""Even where the time is up already: this side may have slept."""
SIGKILL: Final = 9
_NO_TIME_LIMIT: Final = "its agent kept no time limit"


class TerminalSize(NamedTuple):
    """Of a pseudo-terminal, in characters."""

    rows: int = 24
    columns: int = 80


class Command(Record):
    """What to run."""

    argv: tuple[str, ...]
    cwd: str | None = None
    """None: the sandbox's workdir; a relative one starts there."""
    env: dict[str, str] = {}
    user: str | None = None
    """Name or number in the sandbox's /etc/passwd; None: the agent's, which is root inside."""
    stdin: bool = False
    """Whether input can be sent; otherwise it is /dev/null."""
    timeout_s: float | None = limits.EXEC_TIMEOUT_S
    output_bytes_max: int = limits.OUTPUT_BYTES_MAX
    """Kept of each stream, from its start."""
    detach: bool = False
    """Whether it, and what it leaves running, outlives its end and the connection."""
    terminal: TerminalSize | None = None

    def payload(self) -> bytes:
        """As an EXEC request.

        Raises:
            CallerError: a zero byte, a bad variable name, a limit out of range.
        """
        if not self.argv or not self.argv[0]:
            raise CallerError("There is no command to run.", next_step="give a shell line or a list of words.")
        if any(not key or "=" in key for key in self.env):
            raise CallerError("A variable's name is empty or has '=' in it.")
        if self.timeout_s is not None and not 0 < self.timeout_s < 1e9:
            raise CallerError(f"timeout_s is {self.timeout_s}; it must be above 0, or None for no limit.")
        if self.output_bytes_max < 0:
            raise CallerError("output_bytes_max is negative.")
        pairs = [f"{key}={value}" for key, value in self.env.items()]
        words = (*self.argv, *pairs, self.cwd or "", self.user or "")
        if any("\0" in word for word in words):
            raise CallerError("A command, variable, folder or user holds a zero byte.")
        flags = (
            (ExecFlag.STDIN if self.stdin else 0)
            | (ExecFlag.DETACH if self.detach else 0)
            | (ExecFlag.PTY if self.terminal else 0)
        )
        size = self.terminal or TerminalSize()
        return b"".join((
            *(field(Key.ARGV, encode_name(word)) for word in self.argv),
            *(field(Key.ENV, encode_name(pair)) for pair in pairs),
            field(Key.CWD, encode_name(self.cwd)) if self.cwd else b"",
            field(Key.USER, encode_name(self.user)) if self.user else b"",
            field(Key.TIMEOUT_MS, max(1, round(self.timeout_s * 1000))) if self.timeout_s is not None else b"",
            field(Key.OUTPUT_MAX, self.output_bytes_max),
            field(Key.CREDIT, WINDOW_BYTES),
            field(Key.FLAGS, int(flags)),
            field(Key.ROWS, size.rows) + field(Key.COLUMNS, size.columns) if self.terminal else b"",
        ))  # fmt: skip


class ExecResult(Record):
    """How a command ended. A command that fails is a result, never an exception."""

    exit_code: int | None
    """None: a signal ended it. 127: there is no such program; 126: it could not be started."""
    signal: int | None
    stdout: str
    """UTF-8; what is not is replaced. From the start, up to the call's `output_bytes_max`."""
    stderr: str
    truncated: bool
    """Whether some output was dropped."""
    stdout_bytes: int
    """Written in all, also what was dropped."""
    stderr_bytes: int
    termination: Termination
    """FINISHED, TIMEOUT or OUT_OF_MEMORY; INFRASTRUCTURE where it was killed since the machine had too little memory.
    Otherwise a killed command FINISHED, with its signal."""
    duration_s: float
    cpu_s: float
    """Of the command and everything below it that has ended; of the whole sandbox where that had to be ended."""
    memory_bytes_peak: int = 0
    """Of its largest process (resident), as getrusage(2) counts: never below the agent's own 10 MB."""
    start_error: str | None = None
    """Why it could not be started (the same is in stderr)."""

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with code 0."""
        return self.exit_code == 0 and self.termination is Termination.FINISHED


class Output(NamedTuple):
    """A piece of a running command's output."""

    stream: Literal["stdout", "stderr"]
    data: bytes


Judge = Callable[[Fields], Awaitable[Termination]]


class Process:
    """A command that runs.

    Read its output by iterating over it, or leave that to `wait`. While nobody reads, the command is held back after
    `WINDOW_BYTES`. Leaving `async with` ends it, with everything it started.
    """

    def __init__(self, connection: Connection, command: Command, judge: Judge, *, collect: bool = False) -> None:
        self._connection = connection
        self._command = command
        self._judge = judge
        self._collect = collect
        self._chunks: deque[Output] = deque()
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._received = {"stdout": 0, "stderr": 0}
        self._waiting = 0
        self._taken = 0
        self._stdin_room = WINDOW_BYTES
        self._exit: Fields | None = None
        self._error: SandboxGoneError | None = None
        self._changed = asyncio.Event()
        self._result: ExecResult | None = None
        self.pid: int | None = None
        """Inside the sandbox; None until it started, and for ever where it could not be."""
        self._asked_s = time.monotonic()
        self._channel = connection.request(FrameKind.EXEC, command.payload(), self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.kill()

    async def __aiter__(self) -> AsyncIterator[Output]:
        """Output as it comes, until the command is over.

        Raises:
            SandboxGoneError: the sandbox died.
        """
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._credit(len(chunk.data))
                yield chunk
            if self._exit is not None:
                return
            await self._change()

    async def started(self) -> int | None:
        """Waits until it runs: its process id. None where it could not be started; `wait` says why.

        Raises:
            SandboxGoneError: the sandbox died, or its agent said nothing for `limits.EXEC_START_WAIT_S` and it was
                ended.
        """

        async def begun() -> None:
            while self.pid is None and self._exit is None:
                await self._change()

        reason = "its agent did not start a command in time"
        if error := await self._connection.owed(begun, limits.EXEC_START_WAIT_S, reason):
            raise error
        return self.pid

    async def send(self, data: bytes | str) -> None:
        """Input, as fast as the command takes it. What it no longer reads is lost, as in a pipe with no reader.

        Raises:
            CallerError: it was started without input.
        """
        if not self._command.stdin:
            raise CallerError("This command takes no input.", next_step="start it with stdin=True.")
        view = memoryview(data.encode() if isinstance(data, str) else data)
        while view and self._exit is None:
            while self._stdin_room <= 0 and self._exit is None:
                await self._change()
            piece = view[: min(self._stdin_room, DATA_BYTES_MAX)]
            self._stdin_room -= len(piece)
            self._connection.send(FrameKind.STDIN, self._channel, bytes(piece))
            view = view[len(piece) :]
            await self._connection.drain()

    async def send_eof(self) -> None:
        """No more input."""
        self._connection.send(FrameKind.STDIN_EOF, self._channel)

    def signal(self, number: int) -> None:
        """Sends a signal to the command's process group.

        Raises:
            CallerError: no such signal.
        """
        if not 0 < number < 65:
            raise CallerError(f"{number} is not a signal.")
        self._connection.send(FrameKind.SIGNAL, self._channel, field(Key.SIGNAL, number))

    def resize(self, size: TerminalSize) -> None:
        """A new size of its terminal."""
        payload = field(Key.ROWS, size.rows) + field(Key.COLUMNS, size.columns)
        self._connection.send(FrameKind.RESIZE, self._channel, payload)

    async def kill(self) -> None:
        """Ends the whole process tree and waits until it is gone. Idempotent; shielded from cancellation."""
        if self._exit is not None or self._error is not None:
            return
        self._connection.send(FrameKind.CLOSE, self._channel)
        self._collect = True
        self._credit_queue()
        with anyio.CancelScope(shield=True):
            await self._connection.owed(self._over, limits.EXEC_KILL_WAIT_S, "its agent did not end a command")

    async def wait(self) -> ExecResult:
        """Its result, with the output that was not read before. Cancelling the wait leaves the command running.

        The agent keeps the command's time limit. Where it does not (what runs beside it may starve it), this side
        does, `limits.EXEC_KILL_WAIT_S` later: the sandbox is ended, and the result is the command's TIMEOUT, not an
        error, unless nothing inside could run (`ropewalk.sandbox.silence`).

        Raises:
            SandboxGoneError: the sandbox died.
        """
        self._collect = True
        self._credit_queue()
        if self._result is None:
            if self._command.timeout_s is None:
                while self._exit is None:
                    await self._change()
            else:
                left_s = self._asked_s + self._command.timeout_s + limits.EXEC_KILL_WAIT_S - time.monotonic()
                if error := await self._connection.owed(self._over, max(left_s, LAST_CHANCE_S), _NO_TIME_LIMIT):
                    return self._overdue(error)
            if self._error is not None and self._exit is None:
                raise copy_of(self._error)
            assert self._exit is not None
            self._result = await self._make_result(self._exit)
        return self._result

    async def run(self, stdin: bytes = b"") -> ExecResult:
        """`send` all, then `wait`; whatever stops this ends the process tree."""
        try:
            if not self._command.stdin:
                return await self.wait()
            if len(stdin) <= WINDOW_BYTES:
                await self._feed(stdin)
                return await self.wait()
            feeder = asyncio.create_task(self._feed(stdin))
            try:
                return await self.wait()
            finally:
                feeder.cancel()
                await asyncio.gather(feeder, return_exceptions=True)
        finally:
            await self.kill()

    async def _over(self) -> None:
        """Returns when it has ended, or is lost."""
        while self._exit is None and self._error is None:
            self._changed.clear()
            await self._changed.wait()

    def _overdue(self, error: SandboxGoneError) -> ExecResult:
        if error.termination.ours:
            raise error
        kept = {name: bytes(data).decode("utf-8", "replace") for name, data in self._kept.items()}
        self._result = ExecResult(
            exit_code=None, signal=SIGKILL, stdout=kept["stdout"], stderr=kept["stderr"], truncated=True,
            stdout_bytes=self._received["stdout"], stderr_bytes=self._received["stderr"],
            termination=Termination.TIMEOUT, duration_s=time.monotonic() - self._asked_s,
            cpu_s=(error.silence.cpu_s if error.silence else None) or 0.0,
        )  # fmt: skip
        return self._result

    async def _feed(self, stdin: bytes) -> None:
        await self.send(stdin)
        await self.send_eof()

    async def _change(self) -> None:
        if self._error is not None:
            raise copy_of(self._error)
        self._changed.clear()
        limit_s = self._command.timeout_s
        # The agent keeps the end back while its output is not taken: from then on it has some more time.
        patience_s = (
            None if limit_s is None else max(self._asked_s + limit_s - time.monotonic(), 0) + limits.EXEC_KILL_WAIT_S
        )
        if error := await self._connection.owed(self._changed.wait, patience_s, _NO_TIME_LIMIT):
            raise error
        if self._error is not None:
            raise copy_of(self._error)

    def _credit(self, count: int) -> None:
        self._waiting = max(0, self._waiting - count)
        self._taken += count
        if self._taken >= WINDOW_BYTES // 2:
            self._connection.send(FrameKind.CREDIT, self._channel, field(Key.CREDIT, self._taken))
            self._taken = 0

    def _credit_queue(self) -> None:
        while self._chunks:
            chunk = self._chunks.popleft()
            self._kept[chunk.stream] += chunk.data
            self._credit(len(chunk.data))

    def frame(self, kind: int, payload: bytes) -> None:
        """From the connection."""
        if kind in (FrameKind.STDOUT, FrameKind.STDERR):
            stream: Literal["stdout", "stderr"] = "stdout" if kind == FrameKind.STDOUT else "stderr"
            self._received[stream] += len(payload)
            if self._received[stream] > self._command.output_bytes_max:
                raise ProtocolError("more output than was asked for")
            if self._collect:
                self._kept[stream] += payload
                self._credit(len(payload))
            else:
                self._chunks.append(Output(stream, payload))
                self._waiting += len(payload)
                if self._waiting > WINDOW_BYTES:
                    raise ProtocolError("more output than there was room for")
        elif kind == FrameKind.STARTED:
            self.pid = Fields(payload).number(Key.PID)
        elif kind == FrameKind.STDIN_CREDIT:
            self._stdin_room = min(WINDOW_BYTES, self._stdin_room + Fields(payload).number(Key.CREDIT))
        elif kind == FrameKind.EXIT:
            self._exit = Fields(payload)
            self._connection.release(self._channel)
        else:
            raise ProtocolError(f"a frame of kind {kind} for a command")
        self._changed.set()

    def lost(self, error: SandboxGoneError) -> None:
        """From the connection."""
        self._error = error
        self._changed.set()

    async def _make_result(self, end: Fields) -> ExecResult:
        why = end.text(Key.MESSAGE) if Key.MESSAGE in end else None
        totals = end.number(Key.STDOUT_BYTES), end.number(Key.STDERR_BYTES)
        stderr = bytes(self._kept["stderr"]).decode("utf-8", "replace")
        return ExecResult(
            exit_code=end.number(Key.CODE) if Key.CODE in end else None,
            signal=end.number(Key.SIGNAL) if Key.SIGNAL in end else None,
            stdout=bytes(self._kept["stdout"]).decode("utf-8", "replace"),
            stderr=f"{why}\n" if why is not None else stderr,
            truncated=totals[0] > self._received["stdout"] or totals[1] > self._received["stderr"],
            stdout_bytes=totals[0],
            stderr_bytes=totals[1],
            termination=await self._judge(end),
            duration_s=end.number(Key.DURATION_US) / 1e6,
            cpu_s=end.number(Key.CPU_US) / 1e6,
            memory_bytes_peak=end.number(Key.RSS_BYTES),
            start_error=why,
        )


def shell(command: str | Sequence[str]) -> tuple[str, ...]:
    """A string is a line for /bin/sh; anything else is a list of words.

    Raises:
        CallerError: it is neither.
    """
    if isinstance(command, str):
        return ("/bin/sh", "-c", command)
    if isinstance(command, bytes) or not isinstance(command, Iterable):
        raise CallerError(f"A command is text or a list of words, not {type(command).__name__}.")
    words = tuple(command)
    if wrong := next((word for word in words if not isinstance(word, str)), None):
        raise CallerError(f"The words of a command are text; {str(wrong)[:40]!r} is {type(wrong).__name__}.")
    return words


def encode_name(text: str) -> bytes:
    """UTF-8; names that are not come and go as Python's surrogates."""
    return text.encode("utf-8", "surrogateescape")


def as_env(env: Mapping[str, str] | None) -> dict[str, str]:
    """A copy."""
    return dict(env or {})
