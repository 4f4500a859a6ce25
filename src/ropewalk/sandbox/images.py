"""Images: what a sandbox's root file system starts from. A record names layers, variables and a folder to start in.

The default image is made once per machine from what is installed here (see `default_image`), so that an air-gapped
machine has one too. Others come from a root folder or a tar archive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record, canonical_bytes, decode_own, digest
from ropewalk.machinery.files import locked, replace_whole
from ropewalk.sandbox import archives, default_image
from ropewalk.sandbox.layers import LayerStore
from ropewalk.sandbox.staging import staging_folder, sweep
from ropewalk.store.layout import Layout

Progress = Callable[[str], None]
"""Is told what is done next, in a few words."""

PATH_VARIABLE = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ImageRecord(Record):
    """A stored image."""

    layers: tuple[str, ...]
    """Digests, lowest first."""
    env: dict[str, str] = {}
    workdir: str = "/work"
    label: str = ""
    """For people; not part of the identity."""

    @property
    def digest(self) -> str:
        """Of all that a sandbox can see of it."""
        return digest({"layers": self.layers, "env": self.env, "workdir": self.workdir})


class ImageStore:
    """All images below one state directory. Synchronous and safe to use from many threads and processes."""

    def __init__(self, layout: Layout, layers: LayerStore | None = None) -> None:
        self._root = layout.images
        self.layers = layers or LayerStore(layout)

    def default(self, progress: Progress | None = None) -> ImageRecord:
        """Python with pytest, a shell and the usual small programs; built at the first call, some seconds.

        It holds this interpreter's standard library and nothing of its site-packages but pytest and what pytest
        needs. A change of interpreter or pytest makes a new one.

        Raises:
            UnavailableError: no room, or this interpreter cannot be copied.
            IntegrityError: an installed file is not what its package says.
        """
        tell = progress or (lambda what: None)
        pointer = self._root / f"default-{default_image.key()[:32]}"
        if record := self._pointed(pointer):
            return record
        with locked(self._root / ".default.lock"):
            if record := self._pointed(pointer):
                return record
            sweep(self._root)
            with staging_folder(self._root, "image") as staging:
                root = staging / "root"
                root.mkdir()
                default_image.build(root, tell)
                tell("storing the layer")
                layer = self.layers.add_tree(root)
            record = self._keep(ImageRecord(layers=(layer.digest,), env={"PATH": PATH_VARIABLE}, label="default"))
            replace_whole(pointer, record.digest.encode())
        return record

    def from_directory(self, path: Path, *, label: str = "") -> ImageRecord:
        """An image out of a root folder; everything in it will belong to root.

        Raises:
            CallerError: no readable folder, or past the limits `TREE_*`.
            UnavailableError: no room.
        """
        layer = self.layers.add_tree(path)
        return self._keep(ImageRecord(layers=(layer.digest,), env={"PATH": PATH_VARIABLE}, label=label or path.name))

    def from_tar(self, path: Path, *, label: str = "") -> ImageRecord:
        """An image out of a tar archive of a root folder, packed or not; owners are kept where this process is root.

        Devices and pipes are left out, setuid bits dropped.

        Raises:
            CallerError: no tar archive, a member that leaves the tree, or past the limits `TREE_*`.
            UnavailableError: no room.
        """
        with staging_folder(self._root, "image") as staging:
            owners = archives.unpack(path, staging / "root")
            layer = self.layers.add_tree(staging / "root", owner=owners)
        return self._keep(ImageRecord(layers=(layer.digest,), env={"PATH": PATH_VARIABLE}, label=label or path.name))

    def add(self, record: ImageRecord) -> ImageRecord:
        """Keeps an image made of layers that are stored already.

        Raises:
            CallerError: there is no such layer.
        """
        for layer in record.layers:
            self.layers.path(layer)
        return self._keep(record)

    def get(self, digest: str) -> ImageRecord:
        """The image of that digest.

        Raises:
            CallerError: there is none.
            IntegrityError: its record is damaged.
        """
        if not re.fullmatch(r"[0-9a-f]{64}", digest) or not (path := self._root / f"{digest}.json").is_file():
            raise CallerError(f"There is no image {digest!r}.", next_step="see `ropewalk image ls`.")
        return decode_own(path.read_bytes(), ImageRecord)

    def records(self) -> Iterator[ImageRecord]:
        """All images, in no order."""
        for path in sorted(self._root.glob("*.json")):
            yield decode_own(path.read_bytes(), ImageRecord)

    def defaults(self) -> frozenset[str]:
        """Digests of those that `default` made, also for other interpreters: the guest agents run out of them."""
        return frozenset(path.read_text("ascii").strip() for path in self._root.glob("default-*"))

    def _pointed(self, pointer: Path) -> ImageRecord | None:
        with suppress(OSError, CallerError):
            record = self.get(pointer.read_text("ascii").strip())
            for layer in record.layers:
                self.layers.path(layer)
            return record
        return None

    def _keep(self, record: ImageRecord) -> ImageRecord:
        replace_whole(self._root / f"{record.digest}.json", canonical_bytes(record))
        return record
