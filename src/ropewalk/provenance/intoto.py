"""Statements as bytes: in-toto Statement v1, canonical, and back.

    {"_type": "https://in-toto.io/Statement/v1",
     "predicate": {"ended": "…Z", "facts": {…}, "inputs": [{"digest": {"sha256": "…"}, "name": "…"}], "started": "…Z"},
     "predicateType": "https://ropewalk.dev/reward/v1",
     "subject": [{"digest": {"sha256": "…"}, "name": "reward:…"}]}

A statement's digest is the sha256 of these bytes; equal drafts have equal bytes.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, Literal

from ropewalk.core.clock import utc
from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record, canonical_bytes, decode, digest_bytes
from ropewalk.provenance.statement import Activity, Link, StatementDraft

PREDICATE_TYPE: Final = "https://ropewalk.dev/{activity}/v1"
LINKS_MAX: Final = 2_000
"""Subjects, or inputs, of one statement; its bytes are bounded too (STATEMENT_BYTES_MAX)."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*:[^\x00-\x1f\x7f]{1,240}")
_PREDICATE_TYPE: Final = re.compile(re.escape(PREDICATE_TYPE).replace(re.escape("{activity}"), "([a-z-]+)"))


class _Digest(Record):
    sha256: str


class _Descriptor(Record):
    name: str
    digest: _Digest


class _Predicate(Record):
    started: str
    ended: str
    inputs: tuple[_Descriptor, ...]
    facts: dict[str, Any]


class _Document(Record, rename={"type": "_type", "predicate_type": "predicateType"}):
    type: Literal["https://in-toto.io/Statement/v1"]
    subject: tuple[_Descriptor, ...]
    predicate_type: str
    predicate: _Predicate


class Statement(Record):
    """A statement that was read; what it says, not whether it is signed."""

    digest: str
    """sha256 of its bytes."""
    activity: Activity
    subjects: tuple[Link, ...]
    inputs: tuple[Link, ...]
    facts: dict[str, Any]
    """The draft's predicate."""
    started: str
    """RFC 3339, UTC, milliseconds."""
    ended: str


def to_payload(draft: StatementDraft) -> bytes:
    """The canonical bytes of a draft.

    Raises:
        CallerError: no subject, a subject that is also an input, a digest or a name that is none, facts without a
            canonical form or nested too deep.
    """
    _check_links("subject", draft.subjects)
    _check_links("input", draft.inputs)
    if not draft.subjects:
        raise CallerError(f"A statement of {draft.activity} without a subject.")
    if {link.sha256 for link in draft.subjects} & {link.sha256 for link in draft.inputs}:
        raise CallerError(f"A statement of {draft.activity} names one thing as its subject and as its input.")
    if not (math.isfinite(draft.started_s) and math.isfinite(draft.ended_s)):
        raise CallerError(f"A statement of {draft.activity} without a time.")
    payload = canonical_bytes(
        _Document(
            type="https://in-toto.io/Statement/v1",
            subject=tuple(map(_descriptor, draft.subjects)),
            predicate_type=PREDICATE_TYPE.format(activity=draft.activity.value),
            predicate=_Predicate(
                started=utc(draft.started_s),
                ended=utc(draft.ended_s),
                inputs=tuple(map(_descriptor, draft.inputs)),
                facts=draft.predicate,
            ),
        )
    )
    from_payload(payload)  # whatever enters the log can be read again
    return payload


def from_payload(payload: bytes) -> Statement:
    """A statement out of its bytes, strictly.

    Raises:
        CallerError: not such a statement. The caller knows whether that means bad input or tampering.
    """
    document = decode(payload, _Document, what="statement")
    match = _PREDICATE_TYPE.fullmatch(document.predicate_type)
    try:
        activity = Activity(match.group(1) if match else "")
    except ValueError:
        raise CallerError(f"statement: unknown predicate type {document.predicate_type[:80]!r}.") from None
    subjects, inputs = tuple(map(_link, document.subject)), tuple(map(_link, document.predicate.inputs))
    if not subjects:
        raise CallerError("statement: it has no subject.")
    _check_links("subject", subjects)
    _check_links("input", inputs)
    return Statement(
        digest=digest_bytes(payload),
        activity=activity,
        subjects=subjects,
        inputs=inputs,
        facts=document.predicate.facts,
        started=document.predicate.started,
        ended=document.predicate.ended,
    )


def kind_of(link: Link) -> str:
    """What kind of thing a link names: the part of its name before the colon."""
    return link.name.partition(":")[0]


def _descriptor(link: Link) -> _Descriptor:
    return _Descriptor(name=link.name, digest=_Digest(sha256=link.sha256))


def _link(descriptor: _Descriptor) -> Link:
    return Link(name=descriptor.name, sha256=descriptor.digest.sha256)


def _check_links(what: str, links: tuple[Link, ...]) -> None:
    if len(links) > LINKS_MAX:
        raise CallerError(f"{len(links)} {what}s in one statement, {LINKS_MAX} allowed.", next_step="make several.")
    for link in links:
        if not _SHA256.fullmatch(link.sha256):
            raise CallerError(f"The {what} {link.name[:80]!r} has no sha256 digest: {link.sha256[:80]!r}.")
        if not _NAME.fullmatch(link.name):
            raise CallerError(f"The name {link.name[:80]!r} of a {what} is not `kind:id`.")
