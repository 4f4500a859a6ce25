"""Writes an image as an OCI layout (folder or tar) or a docker-archive. Equal stored images give equal bytes.

Layers are tar archives made anew from their trees: members in order, owners, modes and times as stored, no names of
users. Each is read twice, once to know its digest and size and once to be written, so that nothing is stored between.
"""

from __future__ import annotations

import hashlib
import secrets
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.records import canonical_bytes, digest_bytes
from ropewalk.machinery.files import NEXT_STEP, replacing
from ropewalk.sandbox import trees
from ropewalk.sandbox.images import ImageRecord
from ropewalk.sandbox.layers import LayerStore
from ropewalk.sandbox.oci.documents import CONFIG_TYPES, INDEX_TYPES, LAYER_TYPE, MANIFEST_TYPES, machine_platform
from ropewalk.sandbox.oci.sources import NAME_KEYS
from ropewalk.sandbox.oci.unpack import OPAQUE, WHITEOUT
from ropewalk.sandbox.trees import TreeEntry

_CHUNK: Final = 1 << 20
_GZIP_LEVEL: Final = 6
Chunks = Callable[[], Iterator[bytes]]
"""Gives the same bytes each time."""


class Format(StrEnum):
    """What is written."""

    OCI = "oci"
    """A tar of an OCI layout."""
    OCI_DIRECTORY = "oci-dir"
    """An OCI layout, as a new folder."""
    DOCKER = "docker"
    """What `docker load` takes."""


class _Measured(NamedTuple):
    digest: str
    diff_id: str
    size: int
    chunks: Chunks


class _Sink(Protocol):
    def put(self, name: str, size: int, chunks: Iterable[bytes]) -> None: ...


def export(record: ImageRecord, layers: LayerStore, target: Path, form: Format, *, gzip: bool = False) -> None:
    """Writes an image to a file or, as an OCI layout, to a new folder. It appears whole or not at all.

    Args:
        gzip: pack the layers, which takes time and makes the bytes depend on this machine's zlib.

    Raises:
        CallerError: the target is there already and is no file, or the image has no such layer.
        IntegrityError: a layer's manifest was changed.
        UnavailableError: it cannot be written.
    """
    if target.exists() and (form is Format.OCI_DIRECTORY or not target.is_file()):
        raise CallerError(f"{target} is there already.", next_step="name a new place, or remove it first.")
    measured = [_measured(layers, digest, gzip=gzip and form is not Format.DOCKER) for digest in record.layers]
    with _folder(target) if form is Format.OCI_DIRECTORY else _archive(target) as sink:
        if form is Format.DOCKER:
            _write_docker(record, measured, sink)
        else:
            _write_layout(record, measured, sink, gzip=gzip)


def layer_chunks(layers: LayerStore, digest: str) -> Iterator[bytes]:
    """A stored layer as a tar archive of changes."""
    root = layers.path(digest)
    for entry in layers.entries(digest):
        yield from _member(root, entry)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(root: Path, entry: TreeEntry) -> Iterator[bytes]:
    name = trees.file_name(entry.path)
    place = root / name
    found = place.lstat()
    info = tarfile.TarInfo(name or ".")
    info.mode, info.uid, info.gid = entry.mode, entry.uid, entry.gid
    info.mtime, odd_ns = divmod(found.st_mtime_ns, 1_000_000_000)
    info.pax_headers = {"mtime": f"{info.mtime}.{odd_ns:09d}"} if odd_ns else {}
    for attribute, value in trees.attribute_values(entry).items():
        info.pax_headers[f"SCHILY.xattr.{attribute}"] = value.decode("utf-8", "surrogateescape")
    if entry.kind == "directory":
        info.type = tarfile.DIRTYPE
        yield _header(info)
        if entry.opaque:
            yield _header(tarfile.TarInfo(f"{name}/{OPAQUE}" if name else OPAQUE))
    elif entry.kind == "whiteout":
        folder, _, last = name.rpartition("/")
        yield _header(tarfile.TarInfo(f"{folder}/{WHITEOUT}{last}" if folder else f"{WHITEOUT}{last}"))
    elif entry.kind == "link":
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, trees.file_name(entry.target), 0o777
        yield _header(info)
    elif entry.kind == "hardlink":
        info.type, info.linkname = tarfile.LNKTYPE, trees.file_name(entry.target)
        info.pax_headers = {}
        yield _header(info)
    else:
        info.size = entry.size
        yield _header(info)
        yield from _content(place, entry)


