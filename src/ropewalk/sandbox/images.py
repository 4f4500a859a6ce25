"""Images: what a sandbox's root file system starts from. A record names layers, variables and a folder to start in.

The default image is made once per machine from what is installed here (see `default_image`), so that an air-gapped
machine has one too. Others come from a root folder or a tar archive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.core.records import Record, canonical_bytes, decode_own, digest
from ropewalk.machinery.files import locked, read_all, replace_whole
from ropewalk.sandbox import archives, default_image
from ropewalk.sandbox.layers import LayerStore
from ropewalk.sandbox.staging import staging_folder, sweep
from ropewalk.security.data_classes import most_restricted
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
    data_class: str = "public"
    """Of every sandbox on it, at least; not part of the identity."""

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

    def from_directory(self, path: Path, *, label: str = "", data_class: str | None = None) -> ImageRecord:
        """An image out of a root folder; everything in it will belong to root.

        Args:
            label: for people; by default the path's last part.
            data_class: of what it holds; None: that of the same image where there is one, else `public`.

        Raises:
            CallerError: no readable folder, past the limits `TREE_*`, or no such class.
            DeniedError: the same image is here as a more restricted one (rule `data_class`).
            UnavailableError: no room.
        """
        return self._import(self.layers.add_tree(path).digest, label or path.name, data_class)

    def from_tar(self, path: Path, *, label: str = "", data_class: str | None = None) -> ImageRecord:
        """An image out of a tar archive of a root folder, packed or not; owners are kept where this process is root.

        Devices and pipes are left out, setuid bits dropped. Arguments as of `from_directory`.

        Raises:
            CallerError: no tar archive, a member that leaves the tree, past the limits `TREE_*`, or no such class.
            DeniedError: the same image is here as a more restricted one (rule `data_class`).
            UnavailableError: no room.
        """
        with staging_folder(self._root, "image") as staging:
            owners = archives.unpack(path, staging / "root")
            layer = self.layers.add_tree(staging / "root", owner=owners)
        return self._import(layer.digest, label or path.name, data_class)

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
        if not re.fullmatch(r"[0-9a-f]{64}", digest) or not (path := self._file(digest)).is_file():
            raise CallerError(f"There is no image {digest!r}.", next_step="see `ropewalk image ls`.")
        return decode_own(path.read_bytes(), ImageRecord)

    def records(self) -> Iterator[ImageRecord]:
        """All images, in no order."""
        for _, data in read_all(sorted(self._root.glob("*.json"))):
            yield decode_own(data, ImageRecord)

    def defaults(self) -> frozenset[str]:
        """Digests of those that `default` made, also for other interpreters: the guest agents run out of them."""
        return frozenset(data.decode("ascii").strip() for _, data in read_all(self._root.glob("default-*")))

    def remove(self, digest: str) -> None:
        """Forgets an image; its layers stay. Idempotent. Whoever calls knows that nothing stands on it."""
        self._file(digest).unlink(missing_ok=True)

    def _import(self, layer: str, label: str, data_class: str | None) -> ImageRecord:
        record = ImageRecord(layers=(layer,), env={"PATH": PATH_VARIABLE}, label=label)
        file = self._file(record.digest)
        held = decode_own(file.read_bytes(), ImageRecord).data_class if file.is_file() else record.data_class
        strictest = most_restricted(held, data_class or held)
        if data_class is not None and strictest != data_class:
            raise DeniedError(
                f"This image is here as {held!r}, and would become {data_class!r}.",
                rule="data_class",
                next_step=f"leave the class out, or remove it first: ropewalk image rm {record.digest[:16]}.",
            )
        return self._keep(msgspec.structs.replace(record, data_class=strictest))

    def _pointed(self, pointer: Path) -> ImageRecord | None:
        with suppress(OSError, CallerError):
            record = self.get(pointer.read_text("ascii").strip())
            for layer in record.layers:
                self.layers.path(layer)
            return record
        return None

    def _keep(self, record: ImageRecord) -> ImageRecord:
        replace_whole(self._file(record.digest), canonical_bytes(record))
        return record

    def _file(self, digest: str) -> Path:
        return self._root / f"{digest}.json"
