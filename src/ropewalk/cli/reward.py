"""`ropewalk reward`: what a trainer gets."""

from __future__ import annotations

from pathlib import Path

from ropewalk.cli.apps import HERE, Place, command, noun
from ropewalk.cli.calling import program
from ropewalk.cli.opening import chosen_run, custody, named
from ropewalk.cli.output import print_json, print_table, say

app = noun("reward", "Signed rewards. None is unscored, never 0.")


@command(app, "ls", examples=["ropewalk reward ls run:01JDY…", "ropewalk reward ls --json"])
def ls(run: str | None = None, *, json: bool = False, place: Place = HERE) -> int:
    """Lists the signed rewards of a run.

    Args:
        run: Its id. Default: the newest.
        json: Print JSON.
    """
    from ropewalk.app.reporting import loaded_run
    from ropewalk.rollout.summary import distinct

    with custody(place) as kept:
        chosen = chosen_run(kept.journal, run)
        loaded = loaded_run(kept, chosen, elsewhere=False)
    rewards = [result.reward for result in loaded.episodes if result.reward]
    if json:
        print_json(rewards)
        return 0
    names = distinct({id: task.name for id, task in loaded.tasks.items()})
    print_table(
        ("reward", ">value", "cause", "policy", "termination", "episode", "task"),
        (
            (
                r.id,
                "unscored" if r.value is None else f"{r.value:g}",
                r.cause,
                r.policy,
                r.termination,
                r.episode,
                names[r.task],
            )
            for r in rewards
        ),
        empty=f"{chosen} has no signed reward yet. Next: ropewalk run --resume {chosen}",
    )
    return 0


@command(app, "receipt", examples=["ropewalk reward receipt reward:01JDY… --anchor /mnt/usb --out receipt.json"])
def receipt(
    reward: str, *, out: Path | None = None, anchor: Path | None = None, json: bool = False, place: Place = HERE
) -> int:
    """Writes one reward's signed statement with the proof that it is in the log. `ropewalk verify FILE` checks it
    anywhere, with nothing but the pinned keys and an outside checkpoint.

    Args:
        reward: Its id.
        out: A file. Default: standard output.
        anchor: Folder whose checkpoint the proof is to lead to, as `ropewalk provenance anchor` writes it. Whoever has
            this checkpoint can tell that the log was not rewritten since. Default: the log's checkpoint as of now.
        json: With --out: print what was written as JSON.
    """
    from ropewalk.app.custody import anchors_from
    from ropewalk.core.records import digest_bytes
    from ropewalk.machinery.files import write_out

    outside = anchors_from(anchor).checkpoint if anchor else None
    with custody(place) as kept:
        data = kept.receipt(named(reward, "reward", kept.journal.beginning), outside=outside)
    if out is None:
        print(data.decode())
    else:
        write_out(out, data)
        if json:
            print_json({"file": str(out), "sha256": digest_bytes(data), "bytes": len(data)})
            return 0
        say(f"{out}: {len(data)} bytes. Next: {program()} verify {out} --anchor {anchor or 'DIR'}")
    return 0
