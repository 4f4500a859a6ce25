"""Measured values beside their promises: kept in the specification itself, shown as a page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from ropewalk.benchmarks.promises import Measurement, Promise, Recorded, promises
from ropewalk.core.errors import CallerError

_BLOCK = re.compile(r"(?m)^\[\[promise\]\]$")
_ID = re.compile(r'(?m)^id = "([^"]+)"$')
_MEASURED = re.compile(r"(?m)^measured = .*\n")


def record(text: str, found: Sequence[Measurement], *, on: str, machine: str) -> str:
    """A specification with what was measured now; values of other promises, and all comments, stay as they are.

    Args:
        text: Of `specification.toml`.
        found: Measurements; one without a value takes nothing away.
        on: Date, ISO 8601.
        machine: What it was measured on, in a few words.

    Raises:
        CallerError: a measured promise is not in this specification.
    """
    values = {each.promise: each for each in found if each.value is not None}
    head, *blocks = _BLOCK.split(text)
    known = [match[1] for block in blocks if (match := _ID.search(block))]
    if unknown := sorted(values.keys() - set(known)):
        raise CallerError(
            f"The specification has no promise {', '.join(unknown)}.", next_step="record into the one of this version."
        )
    told = [
        _with_line(block, _line(values[id], on=on, machine=machine)) if id in values else block
        for id, block in zip(known, blocks, strict=True)
    ]
    return "[[promise]]".join((head, *told))


def _with_line(block: str, line: str) -> str:
    bare = _MEASURED.sub("", block)
    # Comments at the end of a block speak of the next one.
    end = max(match.end() for match in re.finditer(r"(?m)^[a-z_]+ = .*\n", bare))
    return bare[:end] + line + bare[end:]


def _line(each: Measurement, *, on: str, machine: str) -> str:
    peers = ", ".join(f"{_quoted(name)} = {value:g}" for name, value in each.peers.items() if value is not None)
    fields = [f"value = {each.value:.10g}"]
    fields += [f"peers = {{ {peers} }}"] if peers else []
    fields += [f"note = {_quoted(each.note)}"] if each.note else []
    fields += [f"on = {_quoted(on)}", f"machine = {_quoted(machine)}"]
    return f"measured = {{ {', '.join(fields)} }}\n"


def _quoted(text: str) -> str:
    """A basic string of TOML is one of JSON, but for escaped surrogates, and the delete character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def page(text: str) -> str:
    """Markdown: every promise of a specification beside what was measured."""
    return "\n".join(_page(promises(text))) + "\n"


def _page(all_promises: Sequence[Promise]) -> Iterator[str]:
    yield "# Measured"
    yield ""
    yield "What `ropewalk bench` gave, promise by promise, on the machines and days below. Made from"
    yield "`src/ropewalk/benchmarks/specification.toml`, which holds the promises' texts and these values:"
    yield "`ropewalk bench --record src/ropewalk/benchmarks/specification.toml --page docs/reference/measured.md`."
    yield ""
    yield "| promise | measured | goal | kept | peers in the same run | note | run |"
    yield "|---|---|---|---|---|---|---|"
    runs: dict[tuple[str, str], int] = {}
    for promise in all_promises:
        goal = f"{_sign(promise)}{promise.goal:g} {promise.unit}"
        was = promise.measured
        if was is None:
            yield f"| {promise.id} | not yet | {goal} | unknown | | | |"
            continue
        run = runs.setdefault((was.on, was.machine), len(runs) + 1)
        kept = "yes" if promise.is_kept(was.value) else "**no**"
        yield (
            f"| {promise.id} | {was.value:g} {promise.unit} | {goal} | {kept} | {_peers(was)} "
            f"| {was.note.replace('|', '/')} | {run} |"
        )
    yield ""
    yield from (f"{number}. {on}: {machine}" for (on, machine), number in runs.items())


def _sign(promise: Promise) -> str:
    return {"<=": "≤ ", ">=": "≥ ", "==": ""}[promise.comparison]


def _peers(was: Recorded) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in was.peers.items())
