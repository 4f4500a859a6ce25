"""`ropewalk image`: what sandboxes start from."""

from __future__ import annotations

from pathlib import Path

from ropewalk.cli.apps import HERE, Place, command, noun
from ropewalk.cli.board import Board
from ropewalk.cli.opening import custody, opened
from ropewalk.cli.output import print_json, print_table, say

app = noun("image", "Images: root file systems, unpacked and addressed by their content.")


@command(app, "ls", examples=["ropewalk image ls", "ropewalk image ls --json"])
def ls(*, json: bool = False, place: Place = HERE) -> int:
    """Lists all images.

    Args:
        json: Print JSON.
    """
    from ropewalk.sandbox.images import ImageStore

    with custody(place) as kept:
        store = ImageStore(kept.layout)
        sizes = {layer.digest: layer.bytes for layer in store.layers.records()}
        records = list(store.records())
    if json:
        print_json([{"digest": record.digest, "image": record} for record in records])
        return 0
    print_table(
        ("image", "label", ">layers", ">MiB"),
        (
            (r.digest[:16], r.label, len(r.layers), f"{sum(sizes.get(each, 0) for each in r.layers) / 2**20:.1f}")
            for r in records
        ),
        empty="There is no image yet. Next: ropewalk image import default",
    )
    return 0


@command(
    app,
    "import",
    examples=[
        "ropewalk image import ./rootfs.tar --label debian",
        "ropewalk image import ./rootfs",
        "ropewalk image import default",
    ],
)
def import_(
    source: str, *, label: str = "", data_class: str | None = None, json: bool = False, place: Place = HERE
) -> int:
    """Makes an image out of a root directory or a tar archive of one, or builds the default one (Python and pytest).

    Args:
        source: A directory, a tar archive, or default.
        label: A name for people.
        data_class: Of every sandbox on it: public, internal or restricted. Default: public; that of a stored one stays.
        json: Print JSON.
    """
    from ropewalk.core.errors import CallerError
    from ropewalk.sandbox.images import ImageStore
    from ropewalk.security.data_classes import data_class as known_class

    if data_class is not None:
        known_class(data_class)  # before anything is stored
        if source == "default":
            raise CallerError("The default image is always public.", next_step="leave --data-class out.")
    path = Path(source)
    with custody(place) as kept, Board(quiet=json) as board:
        store = ImageStore(kept.layout)
        board.begin(f"Image {source}")
        if source == "default":
            record = store.default(board.note)
        elif path.is_dir():
            record = store.from_directory(path, label=label, data_class=data_class)
        elif path.is_file():
            record = store.from_tar(path, label=label, data_class=data_class)
        else:
            raise CallerError(f"There is no directory or file {source}.", next_step="name one, or default.")
        board.end(record.digest[:16])
    if json:
        print_json({"digest": record.digest, "image": record})
    else:
        say(record.digest)
    return 0


@command(app, "rm", examples=["ropewalk image rm 0123456789abcdef", "ropewalk image rm debian"])
async def rm(*images: str, json: bool = False, place: Place = HERE) -> int:
    """Removes images on which no task, snapshot or sandbox stands, and their layers.

    Args:
        images: Their digests, also the beginnings, or labels.
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
