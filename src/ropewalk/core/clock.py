"""Time as an argument, so that tests run on virtual time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for durations."""

    def now_s(self) -> float:
        """Seconds since 1970-01-01T00:00:00Z."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary instant; never goes back."""
        ...


class SystemClock:
    """This machine's clocks."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told."""

    def __init__(self, start_s: float = 1_700_000_000.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def monotonic_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Moves both clocks forward.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError("time does not go back")
        self._now_s += seconds


def utc(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds, e.g. 2026-11-30T10:55:19.123Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
