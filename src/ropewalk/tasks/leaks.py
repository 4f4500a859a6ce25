"""Searches a task's layers for its answer.

Every file of every layer is looked at, and archives and encoded text inside them. An image is large and the same for
all tasks: it is read once and indexed by the names of the functions in it, and only files that have the name of a
secret are read again. A task's own layers are small and read whole.

Found are: whole files; functions with an equal body (comments, docstrings and formatting do not hide one, and in a
task's own layers a new name does not either); the text of a held-out test in any file; compiled modules; base64;
compressed copies; version control; metadata of another release; the package outside the task's own tree.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import re
import threading
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

import msgspec

from ropewalk.core import limits
from ropewalk.core.records import Record, digest_bytes
from ropewalk.security.marks import Marks
from ropewalk.tasks.bodies import functions
from ropewalk.tasks.fingerprints import WEIGHT_MIN, Fingerprints, Secret, code_marks, code_names, plain_lines
from ropewalk.tasks.kept import Kept
from ropewalk.tasks.packed import InnerBudget, TooMuchInsideError, inner_files

_DEFINITION: Final = re.compile(rb"def\s+([A-Za-z_][A-Za-z0-9_]*)")
"""Begins with plain letters, which is searched for ten times as fast; a name too many does no harm."""
_BASE64_MIN: Final = 60
_OF_BASE64: Final = bytes(code if (chr(code).isalnum() and code < 128) or code in b"+/" else 32 for code in range(256))
"""Everything else becomes a space."""
_METADATA: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_.]+?)-(?P<version>\d[^/-]*?)(?:-[^/]*)?\.(?:dist-info|egg-info|egg|whl)"
)
_SEARCH_FOLDER: Final = re.compile(r"(site-packages|dist-packages|python3\.\d+)")
_INDEX_VERSION: Final = "6"
_FILE_BYTES_MAX: Final = 64 * limits.MIB
_PARSED_BYTES_MAX: Final = limits.MIB
"""Of one module: a syntax tree takes some hundred times the memory of its text."""
_DEPTH_MAX: Final = 3
_COMMON: Final = 12
"""Files of an image that may have a function of some name before that name is of no use for looking things up."""
_ENCODED, _CONTAINER = "#encoded", "#container"


class Leak(Record):
    """One finding."""

    kind: str
    """`fixed file`, `fixed function`, `held-out test`, `compiled`, `encoded`, `version control`, `other release`,
    `installed package`, `unreadable`."""
    path: str
    """In the sandbox; `archive!member` inside containers."""
    detail: str


class LayerPaths(Protocol):
    """Where layers lie (`ropewalk.sandbox.layers.LayerStore`)."""

    def path(self, digest: str) -> Path:
        """The layer's directory."""
        ...


class Scanner:
    """Scans layers; keeps the indexes of images below `folder`."""

    def __init__(self, layers: LayerPaths, folder: Path, marks: Marks) -> None:
        self._layers = layers
        self._kept = Kept(folder, marks, "scan index")
        self._indexes: dict[str, dict[str, list[str]]] = {}
        self._making = threading.Lock()

    def scan(
        self, secrets: Fingerprints, *, image: Iterable[str], layers: Iterable[str], workdir: str = "/work"
    ) -> tuple[Leak, ...]:
        """All leaks; empty where there is none.

        Args:
            secrets: what must not be there.
            image: digests of the image's layers.
            layers: digests of the task's own.
            workdir: where the task's own tree lies; only there may the package be.
        """
        found: list[Leak] = []
        for digest in image:
            found.extend(self._scan_image(digest, secrets))
        for digest in layers:
            root = self._layers.path(digest)
            found.extend(_path_leaks(root, secrets, workdir.strip("/")))
            for path in _files(root):
                found.extend(_file_leaks(path, _read(root / path), secrets))
        return tuple(found)

    def _scan_image(self, digest: str, secrets: Fingerprints) -> Iterator[Leak]:
        root = self._layers.path(digest)
        yield from _path_leaks(root, secrets, None)
        index = self._index(digest, root)
        names = _telling({secret.name for secret in secrets.secrets}, index)
        keys = {*names, *(f"#{file}" for file in secrets.files), _ENCODED, _CONTAINER}
        rare = msgspec.structs.replace(secrets, secrets=tuple(s for s in secrets.secrets if s.name in names))
        for path in sorted({path for key in keys for path in index.get(key, ())}):
            yield from _file_leaks(path, _read(root / path), rare, in_image=True)

    def _index(self, digest: str, root: Path) -> dict[str, list[str]]:
        with self._making:  # tasks are scanned in several threads
            if digest not in self._indexes:
                self._indexes[digest] = self._stored_index(digest, root)
            return self._indexes[digest]

    def _stored_index(self, digest: str, root: Path) -> dict[str, list[str]]:
        name = f"{digest}.{_INDEX_VERSION}"
        if (kept := self._kept.load(name)) is not None:
            return msgspec.msgpack.decode(kept, type=dict[str, list[str]])
        index = _build_index(root)
        self._kept.store(name, msgspec.msgpack.encode(index))
        return index


