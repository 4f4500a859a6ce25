"""`ropewalk episode`: one episode, step by step, and its sandbox as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ropewalk.cli.apps import HERE, Place, command, noun
from ropewalk.cli.board import Board
from ropewalk.cli.exit_codes import EXIT_INCOMPLETE
from ropewalk.cli.opening import chosen_run, custody, named, opened
from ropewalk.cli.output import counted, print_json, print_table, say

if TYPE_CHECKING:
    from ropewalk.app.episodes import EpisodeOutcome
    from ropewalk.interface.episode import EpisodeRecord, Step
    from ropewalk.interface.task import Task

app = noun("episode", "One episode: messages, tool calls, output and files, step by step; and its sandbox as it was.")

OUTPUT_LINES = 20


@command(app, "ls", examples=["ropewalk episode ls", "ropewalk episode ls run:01JDY… --unpaid"])
def ls(run: str | None = None, *, unpaid: bool = False, json: bool = False, place: Place = HERE) -> int:
    """Lists the episodes of a run.

    Args:
        run: Its id. Default: the newest.
        unpaid: Only those whose reward is 0 or missing.
        json: Print JSON.
    """
    from ropewalk.app.records import task_labels

    with custody(place) as kept:
        run = chosen_run(kept.journal, run)
        kept.journal.run(run)
        rows = [row for row in kept.journal.episodes(run) if not (unpaid and (row.value or 0) > 0)]
        names = {} if json else task_labels(kept.journal, kept.blobs, run)
    if json:
        print_json(rows)
        return 0
    print_table(
        ("episode", "policy", ">#", "state", ">reward", "cause", "task"),
        (
            (
                r.id,
                r.policy,
                r.position,
                r.state,
                "" if r.value is None else f"{r.value:g}",
                r.cause,
                names.get(r.task, r.task),
            )
            for r in rows
        ),
        empty="No such episode.",
    )
    return 0


@command(
    app, "show", examples=["ropewalk episode show episode:01JDY…", "ropewalk episode show episode:01JDY… --full --json"]
)
def show(episode: str, *, full: bool = False, json: bool = False, place: Place = HERE) -> int:
    """Shows its reward and why, then messages, tool calls, their output and the files changed, step by step.

    Args:
        episode: Its id.
        full: Do not cut long output.
        json: Print JSON.
    """
    from ropewalk.app.episodes import load_episode, outcome_of

    with custody(place) as kept:
        record, task = load_episode(kept, named(episode, "episode", kept.journal.beginning))
        outcome = outcome_of(kept, record.id)
    if json:
        named_task = {"id": task.id, "name": task.name, "prompt": task.prompt}
        print_json({"episode": record, "task": named_task, "outcome": outcome})
        return 0
    _head(record, task, outcome)
    for step in record.steps:
        _step(step, full=full)
    return 0


@command(
    app, "diff", examples=["ropewalk episode diff episode:01JDY…", "ropewalk episode diff episode:01JDY… --step 2"]
)
def diff(episode: str, *, step: int | None = None, json: bool = False, place: Place = HERE) -> int:
    """Shows what an episode changed in the declared files, as a unified diff.

    Args:
        episode: Its id.
        step: Only what was changed until after this step.
        json: Print JSON.
    """
    from ropewalk.app.episodes import check_step, diff_lines, files_after, load_episode

    with custody(place) as kept:
        record, task = load_episode(kept, named(episode, "episode", kept.journal.beginning))
        chosen = check_step(record, step)
        lines = diff_lines(kept, record, task, chosen)
    if json:
        print_json(
            {"episode": record.id, "step": chosen, "files": files_after(record, chosen), "diff": "\n".join(lines)}
        )
        return 0
    for line in lines or ["Nothing was changed."]:
        say(line, style={"+": "green", "-": "red", "@": "cyan"}.get(line[:1], ""))
    return 0


@command(app, "replay", examples=["ropewalk episode replay episode:01JDY…"])
async def replay(episode: str, *, json: bool = False, place: Place = HERE) -> int:
    """Plays the recorded calls again in a fresh sandbox and shows where it comes out differently.

    Exits with 4 where an output or a file differs from the record. Times taken (`in 0.06s`) and addresses in memory,
    which never are the same twice, do not count.

    Args:
        episode: Its id.
        json: Print JSON.
    """
    from ropewalk.app.episodes import StepAgain, load_episode, play_again, state_at

    seen: list[StepAgain] = []

    def tell(step: Step, again: StepAgain) -> None:
        seen.append(again)
        if not json:
            calls = ", ".join(call.name for call in step.calls) or "no call"
            say(f"step {again.index}: {calls}: {'same' if again.same else '; '.join(again.differences)}",
                style="" if again.same else "yellow")  # fmt: skip
            for line in again.outputs:
                say(f"    {line}", style="dim")

    async with opened(place) as rw:
        record, task = load_episode(rw.custody, named(episode, "episode", rw.custody.journal.beginning))
        async with state_at(await rw.world(), rw.sandboxes, rw.custody, record, task, step=0) as (sandbox, how):
            if not json:
                say(f"{record.id}: {len(record.steps)} steps; first state: {how}", style="dim")
            same = await play_again(sandbox, rw.custody, record, task, tell)
    if json:
        print_json({"episode": record.id, "same": same, "steps": seen})
    else:
        say("Everything came out the same." if same else "Not everything came out the same.")
    return 0 if same else EXIT_INCOMPLETE


@command(
    app,
    "attach",
    examples=["ropewalk episode attach episode:01JDY… --step 3", "ropewalk episode attach episode:01JDY… -- python3"],
    foreign=True,
)
async def attach(
    episode: str,
    *words: Annotated[str, Parameter(allow_leading_hyphen=True)],
    step: int | None = None,
    place: Place = HERE,
) -> int:
    """Opens a live shell in the sandbox as it was after a step. It is a copy: nothing you do changes the record.

    Run with --keep-failed to have the very state of every step of unpaid episodes; without it, the state is rebuilt
    from the task and the recorded files. A search tries each edit in a fork: the state after a step whose edit was
    dropped is the one before it.

    Args:
        episode: Its id.
        words: Another program than a shell.
        step: After which step; 0 is the beginning. Default: the last.
    """
    from ropewalk.app.episodes import check_step, load_episode, state_at
    from ropewalk.cli.sandbox import result_code
    from ropewalk.sandbox.attach import SHELL
    from ropewalk.sandbox.attach import attach as connect

    with Board(quiet=True):
        async with opened(place) as rw:
            record, task = load_episode(rw.custody, named(episode, "episode", rw.custody.journal.beginning))
            chosen = check_step(record, step)
            world = await rw.world()
            async with state_at(world, rw.sandboxes, rw.custody, record, task, step=chosen) as (sandbox, how):
                _welcome(record, task, chosen, how)
                return result_code(await connect(sandbox, list(words) or SHELL))


def _welcome(record: EpisodeRecord, task: Task, step: int, how: str) -> None:
    import shlex
    import sys

    from ropewalk.app.episodes import dropped_edit

    if dropped_edit(record, step):
        how = f"{how}; step {step} tried an edit in a fork and dropped it: this is the state before it"
    modules = dict.fromkeys(test.partition("::")[0] for test in task.visible_tests)
    tests = shlex.join([*task.test_command, *modules])  # whole, so that it can be pasted
    print(
        f"{record.id} after step {step} of {len(record.steps)} ({how})\n"
        f"source in {task.workdir}; visible tests: {tests}\n"
        "leave with exit or Ctrl-D",
        file=sys.stderr,
    )


def _head(record: EpisodeRecord, task: Task, outcome: EpisodeOutcome) -> None:
    say(record.id, style="bold")
    say(f"task    {task.name}  ({task.id})")
    say(f"policy  {record.policy}, number {record.index} of its group, seed {record.seed}")
    ended = f"{record.termination}{', truncated' if record.truncated else ''}"
    say(f"ended   {ended}{f': {record.detail}' if record.detail else ''}, {record.ended_s - record.started_s:.1f} s")
    for line in outcome_lines(outcome):
        say(line)
    say()
    for line in task.prompt.splitlines()[:OUTPUT_LINES]:
        say(f"  {line}", style="dim")


def outcome_lines(outcome: EpisodeOutcome) -> list[str]:
    """What it was paid, and why; of held-out tests their number alone."""
    reward = outcome.reward
    if reward is None:
        return [f"reward  none yet: {outcome.state}"]
    value = "unscored" if reward.value is None else f"{reward.value:g}"
    lines = [f"reward  {value}: {reward.cause}{f' ({outcome.detail})' if outcome.detail else ''}, {reward.id}"]
    if outcome.held_out:
        failed = f"{outcome.held_out_failed} of {counted(outcome.held_out, 'held-out test')} failed"
        lines.append(f"judged  {failed}")
    return lines


def _step(step: Step, *, full: bool) -> None:
    say()
    say(f"step {step.index}  ({step.duration_s:.2f} s{', state kept' if step.snapshot else ''})", style="bold")
    for message in step.messages:
        if message.content:
            _block(f"{message.role}:", message.content, full=full)
    for place, call in enumerate(step.calls):
        say(
            f"  → {call.name} {', '.join(f'{key}={value!r}' for key, value in call.arguments.items())[:400]}",
            style="cyan",
        )
        if place < len(step.results):
            result = step.results[place]
            code = "" if result.exit_code is None else f"exit code {result.exit_code}"
            _block(f"← {code}", result.output, full=full)
    for path, digest in step.files_changed.items():
        say(f"  {'changed' if digest else 'deleted'} {path}", style="yellow")


def _block(title: str, text: str, *, full: bool) -> None:
    lines = text.splitlines()
    shown = lines if full else lines[:OUTPUT_LINES]
    say(f"  {title}")
    for line in shown:
        say(f"    {line}", style="dim")
    if len(shown) < len(lines):
        say(f"    … {len(lines) - len(shown)} lines more (--full)", style="dim")
