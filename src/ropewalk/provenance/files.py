"""The log's files, as they lie on disk (docs/design/formats/log.md). Reads and writes; believes nothing.

checkpoint           the signed note that commits to everything else
tile/entries/000     entries 0 to 255: each two bytes of length (big endian), then the entry
tile/0/000           their leaf hashes, 32 bytes each
tile/1/000           hashes of the subtrees over 256 leaves, and so on, 256 to a file
torn/                what a crash left behind unacknowledged
lock
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.limits import STATEMENT_BYTES_MAX
from ropewalk.core.merkle import HASH_BYTES, root
from ropewalk.machinery.files import sync_folder

TILE_WIDTH: Final = 256
_HEIGHT: Final = 8


def tile_name(number: int) -> str:
    """tlog-tiles' path of the n-th tile: 1234067 is `x001/x234/067`."""
    parts = [f"{number % 1000:03d}"]
    while number := number // 1000:
        parts.append(f"x{number % 1000:03d}")
    return "/".join(reversed(parts))


def is_beside(path: Path, log_folder: Path) -> bool:
    """Whether a file, or what stands there under its name, lies in the state directory of a log, through whatever
    links: whoever rolls that back takes it along."""
    states = (log_folder.parent.resolve(), log_folder.resolve().parent)
    places = (path.resolve(), path.parent.resolve() / path.name)
    return any(place.is_relative_to(state) for place in places for state in states)