def scan_text(text: str, secrets: Fingerprints) -> tuple[Leak, ...]:
    """Leaks in a text that a policy reads, such as a prompt."""
    plain = plain_lines(text)
    return tuple(
        Leak(kind=secret.kind, path="prompt", detail=secret.place)
        for secret in secrets.secrets
        if secret.text in plain and secret.text.count("\n") >= 1
    )


def _telling(names: set[str], index: dict[str, list[str]]) -> set[str]:
    """Names that few files of an image have; of names that are everywhere (`__init__`) the rarest only."""
    by_count = sorted(names, key=lambda name: (len(index.get(name, ())), name))
    return {name for name in by_count if len(index.get(name, ())) <= _COMMON} or set(by_count[:1])


def _build_index(root: Path) -> dict[str, list[str]]:
    """Key → paths: function names, `#sha256` of whole files, and what must always be looked at closely."""
    index: dict[str, list[str]] = {}
    for path in _files(root):
        content = _read(root / path)
        keys = {f"#{digest_bytes(content)}"}
        if path.endswith(".pyc"):
            code = _load(content)
            keys |= set(code_names(code)) if code else set()
        else:
            keys |= {name.decode() for name in _DEFINITION.findall(content)}
        if _is_encoded(content):
            keys.add(_ENCODED)
        if _is_container(path, content, InnerBudget()):
            keys.add(_CONTAINER)
        for key in keys:
            index.setdefault(key, []).append(path)
    return index


def _path_leaks(root: Path, secrets: Fingerprints, workdir: str | None) -> Iterator[Leak]:
    """What the names of files and folders alone tell."""
    for base, folders, files in os.walk(root):
        place = Path(base).relative_to(root).as_posix()
        for name in [*folders, *files]:
            path = f"{place}/{name}".removeprefix("./")
            if name in (".git", ".hg", ".svn"):
                yield Leak(kind="version control", path=path, detail="history can hold the fix")
            metadata = _METADATA.fullmatch(name)
            if (
                metadata
                and _normal(metadata["name"]) == secrets.distribution
                and metadata["version"] != secrets.version
            ):
                yield Leak(kind="other release", path=path, detail=f"metadata of {metadata['version']}")
            inside = workdir is not None and (path == workdir or path.startswith(f"{workdir}/"))
            if (
                not inside
                and _SEARCH_FOLDER.fullmatch(Path(place).name)
                and name.removesuffix(".py") in secrets.import_names
            ):
                yield Leak(kind="installed package", path=path, detail=f"{secrets.distribution} is importable here")


def _file_leaks(path: str, content: bytes, secrets: Fingerprints, *, in_image: bool = False) -> Iterator[Leak]:
    """What one file holds, containers and encoded text included.

    Args:
        in_image: the file is of an image that we built: only functions that have a secret's name are compared, and
            cached modules that stand there by themselves are read.
    """
    try:
        yield from _inner_leaks(path, content, secrets, InnerBudget(), in_image=in_image)
    except TooMuchInsideError as error:
        yield Leak(kind="unreadable", path=path, detail=str(error))


def _inner_leaks(
    path: str, content: bytes, secrets: Fingerprints, budget: InnerBudget, *, depth: int = 0, in_image: bool
) -> Iterator[Leak]:
    if len(content) > _FILE_BYTES_MAX:
        yield Leak(kind="unreadable", path=path, detail=f"larger than {_FILE_BYTES_MAX} bytes")
        return
    if (known := secrets.files.get(digest_bytes(content))) is not None:
        yield Leak(kind="fixed file", path=path, detail=known)
    if path.endswith((".pyc", ".pyo")):
        yield from _compiled_leaks(path, content, secrets, is_ours=in_image and not depth)
    else:
        yield from _source_leaks(path, content, secrets, by_name=in_image)
    flat = content.replace(b"\n", b"") if secrets.encoded and _is_encoded(content) else b""
    if flat and any(chunk in flat for chunk in secrets.encoded):
        yield Leak(kind="encoded", path=path, detail="base64 of the fix or of a held-out test")
    if depth < _DEPTH_MAX:
        for name, inner in inner_files(path, content, budget):
            yield from _inner_leaks(f"{path}!{name}", inner, secrets, budget, depth=depth + 1, in_image=in_image)
    elif _is_container(path, content, budget):
        yield Leak(kind="unreadable", path=path, detail=f"packed more than {_DEPTH_MAX} times")


