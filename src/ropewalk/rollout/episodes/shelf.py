"""Snapshots of a run and who needs them.

Equal states have equal ids, so one snapshot may serve several episodes, tasks and runs at once, also of other
processes; it is dropped when the last of them lets go. The service's lock keeps a drop and a new taking of the same
state apart: whoever looks up who else needs it may believe the answer until the drop is done.
"""

from __future__ import annotations

import anyio

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.rollout.journal import RunJournal
from ropewalk.rollout.ports import EpisodeSandbox, EpisodeSandboxes, SavedState
from ropewalk.rollout.threads import in_thread
from ropewalk.sandbox.contract import SnapshotRecord


class Shelf:
    """Takes, holds and drops snapshots. An owner is any text: an episode's id, a run and a task."""

    def __init__(self, sandboxes: EpisodeSandboxes, journal: RunJournal) -> None:
        self._sandboxes = sandboxes
        self._journal = journal

    async def take(
        self, sandbox: EpisodeSandbox, owner: str, label: str, *, durable: bool = True
    ) -> SavedState:  # fmt: skip
        """Saves the sandbox's state for `owner`; not `durable` where nobody would need it after a power loss.

        Raises:
            SandboxGoneError, UnavailableError: as `Sandbox.snapshot`.
        """
        async with self._sandboxes.keeping():
            snapshot = await sandbox.snapshot(label, durable=durable)
            with anyio.CancelScope(shield=True):  # a snapshot without a note of who needs it would stay for ever
                await in_thread(self._journal.hold, snapshot.id, owner)
            return snapshot

    async def release(self, *owners: str) -> None:
        """Lets go of all that these hold; what nobody else needs is dropped."""
        holding = await in_thread(self._journal.holding, owners)
        for owner in holding:
            async with self._sandboxes.dropping() as drop:
                for snapshot in await in_thread(self._journal.held_alone, owner):
                    try:
                        await drop(snapshot)
                    except (UnavailableError, CallerError):
                        pass  # dropped before a crash, or not to be dropped: that costs disk, not truth
                # Last, so that a crash on the way leaves a note of what is still to be dropped.
                await in_thread(self._journal.release, owner)

    def exists(self, snapshot: str) -> bool:
        """Whether it can be forked."""
        return self._record(snapshot) is not None

    def has(self, saved: SnapshotRecord) -> bool:
        """Whether this very state can be forked.

        Raises:
            IntegrityError: what lies there under its id is another one.
        """
        if (found := self._record(saved.id)) is None:
            return False
        if _state(found) != _state(saved):
            raise IntegrityError(
                f"{saved.id} is not the state that was saved under this id.",
                next_step="find out who changes the state directory, then drop it: `ropewalk snapshot rm`.",
            )
        return True

    def _record(self, snapshot: str) -> SnapshotRecord | None:
        try:
            return self._sandboxes.snapshot(snapshot).record
        except CallerError:
            return None


def _state(record: SnapshotRecord) -> tuple[object, ...]:
    """What forks are made of; labels and times are whoever saved it first's."""
    spec = record.spec
    return (record.driver, record.tenant, record.layers, record.memory, spec.image, spec.layers, spec.workdir, spec.env)


def scratch(episode: str) -> str:
    """Owner of what an episode needs only while it runs."""
    return f"scratch/{episode}"


def ready(run: str, task: str) -> str:
    """Owner of the state that a run's episodes of a task begin from."""
    return f"{run}/{task}"
