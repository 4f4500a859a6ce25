"""`ropewalk trace`: from a reward back to the raw files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.cli.apps import HERE, Place, verb
from ropewalk.cli.exit_codes import EXIT_INCOMPLETE
from ropewalk.cli.opening import custody, named
from ropewalk.cli.output import print_json, say
from ropewalk.core.errors import CallerError

if TYPE_CHECKING:
    from ropewalk.app.custody import Custody

app = verb("trace", examples=["ropewalk trace reward:01JDY…", "ropewalk trace task:0123… --json"])


def _whole(kept: Custody, subject: str) -> str:
    """The name of what is meant: a reward where no kind is said; the beginning of an id may do."""
    from ropewalk.app.task_store import TaskStore

    name = subject if ":" in subject or len(subject) == 64 else f"reward:{subject}"
    kind = name.partition(":")[0]
    if kind in ("reward", "episode") and len(kept.journal.beginning(name)) > 0:
        return named(name, kind, kept.journal.beginning)
    return TaskStore(kept.layout).get(name).id if kind == "task" and len(name) < len("task:") + 32 else name


@app.default
def trace(subject: str, *, json: bool = False, place: Place = HERE) -> int:
    """Shows the whole chain behind a reward, back to the raw files and their licences.

    Every statement of the chain is read from the log and its signatures are checked. Exits with 4 where the chain
    does not reach raw files, with 5 where a statement was tampered with.

    Args:
        subject: A reward's id; or that of a verdict, an episode, a task, a commit; or a sha256. Of a reward, an
            episode and a task its beginning is enough.
        json: Print JSON.
    """
    from ropewalk.app.chain import chain_lines, sources_of

    if subject.startswith("run:"):
        raise CallerError(
            f"{subject[:80]} is a run, and a trace is of one of its rewards.",
            next_step=f"`ropewalk reward ls {subject[:80]}` lists them.",
        )
    with custody(place) as kept:
        found = kept.trace(_whole(kept, subject))
    if json:
        print_json({"complete": found.complete, "sources": list(sources_of(found)), "trace": found})
    else:
        for line in chain_lines(found):
            say(line)
    return 0 if found.complete else EXIT_INCOMPLETE
