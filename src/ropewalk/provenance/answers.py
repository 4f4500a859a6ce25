"""Traces and taints by name, believed from the log alone.

The lineage index makes a trace quick and is a table that anybody who writes the database can change. So a name must
stand in the signed statement that the index leads to, a chain that the index shows with a gap is made once more from
the whole log, and a taint, where a row that is missing would hide something, is made from the log in the first place.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.provenance.intoto import from_payload
from ropewalk.provenance.lineage import REBUILD, Lineage, MemoryLineage
from ropewalk.provenance.log import Log
from ropewalk.provenance.trace import Taint, Trace, taint, trace
from ropewalk.security.signatures import open_envelope

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class NamedLineage(Lineage, Protocol):
    """A lineage that knows names; `LineageIndex` and `MemoryLineage` are some."""

    def find(self, name: str) -> str:
        """The sha256 of the thing of that name, as its latest statement has it.

        Raises:
            CallerError: no statement made such a thing.
        """
        ...


def whole_lineage(log: Log) -> MemoryLineage:
    """The lineage of all statements, read from the log; some 50 µs each.

    Raises:
        IntegrityError: an entry of the log is no statement.
    """
    statements = {}
    for index, entry in enumerate(log.entries()):
        try:
            statements[index] = from_payload(open_envelope(entry)[1])
        except CallerError as error:
            raise IntegrityError(f"Entry {index} of the log is no statement. {error.message}") from error
    return MemoryLineage(statements)


def trace_of(name: str, *, log: Log, index: NamedLineage) -> Trace:
    """The chain behind a thing by its name or sha256, with signatures checked.

    Raises:
        CallerError: no statement made such a thing.
        IntegrityError: a statement is not what was signed, or the index is not what the log says.
    """
    found = None
    try:
        found = _trace(name, log, index)
        if found.complete:
            return found
    except CallerError:
        pass
    again = _trace(name, log, whole_lineage(log))
    if again != found:
        raise _disagrees(name)
    return again


def taint_of(name: str, *, log: Log) -> Taint:
    """Everything that was made from a thing, by its name or sha256, with signatures checked.

    Raises:
        CallerError: no statement speaks of it.
        IntegrityError: a statement is not what was signed.
    """
    lineage = whole_lineage(log)
    return taint(name if _SHA256.fullmatch(name) else lineage.find(name), log=log, lineage=lineage)


def _trace(name: str, log: Log, lineage: NamedLineage) -> Trace:
    if _SHA256.fullmatch(name):
        return trace(name, log=log, lineage=lineage)
    found = trace(lineage.find(name), log=log, lineage=lineage)
    if found.nodes[0].name != name:
        raise _disagrees(name)
    return found


def _disagrees(name: str) -> IntegrityError:
    return IntegrityError(
        f"The lineage index says something else of {name} than the log.",
        next_step=REBUILD,
    )
