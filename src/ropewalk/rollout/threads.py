"""Calls that wait for a disk or a lock, made where they hold up nobody else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio.to_thread

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """What the call returns, made in a worker thread. Once begun it is waited for, also while cancelled: a write that
    nobody knows the end of would be worse than the wait."""
    return await anyio.to_thread.run_sync(partial(call, *args, **named))
