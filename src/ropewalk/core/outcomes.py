"""How an activity ended, as a type: trainers mask by it, so it never hides in a string."""

from __future__ import annotations

from enum import StrEnum


class Termination(StrEnum):
    """Why a command or an episode came to its end."""

    FINISHED = "finished"
    """It ran to its own end, well or badly."""
    POLICY_STOP = "policy_stop"
    """The policy stopped: it gave up, or used up its steps, tokens or budget."""
    TIMEOUT = "timeout"
    """Its time limit ended it. An episode is then truncated, never terminated."""
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    INFRASTRUCTURE = "infrastructure"
    """Our side failed. Never scored."""
    EVICTED = "evicted"
    """Somebody with the right to do so took the sandbox away. Never scored."""

    @property
    def ours(self) -> bool:
        """Whether the policy is without blame, so that the episode must not be scored."""
        return self in (Termination.INFRASTRUCTURE, Termination.EVICTED)
