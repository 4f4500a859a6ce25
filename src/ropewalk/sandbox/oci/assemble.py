"""Makes an image out of its parts: layers fetched, checked and unpacked side by side, each in one pass.

Bytes go from the source through sha256 (the blob's digest), unpacking, sha256 (the layer's own digest) and the tar
reader straight into the layer's tree; nothing is written twice. A layer takes its place when both digests are right.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final, Protocol

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.sandbox import archives, trees
from ropewalk.sandbox.images import PATH_VARIABLE, ImageRecord, Origin
from ropewalk.sandbox.layers import LayerStore
from ropewalk.sandbox.oci.documents import Platform, StartConfig, machine_platform
from ropewalk.sandbox.oci.known import KnownLayers
from ropewalk.sandbox.oci.sources import ImageSource, Parts, layer_name
from ropewalk.sandbox.oci.streams import Ahead, ByteSource, Hashed, unpacked
from ropewalk.sandbox.oci.unpack import LayerUnpacker, Pending
from ropewalk.sandbox.trees import Tree

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Progress(Protocol):
    """Is told how far it is; called from several threads."""

    def begin(self, total_bytes: int, layers: int, present: int) -> None:
        """So much is to be fetched, and so many of the layers are here already."""
        ...

    def fetched(self, bytes: int) -> None:
        """So much more is here."""
        ...

    def unpacked(self, layer: str) -> None:
        """A layer is whole."""
        ...


class Silent:
    """Tells nobody."""

    def begin(self, total_bytes: int, layers: int, present: int) -> None:
        """See `Progress`."""

    def fetched(self, bytes: int) -> None:
        """See `Progress`."""

    def unpacked(self, layer: str) -> None:
        """See `Progress`."""


def assemble(
    source: ImageSource, layers: LayerStore, known: KnownLayers, *,
    platform: Platform | None = None, progress: Progress | None = None, stop: threading.Event | None = None,
) -> ImageRecord:  # fmt: skip
    """Fetches what is not here yet. Whoever calls keeps the record; interrupted, whole layers stay for the next time.

    Args:
        platform: this machine's by default.
        stop: set from another thread, it ends the work.

    Raises:
        CallerError: another platform's, or nothing that can be unpacked here.
        DeniedError, UnavailableError: the source.
        IntegrityError: bytes that are not what their digests say.
    """
    tell = progress or Silent()
    parts = source.parts(platform or machine_platform(), chosen=platform is not None)
    maker = _Maker(source, parts, layers, known, tell=tell, stop=stop or threading.Event())
    digests, dropped = maker.make()
    return _record(parts, digests, dropped)


class _Maker:
    """Of one image."""

    def __init__(
        self, source: ImageSource, parts: Parts, layers: LayerStore, known: KnownLayers, *,
        tell: Progress, stop: threading.Event,
    ) -> None:  # fmt: skip
        self._source = source
        self._parts = parts
        self._layers = layers
        self._known = known
        self._tell = tell
        self._stop = stop
        self._made: list[Future[str]] = []
        self._dropped: Counter[str] = Counter()

    def make(self) -> tuple[tuple[str, ...], Counter[str]]:
        """The layers' digests, lowest first."""
        parts, diff_ids = self._parts, self._parts.diff_ids
        here = [self._known.find(diff_ids, at) for at in range(len(diff_ids))]
        missing = [at for at, digest in enumerate(here) if digest is None]
        self._tell.begin(sum(max(0, parts.layers[at].size) for at in missing), len(here), len(here) - len(missing))
        self._made = [Future() for _ in here]
        for future, digest in zip(self._made, here, strict=True):
            if digest is not None:
                future.set_result(digest)
        with ThreadPoolExecutor(limits.IMAGE_LAYERS_AT_ONCE, thread_name_prefix="ropewalk-layer") as pool:
            for at in missing:  # lowest first, since one may wait for those below it
                pool.submit(self._one, at)
            wait(self._made, return_when=FIRST_EXCEPTION)
            if any(future.done() and future.exception() for future in self._made):
                self._stop.set()
        for future in self._made:  # the first that failed by itself, not one that was stopped because of it
            if future.done() and (error := future.exception()) is not None and not isinstance(error, _StoppedError):
                raise error
        if any(future.exception() for future in self._made):
            raise UnavailableError("Pulling was stopped.", next_step="pull again; layers that are whole are kept.")
        digests = [future.result() for future in self._made]
        self._layers.settle(digests)  # once for all of them
        self._known.settled(diff_ids)
        return _without_repeats(digests), self._dropped

    def _one(self, at: int) -> None:
        try:
            if self._stop.is_set():
                raise _StoppedError
            self._made[at].set_result(self._layer(at))
        except BaseException as error:
            self._made[at].set_exception(_StoppedError() if self._stop.is_set() else error)

    def _layer(self, at: int) -> str:
        alone = True
        what = layer_name(self._parts, at)

        def make(target: Path) -> Tree:
            nonlocal alone
            unpacker = LayerUnpacker(target, what)
            try:
                pending = self._read(at, what, unpacker)
                # The uppermost folder is on the way to everything; most archives do not name it.
                folders = tuple(parts for parts in pending.folders if parts)
                if at and (pending.links or folders):
                    alone = False
                    self._look_below(at, unpacker, Pending(pending.links, folders))
                tree = unpacker.finish()
            finally:
                unpacker.close()
            self._dropped.update(unpacker.dropped)
            return tree

        record = self._layers.add_made(make, durable=False)
        self._known.note(self._parts.diff_ids, at, record.digest, alone=alone)
        self._tell.unpacked(what)
        return record.digest

    def _read(self, at: int, what: str, unpacker: LayerUnpacker) -> Pending:
        descriptor = self._parts.layers[at]
        with self._source.layer(self._parts, at) as raw:
            told = _Told(raw, self._tell.fetched, self._stop)
            sized = descriptor.size >= 0
            packed = Hashed(told, what=what, bytes_max=descriptor.size if sized else limits.IMAGE_BYTES_MAX)
            plain = Hashed(unpacked(packed, what), what=f"{what}, unpacked,", bytes_max=archives.PLAIN_BYTES_MAX)
            try:
                with Ahead(plain) as ahead:
                    pending = unpacker.read(ahead)
                    while ahead.read(1 << 20):
                        pass
            except CallerError:
                # What is damaged because it was changed on the way is a matter of integrity first.
                packed.drain()
                if sized:
                    packed.check(descriptor.digest, descriptor.size)
                raise
            if sized:
                packed.check(descriptor.digest, descriptor.size)
            plain.check(self._parts.diff_ids[at])
        return pending

    def _look_below(self, at: int, unpacker: LayerUnpacker, pending: Pending) -> None:
        below = [self._layers.path(future.result()) for future in self._made[:at]]
        for place, target in pending.links.items():
            if (fd := find_below(below, target)) is None:
                continue
            try:
                found = os.fstat(fd)
                if stat.S_ISREG(found.st_mode):
                    unpacker.link_below(place, fd, found)
            finally:
                os.close(fd)
        for parts in pending.folders:
            if (fd := find_below(below, parts)) is None:
                continue
            try:
                found = os.fstat(fd)
                if stat.S_ISLNK(found.st_mode):
                    raise CallerError(
                        f"{unpacker.what} cannot be unpacked: it puts files below {'/'.join(parts)[:200]!r}, "
                        "which is a link in a layer below.",
                        next_step="build the image with a tool that names the folder that the link leads to.",
                    )
                if stat.S_ISDIR(found.st_mode):
                    unpacker.inherit(parts, fd, found)
            finally:
                os.close(fd)


