"""Logs: the standard library's logging with structured fields, the ids at hand, and nothing secret.

log = logging.getLogger(__name__)
with telemetry.bound(run=run_id):
    log.info("episode ended", extra=fields(termination="finished"))
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

from ropewalk.core.clock import utc
from ropewalk.core.records import json_text
from ropewalk.machinery.redaction import REDACTED, without_hidden

_BOUND: ContextVar[dict[str, str]] = ContextVar("ropewalk_ids")
_NONE: dict[str, str] = {}
_SECRET_NAME = re.compile(r"(?i)(pass(word|phrase)?|secret|token(?!s)|api_?key|authorization|private)")
_SECRET_TEXT = re.compile(
    r"(?i)(bearer\s+|sk-|ghp_|(?:api_?key|token|password|passphrase)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;]{4,}"
)


def fields(**values: Any) -> dict[str, Any]:
    """Structured fields of one log line, for `extra=`."""
    return {"fields": values}


@contextmanager
def bound(**ids: str) -> Iterator[None]:
    """Every line logged inside, also by tasks started inside, carries these ids (`run`, `episode`, `sandbox` …)."""
    mark = _BOUND.set({**_BOUND.get(_NONE), **ids})
    try:
        yield
    finally:
        _BOUND.reset(mark)


def redact(text: str) -> str:
    """The text without known secrets and without what looks like one."""
    return _SECRET_TEXT.sub(lambda match: f"{match.group(1)}{REDACTED}", without_hidden(text))


class StructuredFormatter(logging.Formatter):
    """One line per event: `time level logger message key=value …`, or a JSON object."""

    def __init__(self, *, as_json: bool = False) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        values = {**_BOUND.get(_NONE), **getattr(record, "fields", {})}
        safe = {
            name: REDACTED if _SECRET_NAME.search(name) else redact(value) if isinstance(value, str) else value
            for name, value in values.items()
        }
        message = redact(record.getMessage())
        if record.exc_info:
            message += "\n" + redact(self.formatException(record.exc_info))
        head = {"time": utc(record.created), "level": record.levelname.lower(), "logger": record.name}
        if self._as_json:
            return json_text({**head, "message": message, **safe}, default=str)
        tail = "".join(f" {name}={value}" for name, value in safe.items())
        return f"{head['time']} {head['level']} {head['logger']} {message}{tail}"


def configure(level: str = "warning", *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Sends Ropewalk's logs to a stream, standard error by default. Repeated calls replace the earlier one."""
    root = logging.getLogger("ropewalk")
    for old in [h for h in root.handlers if getattr(h, "ropewalk", False)]:
        root.removeHandler(old)
    output = logging.StreamHandler(stream or sys.stderr)
    output.setFormatter(StructuredFormatter(as_json=as_json))
    output.ropewalk = True  # type: ignore[attr-defined]
    root.addHandler(output)
    root.setLevel(level.upper())
    root.propagate = False
