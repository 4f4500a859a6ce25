"""Layers of images become trees: whiteouts, links, owners, and what must never come out of an archive."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.images import layer, member, names_below

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.sandbox import trees
from ropewalk.sandbox.images import ImageStore
from ropewalk.sandbox.layers import LayerRecord, LayerStore
from ropewalk.sandbox.oci.streams import ByteSource, unpacked, zstd
from ropewalk.sandbox.oci.unpack import LayerUnpacker
from ropewalk.sandbox.trees import Tree
from ropewalk.store.layout import Layout

LINK, SYMLINK = tarfile.LNKTYPE, tarfile.SYMTYPE


@pytest.fixture
def layers(tmp_path: Path) -> LayerStore:
    return LayerStore(Layout(tmp_path / "state").ensure())


class Unpacked:
    """One layer, stored and verified."""

    def __init__(self, layers: LayerStore, source: ByteSource | bytes) -> None:
        self.dropped: Counter[str] = Counter()
        self._source = io.BytesIO(source) if isinstance(source, bytes) else source
        self.record: LayerRecord = layers.add_made(self._make)
        layers.verify(self.record.digest)  # what was described is what lies there
        self.tree = layers.path(self.record.digest)
        self.entries = {entry.path: entry for entry in layers.entries(self.record.digest)}

    def _make(self, target: Path) -> Tree:
        unpacker = LayerUnpacker(target, "the layer")
        try:
            unpacker.read(self._source)
            return unpacker.finish()
        finally:
            self.dropped = unpacker.dropped
            unpacker.close()


def test_a_layer_becomes_a_tree_that_is_what_it_says(layers: LayerStore) -> None:
    xattr = {
        "SCHILY.xattr.user.colour": "blue",
        "SCHILY.xattr.security.capability": "x",
        "SCHILY.xattr.user.overlay.opaque": "y",
    }
    found = Unpacked(layers, layer(
        member("./", None, mode=0o711),
        member("bin/", None), member("bin/su", b"su", mode=0o4755, uid=0, gid=8, pax_headers=xattr),
        member("bin/also", kind=LINK, linkname="bin/su"), member("aaa", kind=LINK, linkname="./bin/su"),
        member("tmp", None, mode=0o1777, mtime=7), member("way", kind=SYMLINK, linkname="/../../etc"),
        member("null", kind=tarfile.CHRTYPE, devmajor=1, devminor=3), member("disk", kind=tarfile.BLKTYPE),
        member("pipe", kind=tarfile.FIFOTYPE), member("far", b"", uid=70_000, gid=5), member("deep/er/x", b"1"),
        member("dotted.wh.x", b""), member("\udcff", b"raw"),
        member("exact", b"1", pax_headers={"mtime": "5.123456789"}),
    ))  # fmt: skip
    assert found.dropped["devices"] == 2 and found.dropped["pipes"] == 1 and found.dropped["setuid bits"] == 1
    assert found.dropped["capabilities"] == 1 and found.dropped["attributes"] == 1
    assert found.record.skipped == 3
    assert names_below(found.tree) == sorted(
        [
            "aaa",
            "bin",
            "bin/also",
            "bin/su",
            "deep",
            "deep/er",
            "deep/er/x",
            "dotted.wh.x",
            "exact",
            "far",
            "tmp",
            "way",
            "\udcff",
        ]
    )
    assert stat.S_IMODE((found.tree / "bin/su").stat().st_mode) == 0o755
    assert found.entries["bin/su"].kind == "hardlink" and found.entries["aaa"].kind == "file"
    assert found.entries["aaa"].attributes == {"user.colour": "Ymx1ZQ=="}
    assert (found.tree / "way").readlink() == Path("/../../etc")
    assert stat.S_IMODE((found.tree / "tmp").stat().st_mode) == 0o1777 and (found.tree / "tmp").stat().st_mtime == 7
    assert (
        stat.S_IMODE(found.tree.stat().st_mode) == 0o711 and stat.S_IMODE((found.tree / "deep").stat().st_mode) == 0o755
    )
    assert (found.tree / "exact").stat().st_mtime_ns == 5_123_456_789
    if os.geteuid() == 0:
        assert found.dropped["owners"] == 1
        assert (found.tree / "far").stat().st_uid == 65_534 and (found.tree / "bin/su").stat().st_gid == 8


def is_whiteout(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def opaque(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        return trees.is_opaque(fd)
    finally:
        os.close(fd)


def test_marks_hide_what_lies_below_and_nothing_of_their_own_layer(layers: LayerStore) -> None:
    found = Unpacked(layers, layer(
        member("gone/.wh.file"), member(".wh.folder"), member("new/", None), member("new/.wh..wh..opq"),
        member("new/kept", b"1"),
        member("both", b"mine"), member(".wh.both"), member(".wh.refilled"), member("refilled/", None),
        member("refilled/x", b"1"),
        member(".wh..wh.plnk/", None), member(".wh..wh.plnk/1.2", b"aufs"), member(".wh..wh.aufs"),
    ))  # fmt: skip
    assert is_whiteout(found.tree / "gone/file") and is_whiteout(found.tree / "folder")
    assert opaque(found.tree / "new") and (found.tree / "new/kept").read_bytes() == b"1"
    assert (found.tree / "both").read_bytes() == b"mine"
    assert opaque(found.tree / "refilled") and (found.tree / "refilled/x").exists()
    assert names_below(found.tree) == [
        "both",
        "folder",
        "gone",
        "gone/file",
        "new",
        "new/kept",
        "refilled",
        "refilled/x",
    ]
    assert found.entries["gone/file"].kind == "whiteout" and found.entries["new"].opaque


@pytest.mark.parametrize(
    "members",
    [
        [member("../out", b"x")],
        [member("a/../../out", b"x")],
        [member("way", kind=SYMLINK, linkname="/tmp"), member("way/out", b"x")],
        [member("way", kind=SYMLINK, linkname=".."), member("way/out", None)],
        [member("way", kind=SYMLINK, linkname="."), member("way/.wh.x")],
        [member("way", kind=SYMLINK, linkname="."), member("way/.wh..wh..opq")],
        [member("hard", kind=LINK, linkname="../../etc/passwd")],
        [member("hard", kind=LINK, linkname="missing")],
        [member("hard", kind=LINK, linkname="hard")],
        [member("hard", kind=LINK, linkname=".")],
        [member("d/", None), member("hard", kind=LINK, linkname="d")],
        [member("way", kind=SYMLINK, linkname="/etc"), member("hard", kind=LINK, linkname="way/passwd")],
        [member("file", b"x"), member("file/below", b"x")],
        [member("folder/below", b"x"), member("folder", b"x")],
        [member("/".join("d" * 200), b"x")],
        [member(".wh.")], [member("a/.wh...")], [member(".wh..")],
        [member(".wh.x/y", b"1")],
        [member("n" * 256, b"x")],
        [member("x", kind=SYMLINK, linkname="")],
    ],
)  # fmt: skip
def test_what_leads_out_or_means_more_than_a_name_is_refused(
    layers: LayerStore, tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    with pytest.raises(CallerError, match="the layer"):
        Unpacked(layers, layer(*members))
    assert not (tmp_path / "out").exists() and not Path("/tmp/out").exists()
    assert not layers.digests() and not [path for path in (tmp_path / "state/layers").iterdir() if path.name != ".lock"]


def test_absolute_names_are_below_the_root_and_later_ones_replace_earlier_ones(
    layers: LayerStore, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("safe")
    found = Unpacked(layers, layer(
        member("/etc/x", b"1"), member("etc/x", b"2"), member("l", kind=SYMLINK, linkname=str(outside)),
        member("l", b"mine"),
        member("f", b"1"), member("h", kind=LINK, linkname="f"), member("f", b"22"), member("etc/", None, mode=0o700),
    ))  # fmt: skip
    assert (found.tree / "etc/x").read_bytes() == b"2" and stat.S_IMODE((found.tree / "etc").stat().st_mode) == 0o700
    assert outside.read_text() == "safe" and (found.tree / "l").read_bytes() == b"mine"
    assert (found.tree / "h").read_bytes() == b"1" and (found.tree / "f").read_bytes() == b"22"
    assert found.record.bytes == 1 + 2 + 4 + 1


def test_names_that_differ_by_case_stay_two_or_are_refused(layers: LayerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Unpacked(layers, layer(member("Readme", b"1"), member("README", b"2")))
    assert names_below(found.tree) == ["README", "Readme"]
    opened = os.open

    def folding(path: Any, flags: int, *rest: Any, **named: Any) -> int:  # a file system that does not tell them apart
        return opened(
            path.lower() if isinstance(path, str) and path in ("Readme", "README") else path, flags, *rest, **named
        )

    monkeypatch.setattr(os, "open", folding)
    with pytest.raises(CallerError, match="upper from lower case"):
        Unpacked(layers, layer(member("Readme", b"1"), member("README", b"2"), member("x", b"")))


def sparse(path: Path) -> bytes:
    """GNU tar's own: a megabyte with four bytes in the middle."""
    with (path / "holes").open("wb") as file:
        file.seek(500_000)
        file.write(b"data")
        file.truncate(1 << 20)
    out = path / "sparse.tar"
    assert os.system(f"tar -C {path} --sparse --format=posix -cf {out} holes") == 0
    return out.read_bytes()


