"""Takes away what nobody needs: images that nothing stands on, and the saved states of a run."""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.app.custody import Custody
from ropewalk.app.machines import Machines
from ropewalk.app.task_store import TaskStore
from ropewalk.core.errors import DeniedError
from ropewalk.reward.spec import GraderSpec
from ropewalk.rollout.episodes.shelf import Shelf, ready, scratch
from ropewalk.sandbox.contract import SandboxRecord, SnapshotRecord
from ropewalk.sandbox.oci.known import forget_lost
from ropewalk.store.records import read_record


async def remove_image(custody: Custody, machines: Machines, name: str) -> str:
    """Forgets an image and removes those of its layers that nothing else needs. Returns its digest.

    Args:
        custody: where tasks and graders are known.
        machines: where images, layers, sandboxes and snapshots are known.
        name: digest, also its beginning, or label.

    Raises:
        CallerError: nothing of that name, or several.
        DeniedError: something stands on it (rule `image_needed`).
    """
    image = machines.images.find(name)
    async with machines.sandboxes.dropping():  # so that nothing comes to stand on it meanwhile
        needed: set[str] = set()
        running, snapshots = await machines.sandboxes.standing()
        if running and image.digest in machines.images.defaults():
            raise DeniedError(
                f"The agent of {_named(running[0], machines)} runs out of the image {name}.",
                rule="image_needed",
                next_step="end all sandboxes first.",
            )
        for user, tenant, digest, layers in [*_states(machines, running, snapshots), *_tasks(custody)]:
            if digest == image.digest and machines.images.needs_it(digest, tenant):
                raise DeniedError(
                    f"{user} stands on the image {name}.", rule="image_needed", next_step="remove that first."
                )
            needed |= layers
        machines.images.remove(image.digest)
        needed |= {layer for other in machines.images.everybodys() for layer in other.layers}
        for layer in image.layers:
            if layer not in needed:
                machines.layers.remove(layer)
        forget_lost(machines.layers, custody.layout.layers)
    return image.digest


async def remove_run(custody: Custody, machines: Machines, run: str) -> tuple[str, ...]:
    """Lets go of all states that a run saved; those that nothing else needs are removed. Returns their ids.

    What was signed stays, and so do the run's records: it can be reported, traced and verified as before, and resumed
    where the states that are wanted can be made again.

    Raises:
        CallerError: no such run.
        UnavailableError: it goes on, in some process.
    """
    journal = custody.journal
    journal.run(run)
    with journal.own(run):
        held = set(journal.holds())
        owners = [ready(run, row.task) for row in journal.tasks(run)]
        for row in journal.episodes(run):
            owners += [row.id, scratch(row.id)]
        await Shelf(machines.sandboxes, journal).release(*owners)
        return tuple(sorted(held - set(journal.holds())))


Use = tuple[str, str, str, set[str]]
"""What stands on an image, whose it is, the image, and layers above it."""


def _states(
    machines: Machines, running: tuple[SandboxRecord, ...], snapshots: tuple[SnapshotRecord, ...]
) -> Iterator[Use]:
    for sandbox in running:
        yield _named(sandbox, machines), sandbox.spec.tenant, sandbox.spec.image, set(sandbox.spec.layers)
    for snapshot in snapshots:
        layers = {*snapshot.layers, *snapshot.spec.layers}
        yield _named(snapshot, machines), snapshot.tenant, snapshot.spec.image, layers


def _named(record: SandboxRecord | SnapshotRecord, machines: Machines) -> str:
    """Its id, where it is this tenant's to know."""
    kind = record.id.partition(":")[0]
    return record.id if record.spec.tenant == machines.tenant else f"a {kind} of another tenant"


def _tasks(custody: Custody) -> Iterator[Use]:
    for record in TaskStore(custody.layout).records():
        task = record.task
        yield task.id, custody.tenant, task.image, set(task.layers)
        grader = read_record(custody.blobs, task.grader, GraderSpec)
        yield f"the grader of {task.id}", custody.tenant, grader.image, set(grader.layers)
