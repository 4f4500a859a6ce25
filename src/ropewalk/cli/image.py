"""`ropewalk image`: what sandboxes start from."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ropewalk.cli.apps import HERE, Place, command, noun
from ropewalk.cli.board import Board
from ropewalk.cli.opening import custody, opened
from ropewalk.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from ropewalk.sandbox.images import ImageRecord

app = noun("image", "Images: root file systems, unpacked and addressed by their content.")


@command(app, "ls", examples=["ropewalk image ls", "ropewalk image ls --json"])
def ls(*, json: bool = False, place: Place = HERE) -> int:
    """Lists all images.

    Args:
        json: Print JSON.
    """
    from ropewalk.sandbox.images import ImageStore

    with custody(place) as kept:
        store = ImageStore(kept.layout, tenant=kept.tenant)
        sizes = {layer.digest: layer.bytes for layer in store.layers.records()}
        records = list(store.records())
        public = {record.digest for record in records if store.is_public(record.digest)}
    if json:
        print_json(
            [{"digest": record.digest, "public": record.digest in public, "image": record} for record in records]
        )
        return 0
    print_table(
        ("image", "name", ">layers", ">MiB", "whose"),
        (
            (
                r.digest[:16],
                ", ".join(r.names) or r.label,
                len(r.layers),
                f"{sum(sizes.get(each, 0) for each in r.layers) / 2**20:.1f}",
                "public" if r.digest in public else "own",
            )
            for r in records
        ),
        empty="There is no image yet. Next: ropewalk image import default",
    )
    return 0


@command(
    app,
    "pull",
    examples=[
        "ropewalk image pull debian:bookworm",
        "ropewalk image pull ghcr.io/acme/tool:1.2 --credentials env:GHCR_LOGIN",
        "ropewalk image pull 127.0.0.1:5000/tool --platform linux/arm64",
    ],
)
async def pull(
    *names: str,
    platform: str = "",
    credentials: str = "",
    docker_config: Path | None = None,
    insecure_http: bool = False,
    data_class: str | None = None,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Fetches images from registries. What is here already is not fetched again; what broke off goes on.

    Args:
        names: Such as debian:bookworm or ghcr.io/acme/tool@sha256:….
        platform: Such as linux/arm64. Default: this machine's.
        credentials: Where USER:PASSWORD is: env:NAME or file:PATH. Default: what the profile says.
        docker_config: A config.json as docker login writes it.
        insecure_http: Speak plain HTTP, also with registries that are not on this machine.
        data_class: Of every sandbox on it: public, internal or restricted.
        json: Print JSON.
    """
    from ropewalk.core.errors import CallerError

    if not names:
        raise CallerError("No image was named.", next_step="ropewalk image pull debian:bookworm")
    async with opened(place) as rw:
        with Board(quiet=json) as board:
            records = []
            for name in names:
                view = _View(board, f"Pull {name}")
                record = await rw.pull(
                    name, platform=platform, credentials=credentials, docker_config=docker_config,
                    insecure_http=insecure_http, data_class=data_class, progress=view,
                )  # fmt: skip
                board.end(_made(record))
                records.append(record)
    _print(records, json=json)
    return 0