def test_holes_come_back_as_zeros(layers: LayerStore, tmp_path: Path) -> None:
    archive = sparse(tmp_path)
    assert len(archive) < 100_000
    found = Unpacked(layers, archive)
    assert (found.tree / "holes").read_bytes() == bytes(500_000) + b"data" + bytes((1 << 20) - 500_004)
    assert found.record.bytes == 1 << 20


PACKERS: list[Callable[[bytes], bytes]] = [bytes, gzip.compress, zstd.compress]


@pytest.mark.parametrize("pack", PACKERS, ids=["plain", "gzip", "zstd"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_packed_layers_unpack_in_however_many_parts(
    layers: LayerStore, pack: Callable[[bytes], bytes], pieces: int
) -> None:
    plain = layer(*(member(f"{number}", os.urandom(100_000)) for number in range(20)))
    step = -(-len(plain) // pieces)
    data = b"".join(pack(plain[at : at + step]) for at in range(0, len(plain), step))
    found = Unpacked(layers, unpacked(io.BytesIO(data), "the layer"))
    assert len(found.entries) == 21


@pytest.mark.parametrize("pack", PACKERS, ids=["plain", "gzip", "zstd"])
@pytest.mark.parametrize("cut", [0, 1, 5, 100, 0.5, 0.9])
def test_a_layer_that_is_cut_off_is_refused(layers: LayerStore, pack: Callable[[bytes], bytes], cut: float) -> None:
    data = pack(layer(member("x", os.urandom(300_000)), member("y", b"1")))
    short = data[: int(cut * len(data)) if isinstance(cut, float) else cut]
    with pytest.raises(CallerError, match="the layer"):
        Unpacked(layers, unpacked(io.BytesIO(short), "the layer"))


@given(st.integers(0, 10**6), st.integers(0, 255), st.sampled_from(PACKERS))
def test_a_flipped_byte_makes_another_layer_or_a_caller_error(
    place: int, value: int, pack: Callable[[bytes], bytes]
) -> None:
    data = bytearray(pack(layer(member("a/x", b"abc" * 50, pax_headers={"SCHILY.xattr.user.a": "b"}),
                                member("l", kind=LINK, linkname="a/x"),
                                member("a/.wh.y"), member("s", kind=SYMLINK, linkname="a"))))  # fmt: skip
    data[place % len(data)] = value
    with tempfile.TemporaryDirectory() as folder:
        try:
            Unpacked(LayerStore(Layout(Path(folder)).ensure()), unpacked(io.BytesIO(bytes(data)), "the layer"))
        except CallerError:
            pass
        assert not list(Path(folder, "layers").glob(".staging-*"))


def test_a_layer_without_what_fills_its_last_block_is_whole(layers: LayerStore) -> None:
    """umoci writes such ones."""
    whole = layer(member("a", b"12345"), member("b", b"123"))
    assert len(whole.rstrip(b"\0")) == 3 * 512 + 3
    assert Unpacked(layers, whole.rstrip(b"\0")).record.bytes == 8
    with pytest.raises(CallerError, match="unexpected end"):
        Unpacked(layers, whole.rstrip(b"\0")[:-1])


def test_bounds_hold_while_it_is_read(layers: LayerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TREE_BYTES_MAX", 50_000)
    with pytest.raises(CallerError, match="50000 bytes"):
        Unpacked(layers, layer(member("a", bytes(30_000)), member("b", bytes(30_000))))
    monkeypatch.setattr(limits, "TREE_MEMBERS_MAX", 10)
    with pytest.raises(CallerError, match="10 members"):
        Unpacked(layers, layer(*(member(f"{number}") for number in range(12))))
    with pytest.raises(CallerError, match="10 members"):
        Unpacked(layers, layer(member("a/b/c/d/e/f/g/h/i/j/k/l")))


@pytest.mark.skipif(sys.platform != "linux", reason="layers are for Linux")
def test_a_root_archive_is_taken_literally(tmp_path: Path) -> None:
    images = ImageStore(Layout(tmp_path / "state").ensure())
    (tmp_path / "root.tar").write_bytes(layer(member(".wh.x", b"1"), member("su", b"", mode=0o4755)))
    image = images.from_tar(tmp_path / "root.tar")
    assert names_below(images.layers.path(image.layers[0])) == [".wh.x", "su"]
    assert image.dropped == {"setuid bits": 1}
