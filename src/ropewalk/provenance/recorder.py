"""Turns drafts into signed statements in the log and the lineage index."""

from __future__ import annotations

import threading

from ropewalk.core.records import digest_bytes
from ropewalk.provenance.graph import LineageIndex
from ropewalk.provenance.intoto import from_payload, to_payload
from ropewalk.provenance.log import Log
from ropewalk.provenance.statement import StatementDraft
from ropewalk.security.signatures import sign_envelope


class LogRecorder:
    """See `provenance.statement.Recorder`.

    Args:
        log: where statements go.
        index: of that log.
    """

    def __init__(self, log: Log, index: LineageIndex) -> None:
        self.log, self.index = log, index
        self._lock = threading.Lock()

    def record(self, drafts: tuple[StatementDraft, ...]) -> tuple[str, ...]:
        """See `Recorder.record`.

        Raises:
            CallerError: a draft is no statement, or too large. Nothing is recorded then.
            IntegrityError: the log, the index or the keys are damaged.
            UnavailableError: the disk is full or read-only. Repeating is safe.
        """
        made = [to_payload(draft) for draft in drafts]
        digests = tuple(map(digest_bytes, made))
        payloads = dict(zip(digests, made, strict=True))
        with self._lock, self.log.writing() as writer:
            self.index.catch_up(writer.checkpoint)
            known = self.index.recorded(list(payloads))
            fresh = [payload for digest, payload in payloads.items() if digest not in known]
            signer = writer.signer
            first = writer.append([sign_envelope(payload, signer) for payload in fresh])
            if fresh:
                self.index.add(first, [from_payload(payload) for payload in fresh], writer.checkpoint)
        return digests
