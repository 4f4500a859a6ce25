"""`ropewalk verify`: is everything as it was signed?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.cli.apps import HERE, Place, verb
from ropewalk.cli.exit_codes import EXIT_INCOMPLETE, EXIT_INTEGRITY
from ropewalk.cli.opening import custody, named
from ropewalk.cli.output import print_json, say

if TYPE_CHECKING:
    from ropewalk.provenance.verification import Verification
    from ropewalk.provenance.verify import Anchors

app = verb(
    "verify",
    examples=[
        "ropewalk verify run:01JDY… --anchor /mnt/usb",
        "ropewalk verify run:01JDY… --keys trust-root.json --checkpoint checkpoint",
        "ropewalk verify --json",
        "ropewalk verify receipt.json --anchor /mnt/usb",
    ],
)


@app.default
def verify(
    run: str | None = None,
    *,
    anchor: Path | None = None,
    keys: Path | None = None,
    checkpoint: Path | None = None,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Checks every signature, every digest and the log's consistency, against what was kept outside.

    Exit codes: 0 ok; 4 unanchored: everything fits together, but nothing outside this host vouches for it;
    5 something was tampered with or lost.

    A receipt (`reward receipt`) is checked without any state. It is ok where its proof leads to the outside checkpoint
    (`reward receipt --anchor`), and else unanchored.

    Args:
        run: Id of the run, or the file of a receipt. Default: everything in the log.
        anchor: Folder with pinned keys and checkpoint, as `ropewalk provenance anchor` writes it.
            Default: $ROPEWALK_ANCHOR.
        keys: Pinned public keys, from `ropewalk keys export`.
        checkpoint: Outside checkpoint, from `ropewalk provenance checkpoint`.
        json: Print JSON.
    """
    from ropewalk.app.custody import anchors_from
    from ropewalk.provenance.verify import Anchors

    folder = anchor or (Path(os.environ["ROPEWALK_ANCHOR"]) if os.environ.get("ROPEWALK_ANCHOR") else None)
    kept = anchors_from(folder) if folder else Anchors()
    kept = Anchors(keys or kept.trust_root, checkpoint or kept.checkpoint)
    if run and Path(run).is_file():
        return _verify_receipt(Path(run), kept, json=json)
    with custody(place) as held:
        found = held.verify_run(named(run, "run", held.journal.beginning), kept) if run else held.verify(None, kept)
    print_json(found.plain()) if json else print_verification(found)
    return exit_code(found)


def _verify_receipt(file: Path, kept: Anchors, *, json: bool) -> int:
    from ropewalk.core.errors import CallerError
    from ropewalk.core.limits import STATEMENT_BYTES_MAX
    from ropewalk.provenance.checkpoint import read_checkpoint, verify_checkpoint
    from ropewalk.provenance.receipts import unanchored, verify_receipt
    from ropewalk.security.signatures import Verifier
    from ropewalk.security.trust import load_trust_root

    if kept.trust_root is None:
        raise CallerError("A receipt is checked with pinned keys.", next_step="give --keys or --anchor.")
    with file.open("rb") as opened:
        data = opened.read(4 * STATEMENT_BYTES_MAX).rstrip(b"\n")
    verifier = Verifier(load_trust_root(kept.trust_root))
    found = verify_receipt(data, verifier)
    outside = verify_checkpoint(read_checkpoint(kept.checkpoint), verifier)[0] if kept.checkpoint else None
    reason = unanchored(found, outside)
    statement, status = found.statement, "unanchored" if reason else "ok"
    if json:
        print_json(
            {
                "status": status,
                "unanchored_because": [reason] if reason else [],
                "index": found.log_index,
                "log": found.checkpoint.origin,
                "statement": statement,
            }
        )
        return EXIT_INCOMPLETE if reason else 0
    say(status, style="yellow" if reason else "green")
    if reason:
        say(f"  unanchored: {reason}", style="yellow")
    say(f"{statement.subjects[0].name}: entry {found.log_index} of {found.checkpoint.origin}")
    for name, value in statement.facts.items():
        say(f"  {name}  {value}")
    return EXIT_INCOMPLETE if reason else 0


def print_verification(found: Verification) -> None:
    """The outcome in a few lines."""
    style = {"ok": "green", "unanchored": "yellow"}.get(str(found.status), "bold red")
    say(f"{found.status}", style=style)
    say(
        f"{found.statements} statements ({found.rewards} rewards), both signatures of each; "
        f"{found.blobs} stored things; a log of {found.log_size} entries; {sum(found.time_s.values()):.2f} s"
    )
    for reason in found.unanchored_because:
        say(f"  unanchored: {reason}", style="yellow")
    for finding in found.findings:
        say(f"  {finding.code}: {finding.message}", style="red")
    for note in found.notes:
        say(f"  note: {note}", style="dim")


def exit_code(found: Verification) -> int:
    """See the command's help."""
    return {"ok": 0, "unanchored": EXIT_INCOMPLETE}.get(str(found.status), EXIT_INTEGRITY)
