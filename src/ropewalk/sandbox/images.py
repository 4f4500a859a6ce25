"""Images: what a sandbox's root file system starts from. A record names layers and how programs in it want to start.

The default image is made once per machine from what is installed here (see `default_image`), so that an air-gapped
machine has one too. Others come from a root folder or a tar archive of one, or by `ropewalk.sandbox.oci` from
registries, OCI layouts and docker-archives.

`images/<digest>.json` are public ones, `images/@<tenant>/<digest>.json` a tenant's: two tenants with the same image
have a record each, and learn nothing of each other. See docs/design/formats/images.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.core.records import Record, canonical_bytes, decode_own, digest
from ropewalk.machinery.files import locked, read_all, replace_whole
from ropewalk.sandbox import archives, default_image
from ropewalk.sandbox.layers import LayerStore
from ropewalk.sandbox.oci.unpack import LayerUnpacker
from ropewalk.sandbox.staging import staging_folder, sweep
from ropewalk.sandbox.trees import Tree
from ropewalk.security.data_classes import most_restricted
from ropewalk.security.tenants import PUBLIC, check_owner
from ropewalk.store.layout import Layout

Progress = Callable[[str], None]
"""Is told what is done next, in a few words."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_DIGEST_START_MIN = 4
PATH_VARIABLE = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Origin(Record):
    """Where an image was taken from. Digests are `sha256:` and 64 hexadecimal characters."""

    source: str
    """The reference, or the file's or folder's name."""
    manifest: str
    config: str
    """Docker's image id."""
    platform: str = ""


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
    user: str = ""
    """Who commands run as unless they say otherwise: `USER[:GROUP]`, names or numbers; empty: root."""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """What it is called here, such as `debian:bookworm`; a name is one image's. Not part of the identity."""
    origin: Origin | None = None
    """Where it came from; not part of the identity."""
    dropped: dict[str, int] = {}
    """What its layers held that no sandbox gets, counted by kind; not part of the identity."""

    @property
    def digest(self) -> str:
        """Of all that a sandbox can see of it. What came to records later counts where it is said, so that images from
        before keep their digests."""
        seen: dict[str, object] = {"layers": self.layers, "env": self.env, "workdir": self.workdir}
        seen |= {name: value for name in ("user", "entrypoint", "cmd") if (value := getattr(self, name))}
        return digest(seen)

    def command(self, arguments: Sequence[str] = ()) -> tuple[str, ...]:
        """What the image starts by itself: its entrypoint with these arguments, or else with its own.

        Raises:
            CallerError: it has neither an entrypoint nor a command.
        """
        if line := (*self.entrypoint, *(arguments or self.cmd)) if self.entrypoint else tuple(arguments or self.cmd):
            return line
        raise CallerError(
            f"The image {self.names[0] if self.names else self.digest[:16]} has no entrypoint and no command.",
            next_step="name a command.",
        )


