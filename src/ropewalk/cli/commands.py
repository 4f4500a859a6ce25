"""The table of commands: all that the top level needs to know, so that its help loads nothing else."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One top-level command. Its module `ropewalk.cli.MODULE` holds a cyclopts `app` of the same name."""

    name: str
    module: str
    line: str


START = (
    Entry("demo", "demo", "The main job end to end: sources to signed rewards, their trace and their cost"),
    Entry("doctor", "doctor", "What this machine can do, driver by driver, and how to get the rest"),
)
EVERYDAY = (
    Entry("run", "run", "Run a plan, or a package of your own: tasks × forks × policies, graded and signed"),
    Entry("report", "report", "A run's report: table here, charts in one HTML file"),
    Entry("trace", "trace", "From a reward back to the raw files and their licences"),
    Entry("verify", "verify", "Check every signature, digest and the log of a run"),
    Entry("diagnose", "diagnose", "Why the reward is flat: groups without advantage, truncations, time per stage"),
    Entry("export", "export", "A run's trajectories and rewards for a trainer"),
    Entry("cost", "cost", "What a run's sandboxes and rollouts cost, and how that follows from the price file"),
)
NOUNS = (
    Entry("sandbox", "sandbox", "Create, use, snapshot, fork and end sandboxes"),
    Entry("snapshot", "snapshot", "Saved states of sandboxes: list, remove"),
    Entry("image", "image", "Images that sandboxes start from"),
    Entry("lake", "lake", "The raw zone and its commits"),
    Entry("task", "task", "Build tasks from releases, list and show them"),
    Entry("episode", "episode", "Show, diff, replay an episode; attach to its sandbox at any step"),
    Entry("reward", "reward", "Rewards of a run"),
    Entry("catalogue", "catalogue", "Which tasks to keep, watch, retire or repair"),
    Entry("provenance", "provenance", "What a source touched; checkpoints of the log"),
    Entry("keys", "keys", "Signing keys: make, export to pin, rotate, revoke"),
    Entry("bench", "bench", "Measure every promise beside its peer"),
)
GROUPS = (("Start here", START), ("Everyday", EVERYDAY), ("Nouns", NOUNS))
EXAMPLES = (
    ("ropewalk demo", "the whole job on real packages"),
    ("ropewalk run --source ./mypackage --policies noop,oracle", "tasks from a package of your own"),
    ("ropewalk COMMAND --help", "options and examples of one command"),
)


def entries() -> tuple[Entry, ...]:
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
