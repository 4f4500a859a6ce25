"""A command in a sandbox whose output is shown as it comes, and which is given our input if it wants it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

if TYPE_CHECKING:
    from ropewalk.sandbox.process import ExecResult, Process
    from ropewalk.sandbox.sandbox import Sandbox

PIECE_BYTES = 64 * 1024


async def stream(
    sandbox: Sandbox,
    command: str | Sequence[str],
    *,
    cwd: str | None,
    env: dict[str, str],
    user: str | None,
    timeout_s: float,
    stdin: bool,
) -> ExecResult:
    """Runs it to its end; its output is on our standard output and error by then. Cancelled, it is ended."""
    process = await sandbox.start(command, cwd=cwd, env=env, user=user, timeout_s=timeout_s, stdin=stdin)
    async with process, anyio.create_task_group() as group:
        if stdin:
            group.start_soon(_feed, process, sys.stdin.fileno())
        async for chunk in process:
            await anyio.to_thread.run_sync(_show, chunk.stream, chunk.data)
        group.cancel_scope.cancel()
    return await process.wait()


async def _feed(process: Process, source: int) -> None:
    """Our input, piece by piece. A thread of its own reads: nobody can call it back from a read that never ends."""
    send, receive = anyio.create_memory_object_stream[bytes](1)
    token = anyio.lowlevel.current_token()

    def read() -> None:
        try:
            while piece := os.read(source, PIECE_BYTES):
                anyio.from_thread.run(send.send, piece, token=token)
            anyio.from_thread.run(send.aclose, token=token)
        except (OSError, RuntimeError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # whoever wanted the rest is gone

    threading.Thread(target=read, name="ropewalk-stdin", daemon=True).start()
    async with receive:
        async for piece in receive:
            await process.send(piece)
    await process.send_eof()


def _show(stream: str, data: bytes) -> None:
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.flush()
    target.buffer.write(data)
    target.buffer.flush()
