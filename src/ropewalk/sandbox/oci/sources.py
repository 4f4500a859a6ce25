"""Where an image's parts come from: a registry, an OCI layout (folder or tar), a docker-archive (`docker save`).

OCI image layout: OCI image specification 1.1, image-layout.md. Docker-archive: `manifest.json` beside a configuration
and plain tar archives of layers, as moby's image/tarexport writes it; since Docker 25 it is an OCI layout, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, BinaryIO, Final, NamedTuple, Protocol

import msgspec

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.paths import parts_below
from ropewalk.core.records import decode, digest_bytes
from ropewalk.machinery.archives import open_tar
from ropewalk.sandbox import archives
from ropewalk.sandbox.oci import documents
from ropewalk.sandbox.oci.documents import Config, Descriptor, Index, Manifest, Platform
from ropewalk.sandbox.oci.registry import Registry
from ropewalk.sandbox.oci.streams import ByteSource

NAME_KEYS: Final = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_INDEX_DEPTH_MAX: Final = 3


class Parts(NamedTuple):
    """One image: what it is and what there is to fetch."""

    source: str
    manifest_digest: str
    config_digest: str
    config: Config
    layers: tuple[Descriptor, ...]
    """Lowest first. One without a size is as long as it is; then `digest` is that of the unpacked layer."""
    names: tuple[str, ...] = ()

    @property
    def diff_ids(self) -> tuple[str, ...]:
        """Digests of the layers, unpacked."""
        return tuple(self.config.rootfs.diff_ids or ())


class ImageSource(Protocol):
    """Something that holds images."""

    def parts(self, wanted: Platform, *, chosen: bool) -> Parts:
        """The image for a platform; `chosen`: the user named it, so that it need not be this machine's."""
        ...

    def layer(self, parts: Parts, at: int) -> AbstractContextManager[ByteSource]:
        """The bytes of a layer, as they are packed; nobody has checked them."""
        ...


class RegistrySource:
    """An image in a registry."""

    def __init__(self, registry: Registry, name: str, wanted: str, *, top: bytes = b"") -> None:
        """
        Args:
            top: the manifest or index of `wanted`, where it was fetched already.
        """
        self._registry = registry
        self._name = name
        self._wanted = wanted
        self._top = top

    def parts(self, wanted: Platform, *, chosen: bool) -> Parts:
        """See `ImageSource`."""
        top = self._top or self._registry.manifest(self._wanted)
        return resolve(
            top, self._name, wanted, chosen=chosen,
            manifest=lambda descriptor, _: self._registry.manifest(descriptor.digest), blob=self._registry.small,
        )  # fmt: skip

    def layer(self, parts: Parts, at: int) -> AbstractContextManager[ByteSource]:
        """See `ImageSource`."""
        return self._registry.blob(parts.layers[at], layer_name(parts, at))


class Files(Protocol):
    """A folder, or an archive of one."""

    def names(self) -> frozenset[str]:
        """Of all files, relative."""
        ...

    def open(self, name: str) -> BinaryIO | IO[bytes]:
        """A file to read, independent of others.

        Raises:
            CallerError: there is none.
        """
        ...


