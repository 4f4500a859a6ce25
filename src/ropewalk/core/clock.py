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


def utc(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds, e.g. 2026-11-30T10:55:19.123Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
