"""Files inside files: archives, compressed data and version control's objects, opened as far as a scan needs."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import Final

from ropewalk.core import limits

_BYTES_MAX: Final = 16 * limits.MIB
"""Of one member; the rest of it is not looked at."""
_MEMBERS_MAX: Final = 5_000


def inner_files(path: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of what a file contains in packed form; nothing where it is not a container."""
    if content[:4] == b"PK\x03\x04":
        yield from _zip(content)
    elif content[:2] == b"\x1f\x8b" or content[:3] == b"BZh" or content[:6] == b"\xfd7zXZ\x00":
        unpacked = _decompress(content)
        name = path.rpartition("/")[2]
        inner = name.rpartition(".")[0] or name
        if unpacked and _is_tar(unpacked):
            yield from _tar(unpacked)
        elif unpacked:
            yield inner, unpacked
    elif _is_tar(content):
        yield from _tar(content)
    elif content[:1] == b"x" and content[1:2] in b"\x01\x5e\x9c\xda":
        unpacked = _inflate(content)
        if unpacked:
            yield "object", unpacked.split(b"\0", 1)[-1] if unpacked[:5] in (b"blob ", b"tree ", b"commi") else unpacked


def _is_tar(content: bytes) -> bool:
    return content[257:262] == b"ustar"


def _zip(content: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist()[:_MEMBERS_MAX]:
                if not member.is_dir():
                    with archive.open(member) as file:
                        yield member.filename, file.read(_BYTES_MAX)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OSError, EOFError, ValueError):
        return


def _tar(content: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for number, member in enumerate(archive):
                if number >= _MEMBERS_MAX:
                    return
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None:
                    yield member.name, file.read(_BYTES_MAX)
    except (tarfile.TarError, OSError, EOFError, ValueError):
        return


def _decompress(content: bytes) -> bytes:
    stream = io.BytesIO(content)
    try:
        if content[:2] == b"\x1f\x8b":
            return gzip.GzipFile(fileobj=stream).read(_BYTES_MAX)
        if content[:2] == b"BZ":
            return bz2.BZ2File(stream).read(_BYTES_MAX)
        return lzma.LZMAFile(stream).read(_BYTES_MAX)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError):
        return b""


def _inflate(content: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(content, _BYTES_MAX)
    except zlib.error:
        return b""
