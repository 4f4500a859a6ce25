"""Counts what sandboxes use, from their making to their end, whoever makes them: preparations, episodes, forks of a
search, gradings and their controls, also attempts that come to nothing.

Keys of a usage: `sandbox_s` is the lifetime of all; `cpu_s` is CPU time where it was looked at (`stats`), and
`cpu_sandbox_s` the lifetime of those alone, so that the two make a ratio.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, cast

from ropewalk.core.clock import Clock
from ropewalk.rollout.ports import EpisodeSandbox, EpisodeSandboxes, RunWorld, SavedState
from ropewalk.sandbox.contract import SandboxSpec, SandboxStats


def add_usage(total: dict[str, float], more: Mapping[str, float]) -> None:
    """Adds sums and takes the larger of peaks, in place."""
    for name, value in more.items():
        total[name] = max(total.get(name, 0.0), value) if name.startswith("memory_") else total.get(name, 0.0) + value


class Meter:
    """What some sandboxes used so far. Those of a part count for the whole too."""

    def __init__(self, clock: Clock, *, whole: Meter | None = None) -> None:
        self._clock = clock
        self._whole = whole
        self._running: dict[object, float] = {}
        self.usage: dict[str, float] = {}
        """Of sandboxes that have ended."""

    @property
    def sandbox_s(self) -> float:
        """Of sandboxes that have ended and, until now, of those that run."""
        now = self._clock.monotonic_s()
        return self.usage.get("sandbox_s", 0.0) + sum(now - began for began in self._running.values())

    def part(self) -> Meter:
        """A meter whose sandboxes count here too."""
        return Meter(self._clock, whole=self)

    def add(self, usage: Mapping[str, float]) -> None:
        """Counts what was used elsewhere or earlier."""
        add_usage(self.usage, usage)
        if self._whole:
            self._whole.add(usage)

    def began(self, key: object, at_s: float) -> None:
        """A sandbox was made."""
        self._running[key] = at_s
        if self._whole:
            self._whole.began(key, at_s)

    def ended(self, key: object, stats: SandboxStats | None) -> None:
        """It is gone."""
        if (began_s := self._forget(key)) is None:
            return
        lived_s = self._clock.monotonic_s() - began_s
        measured = {}
        if stats is not None and stats.cpu_s is not None:
            measured = {"cpu_s": stats.cpu_s, "cpu_sandbox_s": lived_s}
        self.add({"sandbox_s": lived_s, **measured})

    def _forget(self, key: object) -> float | None:
        if self._whole:
            self._whole._forget(key)
        return self._running.pop(key, None)

    def now_s(self) -> float:
        """The clock's."""
        return self._clock.monotonic_s()


class MeteredSandboxes:
    """A sandbox service whose sandboxes are counted. See `ropewalk.rollout.ports.EpisodeSandboxes`."""

    def __init__(self, sandboxes: EpisodeSandboxes, meter: Meter) -> None:
        self._sandboxes = sandboxes
        self._meter = meter

    async def create(self, spec: SandboxSpec) -> EpisodeSandbox:
        """Counted from when it was asked for."""
        began_s = self._meter.now_s()
        return _metered(await self._sandboxes.create(spec), self._meter, began_s)

    async def fork(self, snapshot_id: str) -> EpisodeSandbox:
        """Counted from when it was asked for."""
        began_s = self._meter.now_s()
        return _metered(await self._sandboxes.fork(snapshot_id), self._meter, began_s)

    def snapshot(self, snapshot_id: str) -> SavedState:
        """The service's."""
        return self._sandboxes.snapshot(snapshot_id)

    def check_unchanged(self, image: str, layers: Sequence[str]) -> None:
        """The service's."""
        self._sandboxes.check_unchanged(image, layers)

    def keeping(self) -> AbstractAsyncContextManager[None]:
        """The service's."""
        return self._sandboxes.keeping()

    def dropping(self) -> AbstractAsyncContextManager[Callable[[str], Awaitable[None]]]:
        """The service's."""
        return self._sandboxes.dropping()


class _MeteredSandbox:
    """A sandbox that says when it ends; all else is the sandbox's own."""

    def __init__(self, sandbox: EpisodeSandbox, meter: Meter, began_s: float) -> None:
        self._sandbox = sandbox
        self._meter = meter
        self._stats: SandboxStats | None = None
        self._key = object()
        meter.began(self._key, began_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def stats(self) -> SandboxStats:
        self._stats = await self._sandbox.stats()
        return self._stats

    async def close(self) -> None:
        try:
            await self._sandbox.close()
        finally:
            self._meter.ended(self._key, self._stats)


def metered(world: RunWorld, meter: Meter) -> RunWorld:
    """The same world, with its sandboxes counted."""
    return replace(world, sandboxes=MeteredSandboxes(world.sandboxes, meter))


def _metered(sandbox: EpisodeSandbox, meter: Meter, began_s: float) -> EpisodeSandbox:
    return cast(EpisodeSandbox, _MeteredSandbox(sandbox, meter, began_s))
