"""`ropewalk snapshot`: saved states of sandboxes."""

from __future__ import annotations

from ropewalk.cli.apps import HERE, Place, command, noun
from ropewalk.cli.opening import beginning, named, opened
from ropewalk.cli.output import print_json, print_table, say
from ropewalk.core.errors import CallerError, DeniedError

app = noun("snapshot", "Saved states of sandboxes: list and remove. `sandbox snapshot` saves, `sandbox fork` starts.")


@command(app, "ls", examples=["ropewalk snapshot ls", "ropewalk snapshot ls --json"])
async def ls(*, json: bool = False, place: Place = HERE) -> int:
    """Lists all snapshots, oldest first, and how many runs and episodes need each.

    Args:
        json: Print JSON.
    """
    from ropewalk.core.clock import utc

    async with opened(place) as rw:
        records = rw.sandboxes.snapshots()
        holds = rw.custody.journal.holds()
    if json:
        print_json([{"snapshot": record, "needed_by": holds.get(record.id, [])} for record in records])
        return 0
    print_table(
        ("snapshot", "saved", "label", ">MiB of its own", ">needed by"),
        (
            (r.id, utc(r.created_s), r.label, f"{r.unique_bytes / 2**20:.1f}", len(holds.get(r.id, [])) or "")
            for r in records
        ),
        empty="There is no snapshot. Next: ropewalk sandbox snapshot ID",
    )
    return 0


@command(app, "rm", examples=["ropewalk snapshot rm snapshot:0123…", "ropewalk snapshot rm snapshot:0123… --force"])
async def rm(*snapshots: str, force: bool = False, json: bool = False, place: Place = HERE) -> int:
    """Removes snapshots and the layers that nothing else needs.

    Args:
        snapshots: Their ids.
        force: Also those that a run or an episode needs: `episode attach` then builds the state anew.
        json: Print JSON.
    """
    if not snapshots:
        raise CallerError("No snapshot was named.", next_step="give ids from `ropewalk snapshot ls`.")
    removed = []
    async with opened(place) as rw:
        for each in snapshots:
            id = named(each, "snapshot", lambda text: beginning(rw.sandboxes.snapshots(), text))
            rw.sandboxes.snapshot(id)
            async with rw.sandboxes.dropping() as drop:
                holders = rw.custody.journal.holds().get(id, [])
                if holders and not force:
                    raise DeniedError(
                        f"{id} is needed by {', '.join(holders[:3])}.", rule="snapshot_needed", next_step="add --force."
                    )
                await drop(id)
                rw.custody.journal.forget(id)
            removed.append(id)
            if not json:
                say(f"removed {id}")
    if json:
        print_json({"removed": removed})
    return 0
