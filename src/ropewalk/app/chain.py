"""A trace as a tree that people can read: from a reward down to the raw files and their licences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ropewalk.provenance.statement import Activity
from ropewalk.provenance.trace import Trace, TracedStatement, TraceNode

_SHOWN: Final[dict[str, tuple[str, ...]]] = {
    "ingest": ("name", "source"),
    "commit": ("message",),
    "admit": ("name", "kind"),
    "snapshot": ("driver",),
    "episode": ("policy", "steps", "termination"),
    "verdict": ("status", "score", "cause", "level"),
    "reward": ("value", "cause", "policy"),
}
"""Facts worth a place in the tree, by activity."""
_ORDER: Final = ("verdict", "episode", "bundle", "snapshot", "task", "commit", "raw")
_FOLDED: Final = frozenset({"commit", "bundle"})
"""Not unfolded below others: a commit holds the whole lake, a bundle comes from the episode beside it."""
_FIXED: Final = {
    "grader": "how it is judged",
    "oracle": "the right answer, in custody",
    "image": "what its sandboxes start from",
    "wheel": "a requirement",
    "plan": "of the run",
}
"""What things are that no statement makes."""
FIXED: Final = "fixed by digest"
LINE_MAX: Final = 150


def chain_lines(trace: Trace) -> list[str]:
    """The whole chain, one line per thing, then its sources, then what is missing."""
    nodes = {node.sha256: node for node in trace.nodes}
    lines = list(_tree(nodes, trace.subject, set(), "", ""))
    lines += ["", "Sources:"]
    lines += [line for node in sources_of(trace) for line in source_lines(node)] or ["  none"]
    statements = {statement.digest for node in trace.nodes for statement in node.made_by}
    signers = {statement.signed_by for node in trace.nodes for statement in node.made_by}
    lines += ["", f"{len(statements)} statements, every signature checked; signed by {', '.join(sorted(signers))}."]
    if any(not node.made_by for node in trace.nodes):
        lines.append(f"What is {FIXED} has no statement of its own: the one that names it holds its sha256.")
    lines.append("The chain is complete." if trace.complete else "The chain is not complete:")
    lines += [f"  {problem}" for problem in trace.problems]
    return lines


def sources_of(trace: Trace) -> tuple[TraceNode, ...]:
    """The raw files that the thing was made from.

    A commit holds the whole lake, so what is reached through commits alone is left out, unless that is all there is.
    """
    nodes = {node.sha256: node for node in trace.nodes}
    reached, waiting = {trace.subject}, [trace.subject]
    while waiting:
        node = nodes.get(waiting.pop())
        if node is None or (node.kind == "commit" and node.sha256 != trace.subject):
            continue
        fresh = [each for each in node.inputs if each not in reached]
        reached.update(fresh)
        waiting += fresh
    own = tuple(node for node in trace.sources if node.sha256 in reached)
    return own or trace.sources


def source_lines(node: TraceNode) -> Iterator[str]:
    """A raw file: what it is, under which licence, and who vouches for it."""
    facts = node.made_by[-1].facts if node.made_by else {}
    licence: dict[str, Any] = facts.get("licence") or {}
    attestation: dict[str, Any] = facts.get("attestation") or {}
    yield f"  {node.name}  {facts.get('name', '')}  sha256 {node.sha256}"
    yield f"    from {facts.get('source', 'unknown')}, retrieved {node.made_by[0].ended if node.made_by else 'never'}"
    if licence:
        yield f"    licence {licence.get('expression')} ({licence.get('basis')}: {licence.get('stated')!r})"
    earlier = [(made.facts.get("licence") or {}).get("expression") for made in node.made_by[:-1]]
    if others := [each for each in dict.fromkeys(earlier) if each and each != licence.get("expression")]:
        yield f"    it entered before as {', '.join(others)}"
    if attestation:
        yield f"    {attestation.get('claim')}, attested by {attestation.get('who')}"
    yield f"    to look into it: ropewalk lake cp {node.name} ."


def _tree(nodes: dict[str, TraceNode], sha256: str, seen: set[str], lead: str, branch: str) -> Iterator[str]:
    """Depth first; a thing that was shown already is named, but not unfolded again."""
    node = nodes.get(sha256)
    if node is None:
        return
    repeated = sha256 in seen and bool(node.inputs)
    note = "  (see above)" if repeated else ""
    if branch and node.kind == "commit":
        note = f"  (a lake of {len(node.inputs)} file{'' if len(node.inputs) == 1 else 's'})"
    yield _cut(f"{lead}{branch}{_line(node)}{note}")
    if repeated or (branch and node.kind in _FOLDED):
        return
    seen.add(sha256)
    below = lead + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
    children = sorted((each for each in node.inputs if each in nodes), key=lambda each: _rank(nodes[each]))
    # Older statements name the commit among what a task was made from.
    for commit in (each for each in _commits(node) if each not in node.inputs):
        yield f"{below}{'├─ ' if children else '└─ '}commit:{commit[:32]}  (the lake as it was)"
    for place, child in enumerate(children):
        yield from _tree(nodes, child, seen, below, "└─ " if place == len(children) - 1 else "├─ ")


def _commits(node: TraceNode) -> list[str]:
    """The commits that a task's files were read from."""
    named = (made.facts.get("commit") for made in node.made_by if made.activity is Activity.ADMIT)
    return list(dict.fromkeys(commit for commit in named if isinstance(commit, str)))


def _line(node: TraceNode) -> str:
    if not node.made_by:
        return ", ".join((f"{node.name}  {_FIXED[node.kind]}" if node.kind in _FIXED else f"{node.name} ", FIXED))
    made = node.made_by[0]
    if node.kind == "bundle":
        return f"{node.name}  handed in"
    facts = _derived(node, made) if made.activity is Activity.DERIVE else _facts(made)
    return f"{node.name}  {facts}  [{made.activity} #{made.index}, {made.ended[:19]}Z]"


def _derived(node: TraceNode, made: TracedStatement) -> str:
    """Which of a task's layers it is. Older statements do not say; of them only what both were made from is known."""
    facts = made.facts
    source, tests, operator = facts.get("source"), facts.get("tests"), facts.get("operator")
    if source == "wheels":
        return "requirements, unpacked"
    layers = facts.get("layers")
    role = (
        next((role for role, sha256 in layers.items() if sha256 == node.sha256), "") if isinstance(layers, dict) else ""
    )
    mistake = f", with the mistake {operator}" if operator else ""
    if role == "tests":
        return f"visible tests of {tests}"
    return f"source of {source}{mistake}" if role == "source" else f"source of {source}{mistake}, or its tests"


def _facts(made: TracedStatement) -> str:
    shown = []
    for name in _SHOWN.get(str(made.activity), ()):
        value = made.facts.get(name)
        if isinstance(value, str | int | float | bool) or (value is None and name in ("value", "score")):
            shown.append(str("unscored" if value is None else value))
    return ", ".join(text for text in shown if text)


def _rank(node: TraceNode) -> tuple[int, str]:
    return (_ORDER.index(node.kind) if node.kind in _ORDER else len(_ORDER), node.name)


def _cut(line: str) -> str:
    return line if len(line) <= LINE_MAX else line[: LINE_MAX - 1] + "…"
