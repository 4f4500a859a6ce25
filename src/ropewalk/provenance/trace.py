"""Backwards from a reward to the raw files and their licences; forwards from a raw file to all that it touched."""

from __future__ import annotations

from typing import Any

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.records import Record
from ropewalk.provenance.intoto import Statement, from_payload, kind_of
from ropewalk.provenance.lineage import REBUILD, Lineage, MemoryLineage, gaps
from ropewalk.provenance.log import Log
from ropewalk.provenance.statement import Activity, Link
from ropewalk.security.signatures import Verifier, verify_envelope

_Statements = dict[int, tuple[Statement, str]]
"""By log index: what it says, and the id of the key pair that signed it."""


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
        raise IntegrityError("The lineage index disagrees with the log.", next_step=REBUILD)
    nodes = _walk(subject_sha256, statements, makers)
    plain = {index: statement for index, (statement, _) in statements.items()}
    reached = sorted({made.index for node in nodes for made in node.made_by})
    problems = [problem for index in reached for problem in gaps(index, plain[index], makers, plain)]
    if not any(plain[index].activity is Activity.INGEST for index in reached):
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


def _load(log: Log, indexes: tuple[int, ...]) -> _Statements:
    verifier = Verifier(log.trust_root())
    loaded: _Statements = {}
    for index, entry in log.entries_at(indexes):
        verified = verify_envelope(entry, verifier, index=index)
        try:
            loaded[index] = (from_payload(verified.payload), verified.pair.id)
        except CallerError as error:
            raise IntegrityError(f"Entry {index} of the log is no statement. {error.message}") from error
    return loaded


def _walk(subject: str, statements: _Statements, makers: dict[str, list[int]]) -> list[TraceNode]:
    first = statements[makers[subject][0]][0]
    links = {link.sha256: link for link in first.subjects if link.sha256 == subject}
    depths, made_by = {subject: 0}, {subject: dict.fromkeys(makers[subject])}
    level = [(0, index) for index in makers[subject]]
    followed: set[int] = set()
    while level:
        following = []
        for depth, index in level:
            if index in followed:
                continue
            followed.add(index)
            for link in statements[index][0].inputs:
                links.setdefault(link.sha256, link)
                depths.setdefault(link.sha256, depth + 1)
                chosen = _makers_meant(index, link, statements, makers)
                made_by.setdefault(link.sha256, {}).update(dict.fromkeys(chosen))
                following += [(depth + 1, maker) for maker in chosen]
        level = following
    return [_node(link, depths[digest], sorted(made_by[digest]), statements) for digest, link in links.items()]


def _makers_meant(user: int, link: Link, statements: _Statements, makers: dict[str, list[int]]) -> list[int]:
    """Equal bytes can be made several times: two episodes hand in the same bundle. Who made them later is not meant.
    Where a statement uses something else from one of the makers too (the episode itself), that maker is the one it
    means; else all of them are."""
    made_by = [index for index in makers.get(link.sha256, ()) if index < user]
    used = {other.sha256 for other in statements[user][0].inputs if other.sha256 != link.sha256}
    meant = [index for index in made_by if used & {other.sha256 for other in statements[index][0].subjects}]
    return meant or made_by


def _node(link: Link, depth: int, made_by: list[int], statements: _Statements) -> TraceNode:
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
