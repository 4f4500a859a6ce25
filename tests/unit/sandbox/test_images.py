"""Images: the default one, root folders, and archives that anybody may have made."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.sandbox import default_image
from ropewalk.sandbox.images import ImageRecord, ImageStore
from ropewalk.store.layout import Layout
from ropewalk.tasks.requirements import site_folder


@pytest.fixture
def images(tmp_path: Path) -> ImageStore:
    return ImageStore(Layout(tmp_path / "state").ensure())


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for info, data in members:
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def test_an_archive_becomes_an_image(images: ImageStore, tmp_path: Path) -> None:
    path = archive(
        tmp_path / "root.tar.gz",
        (member(".", tarfile.DIRTYPE), b""),
        (member("bin/sh", mode=0o4755, mtime=5), b"shell"),
        (member("bin/bash", tarfile.LNKTYPE, linkname="bin/sh"), b""),
        (member("etc", tarfile.SYMTYPE, linkname="/anywhere"), b""),
        (member("disk", tarfile.BLKTYPE, devmajor=8), b""),
        (member("pipe", tarfile.FIFOTYPE), b""),
        (member("bin", tarfile.DIRTYPE, mode=0o700), b""),
    )
    image = images.from_tar(path, label="mine")
    assert images.get(image.digest) == image
    assert list(images.records()) == [image]
    tree = images.layers.path(image.layers[0])
    assert sorted(item.relative_to(tree).as_posix() for item in tree.rglob("*")) == ["bin", "bin/bash", "bin/sh", "etc"]
    assert stat.S_IMODE((tree / "bin/sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((tree / "bin").stat().st_mode) == 0o700
    assert (tree / "bin/bash").stat().st_ino == (tree / "bin/sh").stat().st_ino
    assert (tree / "bin/sh").stat().st_mtime == 5


@pytest.mark.parametrize(
    "members",
    [
        [(member("../out"), b"x")],
        [(member("/etc/out"), b"x")],
        [(member("a/../../out"), b"x")],
        [(member("way", tarfile.SYMTYPE, linkname="/tmp"), b""), (member("way/out"), b"x")],
        [(member("way", tarfile.SYMTYPE, linkname=".."), b""), (member("way/out", tarfile.DIRTYPE), b"")],
        [(member("hard", tarfile.LNKTYPE, linkname="../../etc/passwd"), b"")],
        [(member("hard", tarfile.LNKTYPE, linkname="missing"), b"")],
        [(member("file"), b"x"), (member("file/below"), b"x")],
        [(member("folder/below"), b"x"), (member("folder"), b"x")],
        [(member("/".join("d" * 200)), b"x")],
    ],
)
def test_an_archive_that_leaves_its_folder_is_refused(
    images: ImageStore, tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    path = archive(tmp_path / "bad.tar.gz", *members)
    with pytest.raises(CallerError):
        images.from_tar(path)
    assert not (tmp_path / "out").exists()
    assert not list(images.records())
    assert not list((tmp_path / "state/images").glob(".staging-*"))


TIMES = ["inf", "-inf", "nan", "1e30", "-1e30", "9" * 400, "-1", "1.5", "x", ""]


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE], ids=repr)
def test_a_member_of_any_time_is_taken(images: ImageStore, tmp_path: Path, time: str, kind: bytes) -> None:
    path = archive(tmp_path / "a.tar", (member("x", kind, linkname="y", pax_headers={"mtime": time}), b""))
    assert images.from_tar(path).layers


HEADERS = [{name: value} for name in ("uid", "gid", "size", "path", "linkpath", "uname")
           for value in ("inf", "-1", "9" * 400, "1e30", "x" * 300, "x/" * 3000, "\udcff", "")]  # fmt: skip


@pytest.mark.parametrize("headers", HEADERS, ids=lambda headers: str(headers)[:20])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE], ids=repr)
def test_extended_headers_make_an_image_or_a_caller_error(
    images: ImageStore, tmp_path: Path, headers: dict[str, str], kind: bytes
) -> None:
    path = archive(tmp_path / "a.tar", (member("x", kind, linkname="y", pax_headers=headers), b""), (member("z"), b"z"))
    try:
        images.from_tar(path)
    except CallerError:
        assert not list(images.records())
    assert not list((tmp_path / "state/images").glob(".staging-*"))


@pytest.mark.parametrize(
    "info",
    [
        member("x" * 256), member("d" * 256 + "/x"), member("x", tarfile.SYMTYPE, linkname="y" * 5000),
        member("x" * 256, tarfile.DIRTYPE), member("x", tarfile.LNKTYPE, linkname="y" * 5000),
    ],
    ids=["file", "folder above", "link", "folder", "hard link"],
)  # fmt: skip
def test_names_that_no_file_system_has_are_the_archives_fault(
    images: ImageStore, tmp_path: Path, info: tarfile.TarInfo
) -> None:
    with pytest.raises(CallerError):
        images.from_tar(archive(tmp_path / "a.tar", (info, b"")))


def test_a_symbolic_link_in_the_place_of_a_file_is_replaced_not_followed(images: ImageStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("safe")
    path = archive(
        tmp_path / "a.tar", (member("x", tarfile.SYMTYPE, linkname=str(outside)), b""), (member("x"), b"evil")
    )
    image = images.from_tar(path)
    assert outside.read_text() == "safe"
    assert (images.layers.path(image.layers[0]) / "x").read_bytes() == b"evil"


def test_damaged_and_oversized_archives_are_refused(
    images: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = archive(tmp_path / "whole.tar.gz", *((member(str(number)), os.urandom(5000)) for number in range(20)))
    (tmp_path / "half.tar.gz").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    (tmp_path / "noise.tar").write_bytes(os.urandom(2000))
    for name in ("half.tar.gz", "noise.tar", "missing.tar"):
        with pytest.raises(CallerError, match=name):
            images.from_tar(tmp_path / name)
    monkeypatch.setattr(limits, "TREE_BYTES_MAX", 50_000)
    with pytest.raises(CallerError, match="50000 bytes"):
        images.from_tar(whole)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME], ids=repr)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=["plain", "gz", "bz2", "xz"])
def test_no_header_fills_the_memory(
    images: ImageStore, tmp_path: Path, kind: bytes, pack: Callable[[bytes], bytes]
) -> None:
    """The parser would read an extended header whole, before anything of it could be looked at."""
    info = member("long", kind)
    info.size = 16 << 20
    block = info.tobuf(tarfile.USTAR_FORMAT)
    (tmp_path / "bomb.tar").write_bytes(pack(block + bytes(info.size)))
    tracemalloc.start()
    try:
        with pytest.raises(CallerError, match=r"bomb\.tar"):
            images.from_tar(tmp_path / "bomb.tar")
        assert tracemalloc.get_traced_memory()[1] < info.size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=["plain", "gz", "bz2", "xz"])
def test_archives_may_be_packed_in_any_usual_way(
    images: ImageStore, tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as file:
        info = member("x" * 150)
        info.size = 1
        file.addfile(info, io.BytesIO(b"1"))
    (tmp_path / "a").write_bytes(pack(plain.getvalue()))
    image = images.from_tar(tmp_path / "a")
    assert (images.layers.path(image.layers[0]) / ("x" * 150)).read_bytes() == b"1"


def test_a_directory_becomes_an_image(images: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "root/bin").mkdir(parents=True)
    (tmp_path / "root/bin/sh").write_text("shell")
    one = images.from_directory(tmp_path / "root", label="one")
    two = images.from_directory(tmp_path / "root", label="two")
    assert one.digest == two.digest  # a label is no content
    assert one.label == "one"


def test_unknown_and_damaged_records_are_refused(images: ImageStore, tmp_path: Path) -> None:
    for digest in ("0" * 64, "", "../x"):
        with pytest.raises(CallerError):
            images.get(digest)
    (tmp_path / "state/images" / f"{'1' * 64}.json").write_text("{")
    with pytest.raises(IntegrityError):
        images.get("1" * 64)
    with pytest.raises(CallerError):
        images.add(ImageRecord(layers=("0" * 64,)))


def test_an_image_that_goes_while_all_are_read_is_not_missed(
    images: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    for name in ("one", "two"):
        (tmp_path / name / name).mkdir(parents=True)
        kept.append(images.from_directory(tmp_path / name, label=name).digest)
    read = Path.read_bytes

    def racing(path: Path) -> bytes:
        if path.name == f"{kept[0]}.json":
            path.unlink(missing_ok=True)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", racing)
    assert [record.digest for record in images.records()] == [kept[1]]


def test_a_place_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    images = ImageStore(Layout(tmp_path / "file"))
    with pytest.raises(UnavailableError, match="No layer can be stored"):
        images.from_tar(archive(tmp_path / "x.tar", (member("x"), b"")))


def test_the_default_image_is_built_once_and_holds_nothing_of_ours(tmp_path_factory: pytest.TempPathFactory) -> None:
    shared = Layout(tmp_path_factory.getbasetemp().parent / "ropewalk-shared").ensure()
    told: list[str] = []
    image = ImageStore(shared).default(told.append)
    assert told in ([], [*told[:4], "compiling", "storing the layer"])
    assert ImageStore(shared).default(told.append) == image
    images = ImageStore(shared)
    tree = images.layers.path(image.layers[0])
    packages = {
        path.name for path in tree.glob("usr/local/lib/python3*/*-packages/*") if not path.name.endswith(".dist-info")
    }
    assert packages - {"__pycache__"} == {"_pytest", "pytest", "pluggy", "iniconfig", "packaging", "pygments", "py.py"}
    names = {entry.path for entry in images.layers.entries(image.layers[0])}
    assert not {name for name in names if "ropewalk" in name or "hypothesis" in name or "/test/" in name}
    assert {"usr/bin/sh", "usr/bin/find", "usr/local/bin/python3", "usr/local/bin/pytest", "tmp"} <= names
    assert stat.S_IMODE((tree / "tmp").stat().st_mode) == 0o1777
    assert not [entry for entry in images.layers.entries(image.layers[0]) if entry.mode & 0o6000]


@pytest.mark.parametrize(
    ("searched", "chosen"),
    [
        (["/usr/local/lib/python3.11/site-packages"], "/usr/local/lib/python3.11/site-packages"),
        (  # Debian
            ["/usr/local/local/lib/python3.11/dist-packages", "/usr/local/lib/python3/dist-packages",
             "/usr/local/lib/python3.11/dist-packages"],
            "/usr/local/lib/python3.11/dist-packages",
        ),
        (["/usr/local/lib64/site-packages"], "/usr/local/lib64/site-packages"),
    ],
)  # fmt: skip
def test_packages_lie_beside_the_standard_library(searched: list[str], chosen: str) -> None:
    assert default_image.site_folder(searched) == chosen


def test_where_every_python_of_this_machine_looks_wheels_are_put(
    images: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the distribution's own, whose scheme is another."""
    for place in ("/usr/bin/python3", sys.executable):
        if not Path(place).exists():
            continue
        monkeypatch.setattr(default_image, "_interpreter", Path(place).resolve)
        site = default_image._site_packages().lstrip("/")
        layer = images.layers.add_files({f"{site}/_pytest/__init__.py": b""}).digest
        assert site_folder(images.layers, [layer]) == site


def test_asking_for_the_default_image_again_looks_through_no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    known = default_image.key()
    monkeypatch.delattr("importlib.metadata.distribution")
    assert default_image.key() == known


def test_a_changed_package_does_not_get_into_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (site / "pytest-9.0.dist-info").mkdir(parents=True)
    (site / "pytest.py").write_text("evil = True\n")
    (site / "pytest-9.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: pytest\nVersion: 9.0\n")
    (site / "pytest-9.0.dist-info/RECORD").write_text("pytest.py,sha256=AAAA,1\npytest-9.0.dist-info/RECORD,,\n")
    monkeypatch.setattr("sys.path", [str(site)])
    (tmp_path / "root").mkdir()
    with pytest.raises(IntegrityError, match="was changed after it was installed"):
        default_image.build(tmp_path / "root", lambda what: None)
