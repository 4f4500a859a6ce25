"""A bundle: the declared artefacts that an episode hands to its grader, and nothing else."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence, Set

import anyio.to_thread

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.paths import is_plain_path
from ropewalk.core.records import Record, canonical_bytes, content_id, digest_bytes
from ropewalk.interface.task import FileSet, Task
from ropewalk.reward.globs import matches_any
from ropewalk.reward.ports import GradingSandbox, ListedPath
from ropewalk.store.contract import Blobs
from ropewalk.store.records import read_record


class Bundle(Record):
    """Files that differ from the task's source. Stored as a blob; `id` is its identity."""

    task: str
    """Id of the task."""
    base: str
    """Digest of the `FileSet` it is compared with (`Task.source`)."""
    files: dict[str, str] = {}
    """Path relative to the task's workdir → digest in the blob store: added or changed."""
    deleted: tuple[str, ...] = ()
    refused: str = ""
    """Why nothing was taken, typed: `link`, `not_a_file`, `name`, `collision`, `file_too_large`, `too_large`,
    `too_many_files`, `unreadable`. Then there are no files, and the grader scores 0."""
    detail: str = ""

    @property
    def id(self) -> str:
        """`bundle:` and the first 32 characters of its digest."""
        return content_id("bundle", self)

    @property
    def digest(self) -> str:
        """Of its record, which lies in the blob store under it."""
        return digest_bytes(canonical_bytes(self))


class _Refused(Exception):
    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.detail = detail


async def capture(sandbox: GradingSandbox, task: Task, blobs: Blobs) -> Bundle:
    """What the episode changed in the declared files; stores contents and the bundle's own record.

    Nothing is read before its name, kind and size are known to be in order. A violation is a result, not an
    exception: the candidate made those files.

    Raises:
        SandboxGoneError: the sandbox died; the episode has no bundle.
        CallerError, IntegrityError: the task's source is not in the blob store, or damaged.
    """
    source = await anyio.to_thread.run_sync(lambda: read_record(blobs, task.source, FileSet, what="task source"))
    try:
        files = await _read(sandbox, task, source)
        changed = {path: content for path, content in files.items() if digest_bytes(content) != source.files.get(path)}
        _check_sizes({path: len(content) for path, content in changed.items()})
        deleted = tuple(sorted(path for path in source.files if path not in files))
        digests = await anyio.to_thread.run_sync(lambda: {path: blobs.put(changed[path]) for path in sorted(changed)})
        bundle = Bundle(task=task.id, base=task.source, files=digests, deleted=deleted)
    except _Refused as refusal:
        bundle = Bundle(task=task.id, base=task.source, refused=refusal.cause, detail=shown(refusal.detail)[:300])
    await anyio.to_thread.run_sync(lambda: blobs.put(canonical_bytes(bundle)))
    return bundle


async def apply(bundle: Bundle, sandbox: GradingSandbox, blobs: Blobs, *, workdir: str) -> None:
    """Writes and deletes a bundle's files in a sandbox that holds the source before.

    Raises:
        CallerError: the bundle was refused.
        IntegrityError: a file is not what its digest says.
    """
    if bundle.refused:
        raise CallerError(f"{bundle.id} was refused ({bundle.refused}) and holds nothing.")
    await write_files(sandbox, blobs, bundle.files, workdir=workdir)
    for path in bundle.deleted:
        await sandbox.remove(f"{workdir}/{path}")


async def write_files(sandbox: GradingSandbox, blobs: Blobs, files: Mapping[str, str], *, workdir: str) -> None:
    """Writes stored files under a folder of a sandbox: relative path → digest.

    Raises:
        CallerError, IntegrityError: a file is missing or damaged in the blob store.
    """
    contents = await anyio.to_thread.run_sync(
        lambda: {
            f"{workdir}/{path}": blobs.get(digest, bytes_max=limits.FILE_BYTES_MAX) for path, digest in files.items()
        }
    )
    if contents:
        await sandbox.write_many(contents)