def _is_container(path: str, content: bytes, budget: InnerBudget) -> bool:
    try:
        return any(True for _ in inner_files(path, content, budget))
    except TooMuchInsideError:
        return True


def _source_leaks(path: str, content: bytes, secrets: Fingerprints, *, by_name: bool) -> Iterator[Leak]:
    named = [secret for secret in secrets.secrets if f"def {secret.name}".encode() in content]
    if named and len(content) > _PARSED_BYTES_MAX:
        yield Leak(kind="unreadable", path=path, detail=f"over {_PARSED_BYTES_MAX} bytes with a secret's name in it")
        return
    bodies: Mapping[str, str] = {}
    sought = [secret for secret in (named if by_name else secrets.secrets) if _may_hold(content, secret)]
    if sought and _is_python(path) and len(content) <= _PARSED_BYTES_MAX:
        bodies = _digests(content, frozenset(secret.name for secret in sought) if by_name else None)
    plain = _plain(content) if named else ""
    for secret in secrets.secrets:
        if secret.body in bodies:
            yield Leak(kind=secret.kind, path=path, detail=f"{secret.place} as {bodies[secret.body]}")
        elif secret in named and secret.text.count("\n") >= 2 and secret.text in plain:
            yield Leak(kind=secret.kind, path=path, detail=f"the text of {secret.place}")


def _may_hold(content: bytes, secret: Secret) -> bool:
    """Whether all names that a function uses occur, without which its body cannot; other alphabets have aliases."""
    return not content.isascii() or all(word in content for word in secret.words)


# Tasks of one change are scanned one after the other, over the same layers.


@lru_cache(maxsize=256)
def _digests(content: bytes, only: frozenset[str] | None) -> Mapping[str, str]:
    """Digest of every body that is large enough to mean something → the function's name."""
    found = functions(content, only=only) if b"def " in content else {}
    return {body.digest: name for name, body in found.items() if body.weight >= WEIGHT_MIN}


@lru_cache(maxsize=64)
def _plain(content: bytes) -> str:
    return plain_lines(content.decode("utf-8", "replace"))


@lru_cache(maxsize=1024)
def _marks(content: bytes) -> frozenset[str] | None:
    """Marks of all functions in a cached module; None where another Python wrote it."""
    code = _load(content)
    return frozenset(mark for _, mark in code_marks(code)) if code is not None else None


def _is_encoded(content: bytes) -> bool:
    """Whether a text holds a long piece that could be base64."""
    if b"\0" in content[:4096]:
        return False
    return max(map(len, content.translate(_OF_BASE64).split()), default=0) >= _BASE64_MIN


def _is_python(path: str) -> bool:
    name = path.rpartition("!")[2].rpartition("/")[2]
    return name.endswith((".py", ".pyi", ".pyw")) or "." not in name


def _compiled_leaks(path: str, content: bytes, secrets: Fingerprints, *, is_ours: bool) -> Iterator[Leak]:
    marks = _marks(content) if is_ours else None
    if marks is None:
        # Reading what others compiled can crash the interpreter, or take all memory.
        if any(secret.name.encode() in content for secret in secrets.secrets):
            yield Leak(kind="unreadable", path=path, detail="a cached module with a secret's name in it")
        return
    for secret in secrets.secrets:
        if secret.mark in marks:
            yield Leak(kind="compiled", path=path, detail=secret.place)


def _load(content: bytes) -> types.CodeType | None:
    """A cached module's code, if this Python wrote it."""
    if content[:4] != importlib.util.MAGIC_NUMBER:
        return None
    try:
        code = marshal.loads(content[16:])
    except (ValueError, EOFError, TypeError, MemoryError):
        return None
    return code if isinstance(code, types.CodeType) else None


def _files(root: Path) -> Iterator[str]:
    for base, _, names in os.walk(root):
        for name in names:
            path = Path(base) / name
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(root).as_posix()


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_FILE_BYTES_MAX + 1)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
