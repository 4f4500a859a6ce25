"""`ropewalk provenance`: what a source touched, and checkpoints to keep elsewhere."""

from __future__ import annotations

from pathlib import Path

from ropewalk.cli.apps import HERE, Place, command, noun
from ropewalk.cli.calling import program
from ropewalk.cli.exit_codes import EXIT_TAINTED
from ropewalk.cli.opening import custody
from ropewalk.cli.output import print_json, print_table, say

app = noun("provenance", "What a source touched, and checkpoints of the log to keep elsewhere.")


@command(app, "taint", examples=["ropewalk provenance taint raw:0123…", "ropewalk provenance taint task:0123… --json"])
def taint(subject: str, *, kind: str = "", json: bool = False, place: Place = HERE) -> int:
    """Lists everything that was made from a thing: tasks, episodes, verdicts, rewards. Exits with 3 where it is any.

    Args:
        subject: Id of a raw file, a commit, a task …; or a sha256.
        kind: Show only things of this kind (task, episode, verdict, reward …).
        json: Print JSON.
    """
    with custody(place) as kept:
        found = kept.taint(subject)
    nodes = [node for node in found.nodes if not kind or node.kind == kind]
    if json:
        print_json({"subject": found.subject, "nodes": nodes})
    else:
        print_table(
            (">steps away", "kind", "name", "made"),
            ((node.depth, node.kind, node.name, node.made_by[-1].ended if node.made_by else "") for node in nodes),
            empty="Nothing was made from it.",
        )
    return EXIT_TAINTED if nodes else 0


@command(app, "index", examples=["ropewalk provenance index"])
def index(*, json: bool = False, place: Place = HERE) -> int:
    """Makes the lineage index anew from the log, where the two disagree. Verify the log first: it is believed.

    Args:
        json: Print JSON.
    """
    with custody(place) as kept:
        size = kept.rebuild_lineage()
    if json:
        print_json({"statements": size})
    else:
        say(f"{size} statements are indexed.")
    return 0


@command(app, "anchor", examples=["ropewalk provenance anchor /mnt/usb"])
def anchor(folder: Path, *, json: bool = False, place: Place = HERE) -> int:
    """Writes what `verify --anchor` and `report --anchor` read: public keys and the log's signed checkpoint, under the
    names ropewalk-trust-root.json and ropewalk-checkpoint.

    What the folder held is checked first: a log that does not continue it is refused, and the folder stays as it is.

    Args:
        folder: Where to; made if absent. Not inside the state directory, best on another machine or disk.
        json: Print JSON.
    """
    with custody(place) as kept:
        written = kept.export_anchor(folder)
    if json:
        print_json({"trust_root": str(written.trust_root), "checkpoint": str(written.checkpoint)})
    else:
        say(f"{written.trust_root} and {written.checkpoint}")
        say(f"Next: {program()} verify --anchor {folder}; write again after each run, and keep the folder elsewhere.")
    return 0


@command(app, "checkpoint", examples=["ropewalk provenance checkpoint /mnt/usb/checkpoint"])
def checkpoint(file: Path, *, json: bool = False, place: Place = HERE) -> int:
    """Writes the log's signed checkpoint to a file outside, against which `verify` later sees any rollback.

    Args:
        file: Where to; not inside the state directory, best on another machine.
        json: Print JSON.
    """
    with custody(place) as kept:
        made = kept.log.export_checkpoint(file)
    if json:
        print_json({"origin": made.origin, "size": made.size, "root": made.root.hex()})
    else:
        say(f"{file}: {made.size} entries, root {made.root.hex()}")
    return 0
