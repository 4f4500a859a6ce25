"""An agent that says nothing in time: whether it could have, and whose doing that is.

All that code inside can do to keep the agent from answering is to take what it needs, and that shows: CPU time is
used inside meanwhile. A machine that gives the sandbox nothing, a snapshot that is being taken of it and somebody
outside who stopped it show as well, since nothing inside gets any. So nobody is blamed before a second look.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import anyio

from ropewalk.core.outcomes import Termination
from ropewalk.sandbox.contract import Held, SandboxStats

SECOND_LOOK_S: Final = 2.0
"""Between the two looks; an answer that comes meanwhile still counts."""
BUSY_SHARE: Final = 0.05
"""Of one CPU, used inside between the two looks: where so much was given, the agent's answer, which takes a
millisecond, would have been given too if nothing inside had crowded it out."""


class Silence(NamedTuple):
    """Why an agent does not answer."""

    termination: Termination
    """TIMEOUT: of what runs beside it. INFRASTRUCTURE: nothing inside could run."""
    detail: str
    stats: SandboxStats | None = None


async def explain(
    stats: Callable[[], Awaitable[SandboxStats]], answered: Callable[[], Awaitable[object]]
) -> Silence | None:
    """Looks twice. None: it answered after all, or could not, since it was being saved: give it the time anew.

    Args:
        stats: of the sandbox, now.
        answered: returns once the agent has done what was waited for, also if that was before the call.

    Raises:
        SandboxGoneError: it died.
    """
    before, began_s = await stats(), time.monotonic()
    if before.held is Held.SAVED:
        return None
    with anyio.move_on_after(SECOND_LOOK_S):
        await answered()
        return None
    after = await stats()
    if after.held is Held.SAVED:
        return None
    if after.held is Held.STOPPED:
        return Silence(Termination.INFRASTRUCTURE, "something outside has stopped it", after)
    if before.cpu_s is None or after.cpu_s is None:  # else whoever runs where nobody measures could call the game off
        return Silence(Termination.TIMEOUT, "what is used inside cannot be measured here", after)
    used_s, elapsed_s = after.cpu_s - before.cpu_s, time.monotonic() - began_s
    detail = f"{used_s:.2f} s of CPU were used inside within {elapsed_s:.1f} s"
    busy = used_s >= BUSY_SHARE * elapsed_s
    return Silence(Termination.TIMEOUT if busy else Termination.INFRASTRUCTURE, detail, after)