async def _read(sandbox: GradingSandbox, task: Task, source: FileSet) -> dict[str, bytes]:
    """All declared files by relative path."""
    try:
        entries = await sandbox.list(
            task.workdir,
            recursive=True,
            entries_max=limits.WORK_ENTRIES_MAX,
            bytes_max=limits.WORK_LISTING_BYTES_MAX,
        )
    except CallerError as error:
        raise _Refused("unreadable", f"the work folder cannot be listed: {error.message}") from error
    sizes = _declared(entries, task, source)
    paths = [f"{task.workdir}/{path}" for path in sizes]
    if not paths:
        return {}
    try:
        contents = await sandbox.read_many(paths, bytes_max=sum(sizes.values()) + limits.MIB, follow=False)
    except CallerError as error:
        raise _Refused("unreadable", error.message) from error
    return {path: contents[f"{task.workdir}/{path}"] for path in sizes}


def _declared(entries: Sequence[ListedPath], task: Task, source: FileSet) -> dict[str, int]:
    """Relative path → size of the declared files.

    Raises:
        _Refused: one of them has no right to be there.
    """
    folders = {path[:at] for path in source.files for at, character in enumerate(path) if character == "/"}
    sizes: dict[str, int] = {}
    prefix = task.workdir.rstrip("/") + "/"
    for entry in entries:
        path = entry.path.removeprefix(prefix)
        if not matches_any(path, task.editable) and path not in folders:
            continue
        if entry.kind == "directory":
            if path in source.files:
                raise _Refused("not_a_file", f"{_shown(path)} is a folder now")
            continue
        if entry.kind != "file" or path in folders:
            raise _Refused("link" if entry.kind == "link" else "not_a_file", f"{_shown(path)} is a {entry.kind}")
        # What the source itself holds may be larger and have any name, as long as it stays as it is.
        ours = path in source.files
        if not ours:
            _check_name(path)
        _check_file_size(path, entry.size, limits.FILE_BYTES_MAX if ours else limits.BUNDLE_FILE_BYTES_MAX)
        sizes[path] = entry.size
    _check_collisions({*sizes, *source.files}, known=source.files.keys())
    if sum(sizes.values()) > limits.FILE_BYTES_MAX:
        raise _Refused("too_large", f"declared files hold {sum(sizes.values())} bytes")
    if sum(path not in source.files for path in sizes) > limits.BUNDLE_FILES_MAX:
        raise _Refused("too_many_files", f"more than {limits.BUNDLE_FILES_MAX} files")
    return sizes


def _check_file_size(path: str, size: int, allowed: int) -> None:
    if size > allowed:
        raise _Refused("file_too_large", f"{_shown(path)}: {size} bytes, {allowed} allowed")


def _check_sizes(sizes: Mapping[str, int]) -> None:
    for path, size in sizes.items():
        _check_file_size(path, size, limits.BUNDLE_FILE_BYTES_MAX)
    if len(sizes) > limits.BUNDLE_FILES_MAX:
        raise _Refused("too_many_files", f"{len(sizes)} files, {limits.BUNDLE_FILES_MAX} allowed")
    if sum(sizes.values()) > limits.BUNDLE_BYTES_MAX:
        raise _Refused("too_large", f"{sum(sizes.values())} bytes, {limits.BUNDLE_BYTES_MAX} allowed")


def _check_name(path: str) -> None:
    """Names that mean the same on every system, and show as what they are."""
    parts = path.split("/")
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        raise _Refused("name", f"{_shown(path)} is not UTF-8") from None
    if (
        len(encoded) > limits.BUNDLE_PATH_BYTES_MAX
        or not is_plain_path(path)
        or any(len(part.encode()) > limits.BUNDLE_NAME_BYTES_MAX for part in parts)
        or any(part != part.strip() or part.endswith(".") for part in parts)
        or any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for character in path)
        or any(character in '\\:*?"<>|' for character in path)
        or unicodedata.normalize("NFC", path) != path
    ):
        raise _Refused("name", f"{_shown(path)} is not a name that a bundle may hold")


def _check_collisions(paths: set[str], *, known: Set[str]) -> None:
    seen: dict[str, str] = {}
    for path in sorted(paths):
        folded = unicodedata.normalize("NFKC", path).casefold()
        other = seen.setdefault(folded, path)
        if other != path and not {path, other} <= known:
            raise _Refused("collision", f"{_shown(path)} and {_shown(other)} differ in case or form alone")


def shown(text: str) -> str:
    """Text that may hold a candidate's words, fit to be stored and shown: printable ASCII, the rest escaped."""
    return "".join(letter if " " <= letter <= "~" else ascii(letter)[1:-1] for letter in text)


def _shown(path: str) -> str:
    return ascii(path)[:200]
