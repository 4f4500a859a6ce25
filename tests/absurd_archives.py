"""Small archives that hold up or fill whoever parses them with the standard library as it comes.

Each is refused, or read in proportion to its size, by `ropewalk.machinery.archives`.
"""

from __future__ import annotations

import struct
import tarfile
import zlib
from collections.abc import Callable
from typing import Final

from ropewalk.core.limits import ARCHIVE_EXTENDED_BYTES_MAX, MIB


def tar_of(*members: tuple[bytes, bytes]) -> bytes:
    """A plain tar of (type, content), the last followed by a file."""
    out = b""
    for kind, content in (*members, (tarfile.REGTYPE, b"x = 1\n")):
        info = tarfile.TarInfo("pkg-1.0/pkg.py" if kind == tarfile.REGTYPE else "header")
        info.type, info.size = kind, len(content)
        out += info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)
    return out + bytes(1024)


def pax_record(key: bytes, value: bytes) -> bytes:
    """One record of an extended header, with its length before it."""
    size = len(key) + len(value) + 3
    while size != (grown := len(b"%d" % size) + len(key) + len(value) + 3):
        size = grown
    return b"%d %b=%b\n" % (size, key, value)


def overlapping_zip(entries: int = 5_000, content: bytes = bytes(16 * MIB)) -> bytes:
    """Entries that all share one member."""
    state = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = state.compress(content) + state.flush()
    facts = (zlib.crc32(content), len(packed), len(content), 1)
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 33, *facts, 0) + b"a" + packed
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 33, *facts, 0, 0, 0, 0, 0, 0) + b"a"
    return local + _with_directory(entry * entries, at=len(local))


def _with_directory(directory: bytes, *, at: int) -> bytes:
    return directory + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(directory), at, 0)


def _directory_zip() -> bytes:
    """A directory of half a million members and no member at all."""
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    first = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, 1, 0) + b"a"
    return first + _with_directory(entry * 500_000, at=len(first))


_LARGEST: Final = ARCHIVE_EXTENDED_BYTES_MAX
_SPARSE: Final = pax_record(b"GNU.sparse.major", b"1") + pax_record(b"GNU.sparse.minor", b"0")

ABSURD_TARS: Final[dict[str, Callable[[], bytes]]] = {
    "digits": lambda: tar_of((tarfile.XHDTYPE, b"1" * _LARGEST)),
    "many digits": lambda: tar_of((tarfile.XHDTYPE, b"1" * 2_000_000)),
    "digits of a value": lambda: tar_of((tarfile.XHDTYPE, pax_record(b"comment", b"1" * (_LARGEST - 20)))),
    "digits for all": lambda: tar_of((tarfile.XGLTYPE, b"1" * _LARGEST)),
    "digits before each": lambda: tar_of(*[(tarfile.XHDTYPE, b"1" * 20_000), (tarfile.REGTYPE, b"")] * 200),
    "records without keys": lambda: tar_of((tarfile.XHDTYPE, b"2 " * (_LARGEST // 2 - 1) + b"=")),
    "a record of no length": lambda: tar_of((tarfile.XHDTYPE, b"0 a=b\n")),
    "a record past the end": lambda: tar_of((tarfile.XHDTYPE, b"999999 a=b\n")),
    "many keys": lambda: tar_of((tarfile.XGLTYPE, b"".join(pax_record(b"%d" % n, b"") for n in range(1_000)))),
    "a size that goes back": lambda: tar_of((tarfile.XHDTYPE, pax_record(b"size", b"-1024"))),
    "a long name": lambda: tar_of((tarfile.GNUTYPE_LONGNAME, b"n" * 2_000_000)),
    "a sparse map without lines": lambda: tar_of((tarfile.XHDTYPE, _SPARSE), (tarfile.REGTYPE, b"1" * 30_000_000)),
    "a sparse map without end": lambda: tar_of(
        (tarfile.XHDTYPE, _SPARSE), (tarfile.REGTYPE, b"9999999\n" + b"1\n" * 4_000_000)
    ),
}  # fmt: skip
ABSURD_ZIPS: Final[dict[str, Callable[[], bytes]]] = {"a directory alone": _directory_zip}
