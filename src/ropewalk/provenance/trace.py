"""Backwards from a reward to the raw files and their licences; forwards from a raw file to all that it touched."""

from __future__ import annotations

from typing import Any

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.records import Record
from ropewalk.provenance.intoto import Statement, from_payload, kind_of
from ropewalk.provenance.lineage import Lineage, MemoryLineage, gaps
from ropewalk.provenance.log import Log
from ropewalk.provenance.statement import Activity, Link
from ropewalk.security.signatures import Verifier, verify_envelope


class TracedStatement(Record):
    """A statement that made a thing."""

    digest: str
    index: int
    """In the log."""
    activity: Activity
    started: str
    ended: str
    signed_by: str
    """Id of the key pair."""
    facts: dict[str, Any]


class TraceNode(Record):
    """A thing in the chain."""

    sha256: str
    name: str
    kind: str
    depth: int
    """Steps from the subject, by the shortest way; 0 is the subject."""
    made_by: tuple[TracedStatement, ...]
    """Empty: nothing says how it was made."""
    inputs: tuple[str, ...]
    """sha256 of what it was made from."""


class Trace(Record):
    """The whole chain behind a thing."""

    subject: str
    """sha256."""
    nodes: tuple[TraceNode, ...]
    """The subject first, then nearest first."""
    complete: bool
    """Whether it reaches raw files and leaves nothing that it must explain unexplained."""
    problems: tuple[str, ...]
    """Why it is not complete."""

    @property
    def sources(self) -> tuple[TraceNode, ...]:
        """The raw files at its end; the facts of their ingest statement hold the licence record."""
        return tuple(n for n in self.nodes if any(s.activity is Activity.INGEST for s in n.made_by))


class Taint(Record):
    """Everything that a thing touched."""

    subject: str
    nodes: tuple[TraceNode, ...]
    """Nearest first, without the thing itself."""


def trace(subject_sha256: str, *, log: Log, lineage: Lineage) -> Trace:
    """The chain behind a thing. Every statement in it is read from the log and its signatures are checked; that the
    log itself was not rewritten is what `verify` is for.

    Args:
        subject_sha256: of a reward, a verdict, a task …; `LineageIndex.find` knows names.
        log: where the statements are.
        lineage: which of them to read.

    Raises:
        CallerError: nothing in the log speaks of it.
        IntegrityError: a statement is not what was signed, or not where the index says.
    """
    statements = _load(log, lineage.ancestors(subject_sha256))
    if not statements:
        raise CallerError(f"No statement in the log made {subject_sha256[:80]}.", next_step="check the id.")
    makers = MemoryLineage({index: statement for index, (statement, _) in statements.items()}).makers
    if subject_sha256 not in makers:
        raise IntegrityError("The lineage index disagrees with the log.", next_step="rebuild the index.")
    nodes = _walk(subject_sha256, statements, makers)
    plain = {index: statement for index, (statement, _) in statements.items()}
    problems = [problem for index, statement in plain.items() for problem in gaps(index, statement, makers, plain)]
    if not any(statement.activity is Activity.INGEST for statement in plain.values()):
        problems.append("the chain reaches no raw file")
    return Trace(
        subject=subject_sha256,
        nodes=tuple(nodes),
        complete=not problems,
        problems=tuple(dict.fromkeys(problems)),
    )


def taint(sha256: str, *, log: Log, lineage: Lineage) -> Taint:
    """Everything made from a thing, directly or not.

    Raises:
        CallerError: nothing in the log speaks of it.
        IntegrityError: as `trace`.
    """
    statements = _load(log, lineage.descendants(sha256))
    if not statements and not lineage.ancestors(sha256):
        raise CallerError(f"No statement in the log speaks of {sha256[:80]}.", next_step="check the digest.")
    depths = {sha256: 0}
    names: dict[str, str] = {}
    made_by: dict[str, list[int]] = {}
    # Users come after makers in the log, so one pass in log order meets every way; a second one settles the rest.
    for _ in range(2):
        for index, (statement, _pair) in statements.items():
            depth = min((depths[i.sha256] for i in statement.inputs if i.sha256 in depths), default=None)
            for link in statement.subjects if depth is not None else ():
                depths[link.sha256] = min(depths.get(link.sha256, 1 << 30), (depth or 0) + 1)
                names[link.sha256] = link.name
                if index not in made_by.setdefault(link.sha256, []):
                    made_by[link.sha256].append(index)
    order = sorted((digest for digest in names if digest != sha256), key=lambda digest: (depths[digest], names[digest]))
    links = {digest: Link(name=names[digest], sha256=digest) for digest in order}
    return Taint(
        subject=sha256,
        nodes=tuple(_node(links[digest], depths[digest], made_by[digest], statements) for digest in order),
    )


def _load(log: Log, indexes: tuple[int, ...]) -> dict[int, tuple[Statement, str]]:
    verifier = Verifier(log.keys.trust_root())
    loaded: dict[int, tuple[Statement, str]] = {}
    for index, entry in log.entries_at(indexes):
        verified = verify_envelope(entry, verifier, index=index)
        try:
            loaded[index] = (from_payload(verified.payload), verified.pair.id)
        except CallerError as error:
            raise IntegrityError(f"Entry {index} of the log is no statement. {error.message}") from error
    return loaded


def _walk(subject: str, statements: dict[int, tuple[Statement, str]], makers: dict[str, list[int]]) -> list[TraceNode]:
    name = next(s.name for s in statements[makers[subject][0]][0].subjects if s.sha256 == subject)
    nodes: dict[str, TraceNode] = {}
    level = [Link(name=name, sha256=subject)]
    depth = 0
    while level:
        following: dict[str, Link] = {}
        for link in level:
            made_by = makers.get(link.sha256, [])
            nodes[link.sha256] = _node(link, depth, made_by, statements)
            for index in made_by:
                following.update({made_from.sha256: made_from for made_from in statements[index][0].inputs})
        level = [link for digest, link in following.items() if digest not in nodes]
        depth += 1
    return list(nodes.values())


def _node(link: Link, depth: int, made_by: list[int], statements: dict[int, tuple[Statement, str]]) -> TraceNode:
    inputs = dict.fromkeys(made_from.sha256 for index in made_by for made_from in statements[index][0].inputs)
    return TraceNode(
        sha256=link.sha256,
        name=link.name,
        kind=kind_of(link),
        depth=depth,
        made_by=tuple(_traced(index, *statements[index]) for index in made_by),
        inputs=tuple(inputs),
    )


def _traced(index: int, statement: Statement, pair_id: str) -> TracedStatement:
    return TracedStatement(
        digest=statement.digest,
        index=index,
        activity=statement.activity,
        started=statement.started,
        ended=statement.ended,
        signed_by=pair_id,
        facts=statement.facts,
    )