def _content(place: Path, entry: TreeEntry) -> Iterator[bytes]:
    with place.open("rb") as file:
        left = entry.size
        while left and (data := file.read(min(_CHUNK, left))):
            left -= len(data)
            yield data
    if left:
        raise CallerError(
            f"{entry.path!r} in a layer is shorter than it was.", next_step="`ropewalk doctor` checks layers."
        )
    yield bytes(-entry.size % tarfile.BLOCKSIZE)


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _measured(layers: LayerStore, digest: str, *, gzip: bool) -> _Measured:
    plain, packed, size = hashlib.sha256(), hashlib.sha256(), 0

    def through() -> Iterator[bytes]:
        for data in layer_chunks(layers, digest):
            plain.update(data)
            yield data

    for data in _gzipped(through()) if gzip else through():
        packed.update(data)
        size += len(data)

    def again() -> Iterator[bytes]:
        chunks = layer_chunks(layers, digest)
        return _gzipped(chunks) if gzip else chunks

    return _Measured(f"sha256:{packed.hexdigest()}", f"sha256:{plain.hexdigest()}", size, again)


def _gzipped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)  # a gzip header without time and name
    for data in chunks:
        if packed := packer.compress(data):
            yield packed
    yield packer.flush()


def _config(record: ImageRecord, measured: list[_Measured]) -> bytes:
    platform = (record.origin.platform if record.origin else "") or str(machine_platform())
    system, architecture, *variant = platform.split("/")
    runtime: dict[str, Any] = {
        "Env": [f"{name}={value}" for name, value in sorted(record.env.items())], "WorkingDir": record.workdir,
        "User": record.user, "Entrypoint": list(record.entrypoint), "Cmd": list(record.cmd),
    }  # fmt: skip
    plain = {
        "os": system, "architecture": architecture, **({"variant": variant[0]} if variant else {}),
        "config": {name: value for name, value in runtime.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in measured]},
        # One line per layer: buildah counts them, and builds on nothing where there are fewer.
        "history": [{"created_by": f"ropewalk layer {digest[:12]}"} for digest in record.layers],
    }  # fmt: skip
    return canonical_bytes(plain)


def _write_layout(record: ImageRecord, measured: list[_Measured], sink: _Sink, *, gzip: bool) -> None:
    config = _config(record, measured)
    manifest = canonical_bytes({
        "schemaVersion": 2, "mediaType": MANIFEST_TYPES[0],
        "config": {"mediaType": CONFIG_TYPES[0], "digest": f"sha256:{digest_bytes(config)}", "size": len(config)},
        "layers": [
            {"mediaType": LAYER_TYPE + ("+gzip" if gzip else ""), "digest": layer.digest, "size": layer.size}
            for layer in measured
        ],
    })  # fmt: skip
    name = (record.names or (record.label,))[0]
    notes = {"annotations": dict.fromkeys(NAME_KEYS, name)} if name else {}
    named = {
        "mediaType": MANIFEST_TYPES[0],
        "digest": f"sha256:{digest_bytes(manifest)}",
        "size": len(manifest),
        **notes,
    }
    index = canonical_bytes({"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": [named]})
    for file, data in (("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", index)):
        sink.put(file, len(data), [data])
    for layer in {layer.digest: layer for layer in measured}.values():
        sink.put(f"blobs/sha256/{layer.digest[7:]}", layer.size, layer.chunks())
    for data in (config, manifest):
        sink.put(f"blobs/sha256/{digest_bytes(data)}", len(data), [data])


def _write_docker(record: ImageRecord, measured: list[_Measured], sink: _Sink) -> None:
    config = _config(record, measured)
    name = f"{digest_bytes(config)}.json"
    manifest = canonical_bytes(
        [{"Config": name, "RepoTags": list(record.names), "Layers": [f"{each.digest[7:]}.tar" for each in measured]}]
    )
    for layer in measured:
        sink.put(f"{layer.digest[7:]}.tar", layer.size, layer.chunks())
    for file, data in ((name, config), ("manifest.json", manifest)):
        sink.put(file, len(data), [data])


class _FolderSink:
    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, name: str, size: int, chunks: Iterable[bytes]) -> None:
        place = self._root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as file:
            for data in chunks:
                file.write(data)


class _ArchiveSink:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def put(self, name: str, size: int, chunks: Iterable[bytes]) -> None:
        info = tarfile.TarInfo(name)
        info.size = size
        self._file.write(_header(info))
        for data in chunks:
            self._file.write(data)
        self._file.write(bytes(-size % tarfile.BLOCKSIZE))


@contextmanager
def _archive(target: Path) -> Iterator[_Sink]:
    with replacing(target, mode=0o666) as file:
        yield _ArchiveSink(file)
        file.write(bytes(2 * tarfile.BLOCKSIZE))


@contextmanager
def _folder(target: Path) -> Iterator[_Sink]:
    fresh = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}")
    try:
        fresh.mkdir()
        try:
            yield _FolderSink(fresh)
            fresh.rename(target)
        except BaseException:
            trees.remove(fresh)
            raise
    except OSError as error:
        raise UnavailableError(
            f"{target} cannot be written: {error.strerror or error}.", next_step=NEXT_STEP
        ) from error
