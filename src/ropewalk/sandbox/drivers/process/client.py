"""The driver's end of the spawner: starts it, sends requests, hears what becomes of each sandbox."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from ropewalk.core.errors import UnavailableError
from ropewalk.sandbox.drivers.process.spawner import DISREGARD, REQUEST_BYTES_MAX

_BOOT = """
import sys, types
name = ""
for part in "ropewalk.sandbox.drivers.process".split("."):
    name = name + "." + part if name else part
    package = types.ModuleType(name)
    package.__path__ = [sys.argv[3] + "/" + name.replace(".", "/")]
    sys.modules[name] = package
from ropewalk.sandbox.drivers.process.spawner import main
main()
"""
"""Imports the spawner without its packages' `__init__` and without site-packages, which it does not need."""

Message = dict[str, Any]


class Channel:
    """The spawner's answers about one sandbox: `started` or `failed`, then `ended`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._reading = anyio.Lock()
        self.ended: Message | None = None

    async def next(self) -> Message | None:
        """The next message; None: the spawner is gone, or has no more to say.

        Several may wait, since a sandbox can be destroyed while it is made: each message goes to one of them.
        """
        async with self._reading:
            while True:
                try:
                    data = self._sock.recv(65536)
                except BlockingIOError:
                    with suppress(anyio.ClosedResourceError):
                        await anyio.wait_readable(self._sock)
                    continue
                except OSError:
                    return None
                return self._take(data)

    async def answer(self) -> Message | None:
        """Like `next`; how it ended, where another who waited was told that."""
        return await self.next() or self.ended

    def now(self) -> Message | None:
        """Like `next`, without waiting; None also when there is nothing yet."""
        try:
            return self._take(self._sock.recv(65536))
        except OSError:
            return None

    def disregard(self) -> None:
        """Nobody will ask how it ended: the spawner need not write that down."""
        with suppress(OSError):
            self._sock.send(DISREGARD)

    def _take(self, data: bytes) -> Message | None:
        if not data:
            return None
        message: Message = json.loads(data)
        if message.get("event") == "ended":
            self.ended = message
        return message

    @property
    def socket(self) -> socket.socket:
        return self._sock

    def close(self) -> None:
        """Whoever waits hears that there is no more."""
        if self._reading.locked():
            anyio.notify_closing(self._sock)
        self._sock.close()


class SpawnerClient:
    """One spawner, started at the first request and again if it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._pid = 0

    def request(self, message: Message, listener: socket.socket) -> Channel:
        """Sends a request.

        Raises:
            UnavailableError: the spawner cannot be started, or the request is too large.
        """
        data = json.dumps(message).encode()
        if len(data) > REQUEST_BYTES_MAX:
            raise UnavailableError(
                f"The sandbox's specification is {len(data)} bytes long, {REQUEST_BYTES_MAX} allowed."
            )
        for attempt in (1, 2):
            control = self._started()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                socket.send_fds(control, [data], [theirs.fileno(), listener.fileno()])
                return Channel(ours)
            except OSError as error:
                ours.close()
                self.close()
                if attempt == 2:
                    raise UnavailableError(f"The sandbox spawner does not answer: {error.strerror}.") from error
            finally:
                theirs.close()
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Ends the spawner and with it every attached sandbox; returns when they are gone."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            if self._pid == os.getpid():
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(10)
            self._process = None

    def _started(self) -> socket.socket:
        if self._control is not None and self._pid != os.getpid():
            # A fork of the driver's process: the spawner is the parent's.
            self._control, self._process = None, None
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        if self._control is not None:
            self._control.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = Path(__file__).parents[4]
        command = [sys.executable, "-I", "-S", "-c", _BOOT, str(theirs.fileno()), str(os.getpid()), str(root)]
        try:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                cwd="/", env={"PATH": os.environ.get("PATH", "")},
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise UnavailableError(f"The sandbox spawner cannot be started: {error.strerror}.") from error
        finally:
            theirs.close()
        ours.setblocking(True)
        self._control, self._pid = ours, os.getpid()
        return ours