class FolderFiles:
    """A folder on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> frozenset[str]:
        """See `Files`: those at the top alone."""
        return frozenset(each.name for each in self._path.iterdir())

    def open(self, name: str) -> BinaryIO:
        """See `Files`."""
        path = self._path / name
        try:
            return path.open("rb")
        except OSError as error:
            raise CallerError(f"{path} cannot be read: {error.strerror}.") from error


class ArchiveFiles:
    """The files of a plain tar archive, by where they begin."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        """Raises:
        CallerError: too many members. Where it is damaged or no archive, one of `archives.DAMAGED`.
        """
        self._path = path
        self._file = file
        self._places: dict[str, tuple[int, int]] = {}
        links: dict[str, str] = {}
        file.seek(0)
        archive = open_tar(file)
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps them all
            if len(self._places) + len(links) > limits.TREE_MEMBERS_MAX:
                raise CallerError(f"{path.name} holds more than {limits.TREE_MEMBERS_MAX} members.")
            name = "/".join(parts_below(member.name.lstrip("/")) or ())
            if member.isreg() and not member.issparse():
                self._places[name] = (member.offset_data, member.size)
            elif member.issym() or member.islnk():
                # Old versions of `docker save` store a layer that comes twice once, and link to it.
                base = name.rpartition("/")[0] if member.issym() else ""
                links[name] = _resolved(base, member.linkname)
        for name, target in links.items():
            if target in self._places:
                self._places.setdefault(name, self._places[target])

    def names(self) -> frozenset[str]:
        """See `Files`."""
        return frozenset(self._places)

    def open(self, name: str) -> IO[bytes]:
        """See `Files`."""
        if name not in self._places:
            raise CallerError(f"{self._path.name} has no file {name[:200]!r}, which it should.")
        start, size = self._places[name]
        return _Section(self._file.fileno(), start, size)  # type: ignore[return-value]


class _Section:
    """A part of an open file."""

    def __init__(self, fd: int, start: int, size: int) -> None:
        self._fd = fd
        self._at = start
        self._end = start + size

    def __enter__(self) -> _Section:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def read(self, size: int = -1, /) -> bytes:
        """As of a file."""
        left = self._end - self._at
        data = os.pread(self._fd, left if size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data


class LayoutSource:
    """An OCI image layout."""

    def __init__(self, files: Files, name: str, *, image: str = "") -> None:
        """
        Args:
            name: of the folder or archive, for messages.
            image: which one, where it holds several: the name that its index gives it.
        """
        self._files = files
        self._name = name
        self._image = image

    def parts(self, wanted: Platform, *, chosen: bool) -> Parts:
        """See `ImageSource`."""
        with self._files.open("index.json") as file:
            data = file.read(limits.IMAGE_MANIFEST_BYTES_MAX)
        top = documents.read_top(data, f"{self._name}, index.json")
        names: tuple[str, ...] = ()
        if isinstance(top, Index) and (named := [each for each in top.manifests if _names(each)]):
            fitting = [each for each in named if self._image in _names(each)] if self._image else named
            if self._image or len({name for each in named for name in _names(each)[:1]}) > 1:
                if len(fitting) != 1:
                    there = ", ".join(sorted(name for each in named for name in _names(each)))
                    raise CallerError(
                        f"{self._name} holds several images: {there}." if not self._image
                        else f"{self._name} has no image {self._image!r}; it has {there}.",
                        next_step="name one of them with --image.",
                    )  # fmt: skip
                data = msgspec.json.encode(Index(manifests=fitting))
            names = _names(fitting[0])
        found = resolve(data, self._name, wanted, chosen=chosen, manifest=self._manifest, blob=self._small)
        return found._replace(names=names)

    @contextmanager
    def layer(self, parts: Parts, at: int) -> Iterator[ByteSource]:
        """See `ImageSource`."""
        with self._files.open(_blob_name(parts.layers[at].digest)) as file:
            yield file

    def _manifest(self, descriptor: Descriptor, what: str) -> bytes:
        return self._small(descriptor, what, limits.IMAGE_MANIFEST_BYTES_MAX)

    def _small(self, descriptor: Descriptor, what: str, bytes_max: int) -> bytes:
        descriptor.check(what, bytes_max=bytes_max)
        with self._files.open(_blob_name(descriptor.digest)) as file:
            return descriptor.check_bytes(file.read(bytes_max + 1), what)


class _Saved(msgspec.Struct, frozen=True, rename="pascal"):
    config: str
    layers: list[str]
    repo_tags: list[str] | None = None


class DockerSource:
    """What `docker save` writes."""

    def __init__(self, files: Files, name: str, *, image: str = "") -> None:
        """Arguments as of `LayoutSource`."""
        self._files = files
        self._name = name
        self._image = image
        self._layers: Mapping[str, list[str]] = {}

    def parts(self, wanted: Platform, *, chosen: bool) -> Parts:
        """See `ImageSource`."""
        what = f"{self._name}, manifest.json"
        with self._files.open("manifest.json") as file:
            data = file.read(limits.IMAGE_MANIFEST_BYTES_MAX)
        saved = decode(data, list[_Saved], what=what)
        fitting = [each for each in saved if not self._image or self._image in (each.repo_tags or [])]
        if len(fitting) != 1:
            there = ", ".join(sorted(tag for each in saved for tag in each.repo_tags or ["one without a name"]))
            raise CallerError(
                f"{self._name} holds {'no image ' + repr(self._image) if self._image else 'several images'}: {there}.",
                next_step="name one of them with --image.",
            )
        chosen_one = fitting[0]
        with self._files.open(chosen_one.config) as file:
            text = file.read(limits.IMAGE_CONFIG_BYTES_MAX + 1)
        if not 0 < len(chosen_one.layers) <= limits.IMAGE_LAYERS_MAX:
            raise CallerError(
                f"{self._name} has {len(chosen_one.layers)} layers; 1 to {limits.IMAGE_LAYERS_MAX} are allowed."
            )
        config = documents.read_config(text, self._name, layers=len(chosen_one.layers))
        check_platform(config, wanted, self._name, chosen=chosen)
        config_digest = f"sha256:{digest_bytes(text)}"
        self._layers = {config_digest: chosen_one.layers}
        layers = tuple(Descriptor(digest=diff_id, size=-1) for diff_id in config.rootfs.diff_ids or ())
        return Parts(self._name, "", config_digest, config, layers, tuple(chosen_one.repo_tags or ()))

    @contextmanager
    def layer(self, parts: Parts, at: int) -> Iterator[ByteSource]:
        """See `ImageSource`."""
        with self._files.open(self._layers[parts.config_digest][at]) as file:
            yield file


def resolve(
    top: bytes, name: str, wanted: Platform, *, chosen: bool, manifest: Callable[[Descriptor, str], bytes],
    blob: Callable[[Descriptor, str, int], bytes],
) -> Parts:  # fmt: skip
    """From an index or manifest to the image's parts.

    Args:
        name: of the image, for messages.
        manifest: fetches a manifest, checked.
        blob: fetches a small blob, checked.

    Raises:
        CallerError: there is none for that platform, or it is nothing to unpack here.
    """
    for _ in range(_INDEX_DEPTH_MAX):
        found: Index | Manifest = documents.read_top(top, name)
        if isinstance(found, Manifest):
            break
        descriptor = documents.choose(found.manifests, wanted, name)
        top = manifest(descriptor.check(name, bytes_max=limits.IMAGE_MANIFEST_BYTES_MAX), f"The manifest of {name}")
    read = documents.read_manifest(top, name)
    text = blob(read.config, f"The configuration of {name}", limits.IMAGE_CONFIG_BYTES_MAX)
    config = documents.read_config(text, name, layers=len(read.layers))
    check_platform(config, wanted, name, chosen=chosen)
    return Parts(name, f"sha256:{digest_bytes(top)}", read.config.digest, config, tuple(read.layers))


def check_platform(config: Config, wanted: Platform, name: str, *, chosen: bool) -> None:
    """Raises:
    CallerError: the image is for another platform than it should be.
    """
    if config.architecture and not documents.fits(config.platform, wanted):
        raise CallerError(
            f"{name} is for {config.platform}; {'asked for was' if chosen else 'this machine is'} {wanted}.",
            next_step=f"take one for {wanted}"
            + ("." if chosen else f", or --platform {config.platform} if this machine can run it."),
        )


def layer_name(parts: Parts, at: int) -> str:
    """For messages."""
    return f"Layer {at + 1} of {len(parts.layers)} of {parts.source} ({parts.layers[at].digest[7:19]}…)"


@contextmanager
def opened(path: Path, *, image: str = "") -> Iterator[ImageSource | None]:
    """What a folder or file holds; None: a root file system, or nothing that we know.

    Raises:
        CallerError: it cannot be read.
    """
    try:
        if path.is_dir():
            folder = FolderFiles(path)
            is_layout = {"oci-layout", "index.json"} <= folder.names()
            yield LayoutSource(folder, path.name, image=image) if is_layout else None
            return
        with archives.plain(path) as file:
            yield _of_archive(ArchiveFiles(path, file), path.name, image)
    except archives.DAMAGED as error:
        raise CallerError(f"{path.name} is not a whole tar archive: {error}.") from error
    except OSError as error:
        raise CallerError(f"{path} cannot be read: {error.strerror}.") from error


def _of_archive(files: ArchiveFiles, name: str, image: str) -> ImageSource | None:
    names = files.names()
    if {"oci-layout", "index.json"} <= names:
        return LayoutSource(files, name, image=image)
    if "manifest.json" in names:
        with files.open("manifest.json") as file:
            start = file.read(limits.IMAGE_MANIFEST_BYTES_MAX).lstrip()
        if start.startswith(b"[") and b'"Layers"' in start:
            return DockerSource(files, name, image=image)
    return None


def _names(descriptor: Descriptor) -> tuple[str, ...]:
    notes = descriptor.annotations or {}
    return tuple(dict.fromkeys(notes[key] for key in NAME_KEYS if notes.get(key)))


def _blob_name(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _resolved(base: str, link: str) -> str:
    found: list[str] = [part for part in base.split("/") if part]
    for part in link.split("/"):
        if part == "..":
            found[-1:] = []
        elif part not in ("", "."):
            found.append(part)
    return "/".join(found)
