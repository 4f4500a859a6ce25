"""The table of commands: all that the top level needs to know, so that its help loads nothing else."""

from __future__ import annotations

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """One top-level command. Its module `ropewalk.cli.MODULE` holds a cyclopts `app` of the same name."""

    name: str
    module: str
    line: str


START = (
    CommandEntry("demo", "demo", "The main job end to end: sources to signed rewards, their trace and their cost"),
    CommandEntry("doctor", "doctor", "What this machine can do, and how to get the rest"),
)
EVERYDAY = (
    CommandEntry("run", "run", "Run a plan, or a package of your own: tasks × forks × policies, graded and signed"),
    CommandEntry("report", "report", "A run's report: table here, charts in one HTML file"),
    CommandEntry("trace", "trace", "From a reward back to the raw files and their licences"),
    CommandEntry("verify", "verify", "Check every signature, digest and the log of a run"),
    CommandEntry(
        "diagnose", "diagnose", "Why the reward is flat: groups without advantage, truncations, time per stage"
    ),
    CommandEntry("export", "export", "A run's trajectories and rewards for a trainer"),
    CommandEntry("cost", "cost", "What a run's sandboxes and rollouts cost, and how that follows from the price file"),
)
NOUNS = (
    CommandEntry("sandbox", "sandbox", "Create, use, snapshot, fork and end sandboxes"),
    CommandEntry("snapshot", "snapshot", "Saved states of sandboxes: list, remove"),
    CommandEntry("image", "image", "Images that sandboxes start from"),
    CommandEntry("lake", "lake", "The raw zone and its commits"),
    CommandEntry("task", "task", "Build tasks from releases, list and show them"),
    CommandEntry("episode", "episode", "Show, diff, replay an episode; attach to its sandbox at any step"),
    CommandEntry("reward", "reward", "Rewards of a run"),
    CommandEntry("catalogue", "catalogue", "Which tasks to keep, watch, retire or repair"),
    CommandEntry("provenance", "provenance", "What a source touched; checkpoints of the log"),
    CommandEntry("keys", "keys", "Signing keys: make, export to pin, rotate, revoke"),
    CommandEntry("bench", "bench", "Measure every promise beside its peer"),
)
GROUPS = (("Start here", START), ("Everyday", EVERYDAY), ("Nouns", NOUNS))
EXAMPLES = (
    ("ropewalk demo", "the whole job on real packages"),
    ("ropewalk run --source ./mypackage --policies noop,oracle", "tasks from a package of your own"),
    ("ropewalk COMMAND --help", "options and examples of one command"),
)


def entries() -> tuple[CommandEntry, ...]:
    """All top-level commands, in the order of the help."""
    return tuple(entry for _, group in GROUPS for entry in group)


def top_help() -> str:
    """The text of `ropewalk --help`."""
    lines = [
        "Ropewalk: RL environments with signed rewards that trace back to their raw data.",
        "",
        "Usage: ropewalk COMMAND [ARGUMENTS]",
    ]
    for title, group in GROUPS:
        lines += ["", f"{title}:"]
        lines += [f"  {entry.name:<12}{entry.line}" for entry in group]
    lines += ["", "Examples:"]
    lines += [f"  {command:<58}# {why}" for command, why in EXAMPLES]
    lines += [
        "",
        "Every command takes --state DIR and --profile NAME|FILE. Exit codes: 0 ok, 2 usage, 3 tainted,",
        "4 incomplete, 5 integrity, 6 denied, 7 unavailable, 130 interrupted.",
    ]
    return "\n".join(lines)
