"""The synchronous face, for notebooks and scripts: the same object, bridged over one thread with an event loop.

    with RopewalkSync.open() as rw:
        with rw.sandbox("default") as sandbox:
            print(sandbox.exec("echo hello").stdout)

Nothing here repeats a method's name: whatever the asynchronous object has, this has too. Coroutines are awaited,
asynchronous context managers and iterators become plain ones, and objects of Ropewalk's own are wrapped in turn.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from ropewalk.app.ropewalk import Ropewalk
from ropewalk.core.records import Record


class RopewalkSync:
    """Where the synchronous face begins; see the module's text."""

    @staticmethod
    @contextmanager
    def open(profile: str | None = None, *, state: Path | None = None, driver: str = "") -> Iterator[Any]:
        """Like `Ropewalk.open`, without `async`. Gives an object with all of Ropewalk's attributes."""
        with (
            start_blocking_portal("asyncio", name="ropewalk") as portal,
            portal.wrap_async_context_manager(Ropewalk.open(profile, state=state, driver=driver)) as inner,
        ):
            yield bridge(inner, portal)


def bridge(value: Any, portal: BlockingPortal) -> Any:
    """The value as synchronous code can use it: plain data as it is, asynchronous objects behind a `Bridged`."""
    if isinstance(value, list | tuple):
        made = [bridge(each, portal) for each in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if inspect.isawaitable(value):
        return bridge(portal.call(_wait, value), portal)
    if _is_asynchronous(value):
        return Bridged(value, portal)
    return value


class Bridged:
    """An asynchronous object, seen from synchronous code."""

    def __init__(self, inner: Any, portal: BlockingPortal) -> None:
        self._inner = inner
        self._portal = portal
        self._context: AbstractContextManager[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._call(value) if inspect.isroutine(value) else bridge(value, self._portal)

    def __dir__(self) -> list[str]:
        return dir(self._inner)

    def __repr__(self) -> str:
        return f"<synchronous {self._inner!r}>"

    def __enter__(self) -> Any:
        self._context = self._portal.wrap_async_context_manager(self._inner)
        entered = self._context.__enter__()
        return self if entered is self._inner else bridge(entered, self._portal)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        if self._context is None:
            raise RuntimeError("not entered")
        context, self._context = self._context, None
        return context.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[Any]:
        source = self._inner.__aiter__()
        while True:
            try:
                item = self._portal.call(source.__anext__)
            except StopAsyncIteration:
                return
            yield bridge(item, self._portal)

    def _call(self, routine: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(routine)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = [_unbridge(arg) for arg in args]
            named = {name: _unbridge(arg) for name, arg in kwargs.items()}
            return bridge(self._portal.call(_start, routine, given, named), self._portal)

        return call


async def _start(routine: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Calls in the loop's thread, so that what the routine makes belongs to the loop."""
    made = routine(*args, **kwargs)
    return await made if inspect.isawaitable(made) else made


async def _wait(awaitable: Any) -> Any:
    return await awaitable


def _unbridge(value: Any) -> Any:
    return value._inner if isinstance(value, Bridged) else value


def _is_asynchronous(value: Any) -> bool:
    if hasattr(value, "__aenter__") or hasattr(value, "__anext__") or hasattr(value, "__aiter__"):
        return True
    ours = type(value).__module__.split(".")[0] == "ropewalk"
    return ours and not isinstance(value, Record | Enum | BaseException | type)
