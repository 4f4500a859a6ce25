"""The end of a sandbox: its processes, control groups and folder. Works from any process, also after a crash."""

from __future__ import annotations

from contextlib import suppress

from ropewalk.core.errors import IntegrityError, RopewalkError
from ropewalk.sandbox.contract import Lease
from ropewalk.sandbox.drivers.process import cgroups, processes
from ropewalk.sandbox.drivers.process.folders import Folder, Folders, Processes


def kill(folder: Folder) -> Processes | None:
    """Kills a sandbox's processes and returns what was known of them. The first one takes all others with it.

    Also where bubblewrap outside is dead already: the first process inside may have outlived it.
    """
    found = _known(folder)
    if found is not None:
        if found.groups and found.init_alive():
            cgroups.freeze(found.groups, frozen=False, timeout_s=0)
        if found.init_pid:
            processes.kill(found.init_pid, found.init_started)
        else:
            processes.kill(found.pid, found.started)
    return found


def finish(folder: Folder, found: Processes | None) -> None:
    """Waits for the end and removes what is left."""
    found = _known(folder) or found
    if found is not None:
        if not processes.wait(found.pid, found.started, 5.0):
            processes.kill(found.pid, found.started)
        processes.wait(found.init_pid, found.init_started, 5.0)
        cgroups.remove(found.groups)
    folder.remove()


def reap(folders: Folders, parents: cgroups.Groups) -> tuple[str, ...]:
    """Ends and removes whatever no living lease owns; returns the ids of the sandboxes among it."""
    reaped = []
    # Before the folders are looked at: a sandbox made meanwhile has its folder first.
    groups_left = cgroups.children(parents)
    for folder in folders.all():
        if _owned(folder):
            _thaw(folder)
            continue
        finish(folder, kill(folder))
        if not folder.path.name.startswith("."):
            reaped.append(f"sandbox:{folder.path.name}")
    existing = {folder.path.name for folder in folders.all()}
    for name, groups in groups_left.items():
        if name not in existing:
            cgroups.remove(groups)
    cgroups.tidy(parents)
    return tuple(reaped)


def _thaw(folder: Folder) -> None:
    """Lets a sandbox go on whose snapshot died with its taker. One that is being saved now holds its lock."""
    found = _known(folder)
    if found is not None and found.alive() and cgroups.is_frozen(found.groups):
        with folder.saving(wait=False) as alone:
            if alone:
                cgroups.freeze(found.groups, frozen=False, timeout_s=0)


def _known(folder: Folder) -> Processes | None:
    with suppress(IntegrityError):
        return folder.processes()
    return None  # damaged; what the control groups hold is ended all the same


def _owned(folder: Folder) -> bool:
    """Whether somebody still answers for it: its maker, or, detached, itself."""
    if (being_made := folder.is_being_made()) is not None:
        return being_made
    try:
        owner, record, found = folder.owner(), folder.record(), folder.processes()
    except RopewalkError:
        return False  # damaged: nobody can use it
    if owner is None or record is None:
        return False
    if owner.alive():
        return True
    detached = record.spec.lease is Lease.DETACHED
    return detached and owner.boot == processes.boot_id() and found is not None and found.alive()
