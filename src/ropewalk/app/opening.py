"""What `Ropewalk.open` gives: to be entered with `async with`, and to say so where it is not."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, NoReturn, TypeVar

from ropewalk.core.errors import CallerError

T = TypeVar("T")


class Opening(AbstractAsyncContextManager[T], Generic[T]):
    """An asynchronous context manager whom `with` tells what to write instead."""

    def __init__(self, inner: AbstractAsyncContextManager[T]) -> None:
        self._inner = inner

    async def __aenter__(self) -> T:
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)

    def __enter__(self) -> NoReturn:
        raise CallerError(
            "Ropewalk.open is asynchronous.",
            next_step="write `async with Ropewalk.open()`, or `with RopewalkSync.open()` where nothing is awaited.",
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Never reached; `with` looks for it before it enters."""
