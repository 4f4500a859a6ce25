"""Who made what out of what: the questions that `trace`, `taint` and `verify` ask, and an answer in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from ropewalk.core.errors import CallerError
from ropewalk.provenance.intoto import Statement, kind_of

_END: Final = 1 << 62
"""Behind every entry."""
MADE_KINDS: Final = frozenset({"raw", "commit", "task", "snapshot", "episode", "trajectory", "verdict", "reward"})
"""Kinds of things that a chain must explain: used without a statement that made them, the chain is incomplete.
Specifications and settings (graders, images, policies) may be inputs without a maker."""
REBUILD: Final = (
    "verify the log against an outside checkpoint (`ropewalk verify --anchor`); only if it is right, "
    "make the index anew with `ropewalk provenance index`."
)
"""What to do where index and log disagree."""


def unknown(name: str) -> CallerError:
    """For a name that no statement's subject has."""
    return CallerError(
        f"No statement made anything named {name!r}.", next_step="`ropewalk reward ls RUN` lists the rewards of a run."
    )


class Lineage(Protocol):
    """A graph of statements, each known by its index in the log.

    Equal bytes may be made several times: a layer of the same source, out of another file. What was stated after a use
    led to nothing there, so a chain never grows once its last statement is in the log.
    """

    def ancestors(self, sha256: str) -> tuple[int, ...]:
        """All statements that led to a thing, those that made it included, in log order."""
        ...

    def descendants(self, sha256: str) -> tuple[int, ...]:
        """All statements that used a thing, or something that had been made from it by then, in log order."""
        ...


class MemoryLineage:
    """A lineage in dictionaries, out of statements that are at hand."""

    def __init__(self, statements: Mapping[int, Statement]) -> None:
        self._statements = statements
        self.makers: dict[str, list[int]] = {}
        """sha256 → statements whose subject it is, in log order."""
        self.users: dict[str, list[int]] = {}
        """sha256 → statements whose input it is."""
        for index in sorted(statements):
            for link in statements[index].subjects:
                self.makers.setdefault(link.sha256, []).append(index)
            for link in statements[index].inputs:
                self.users.setdefault(link.sha256, []).append(index)

    def find(self, name: str) -> str:
        """The sha256 of the thing of that name, as its latest statement has it.

        Raises:
            CallerError: no statement made such a thing.
        """
        for index in sorted(self._statements, reverse=True):
            for link in self._statements[index].subjects:
                if link.name == name:
                    return link.sha256
        raise unknown(name)

    def ancestors(self, sha256: str) -> tuple[int, ...]:
        """See `Lineage.ancestors`."""
        found: list[int] = []
        used_at = {sha256: _END}
        for index in sorted(self._statements, reverse=True):
            statement = self._statements[index]
            if any(used_at.get(link.sha256, -1) > index for link in statement.subjects):
                found.append(index)
                for link in statement.inputs:
                    used_at.setdefault(link.sha256, index)  # the last use is the one that is met first
        return tuple(reversed(found))

    def descendants(self, sha256: str) -> tuple[int, ...]:
        """See `Lineage.descendants`."""
        found: list[int] = []
        made_at = {sha256: -1}
        for index in sorted(self._statements):
            statement = self._statements[index]
            if any(made_at.get(link.sha256, _END) < index for link in statement.inputs):
                found.append(index)
                for link in statement.subjects:
                    made_at.setdefault(link.sha256, index)
        return tuple(found)


def gaps(
    index: int, statement: Statement, makers: Mapping[str, list[int]], subjects: Mapping[int, Statement]
) -> list[str]:
    """What is wrong with a statement's inputs, in words: not made by anybody, made later, or another kind of thing.

    Args:
        index: the statement's.
        statement: whose inputs are looked at.
        makers: sha256 → statements that made it.
        subjects: index → statement, for all makers.
    """
    problems = []
    for link in statement.inputs:
        made_by = makers.get(link.sha256, [])
        if not made_by:
            if kind_of(link) in MADE_KINDS:
                problems.append(f"no statement says how {link.name} ({link.sha256[:12]}) was made")
            continue
        kinds = {kind_of(s) for i in made_by for s in subjects[i].subjects if s.sha256 == link.sha256}
        if kind_of(link) not in kinds:
            problems.append(f"{link.name} was made as {', '.join(sorted(kinds))}, and is used as {kind_of(link)}")
        elif min(made_by) >= index:
            problems.append(f"{link.name} was recorded only after it was used")
    return problems