class ImageStore:
    """All images below one state directory. Synchronous and safe to use from many threads and processes.

    Made for a tenant it shows that tenant's and public ones, and what is added becomes the tenant's; without one it
    shows all (the machine's administrator), and what is added becomes public.
    """

    def __init__(self, layout: Layout, layers: LayerStore | None = None, *, tenant: str = PUBLIC) -> None:
        self._root = layout.images
        self.tenant = check_owner(tenant)
        self.layers = layers or LayerStore(layout, tenant=tenant)

    def default(self, progress: Progress | None = None) -> ImageRecord:
        """Python with pytest, a shell and the usual small programs; built at the first call, some seconds. Public.

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
                layer = self.layers.add_tree(root, tenant=PUBLIC)
            record = ImageRecord(layers=(layer.digest,), env={"PATH": PATH_VARIABLE}, label="default")
            _write(self._file(record.digest, PUBLIC), record)
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
        layer = self.layers.add_tree(path, tenant=self.tenant)
        record = ImageRecord(layers=(layer.digest,), env={"PATH": PATH_VARIABLE}, label=label or path.name)
        return self.add(record, data_class=data_class)

    def from_tar(self, path: Path, *, label: str = "", data_class: str | None = None) -> ImageRecord:
        """An image out of a tar archive of a root folder, packed or not; owners are kept where this process is root.

        Devices and pipes are left out, setuid bits dropped. Arguments as of `from_directory`.

        Raises:
            CallerError: no tar archive, a member that leaves the tree, past the limits `TREE_*`, or no such class.
            DeniedError: the same image is here as a more restricted one (rule `data_class`).
            UnavailableError: no room.
        """
        dropped: dict[str, int] = {}

        def make(target: Path) -> Tree:
            unpacker = LayerUnpacker(target, path.name, changes=False)
            try:
                unpacker.read(file)
                tree = unpacker.finish()
            finally:
                unpacker.close()
            dropped.update(unpacker.dropped)
            return tree

        try:
            with archives.plain(path) as file:
                layer = self.layers.add_made(make, tenant=self.tenant)
        except archives.DAMAGED as error:
            raise CallerError(f"{path.name} is not a whole tar archive: {error}.") from error
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            raise CallerError(f"{path} cannot be read: {error.strerror}.") from error
        record = ImageRecord(
            layers=(layer.digest,), env={"PATH": PATH_VARIABLE}, label=label or path.name, dropped=dropped
        )  # fmt: skip
        return self.add(record, data_class=data_class)

    def add(self, record: ImageRecord, *, data_class: str | None = None) -> ImageRecord:
        """Keeps an image made of layers that are stored already. Its names are no other image's afterwards.

        Args:
            data_class: of what it holds; None: the most restricted of the record's and the same image's as it is here.

        Raises:
            CallerError: there is no such layer, or no such class.
            DeniedError: the same image is here as a more restricted one (rule `data_class`).
        """
        self.layers.check_usable(record.layers, self.tenant)
        self.layers.settle(record.layers)
        file = self._file(record.digest, self.tenant)
        with locked(self._root / ".lock"):
            held = decode_own(file.read_bytes(), ImageRecord) if file.is_file() else record
            strictest = most_restricted(held.data_class, data_class or record.data_class)
            if data_class is not None and strictest != data_class:
                raise DeniedError(
                    f"This image is here as {held.data_class!r}, and would become {data_class!r}.",
                    rule="data_class",
                    next_step=f"leave the class out, or remove it first: ropewalk image rm {record.digest[:16]}.",
                )
            names = tuple(dict.fromkeys((*record.names, *held.names)))
            record = msgspec.structs.replace(record, data_class=strictest, names=names)
            for other in list(self._of(self.tenant)) if record.names else ():
                if other.digest != record.digest and (taken := {*other.names} & {*names}):
                    kept = tuple(name for name in other.names if name not in taken)
                    _write(
                        self._file(other.digest, self.tenant),
                        msgspec.structs.replace(other, names=kept, label="" if other.label in taken else other.label),
                    )
            _write(file, record)
        return record

    def publish(self, digest: str) -> ImageRecord:
        """Makes a tenant's image everybody's. For whoever runs the machine.

        Raises:
            CallerError: there is none.
            DeniedError: its data class is not `public` (rule `data_class`).
        """
        record = self.get(digest)
        if record.data_class != "public":
            raise DeniedError(
                f"Image {digest[:16]} holds {record.data_class!r} data.",
                rule="data_class",
                next_step="only an image of class public can be everybody's.",
            )
        for layer in record.layers:
            self.layers.claim(layer, PUBLIC)
        _write(self._file(digest, PUBLIC), record)
        return record

    def get(self, digest: str) -> ImageRecord:
        """The image of that digest: the tenant's, else the public one.

        Raises:
            CallerError: there is none.
            IntegrityError: its record is damaged.
        """
        for file in self._files(digest):
            with suppress(FileNotFoundError):
                return decode_own(file.read_bytes(), ImageRecord)
        raise CallerError(f"There is no image {digest!r}.", next_step="see `ropewalk image ls`.")

    def find(self, name: str) -> ImageRecord:
        """The image that a person means: by name, digest or its beginning, with `image:` in front or not, label, or
        the digest of the manifest or configuration that it came from.

        Raises:
            CallerError: nothing of that name, or several.
        """
        records = list(self.records())
        for fitting in (_is_named, _has_digest, _is_labelled, _came_from):
            if len(found := [record for record in records if fitting(record, name)]) == 1:
                return found[0]
            if found:
                break
        if len(found) > 1:
            digests = ", ".join(sorted(record.digest[:16] for record in found)[:4])
            raise CallerError(f"{len(found)} images are called {name!r}.", next_step=f"name one by digest: {digests}.")
        raise CallerError(
            f"No images are called {name!r}.",
            next_step="see `ropewalk image ls`; `ropewalk image pull` fetches one, `image import` takes files; a "
            "folder is named by a path that begins with './' or '/'.",
        )

    def check_usable(self, digest: str, tenant: str) -> None:
        """Returns if a tenant may start sandboxes on an image.

        Raises:
            CallerError: it is not there, or not this tenant's; the message is the same.
        """
        if not _DIGEST.fullmatch(digest) or not any(self._file(digest, each).is_file() for each in (tenant, PUBLIC)):
            raise CallerError(f"There is no image {digest!r}.", next_step="see `ropewalk image ls`.")

    def records(self) -> Iterator[ImageRecord]:
        """All images that are to be seen, each once, in no order."""
        if self.tenant == PUBLIC:
            yield from {record.digest: record for record in self.everybodys()}.values()
            return
        own = {record.digest: record for record in self._of(self.tenant)}
        yield from own.values()
        yield from (record for record in self._of(PUBLIC) if record.digest not in own)

    def everybodys(self) -> Iterator[ImageRecord]:
        """All images of all tenants: for whoever takes away what they may stand on."""
        for _, data in read_all((*self._root.glob("*.json"), *self._root.glob("@*/*.json"))):
            yield decode_own(data, ImageRecord)

    def is_public(self, digest: str) -> bool:
        """Whether every tenant may use it."""
        return self._file(digest, PUBLIC).is_file()

    def defaults(self) -> frozenset[str]:
        """Digests of those that `default` made, also for other interpreters: the guest agents run out of them."""
        return frozenset(data.decode("ascii").strip() for _, data in read_all(self._root.glob("default-*")))

    def remove(self, digest: str) -> None:
        """Forgets an image, the record that `get` gives; its layers stay. Idempotent. Whoever calls knows that nothing
        stands on it."""
        if (file := self._held(digest)) is not None:
            file.unlink(missing_ok=True)

    def needs_it(self, digest: str, tenant: str) -> bool:
        """Whether a tenant could not use an image any more, if it were removed here."""
        left = {self._file(digest, each) for each in (tenant, PUBLIC)} - {self._held(digest)}
        return not any(file.is_file() for file in left)

    def _held(self, digest: str) -> Path | None:
        return next((file for file in self._files(digest) if file.is_file()), None)

    def sweep(self) -> int:
        """Removes what interrupted work left behind; returns how many such folders."""
        return sweep(self._root)

    def _pointed(self, pointer: Path) -> ImageRecord | None:
        with suppress(OSError, CallerError):
            record = decode_own(self._file(pointer.read_text("ascii").strip(), PUBLIC).read_bytes(), ImageRecord)
            for layer in record.layers:
                self.layers.path(layer)
            return record
        return None

    def _of(self, tenant: str) -> Iterator[ImageRecord]:
        for _, data in read_all(sorted(self._file("x", tenant).parent.glob("*.json"))):
            yield decode_own(data, ImageRecord)

    def _files(self, digest: str) -> tuple[Path, ...]:
        """Where its record may be, the best place first."""
        if not _DIGEST.fullmatch(digest):
            return ()
        own = (
            tuple(self._root.glob(f"@*/{digest}.json")) if self.tenant == PUBLIC else (self._file(digest, self.tenant),)
        )
        return (self._file(digest, PUBLIC), *own) if self.tenant == PUBLIC else (*own, self._file(digest, PUBLIC))

    def _file(self, digest: str, tenant: str) -> Path:
        return (self._root if tenant == PUBLIC else self._root / f"@{tenant}") / f"{digest}.json"


def _write(file: Path, record: ImageRecord) -> None:
    replace_whole(file, canonical_bytes(record), parents=True)


def _is_named(record: ImageRecord, name: str) -> bool:
    return name in record.names or f"{name}:latest" in record.names


def _has_digest(record: ImageRecord, name: str) -> bool:
    start = name.removeprefix("image:")
    return len(start) >= _DIGEST_START_MIN and record.digest.startswith(start)


def _is_labelled(record: ImageRecord, name: str) -> bool:
    return bool(name) and record.label == name


def _came_from(record: ImageRecord, name: str) -> bool:
    return record.origin is not None and name in (record.origin.manifest, record.origin.config)
