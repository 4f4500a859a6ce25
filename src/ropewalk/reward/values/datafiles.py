"""What files show that lie beside the code: as text, out of archives, or nothing where their format is not known."""

from __future__ import annotations

import base64
import bz2
import io
import lzma
import quopri
import re
import tarfile
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, Final

from ropewalk.machinery.archives import open_tar, open_zip
from ropewalk.reward.values.prose import prose
from ropewalk.reward.values.visible import Visible, union

BYTES_MAX: Final = 8 * 1024 * 1024
"""Of one file, unpacked."""
_MEMBERS_MAX = 2_000
_DEPTH_MAX = 3
_INERT = (
    *(b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"RIFF", b"\x00\x00\x01\x00", b"OggS", b"ID3"),
    *(b"wOFF", b"wOF2", b"OTTO", b"\x00\x01\x00\x00", b"true", b"ttcf"),
    *(b"\xde\x12\x04\x95", b"\x95\x04\x12\xde", b"TZif", b"\x7fELF", b"MZ"),
)  # fmt: skip
"""Pictures, fonts, sounds, message catalogues, time zones and programs: what stands in them as text is looked at."""
_TEXT = re.compile(r"[^\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]{2,}")
_QUOTED = re.compile(r"=[0-9A-F]{2}")
_PERCENT = re.compile(r"%[0-9A-Fa-f]{2}")
_ESCAPED_MIN = 8
_WRAPPED = re.compile(r"(?:[A-Za-z0-9+/_-]\s?){24,}={0,2}")
_BROKEN = (
    *(OSError, EOFError, ValueError, RuntimeError, NotImplementedError, zlib.error, lzma.LZMAError),
    *(zipfile.BadZipFile, tarfile.TarError),
)


class _Unknown(Exception):
    pass


def show(files: Iterable[tuple[str, bytes]]) -> Iterator[Visible]:
    """What each of these files shows; no Python sources."""
    for path, data in files:
        yield _shown(path, data)


@lru_cache(maxsize=256)
def _shown(path: str, data: bytes) -> Visible:
    try:
        return union(prose(text) for text in _texts(data, 0))
    except _Unknown as why:
        return Visible(unopened=frozenset({f"{path}: {why}"}))


def _texts(data: bytes, depth: int) -> Iterator[str]:
    if len(data) > BYTES_MAX:
        raise _Unknown(f"more than {BYTES_MAX} bytes")
    if depth > _DEPTH_MAX:
        raise _Unknown("archives within archives")
    text = _as_text(data)
    if text is not None:
        yield text
        for part in _unwrapped(text) if depth < _DEPTH_MAX else ():
            yield from _texts(part, depth + 1)
        return
    inner = _unpacked(data)
    if inner is not None:
        for part in inner:
            yield from _texts(part, depth + 1)
    if inner is not None and not data.startswith(_INERT):
        return
    if data.startswith(_INERT):
        yield data.decode("latin-1")
        yield from _legible(data)
    else:
        raise _Unknown("an unknown format")


def _legible(data: bytes) -> Iterator[str]:
    """Texts that lie in a file of bytes, a line each: in an encoding that only its reader knows, at any offset."""
    yield "\n".join(_TEXT.findall(data.decode("utf-8", "replace")))
    for encoding in ("utf-16-le", "utf-16-be"):
        for at in (0, 1):
            yield "\n".join(_TEXT.findall(data[at:].decode(encoding, "replace")))


def _unwrapped(text: str) -> Iterator[bytes]:
    """What stands in a text as text of another kind: base 64, base 16, quoted-printable, percent signs."""
    for escape, decode in ((_QUOTED, quopri.decodestring), (_PERCENT, urllib.parse.unquote_to_bytes)):
        if len(escape.findall(text)) >= _ESCAPED_MIN and _as_text(data := decode(text.encode())) is not None:
            yield data
    for found in _WRAPPED.findall(text):
        for read in (partial(base64.b64decode, validate=True), base64.urlsafe_b64decode, bytes.fromhex):
            try:
                data = read(re.sub(r"\s", "", found))
            except ValueError:
                continue
            # Words and digests can be read so as well, and give no text.
            if data and (_as_text(data) or _unpacked_if_whole(data)):
                yield data


def _unpacked_if_whole(data: bytes) -> bool:
    try:
        return _unpacked(data) is not None
    except _Unknown:
        return False


def _as_text(data: bytes) -> str | None:
    if data.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
        try:
            return data.decode("utf-32")
        except UnicodeDecodeError:
            return None
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            return data.decode("utf-16")
        except UnicodeDecodeError:
            return None
    if b"\x00" in data:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
        # Text in another encoding has few bytes that are neither printable nor white space.
        odd = sum(not (letter.isprintable() or letter.isspace()) for letter in text)
        return text if odd * 50 <= len(text) else None


def _unpacked(data: bytes) -> list[bytes] | None:
    """What a known archive holds; None where it is none."""
    try:
        if data.startswith(b"PK\x03\x04"):
            return _of_zip(data)
        for magic, unpack in _PACKED.items():
            if data.startswith(magic):
                return [unpack(data)]
        if data[257:262] == b"ustar":
            return _of_tar(data)
        if zipfile.is_zipfile(io.BytesIO(data)):  # behind something else
            return _of_zip(data)
    except _BROKEN as error:
        raise _Unknown("a broken archive") from error
    return None


def _of_zip(data: bytes) -> list[bytes]:
    with open_zip(io.BytesIO(data)) as archive:
        members = archive.infolist()
        _check(sum(member.file_size for member in members), len(members))
        found = [" ".join(member.filename for member in members).encode()]
        for member in members:
            with archive.open(member) as source:
                found.append(_bounded(source.read))
    return found


def _of_tar(data: bytes) -> list[bytes]:
    found, names, total = [], [], 0
    with open_tar(io.BytesIO(data)) as archive:
        while (member := archive.next()) is not None:
            names.append(member.name)
            total += member.size
            _check(total, len(names))
            source = archive.extractfile(member) if member.isfile() else None
            if source:
                found.append(_bounded(source.read))
    return [" ".join(names).encode(), *found]


def _check(size: int, count: int) -> None:
    if size > BYTES_MAX or count > _MEMBERS_MAX:
        raise _Unknown("a large archive")


def _bounded(read: Callable[[int], bytes]) -> bytes:
    data = read(BYTES_MAX + 1)
    _check(len(data), 0)
    return data


def _inflated(data: bytes) -> bytes:
    return _all_streams(lambda: zlib.decompressobj(zlib.MAX_WBITS | 32), data)


def _all_streams(new: Callable[[], Any], data: bytes) -> bytes:
    """One stream after the other: readers take them for one."""
    found = b""
    while data.strip(b"\0"):
        stream = new()
        found += stream.decompress(data, BYTES_MAX + 1 - len(found))
        _check(len(found), 0)
        if not stream.eof:
            raise _Unknown("a broken archive")
        data = stream.unused_data
    return found


_PACKED: Final[dict[bytes, Callable[[bytes], bytes]]] = {
    b"\x1f\x8b": _inflated,
    b"\x78\x01": _inflated,
    b"\x78\x9c": _inflated,
    b"\x78\xda": _inflated,
    b"BZh": partial(_all_streams, bz2.BZ2Decompressor),
    b"\xfd7zXZ\x00": partial(_all_streams, lzma.LZMADecompressor),
}
