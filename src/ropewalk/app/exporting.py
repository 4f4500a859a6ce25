"""What leaves as a file, where its data class allows that: exports of a run, and raw files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from ropewalk.app.custody import Custody
from ropewalk.app.reporting import check_export, loaded_run
from ropewalk.core.errors import CallerError
from ropewalk.core.records import json_text
from ropewalk.lake.records import RawRecord
from ropewalk.machinery.files import replace_whole, replacing
from ropewalk.rollout.atif import export_atif
from ropewalk.rollout.export import export_jsonl
from ropewalk.security.data_classes import Use, check_allowed

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


def export_raw(custody: Custody, id: str, target: Path) -> tuple[RawRecord, Path]:
    """Copies a raw file out of the lake, compared with its digest on the way; returns its record and where it is.

    Args:
        custody: holds it.
        id: `raw:…` or its sha256.
        target: a new file, or a folder, which then gets it under its own name.

    Raises:
        CallerError: no such raw file, or the target is there already.
        DeniedError: its data class does not allow that it leaves as a file.
        IntegrityError: it was changed or lost.
        UnavailableError: it cannot be written.
    """
    record = custody.lake.raw(id, tenant=custody.tenant)
    check_allowed(record.data_class, Use.EXPORT, "file")
    path = target / Path(record.name).name if target.is_dir() else target
    if path.exists():
        raise CallerError(f"{path} is there already.", next_step="name another file, or remove it.")
    replace_whole(path, custody.lake.read(record.sha256, tenant=custody.tenant), mode=0o644)
    return record, path
