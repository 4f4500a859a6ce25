"""Exports of a run, where the data class of its tasks allows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from ropewalk.app.custody import Custody
from ropewalk.app.reporting import check_export, loaded_run
from ropewalk.core.errors import CallerError
from ropewalk.core.records import json_text
from ropewalk.machinery.files import replacing
from ropewalk.rollout.atif import export_atif
from ropewalk.rollout.export import export_jsonl

Format = Literal["jsonl", "atif"]


def exported(custody: Custody, run: str, format: Format) -> Iterator[tuple[str, bytes]]:
    """Episode id and document, one per signed reward, each on one line.

    Raises:
        CallerError: no such run.
        DeniedError: the data class of a task forbids this export (rule `data_class:…`).
        IntegrityError: the run's records are not what was signed.
    """
    loaded = loaded_run(custody, run, elsewhere=False)
    check_export(loaded.tasks.values(), format)
    sealed = [result.row.id for result in loaded.episodes if result.record and result.reward]
    if format == "jsonl":
        yield from zip(sealed, export_jsonl(loaded, custody.blobs), strict=True)
        return
    for episode, document in zip(sealed, export_atif(loaded, custody.blobs), strict=True):
        yield episode, json_text(document, separators=(",", ":")).encode() + b"\n"


def write_export(custody: Custody, run: str, format: Format, out: Path) -> int:
    """Writes an export: one file for jsonl, a folder of files for atif. Returns how many episodes.

    A file appears under its name whole or not at all.

    Raises:
        CallerError: there is a file where a folder is needed, or the reverse.
        UnavailableError: it cannot be written there.
    """
    if out.exists() and out.is_dir() != (format == "atif"):
        raise CallerError(
            f"{out} is {'a folder' if out.is_dir() else 'a file'}, and {format} is written as "
            f"{'a folder of files' if format == 'atif' else 'one file'}.",
            next_step=f"name a {'folder' if format == 'atif' else 'file'}.",
        )
    documents = exported(custody, run, format)
    if format == "jsonl":
        return _write_whole(out, documents)
    count = 0
    for episode, line in documents:
        count += _write_whole(out / f"{episode.partition(':')[2]}.json", [(episode, line)])
    return count


def _write_whole(file: Path, documents: Iterable[tuple[str, bytes]]) -> int:
    count = 0
    with replacing(file, durable=False, mode=0o666, parents=True) as target:
        for _, line in documents:
            target.write(line)
            count += 1
    return count
