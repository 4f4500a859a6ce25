"""Opens a tar archive on this machine, which anybody may have made, so that it can be parsed within bounds."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.sandbox.oci.streams import zstd

_CHUNK = 1024 * 1024
_HEADER_BYTES = 4096
PLAIN_BYTES_MAX = limits.TREE_BYTES_MAX + _HEADER_BYTES * limits.TREE_MEMBERS_MAX
"""Of an archive, unpacked: its files and what stands around them."""
_PACKERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open, b"\x28\xb5\x2f\xfd": zstd.open,
}  # fmt: skip
"""By the first bytes of a packed file."""
DAMAGED = (tarfile.TarError, EOFError, ValueError, OverflowError, IndexError, zlib.error, lzma.LZMAError,
           gzip.BadGzipFile, zstd.ZstdError)  # fmt: skip
"""What parsing an archive may raise where it is none."""
UNFIT = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EILSEQ, errno.EMLINK)
"""Errors that a member's own name or target brings about."""


@contextmanager
def plain(path: Path) -> Iterator[IO[bytes]]:
    """The archive unpacked to a file without a name, whatever it was packed with.

    Before it is parsed: the parser takes extended headers of any size into memory, and a small packed file may hold
    one of gigabytes.
    """
    with path.open("rb") as raw:
        head = raw.read(8)
    opener = next((opener for magic, opener in _PACKERS.items() if head.startswith(magic)), None)
    if opener is None:
        with path.open("rb") as file:
            yield file
        return
    bytes_max = max(path.stat().st_size * limits.ARCHIVE_RATIO_MAX, limits.ARCHIVE_RATIO_FREE_BYTES)
    with tempfile.TemporaryFile() as unpacked, opener(path) as source:
        total = 0
        while data := source.read(_CHUNK):
            total += len(data)
            if total > min(PLAIN_BYTES_MAX, bytes_max):
                raise CallerError(f"{path.name} unpacks to more than {limits.TREE_BYTES_MAX} bytes "
                                  f"or {limits.ARCHIVE_RATIO_MAX} times its size.")  # fmt: skip
            unpacked.write(data)
        unpacked.seek(0)
        yield unpacked