class _StoppedError(Exception):
    """Another layer failed, or somebody wants us to stop."""


class _Told:
    """Tells of what passes, and ends when it should."""

    def __init__(self, source: ByteSource, tell: Callable[[int], None], stop: threading.Event) -> None:
        self._source = source
        self._tell = tell
        self._stop = stop

    def read(self, size: int, /) -> bytes:
        """See `ByteSource`."""
        if self._stop.is_set():
            raise _StoppedError
        data = self._source.read(size)
        self._tell(len(data))
        return data


def find_below(stack: Sequence[Path], parts: Sequence[str]) -> int | None:
    """A descriptor (O_PATH for what is no file or folder) of what a stack of layers, lowest first, shows at a place.

    None: nothing, or it lies behind a link.
    """
    for root in reversed(stack):
        fd = os.open(root, trees.FOLDER)
        hides = False
        try:
            for depth, part in enumerate(parts, 1):
                try:
                    found = os.stat(part, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    break
                if stat.S_ISCHR(found.st_mode):
                    return None  # a whiteout
                if depth == len(parts):
                    kind = (
                        os.O_PATH if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)) else os.O_RDONLY
                    )
                    return os.open(part, kind | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                if not stat.S_ISDIR(found.st_mode):
                    return None
                inner = os.open(part, trees.FOLDER, dir_fd=fd)
                os.close(fd)
                fd = inner
                hides = hides or trees.is_opaque(fd)
        finally:
            os.close(fd)
        if hides:
            return None
    return None


def _without_repeats(digests: Sequence[str]) -> tuple[str, ...]:
    """Of a layer that comes twice the upper one shows all that the lower one would; overlayfs takes each once."""
    return tuple(dict.fromkeys(reversed(digests)))[::-1]


def _record(parts: Parts, digests: tuple[str, ...], dropped: Counter[str]) -> ImageRecord:
    config = parts.config.config or StartConfig()
    texts = [*(config.env or ()), config.user or "", config.working_dir or "", *(config.entrypoint or ()),
             *(config.cmd or ())]  # fmt: skip
    if any("\0" in text for text in texts):
        raise CallerError(f"The configuration of {parts.source} holds a zero byte.")
    pairs = dict(pair.partition("=")[::2] for pair in config.env or ())
    env = {name: value for name, value in pairs.items() if _VARIABLE.fullmatch(name)}
    if strange := len(pairs) - len(env):
        dropped["variables"] += strange
    workdir = ImageRecord(layers=()).workdir
    if config.working_dir:
        workdir = posixpath.normpath("/" + config.working_dir.lstrip("/"))
        if ".." in config.working_dir.split("/"):
            raise CallerError(f"{parts.source} starts in {config.working_dir[:200]!r}, which holds '..'.")
    return ImageRecord(
        layers=digests, env={"PATH": PATH_VARIABLE, **env}, workdir=workdir, user=config.user or "",
        entrypoint=tuple(config.entrypoint or ()), cmd=tuple(config.cmd or ()), dropped=dict(dropped),
        names=parts.names, label=parts.names[0] if parts.names else "",
        origin=Origin(source=parts.source, manifest=parts.manifest_digest, config=parts.config_digest,
                      platform=str(parts.config.platform)),
    )  # fmt: skip
