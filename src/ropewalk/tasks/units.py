"""Which killers belong together: one task per coherent unit of a change.

A release changes many things at once. Its killers are grouped by what their authors grouped (a test class), else by
the changed function they reach, else by their test module. What remains are single bodies: they become tasks only
where the oracle can make further cases (`tasks.cases`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ropewalk.core.records import Record
from ropewalk.tasks.bodies import BodyKeys, functions, without_parameters

_BODIES_MAX = 12
"""Of one unit; what is larger is cut into parts, so that a task stays one piece of work."""


class Unit(Record):
    """Killers that judge one coherent change."""

    name: str
    """For people: a test class, a function, or a test module's name."""
    killers: tuple[str, ...]
    """Test ids, sorted."""
    symbols: tuple[str, ...]
    """Names of changed functions that they reach, the most specific first."""
    level: str
    """`class`, `symbol`, `module` or `single`."""


class Changed(Record):
    """Functions that differ between two states of a package: `path::dotted name`."""

    changed: tuple[str, ...]
    """In both, with different bodies."""
    added: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def after(self) -> frozenset[str]:
        """Those that exist in the later state."""
        return frozenset((*self.changed, *self.added))


def changed_functions(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Changed:
    """What differs between two sets of Python files, function by function."""
    changed, added, removed = [], [], []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path):
            continue
        old, new = functions(before.get(path, b"")), functions(after.get(path, b""))
        for name in sorted(old.keys() | new.keys()):
            place = f"{path}::{name}"
            if name not in old:
                added.append(place)
            elif name not in new:
                removed.append(place)
            elif old[name].digest != new[name].digest:
                changed.append(place)
    return Changed(changed=tuple(changed), added=tuple(added), removed=tuple(removed))


def make_units(
    killers: Iterable[str], bodies: BodyKeys, reached: Mapping[str, Iterable[str]], changed: Changed
) -> tuple[Unit, ...]:
    """Groups killers; every killer is in one unit at most.

    Args:
        killers: test ids.
        bodies: tells which of them share a body.
        reached: test id → functions it calls on the later source, as `path::dotted name`.
        changed: what the release changed.
    """
    rest = sorted(set(killers))
    crowd = _crowd(rest, reached, changed)
    found: list[Unit] = []
    for level in ("class", "symbol", "module", "single"):
        groups: dict[str, list[str]] = {}
        for killer in rest:
            groups.setdefault(_key(level, killer, crowd), []).append(killer)
        taken: set[str] = set()
        for key, members in sorted(groups.items()):
            if level != "single" and (not key or len({bodies.key(member) for member in members}) < 2):
                continue
            taken.update(members)
            for number, part in enumerate(parts := _parts(members, bodies), start=1):
                name = _name(level, key) + (f" {number}/{len(parts)}" if len(parts) > 1 else "")
                symbols = tuple(dict.fromkeys(symbol for member in part for symbol in crowd.get(member, ())))
                found.append(Unit(name=name, killers=tuple(part), symbols=symbols, level=level))
        rest = [killer for killer in rest if killer not in taken]
    return tuple(found)


def short_name(symbol: str) -> str:
    """The name that people use: `pkg/mod.py::Class.method` → `method`, of an initialiser the class's."""
    parts = symbol.partition("::")[2].split(".")
    own = parts[-1]
    return parts[-2] if own.startswith("__") and len(parts) > 1 else own


def _crowd(killers: list[str], reached: Mapping[str, Iterable[str]], changed: Changed) -> dict[str, list[str]]:
    """For each killer the changed functions it reaches, those that few other killers reach first."""
    touched = {killer: sorted(changed.after.intersection(reached.get(killer, ()))) for killer in killers}
    counts: dict[str, int] = {}
    for symbols in touched.values():
        for symbol in symbols:
            counts[symbol] = counts.get(symbol, 0) + 1
    return {killer: sorted(symbols, key=lambda symbol: (counts[symbol], symbol)) for killer, symbols in touched.items()}


def _key(level: str, killer: str, crowd: Mapping[str, list[str]]) -> str:
    path, *names = without_parameters(killer).split("::")
    if level == "class":
        return "::".join([path, *names[:-1]]) if len(names) > 1 else ""
    if level == "symbol":
        return f"{path}\n{crowd[killer][0]}" if crowd.get(killer) else ""
    return path if level == "module" else without_parameters(killer)


def _name(level: str, key: str) -> str:
    if level == "symbol":
        return short_name(key.partition("\n")[2])
    return key.rpartition("::")[2] if "::" in key else key.rpartition("/")[2].removesuffix(".py")


def _parts(members: list[str], bodies: BodyKeys) -> list[list[str]]:
    """Members cut into parts of at most so many bodies, equal bodies together."""
    groups: dict[str, list[str]] = {}
    for member in members:
        groups.setdefault(bodies.key(member), []).append(member)
    ordered = list(groups.values())
    count = -(-len(ordered) // _BODIES_MAX)
    size = -(-len(ordered) // count)
    chunks = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return [sorted(member for group in chunk for member in group) for chunk in chunks]
