"""Exports of a run, where the data class of its tasks allows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ropewalk.app.custody import Custody
from ropewalk.core.errors import UnavailableError
from ropewalk.rollout.atif import export_atif
from ropewalk.rollout.export import export_jsonl
from ropewalk.rollout.results import load_results
from ropewalk.security.data_classes import Use, check_allowed

Format = Literal["jsonl", "atif"]


def exported(custody: Custody, run: str, format: Format) -> Iterator[tuple[str, bytes]]:
    """Episode id and document, one per signed reward, each on one line.

    Raises:
        CallerError: no such run.
        DeniedError: the data class of a task forbids this export (rule `data_class:…`).
    """
    loaded = load_results(custody.journal, custody.blobs, run)
    for task in loaded.tasks.values():
        check_allowed(task.data_class, Use.EXPORT, format)
    sealed = [result.row.id for result in loaded.results if result.record and result.reward]
    if format == "jsonl":
        yield from zip(sealed, export_jsonl(custody.journal, custody.blobs, run), strict=True)
        return
    for episode, document in zip(sealed, export_atif(custody.journal, custody.blobs, run), strict=True):
        yield episode, json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def write_export(custody: Custody, run: str, format: Format, out: Path) -> int:
    """Writes an export: one file for jsonl, a folder of files for atif. Returns how many episodes.

    Raises:
        UnavailableError: it cannot be written there.
    """
    documents = list(exported(custody, run, format))
    try:
        if format == "jsonl":
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(b"".join(line for _, line in documents))
        else:
            out.mkdir(parents=True, exist_ok=True)
            for episode, line in documents:
                (out / f"{episode.partition(':')[2]}.json").write_bytes(line)
    except OSError as error:
        raise UnavailableError(f"{out} cannot be written: {error.strerror or error}.") from error
    return len(documents)
