"""A run on the terminal: its events as progress, its summary and its findings as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ropewalk.cli.board import Board
from ropewalk.cli.output import counted, print_table, say
from ropewalk.core.limits import MIB
from ropewalk.rollout import events
from ropewalk.rollout.findings import Finding
from ropewalk.rollout.summary import Interval, RunSummary, distinct

if TYPE_CHECKING:
    from ropewalk.orchestration.cost import Cost

STYLES = {"serious": "bold red", "warning": "yellow", "note": "dim"}


class RunWatch:
    """Draws a run's events on a board. `observe` is the run's observer."""

    def __init__(self, board: Board) -> None:
        self.run = ""
        self._board = board
        self._names: dict[str, str] = {}
        self._episodes: dict[str, tuple[str, str, int]] = {}
        self._paid = self._unscored = self._sealed = 0
        self._running = False

    def observe(self, event: events.Event) -> None:
        """Takes one event."""
        self.run = event.run
        match event:
            case events.RunStarted():
                self._started(event)
            case events.TaskPrepared():
                self._names.setdefault(event.task, event.name)
                self._board.note(f"ready to fork: {self._names[event.task]} ({event.duration_s:.1f} s)")
            case events.TaskRefused():
                self._names.setdefault(event.task, event.name)
                self._board.note(f"refused: {event.name}: {event.cause} {event.detail}")
            case events.EpisodeStarted():
                self._episodes[event.episode] = (event.task, event.policy, event.index)
            case events.EpisodeStepped():
                self._board.note(f"{self._label(event.episode)} step {event.step}: {event.note}")
            case events.AttemptFailed():
                self._board.note(f"{self._label(event.episode)} {_failure(event)}")
            case events.RewardSealed():
                self._reward(event)
            case events.GroupClosed() if not event.complete:
                self._board.note(f"group refused: {self._names.get(event.task, event.task)}: {event.cause}")
            case events.RunEnded():
                self._board.end(f"{event.state}: {self._counts()}")
            case _:
                pass

    def _started(self, event: events.RunStarted) -> None:
        self._names.update(event.names)
        policies = ", ".join(event.policies)
        resumed = f", {event.episodes_sealed} from before" if event.episodes_sealed else ""
        self._board.begin(f"Run {counted(event.tasks, 'task')} × {policies}{resumed}", total=event.episodes_total)
        self._board.advance(by=event.episodes_sealed)
        self._running = True

    def _reward(self, event: events.RewardSealed) -> None:
        self._sealed += 1
        self._paid += (event.value or 0) > 0
        self._unscored += event.value is None
        value = "unscored" if event.value is None else f"{event.value:g}"
        self._board.advance(f"{self._label(event.episode)} reward {value}: {event.cause}")
        self._board.detail(self._counts())

    def _counts(self) -> str:
        unscored = f", {self._unscored} unscored" if self._unscored else ""
        return f"{self._sealed} rewards signed, {self._paid} paid{unscored}"

    def _label(self, episode: str) -> str:
        task, policy, index = self._episodes.get(episode, ("", "", 0))
        return f"{self._names.get(task, task)} {policy} #{index}"


def _failure(event: events.AttemptFailed) -> str:
    if event.stage == "grade":
        return f"its grading failed ({event.cause}), {'is graded anew' if event.again else 'is not scored'}"
    whose = "the endpoint failed" if event.cause.startswith("endpoint_") else "lost on our side"
    return f"{whose} ({event.cause}), {'begins anew' if event.again else 'is not scored'}"


def print_summary(summary: RunSummary) -> None:
    """The run as a table: one line per task and policy, then one per policy."""
    names = distinct({row.task: row.task_name for row in summary.rows})
    print_table(
        ("task", "policy", ">passed", "95%", ">steps", "ended", ">sandbox s", ">CPU s", "note"),
        (
            (
                names[row.task],
                row.policy,
                f"{row.passes.passed}/{row.passes.n}",
                span(row.passes),
                f"{row.steps_mean:.1f}",
                ", ".join(f"{name} {count}" for name, count in row.terminations.items()),
                f"{row.usage.get('sandbox_s', 0.0):.1f}",
                f"{row.usage.get('cpu_s', 0.0):.1f}",
                row.refusal or (f"{row.unscored} unscored" if row.unscored else ""),
            )
            for row in summary.rows
        ),
        empty="No episode has a reward yet.",
    )
    say()
    print_table(
        ("policy", ">episodes", ">passed", "95%", ">steps", ">unscored"),
        (
            (
                row.policy,
                row.episodes,
                f"{row.passes.passed}/{row.passes.n}",
                span(row.passes),
                f"{row.steps_mean:.1f}",
                row.unscored,
            )
            for row in summary.policies
        ),
        empty="",
    )


def print_where(summary: RunSummary) -> None:
    """Where the time went, and how much of the machine was used."""
    spent = sorted(((s, name) for name, s in summary.time_s.items() if s >= 0.05), reverse=True)
    usage = summary.usage
    say(f"Time     {', '.join(f'{name} {seconds:.1f} s' for seconds, name in spent) or 'none'}")
    say(f"Used     {usage.get('sandbox_s', 0.0):.1f} sandbox-seconds, {usage.get('cpu_s', 0.0):.1f} CPU-seconds")
    kinds = (("memory_bytes_peak", "peak"), ("memory_bytes_unique", "unique"))
    known = [f"{name} {usage[key] / MIB:.1f} MiB" for key, name in kinds if usage.get(key)]
    say(f"Memory   {', '.join(known) + ' of one sandbox' if known else 'not measurable on this machine'}")


def print_cost(cost: Cost) -> None:
    """What it cost, in one line."""
    from ropewalk.app.costs import usd

    rollout = f", {usd(cost.usd_rollout)} per rollout" if cost.usd_rollout is not None else ""
    say(f"Cost     {usd(cost.usd_sandbox_h)} per sandbox-hour{rollout}{beside(cost)} (`ropewalk cost`)")


def beside(cost: Cost) -> str:
    """List prices of others and the goal, each said to be what it is."""
    from ropewalk.app.costs import GOAL, usd

    listed = " and ".join(
        f"{anchor.name} lists {usd(anchor.usd_sandbox_h)}" for anchor in cost.anchors if anchor.name != GOAL
    )
    goals = [usd(anchor.usd_sandbox_h) for anchor in cost.anchors if anchor.name == GOAL]
    return (f"; {listed}" if listed else "") + (f"; goal {goals[0]}" if goals else "")


def print_catalogue(summary: RunSummary) -> None:
    """What to do with each task."""
    names = distinct({call.task: call.task_name for call in summary.catalogue})
    print_table(
        ("task", "call", "why"),
        ((names[call.task], call.call, call.reason) for call in summary.catalogue),
        empty="The catalogue has no task yet.",
    )


def state_line(summary: RunSummary) -> str:
    """The run and its state; of one that is not through, what is missing and how to go on."""
    if summary.state != "open":
        return f"Run      {summary.run}  ({summary.state})"
    signed = sum(1 for line in summary.episodes if line.reward)
    return (
        f"Run      {summary.run}  (open: {signed} of {len(summary.episodes)} rewards are signed; "
        f"next: ropewalk run --resume {summary.run})"
    )


SUBJECTS_SHOWN = 4
"""Of what one finding speaks of."""


def print_findings(findings: Iterable[Finding], *, full: bool = False, everything: str = "") -> None:
    """What diagnosis found, with what to do about it.

    Args:
        full: name everything that a finding speaks of, one a line.
        everything: the command that does so, where this one does not.
    """
    for finding in findings:
        say(f"{finding.severity}: {finding.title}", style=STYLES.get(str(finding.severity), ""))
        if finding.next_step:
            say(f"  next: {finding.next_step}", style="dim")
        if finding.subjects:
            shown = ("\n      " if full else ", ").join(finding.subjects[: None if full else SUBJECTS_SHOWN])
            more = 0 if full else len(finding.subjects) - SUBJECTS_SHOWN
            where = f" ({everything})" if everything else ""
            say(f"  in: {shown}{f' and {more} more{where}' if more > 0 else ''}", style="dim")


def span(interval: Interval) -> str:
    """The interval as `15%–85%`; a dash where nothing was scored."""
    return "–" if interval.rate is None else f"{interval.low:.0%}–{interval.high:.0%}"
