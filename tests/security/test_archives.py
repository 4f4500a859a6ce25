"""Hostile archives: each is refused with the fault that names it, and leaves nothing behind."""

from __future__ import annotations

import errno
import gzip
import io
import os
import random
import resource
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.absurd_archives import ABSURD_TARS, ABSURD_ZIPS

from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.lake import archives
from ropewalk.lake.archives import ArchiveError, ArchiveFault, Caps, canonical_tar, survey, unpack

F = ArchiveFault
Entry = tuple[str, bytes, dict[str, object]]


def tar(*entries: Entry, compress: bool = True, form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar of (name, content, attributes of TarInfo)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, data, attributes in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in attributes.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue()) if compress else buffer.getvalue()


def file(name: str, data: bytes = b"x", **attributes: object) -> Entry:
    return name, data, attributes


def link(name: str, target: str, *, hard: bool = False) -> Entry:
    return name, b"", {"type": tarfile.LNKTYPE if hard else tarfile.SYMTYPE, "linkname": target}


def special(name: str, kind: bytes) -> Entry:
    return name, b"", {"type": kind}


def zipped(*entries: tuple[str, bytes, int], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of (name, content, Unix mode)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = method
            archive.writestr(info, data)
    return buffer.getvalue()


def duplicate_zip() -> bytes:
    with pytest.warns(UserWarning, match="Duplicate"):
        return zipped(("a", b"1", 0), ("a", b"2", 0))


def encrypted_zip() -> bytes:
    data = bytearray(zipped(("a", b"1", 0)))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def long_zip_member() -> bytes:
    """A member that unpacks to more than its header promises."""
    data = bytearray(zipped(("a", b"x" * 1000, 0)))
    for at in (22, data.index(b"PK\x01\x02") + 24):
        data[at : at + 4] = struct.pack("<I", 10)
    return bytes(data)


def sparse() -> bytes:
    """A GNU sparse file of 8 GiB that takes one block."""
    info = tarfile.TarInfo("hole")
    info.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[386:410] = b"%011o\0%011o\0" % (0, 0)
    block[483:495] = b"%011o\0" % (2**33 - 1)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return gzip.compress(bytes(block) + bytes(1024))


def nested_bomb() -> bytes:
    """A gzip in a gzip: the outer one is small and holds no tar."""
    return gzip.compress(gzip.compress(bytes(20_000_000)))


DEEP = "/".join(["d"] * 65)
HOSTILE: dict[str, tuple[Callable[[], bytes], ArchiveFault]] = {
    "traversal": (lambda: tar(file("../evil")), F.TRAVERSAL),
    "traversal inside": (lambda: tar(file("a/../../evil")), F.TRAVERSAL),
    "traversal that returns": (lambda: tar(file("a/b"), file("a/../b")), F.TRAVERSAL),
    "traversal directory": (lambda: tar(("../d", b"", {"type": tarfile.DIRTYPE})), F.TRAVERSAL),
    "absolute": (lambda: tar(file("/etc/evil")), F.ABSOLUTE),
    "zip traversal": (lambda: zipped(("../evil", b"x", 0)), F.TRAVERSAL),
    "zip absolute": (lambda: zipped(("/evil", b"x", 0)), F.ABSOLUTE),
    "back slashes": (lambda: zipped(("..\\evil", b"x", 0)), F.NAME),
    "drive letter": (lambda: zipped(("C:/evil", b"x", 0)), F.NAME),
    "control character": (lambda: tar(file("a\x1b[2J")), F.NAME),
    "new line": (lambda: tar(file("a\nb")), F.NAME),
    "not UTF-8": (lambda: tar(file("a\udcff"), form=tarfile.GNU_FORMAT), F.NAME),
    "name too long": (lambda: tar(file("n" * 256)), F.NAME),
    "too deep": (lambda: tar(file(DEEP)), F.NAME),
    "link out": (lambda: tar(file("a/x"), link("a/l", "../../etc/passwd")), F.LINK),
    "link absolute": (lambda: tar(file("x"), link("l", "/etc/passwd")), F.LINK),
    "link to a directory": (lambda: tar(file("d/x"), link("l", "d")), F.LINK),
    "link to nothing": (lambda: tar(file("x"), link("l", "y")), F.LINK),
    "link to itself": (lambda: tar(file("x"), link("l", "l")), F.LINK),
    "link to a link": (lambda: tar(file("x"), link("l", "x"), link("m", "l")), F.LINK),
    "hard link out": (lambda: tar(file("a/x"), link("a/l", "../etc/passwd", hard=True)), F.LINK),
    "write through a link": (lambda: tar(file("x"), link("l", "../.."), file("l/evil")), F.LINK),
    "zip link": (lambda: zipped(("l", b"/etc/passwd", 0o120777)), F.LINK),
    "device": (lambda: tar(special("d", tarfile.CHRTYPE)), F.SPECIAL),
    "block device": (lambda: tar(special("d", tarfile.BLKTYPE)), F.SPECIAL),
    "fifo": (lambda: tar(special("p", tarfile.FIFOTYPE)), F.SPECIAL),
    "unknown type": (lambda: tar(special("p", b"Z")), F.SPECIAL),
    "zip fifo": (lambda: zipped(("p", b"", 0o010644)), F.SPECIAL),
    "setuid": (lambda: tar(file("x", mode=0o4755)), F.SETUID),
    "setgid": (lambda: tar(file("x", mode=0o2755)), F.SETUID),
    "zip setuid": (lambda: zipped(("x", b"", 0o104755)), F.SETUID),
    "sparse": (sparse, F.UNSUPPORTED),
    "encrypted": (encrypted_zip, F.UNSUPPORTED),
    "bzip2 in zip": (lambda: zipped(("x", b"x", 0), method=zipfile.ZIP_BZIP2), F.UNSUPPORTED),
    "duplicate": (lambda: tar(file("a"), file("./a", b"y")), F.DUPLICATE),
    "zip duplicate": (duplicate_zip, F.DUPLICATE),
    "case": (lambda: tar(file("README"), file("Readme")), F.COLLISION),
    "case of a directory": (lambda: tar(file("src/a"), file("SRC/b")), F.COLLISION),
    "Unicode form": (lambda: tar(file("caf\u00e9"), file("cafe\u0301")), F.COLLISION),
    "sharp s": (lambda: tar(file("stra\u00dfe"), file("strasse")), F.COLLISION),
    "file as directory": (lambda: tar(file("a"), file("a/b")), F.COLLISION),
    "directory as file": (lambda: tar(file("a/b"), file("a")), F.COLLISION),
    "too many": (lambda: tar(*(file(f"f{i}", b"") for i in range(101))), F.TOO_MANY),
    "too many directories": (
        lambda: tar(file("x"), *(("d" * (i + 1), b"", {"type": tarfile.DIRTYPE}) for i in range(101))), F.TOO_MANY),
    "too large": (lambda: tar(file("x", random.Random(1).randbytes(3_000_000))), F.TOO_LARGE),
    "too large in parts": (lambda: tar(*(file(f"f{i}", random.Random(i).randbytes(999_999)) for i in range(3))),
                           F.TOO_LARGE),
    "link bomb": (lambda: tar(file("x", random.Random(1).randbytes(500_000)), *(link(f"l{i}", "x") for i in range(9))),
                  F.TOO_LARGE),
    "bomb": (lambda: gzip.compress(tar(file("x", bytes(1_900_000)), compress=False)), F.BOMB),
    "zip bomb": (lambda: zipped(("x", bytes(1_900_000), 0)), F.BOMB),
    "endless gzip": (lambda: gzip.compress(bytes(20_000_000)), F.TOO_LARGE),
    "gzip in gzip": (nested_bomb, F.NOT_ARCHIVE),
    "lying zip": (long_zip_member, F.DAMAGED),
    "gzip truncated": (lambda: tar(file("x", os.urandom(5000)))[:-20], F.DAMAGED),
    "gzip cut at a member": (lambda: gzip.compress(tar(file("x"), file("y"), compress=False)[:1024]), F.DAMAGED),
    "gzip wrong sum": (lambda: (d := tar(file("x")))[:-8] + bytes(4) + d[-4:], F.DAMAGED),
    "gzip trailing": (lambda: tar(file("x")) + b"more", F.DAMAGED),
    "tar truncated": (lambda: tar(file("x", bytes(5000)), compress=False)[:2000], F.DAMAGED),
    "tar broken in the middle": (
        lambda: (d := tar(file("x"), file("y"), compress=False))[:1024] + b"\x01" * 512 + d[1536:], F.DAMAGED),
    "zip truncated": (lambda: zipped(("x", os.urandom(5000), 0))[:-30], F.DAMAGED),
    "zip wrong sum": (lambda: zipped(("x", b"hello", 0), method=zipfile.ZIP_STORED).replace(b"hello", b"hallo"),
                      F.DAMAGED),
    "empty": (lambda: b"", F.NOT_ARCHIVE),
    "text": (lambda: b"<html>not found</html>" * 100, F.NOT_ARCHIVE),
    "gzipped text": (lambda: gzip.compress(b"hello " * 1000), F.NOT_ARCHIVE),
    "no file in it": (lambda: tar(("d", b"", {"type": tarfile.DIRTYPE})), F.NOT_ARCHIVE),
    "empty zip": (lambda: zipped(), F.NOT_ARCHIVE),
    **{name: (make, F.DAMAGED) for name, make in (ABSURD_TARS | ABSURD_ZIPS).items() if "long" not in name},
    **{f"{name}, packed": (lambda make=make: gzip.compress(make()), F.DAMAGED) for name, make in ABSURD_TARS.items()
       if len(make()) < 200_000},
    "NUL in a zip name": (lambda: zipped(("abcd", b"x", 0)).replace(b"abcd", b"a\0cd"), F.NAME),
}  # fmt: skip
CAPS = Caps(members_max=100, bytes_max=2_000_000, ratio_free_bytes=100_000)


def left_behind(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("form", ["bytes", "file"])
def test_hostile_archives_are_refused_and_leave_nothing(tmp_path: Path, name: str, form: str) -> None:
    make, fault = HOSTILE[name]
    data = make()
    source: bytes | Path = data
    if form == "file":
        source = tmp_path / "archive"
        source.write_bytes(data)
    target = tmp_path / "out"
    target.mkdir()
    for call in (
        lambda: unpack(source, target / "tree", caps=CAPS),
        lambda: survey(source, bool, bytes_max=1 << 20, caps=CAPS),
    ):
        with pytest.raises(ArchiveError) as caught:
            call()
        assert caught.value.fault is fault, caught.value
        assert caught.value.exit_code == 2
        assert len(str(caught.value)) < 700
    assert left_behind(target) == []
    assert left_behind(tmp_path) == (["archive", "out"] if form == "file" else ["out"])


def test_a_bomb_costs_little_memory_and_no_more_than_its_bound() -> None:
    bomb = gzip.compress(bytes(400_000_000), 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArchiveError, match=r"bomb|too_large"):
        survey(bomb, bool, bytes_max=1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_what_comes_out_is_plain(tmp_path: Path) -> None:
    data = tar(
        file("pkg-1/run.sh", b"#!/bin/sh\n", mode=0o755), file("pkg-1/a/b.py", b"b", mode=0o600),
        ("pkg-1/empty", b"", {"type": tarfile.DIRTYPE, "mode": 0o2777}), file("./pkg-1/./c", b"c", uid=12345),
        link("pkg-1/copy", "a/b.py"), link("pkg-1/hard", "pkg-1/run.sh", hard=True),
    )  # fmt: skip
    before = os.umask(0o077)
    try:
        done = unpack(data, tmp_path / "out")
    finally:
        os.umask(before)
    assert done.top == "pkg-1"
    assert sorted(done.files) == ["pkg-1/a/b.py", "pkg-1/c", "pkg-1/copy", "pkg-1/hard", "pkg-1/run.sh"]
    assert done.bytes == 10 + 1 + 1 + 1 + 10
    modes = {
        path.relative_to(tmp_path / "out").as_posix(): path.lstat().st_mode for path in (tmp_path / "out").rglob("*")
    }
    assert modes["pkg-1/run.sh"] == modes["pkg-1/hard"] == 0o100755
    assert modes["pkg-1/a/b.py"] == modes["pkg-1/copy"] == modes["pkg-1/c"] == 0o100644
    assert modes["pkg-1/empty"] == modes["pkg-1"] == modes["pkg-1/a"] == 0o040755
    assert (tmp_path / "out" / "pkg-1" / "c").stat().st_uid == os.getuid()


def test_a_wheel_and_stored_members_come_out(tmp_path: Path) -> None:
    data = zipped(
        ("p/__init__.py", b"", 0o100644), ("p-1.dist-info/METADATA", b"Name: p\n", 0o100644), ("d/", b"", 0o040755)
    )
    done = unpack(data, tmp_path / "out")
    assert done.top is None
    assert (tmp_path / "out" / "p-1.dist-info" / "METADATA").read_bytes() == b"Name: p\n"


def test_the_destination_must_be_new(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    unpack(tar(file("a")), tmp_path / "out")
    with pytest.raises(CallerError, match="there already"):
        unpack(tar(file("a")), tmp_path / "out")
    with pytest.raises(UnavailableError, match="cannot be made"):
        unpack(tar(file("a")), tmp_path / "absent" / "out")
    with pytest.raises(CallerError, match="No archive"):
        unpack(tmp_path / "absent.tar.gz", tmp_path / "new")


def test_a_full_disk_is_no_fault_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(archives.os, "write", full)
    with pytest.raises(UnavailableError, match="No space left"):
        unpack(tar(file("a", b"x" * 10)), tmp_path / "out" / "tree")
    monkeypatch.undo()
    assert left_behind(tmp_path / "out") == []


def test_survey_returns_what_was_asked_for_and_bounds_it() -> None:
    data = tar(file("p/PKG-INFO", b"Name: p"), file("p/big", bytes(5000)), link("p/l", "big"))
    assert survey(data, lambda path: path.endswith("PKG-INFO"), bytes_max=100) == {"p/PKG-INFO": b"Name: p"}
    with pytest.raises(ArchiveError, match="too_large"):
        survey(data, bool, bytes_max=100)


def test_equal_files_give_equal_tars_on_every_machine() -> None:
    files = {"b/\u00fc.txt": b"1", "a": b"", "b/" + "n" * 120: b"long"}
    data = canonical_tar(files, executable=["a"])
    assert data == canonical_tar(dict(reversed(files.items())), executable={"a"})
    assert zlib.crc32(data) == 2699686852


@pytest.mark.parametrize("path", ["/a", "../a", "a/../b", "a//b", "./a", "a\\b", "a\n", "", "a/"])
def test_canonical_tar_refuses_what_unpack_would(path: str) -> None:
    with pytest.raises(ArchiveError):
        canonical_tar({path: b""})


names = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/\\:"), min_size=1, max_size=20)
trees = st.dictionaries(st.lists(names.filter(lambda n: n not in (".", "..")), min_size=1, max_size=3).map("/".join),
                        st.binary(max_size=2000), min_size=1, max_size=8)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=trees)
def test_what_is_packed_comes_out_again(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    try:
        data = canonical_tar(files)
    except ArchiveError as error:
        assert error.fault in (F.COLLISION, F.NAME)
        return
    target = tmp_path_factory.mktemp("t") / "out"
    assert sorted(unpack(data, target).files) == sorted(files)
    assert {path: (target / path).read_bytes() for path in files} == files


GOOD = {
    "tar": tar(file("p/a.py", b"print(1)\n" * 50), file("p/b", b"b"), link("p/l", "b"), compress=False),
    "long": tar(file("p/" + "n" * 150, b"x" * 700), file("p/\u00e9", b""), compress=False),
    "gnu": tar(file("p/" + "n" * 150, b"x" * 700), form=tarfile.GNU_FORMAT, compress=False),
    "tar.gz": tar(file("p/a.py", b"print(1)\n" * 50)),
    "zip": zipped(("p/a.py", b"print(1)\n" * 50, 0o100644), ("p/b", b"", 0)),
}


edit = st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=12))


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(sorted(GOOD)), edits=st.lists(edit, min_size=1, max_size=4), cut=st.integers(0, 1 << 16)
)  # fmt: skip
@example(kind="zip", edits=[(0, b"PK\x05\x06")], cut=1 << 16)
def test_any_damage_is_a_typed_error_or_no_error(kind: str, edits: list[tuple[int, bytes]], cut: int) -> None:
    data = bytearray(GOOD[kind])
    for at, new in edits:
        at %= len(data)
        data[at : at + len(new)] = new
    try:
        survey(bytes(data[:cut]), bool, bytes_max=1 << 20)
    except ArchiveError as error:
        assert error.fault in ArchiveFault
