"""Time limits for a whole HTTP exchange, however steadily the other side drips: one deadline over headers and body, and
a least rate for bodies.

An httpx2 client's own limits start anew with every read. One that went through `with_deadlines` also ends what it reads
and writes when the `deadline` around it, in the same thread, is over. It has no public place for that: its connection
pools take a network backend, which is wrapped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

C = TypeVar("C")

RATE_WINDOW_S: Final = 30.0
"""Over each of these times a body's rate is taken."""
_UNTIL_S: ContextVar[float] = ContextVar("ropewalk_deadline", default=float("inf"))


class TooSlowError(Exception):
    """The deadline is over. Another try would be as slow. None of httpx2's errors, which are worth one."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """What is read and written inside ends within that time, and within the deadlines further out.

    Raises:
        TooSlowError: it did not.
    """
    mark = _UNTIL_S.set(min(_UNTIL_S.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _UNTIL_S.reset(mark)


def with_deadlines(client: C) -> C:
    """The httpx2.Client itself, whose connections keep to `deadline` from now on."""
    inside = vars(client)
    for transport in (inside["_transport"], *inside["_mounts"].values()):
        if transport is not None:  # None: an address that no proxy is asked for
            pool = vars(transport)["_pool"]
            pool._network_backend = _Backend(pool._network_backend)
    return client


class LeastRate:
    """Whether a body comes as fast as it must, over each RATE_WINDOW_S."""

    def __init__(self, bytes_per_s: float) -> None:
        self._least = bytes_per_s
        self._since_s, self._bytes = time.monotonic(), 0

    def is_kept(self, total: int) -> bool:
        """False: of the bytes that came in all, too few came in the last window."""
        now_s = time.monotonic()
        passed_s = now_s - self._since_s
        if passed_s <= RATE_WINDOW_S:
            return True
        kept = total - self._bytes >= self._least * RATE_WINDOW_S
        self._since_s, self._bytes = now_s, total
        return kept


def _left_s(timeout: float | None) -> float | None:
    left_s = _UNTIL_S.get() - time.monotonic()
    if left_s <= 0:
        raise TooSlowError("its time is over")
    return timeout if left_s == float("inf") else min(left_s, float("inf") if timeout is None else timeout)


@contextmanager
def _ends_in_time() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if time.monotonic() >= _UNTIL_S.get():
            raise TooSlowError("its time is over") from error
        raise


class _Backend:
    """An httpcore network backend."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> Any:
        with _ends_in_time():
            return _Stream(self._inner.connect_tcp(host, port, timeout=_left_s(timeout), **options))


class _Stream:
    """An httpcore network stream."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _ends_in_time():
            data: bytes = self._inner.read(max_bytes, timeout=_left_s(timeout))
            return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with _ends_in_time():
            self._inner.write(buffer, timeout=_left_s(timeout))

    def start_tls(self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None) -> Any:
        with _ends_in_time():
            return _Stream(self._inner.start_tls(ssl_context, server_hostname, timeout=_left_s(timeout)))
