"""Snapshots of a run and who needs them.

Equal states have equal ids, so one snapshot may serve several episodes and a task at once; it is dropped when the
last of them lets go. The lock keeps a drop and a new taking of the same state apart.
"""

from __future__ import annotations

import anyio

from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.rollout.journal import Journal
from ropewalk.rollout.ports import Computer, Computers, SavedState


class Shelf:
    """Takes, holds and drops snapshots. An owner is any text: an episode's id, a run and a task."""

    def __init__(self, sandboxes: Computers, journal: Journal) -> None:
        self._sandboxes = sandboxes
        self._journal = journal
        self._lock = anyio.Lock()

    async def take(self, sandbox: Computer, owner: str, label: str) -> SavedState:
        """Saves the sandbox's state for `owner`.

        Raises:
            SandboxGoneError, UnavailableError: as `Sandbox.snapshot`.
        """
        async with self._lock:
            snapshot = await sandbox.snapshot(label)
            self._journal.hold(snapshot.id, owner)
            return snapshot

    async def release(self, owner: str) -> None:
        """Lets go of all that `owner` holds; what nobody else needs is dropped."""
        async with self._lock:
            alone = self._journal.held_alone(owner)
            if alone is None:
                return
            for snapshot in alone:
                try:
                    await self._sandboxes.drop_snapshot(snapshot)
                except (UnavailableError, CallerError):
                    pass  # dropped before a crash, or not to be dropped: that costs disk, not truth
            # Last, so that a crash on the way leaves a note of what is still to be dropped.
            self._journal.release(owner)

    def exists(self, snapshot: str) -> bool:
        """Whether it can be forked."""
        try:
            self._sandboxes.snapshot(snapshot)
        except CallerError:
            return False
        return True


def scratch(episode: str) -> str:
    """Owner of what an episode needs only while it runs."""
    return f"scratch/{episode}"