class LogFiles:
    """Paths and raw content of one log's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def checkpoint(self) -> Path:
        """The signed note."""
        return self.folder / "checkpoint"

    def bundle(self, number: int) -> Path:
        """Where entries from `number * 256` on are."""
        return self.folder / "tile" / "entries" / tile_name(number)

    def tile(self, level: int, number: int) -> Path:
        """Where hashes from `number * 256` on of a level are; each covers 256**level leaves."""
        return self.folder / "tile" / str(level) / tile_name(number)

    def entries(self, start: int, stop: int) -> Iterator[bytes]:
        """The entries [start, stop), in order.

        Raises:
            IntegrityError: one of them is not there.
        """
        index = start
        while index < stop:
            number, first = divmod(index, TILE_WIDTH)
            last = min(stop - number * TILE_WIDTH, TILE_WIDTH)
            yield from self.read_bundle(number, last)[0][first:last]
            index = number * TILE_WIDTH + last

    def entries_at(self, indexes: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The entries at these indexes, which ascend; each bundle is read once.

        Raises:
            IntegrityError: one of them is not there.
        """
        for number, group in itertools.groupby(indexes, lambda index: index // TILE_WIDTH):
            wanted = list(group)
            bundle, _ = self.read_bundle(number, wanted[-1] % TILE_WIDTH + 1)
            for index in wanted:
                yield index, bundle[index % TILE_WIDTH]

    def read_bundle(self, number: int, count: int) -> tuple[list[bytes], int]:
        """The first `count` entries of a bundle, and the offset where they end.

        Raises:
            IntegrityError: the file is missing, or ends before.
        """
        path = self.bundle(number)
        try:
            data = path.read_bytes() if count else b""
        except OSError as error:
            raise IntegrityError(f"The log has lost {path}: {error.strerror or error}.") from error
        entries: list[bytes] = []
        offset = 0
        while len(entries) < count:
            end = offset + 2 + int.from_bytes(data[offset : offset + 2], "big")
            if offset + 2 > len(data) or end > len(data):
                lost = number * TILE_WIDTH + len(entries)
                raise IntegrityError(f"The log has lost entry {lost}: {path} ends at byte {len(data)}.")
            entries.append(data[offset + 2 : end])
            offset = end
        return entries, offset

    def append_entries(self, size: int, offset: int, entries: Sequence[bytes]) -> int:
        """Writes entries behind the first `size` and makes them durable; returns the offset in the last bundle.

        Args:
            size: entries that the log has.
            offset: where the last bundle ends.
            entries: at most STATEMENT_BYTES_MAX bytes each.

        Raises:
            OSError: the disk is full, or worse. Whatever was written lies behind `size` and does not count.
        """
        done = 0
        while done < len(entries):
            number, first = divmod(size + done, TILE_WIDTH)
            part = entries[done : done + TILE_WIDTH - first]
            offset = offset if first else 0
            data = b"".join(len(entry).to_bytes(2, "big") + entry for entry in part)
            write_at(self.bundle(number), offset, data, durable=True)
            offset, done = offset + len(data), done + len(part)
        return offset if (size + len(entries)) % TILE_WIDTH else 0

    def append_hashes(self, size: int, leaves: Sequence[bytes]) -> None:
        """Writes leaf hashes behind the first `size`, and those of the tiles that they fill. Not made durable:
        they can be computed from the entries again.

        Raises:
            OSError: the disk is full, or worse.
        """
        level, start, hashes = 0, size, list(leaves)
        while hashes:
            filled: list[bytes] = []
            done = 0
            while done < len(hashes):
                number, first = divmod(start + done, TILE_WIDTH)
                part = hashes[done : done + TILE_WIDTH - first]
                write_at(self.tile(level, number), first * HASH_BYTES, b"".join(part), durable=False)
                done += len(part)
                if first + len(part) == TILE_WIDTH:
                    filled.append(root(_split(self.tile(level, number).read_bytes())))
            level, start, hashes = level + 1, start // TILE_WIDTH, filled

    def torn(self, size: int) -> Iterator[tuple[Path, int]]:
        """Bundles that hold more than the first `size` entries, with the offset where those end."""
        number, count = divmod(size, TILE_WIDTH)
        path, end = self.bundle(number), self.read_bundle(number, count)[1]
        while path.exists() and path.stat().st_size > (end if count else -1):
            yield path, end
            number, count, end = number + 1, 0, 0
            path = self.bundle(number)


class TileReader:
    """Hashes of perfect subtrees out of stored tiles, as `core.merkle.Nodes`. Short-lived: it caches what it read."""

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._tiles: dict[tuple[int, int], list[bytes]] = {}

    def __call__(self, level: int, index: int) -> bytes:
        """The hash of the subtree over the leaves [index << level, (index + 1) << level).

        Raises:
            IntegrityError: the tiles do not reach there.
        """
        tile_level, height = divmod(level, _HEIGHT)
        number, first = divmod(index << height, TILE_WIDTH)
        if (tile_level, number) not in self._tiles:
            path = self._files.tile(tile_level, number)
            try:
                self._tiles[tile_level, number] = _split(path.read_bytes())
            except OSError as error:
                raise IntegrityError(f"The log has lost {path}: {error.strerror or error}.") from error
        hashes = self._tiles[tile_level, number][first : first + (1 << height)]
        if len(hashes) != 1 << height:
            raise IntegrityError(f"{self._files.tile(tile_level, number)} is too short.")
        return root(hashes)


def write_at(path: Path, offset: int, data: bytes, *, durable: bool) -> None:
    """Writes at an offset and cuts the file behind it; makes the file and its folders where they are missing.

    Raises:
        OSError: as the system says.
    """
    new = not path.exists()
    if new:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], offset + written)
        os.ftruncate(descriptor, offset + len(data))
        if durable:
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    if new and durable:
        for folder in (path.parent, *path.parent.parents[:3]):
            sync_folder(folder)


def check_entry(entry: bytes) -> bytes:
    """The entry itself, if the log can hold it.

    Raises:
        CallerError: empty, or larger than STATEMENT_BYTES_MAX.
    """
    if not 0 < len(entry) <= STATEMENT_BYTES_MAX:
        raise CallerError(f"A log entry of {len(entry)} bytes; 1 to {STATEMENT_BYTES_MAX} are allowed.")
    return entry


def _split(data: bytes) -> list[bytes]:
    return [data[i : i + HASH_BYTES] for i in range(0, len(data) - len(data) % HASH_BYTES, HASH_BYTES)]