@command(
    app,
    "import",
    examples=[
        "ropewalk image import ./rootfs.tar --label debian",
        "ropewalk image import ./saved.tar --image acme/tool:1.2",
        "ropewalk image import ./oci-layout",
        "ropewalk image import default",
    ],
)
async def import_(
    source: str,
    *,
    image: str = "",
    label: str = "",
    platform: str = "",
    data_class: str | None = None,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Makes an image out of an OCI layout, a docker save archive, a root directory or a tar archive of one.

    Args:
        source: A directory, an archive, or default: Python and pytest, built from this machine.
        image: Which one, where an archive holds several.
        label: A name for people.
        platform: Which one, where an archive has several. Default: this machine's.
        data_class: Of every sandbox on it: public, internal or restricted. Default: public; that of a stored one stays.
        json: Print JSON.
    """
    from ropewalk.core.errors import CallerError

    if data_class is not None and source == "default":
        raise CallerError("The default image is always public.", next_step="leave --data-class out.")
    path = Path(source)
    if source != "default" and not path.exists():
        raise CallerError(f"There is no directory or file {source}.", next_step="name one, or default.")
    async with opened(place) as rw:
        with Board(quiet=json) as board:
            view = _View(board, f"Image {source}")
            if source == "default":
                record = await rw.machines.image(progress=board.note)
            else:
                record = await rw.import_image(
                    path, image=image, label=label, platform=platform, data_class=data_class, progress=view
                )  # fmt: skip
            board.end(_made(record))
    _print([record], json=json)
    return 0


@command(
    app,
    "build",
    examples=[
        "ropewalk image build . --name acme/tool:1.2",
        "ropewalk image build ./context --file Dockerfile.test --build-arg VERSION=3",
    ],
)
async def build(
    context: Path,
    *,
    file: Path | None = None,
    name: str = "",
    build_arg: Annotated[list[str] | None, Parameter(name="--build-arg")] = None,
    target: str = "",
    data_class: str | None = None,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Builds an image from a Dockerfile by buildah, which must be installed. Build what you would run here yourself.

    Args:
        context: The folder whose files the Dockerfile may copy.
        file: The Dockerfile. Default: Dockerfile or Containerfile in the folder.
        name: What to call the result, such as acme/tool:1.2.
        build_arg: Argument of the build as NAME=VALUE; may be repeated.
        target: The stage to end with.
        data_class: Of every sandbox on it: public, internal or restricted.
        json: Print JSON.
    """
    from ropewalk.cli.sandbox import variables

    arguments = variables(build_arg or [])
    async with opened(place) as rw:
        with Board(quiet=json) as board:
            board.begin(f"Build {context}")
            record = await rw.build_image(
                context, file=file, name=name, arguments=arguments, target=target, data_class=data_class,
                tell=board.note,
            )  # fmt: skip
            board.end(_made(record))
    _print([record], json=json)
    return 0


@command(
    app,
    "export",
    examples=[
        "ropewalk image export debian:bookworm ./debian.tar",
        "ropewalk image export acme/tool:1.2 ./tool --format oci-dir",
        "ropewalk image export acme/tool:1.2 ./tool.tar --format docker",
    ],
)
async def export(
    image: str, target: Path, *, format: str = "oci", gzip: bool = False, json: bool = False, place: Place = HERE
) -> int:  # fmt: skip
    """Writes an image to a file, or to a folder.

    Args:
        image: Its name, label or digest, also the beginning.
        target: The file, or the new folder.
        format: oci (a tar of an OCI layout), oci-dir (the layout as a folder) or docker (for docker load).
        gzip: Pack the layers of an OCI layout.
        json: Print JSON.
    """
    from ropewalk.core.errors import CallerError
    from ropewalk.sandbox.oci.export import Format

    if format not in list(Format):
        raise CallerError(f"There is no format {format!r}.", next_step=f"use one of {', '.join(Format)}.")
    async with opened(place) as rw:
        record = await rw.export_image(image, target, form=Format(format), gzip=gzip)
    print_json({"digest": record.digest, "target": str(target)}) if json else say(record.digest)
    return 0


@command(app, "publish", examples=["ropewalk image publish debian:bookworm"])
async def publish(*images: str, json: bool = False, place: Place = HERE) -> int:
    """Lets every tenant of this state directory use images.

    Args:
        images: Names, labels, or digests, also the beginnings.
        json: Print JSON.
    """
    published = []
    async with opened(place) as rw:
        for each in images:
            published.append(rw.images.publish(rw.images.find(each).digest).digest)
            if not json:
                say(f"public {published[-1]}")
    if json:
        print_json({"public": published})
    return 0


@command(app, "rm", examples=["ropewalk image rm 0123456789abcdef", "ropewalk image rm debian"])
async def rm(*images: str, json: bool = False, place: Place = HERE) -> int:
    """Removes images on which no task, snapshot or sandbox stands, and their layers.

    Args:
        images: Names, labels, or digests, also the beginnings.
        json: Print JSON.
    """
    from ropewalk.app.removal import remove_image
    from ropewalk.core.errors import CallerError

    if not images:
        raise CallerError("No image was named.", next_step="give digests from `ropewalk image ls`.")
    removed = []
    async with opened(place) as rw:
        for each in images:
            removed.append(await remove_image(rw.custody, rw.machines, each))
            if not json:
                say(f"removed {removed[-1]}")
    if json:
        print_json({"removed": removed})
    return 0


class _View:
    """Progress on a board, from several threads."""

    def __init__(self, board: Board, title: str) -> None:
        self._board = board
        self._title = title
        self._lock = threading.Lock()
        self._odd_bytes = 0
        board.begin(title)

    def begin(self, total_bytes: int, layers: int, present: int) -> None:
        """See `Progress`."""
        with self._lock:
            self._board.begin(f"{self._title}: layers", total=-(-total_bytes // 2**20), unit="MiB")
            if present:
                self._board.note(f"{present} of {layers} layers are here already")

    def fetched(self, bytes: int) -> None:
        """See `Progress`."""
        with self._lock:
            self._odd_bytes += bytes
            if whole := self._odd_bytes // 2**20:
                self._odd_bytes -= whole * 2**20
                self._board.advance(by=whole)

    def unpacked(self, layer: str) -> None:
        """See `Progress`."""
        with self._lock:
            self._board.note(layer)


def _made(record: ImageRecord) -> str:
    left_out = ", ".join(f"{count} {kind}" for kind, count in sorted(record.dropped.items()))
    return f"{record.digest[:16]}{f'; left out: {left_out}' if left_out else ''}"


def _print(records: list[ImageRecord], *, json: bool) -> None:
    if json:
        made = [{"digest": record.digest, "image": record} for record in records]
        print_json(made[0] if len(made) == 1 else made)
    else:
        for record in records:
            say(record.digest)
