"""A person's terminal, connected to a shell in a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence

import anyio

from ropewalk.sandbox.process import ExecResult, Process, TerminalSize
from ropewalk.sandbox.sandbox import Sandbox

SHELL = "if command -v bash >/dev/null; then exec bash -i; else exec sh -i; fi"


async def attach(
    sandbox: Sandbox,
    command: str | Sequence[str] = SHELL,
    *,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
    input_fd: int | None = None,
    output_fd: int | None = None,
) -> ExecResult:
    """Runs a command on a terminal inside and passes keys and output through until it ends.

    The person's terminal is raw meanwhile (keys such as Ctrl-C go to the command), follows changes of its size, and is
    put back in order on every way out, also when the sandbox dies or this process is told to end (SIGTERM, SIGHUP).
    Input that is no terminal is passed through as it is, and its end is the command's end of input.

    Raises:
        SandboxGoneError: the sandbox died.
    """
    source = sys.stdin.fileno() if input_fd is None else input_fd
    target = sys.stdout.fileno() if output_fd is None else output_fd
    variables = {"TERM": os.environ.get("TERM", "xterm"), **(env or {})}
    process = await sandbox.start(command, user=user, env=variables, pty=size_of(source) or TerminalSize())
    async with process:
        with _raw(source), _signals(process, source):
            feeder = asyncio.create_task(_feed(process, source))
            try:
                async for chunk in process:
                    await anyio.to_thread.run_sync(_write_all, target, chunk.data)
                return await process.wait()
            finally:
                feeder.cancel()
                await asyncio.gather(feeder, return_exceptions=True)


def size_of(fd: int) -> TerminalSize | None:
    """Of a terminal; None where it is none."""
    try:
        size = os.get_terminal_size(fd)
    except OSError:
        return None
    return TerminalSize(rows=size.lines, columns=size.columns)


@contextlib.contextmanager
def _raw(fd: int) -> Iterator[None]:
    if not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)


@contextlib.contextmanager
def _signals(process: Process, fd: int) -> Iterator[None]:
    """A changed size is passed on; a request to end becomes a cancellation, so that everything is put in order."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def resized() -> None:
        if size := size_of(fd):
            process.resize(size)

    handlers: dict[signal.Signals, Callable[[], object]] = {
        signal.SIGWINCH: resized,
        signal.SIGTERM: task.cancel,
        signal.SIGHUP: task.cancel,
    }
    installed = []
    try:
        for number, handler in handlers.items():
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread: go without
                loop.add_signal_handler(number, handler)
                installed.append(number)
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)


async def _feed(process: Process, fd: int) -> None:
    while True:
        with contextlib.suppress(PermissionError):  # a file on disk, which is always readable
            await anyio.wait_readable(fd)
        data = os.read(fd, 4096)
        if not data:
            await process.send_eof()
            return
        await process.send(data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
