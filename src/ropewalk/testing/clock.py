"""Time that moves only when told; a `core.clock.Clock`."""

from __future__ import annotations


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
