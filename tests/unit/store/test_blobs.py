"""The directory driver: crashes, full disks, read-only places, what lies on the disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.store.blobs import open_blobs
from ropewalk.store.drivers import directory
from ropewalk.store.drivers.directory import DirectoryBlobs


def incoming(root: Path) -> list[Path]:
    return list((root / "incoming").iterdir())


def stored(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "objects").rglob("*") if path.is_file()}


@contextlib.contextmanager
def file_size_limit(bytes_max: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("place", ["file:///{}", "{}", Path("{}"), "file://localhost/{}"])
def test_a_store_opens_by_path_and_by_uri(tmp_path: Path, place: str | Path) -> None:
    text = str(place).format(str(tmp_path / "a b").lstrip("/") if "//" in str(place) else tmp_path / "a b")
    blobs = open_blobs(Path(text) if isinstance(place, Path) else text.replace(" ", "%20" if "//" in text else " "))
    blobs.put(b"x")
    assert (tmp_path / "a b" / "objects").is_dir()


@pytest.mark.parametrize("place", ["s3://bucket/x", "file://host/x", "file:///x?y=1", "://x"])
def test_other_uris_are_refused_with_the_known_ones(place: str) -> None:
    with pytest.raises(CallerError, match=r"use one of: file|file:///absolute"):
        open_blobs(place)


def test_files_are_read_only_and_folders_private(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "s")
    digest = blobs.put(b"x")
    (path,) = (tmp_path / "s").rglob(digest)
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert stat.S_IMODE((tmp_path / "s" / "objects").stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "s")
    kept = blobs.put(b"small")
    source = tmp_path / "source"
    source.write_bytes(b"y" * 200_000)
    with file_size_limit(50_000):
        for call in (
            lambda: blobs.put(b"x" * 100_000),
            lambda: blobs.put_many([b"1" * 10, b"x" * 100_000]),
            lambda: blobs.put_file(source),
        ):
            with pytest.raises(UnavailableError, match="No room"):
                call()
    assert incoming(tmp_path / "s") == []
    assert set(stored(tmp_path / "s")) == {kept}
    assert blobs.put(b"x" * 100_000)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_file_system_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
import ctypes, os, sys
from pathlib import Path
from ropewalk.core.errors import UnavailableError
from ropewalk.store.drivers.directory import DirectoryBlobs
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
    sys.exit(77)
if libc.mount(b"tmpfs", sys.argv[1].encode(), b"tmpfs", 0, b"size=1m"):
    sys.exit(77)
blobs = DirectoryBlobs(Path(sys.argv[1]) / "s")
stored = []
try:
    for i in range(100):
        stored.append(blobs.put(bytes([i]) * 100_000))
except UnavailableError as error:
    print(error)
assert 2 < len(stored) < 20, stored
assert not list((Path(sys.argv[1]) / "s" / "incoming").iterdir())
assert all(len(blobs.get(d, bytes_max=100_000)) == 100_000 for d in stored)
assert sorted(blobs.digests()) == sorted(stored)
MS_RDONLY, MS_REMOUNT = 1, 32
if libc.mount(b"tmpfs", sys.argv[1].encode(), b"tmpfs", MS_REMOUNT | MS_RDONLY, None):
    sys.exit(77)
blobs = DirectoryBlobs(Path(sys.argv[1]) / "s")
assert all(len(blobs.get(d, bytes_max=100_000)) == 100_000 for d in stored)
try:
    blobs.put(b"new")
except UnavailableError as error:
    print(error)
"""
    place = tmp_path / "mount"
    place.mkdir()
    done = subprocess.run([sys.executable, "-c", code, str(place)], capture_output=True, text=True, timeout=30)
    if done.returncode == 77:
        pytest.skip("this machine forbids mounting a tmpfs")
    assert done.returncode == 0, done.stderr
    assert "No room" in done.stdout
    assert "Read-only" in done.stdout


def test_a_failing_flush_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = DirectoryBlobs(tmp_path / "s")
    calls = []

    def failing(_: int) -> None:
        calls.append(1)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(directory.os, "fsync", failing)
    with pytest.raises(UnavailableError, match="Input/output"):
        blobs.put(b"x")
    assert calls
    assert stored(tmp_path / "s") == {}
    assert incoming(tmp_path / "s") == []


def test_a_read_only_store_can_be_read_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = DirectoryBlobs(tmp_path / "s").put(b"x")
    real = os.open

    def read_only(path: str | Path, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *rest)

    monkeypatch.setattr(directory.os, "open", read_only)
    blobs = DirectoryBlobs(tmp_path / "s")
    assert blobs.get(digest, bytes_max=1) == b"x"
    with pytest.raises(UnavailableError, match="Read-only"):
        blobs.put(b"y")


def test_a_place_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="ROPEWALK_STATE"):
        DirectoryBlobs(tmp_path / "file" / "s")


def test_a_store_that_vanished_is_said(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "s")
    (tmp_path / "s" / "incoming").rmdir()
    with pytest.raises(UnavailableError):
        blobs.put(b"x")


@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_what_is_no_regular_file_is_damage(tmp_path: Path, kind: str) -> None:
    blobs = DirectoryBlobs(tmp_path / "s")
    digest = blobs.put(b"x")
    (path,) = (tmp_path / "s").rglob(digest)
    path.unlink()
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(b"x")
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(IntegrityError):
        blobs.get(digest, bytes_max=1)


def test_dead_writers_files_are_swept_and_living_ones_kept(tmp_path: Path) -> None:
    root = tmp_path / "s"
    code = (
        "import sys; from pathlib import Path; from ropewalk.store.drivers.directory import DirectoryBlobs\n"
        "b = DirectoryBlobs(Path(sys.argv[1]))\n"
        "with b._temporary() as (file, path):\n"
        "    file.write(b'half'); file.flush(); print('ready', flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    with child:
        assert child.stdout.readline() == b"ready\n"
        DirectoryBlobs(root)
        assert len(incoming(root)) == 1
        child.kill()
        child.wait()
        DirectoryBlobs(root)
        assert incoming(root) == []


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.05])
def test_kill_9_leaves_whole_blobs_alone(tmp_path: Path, after_s: float) -> None:
    root = tmp_path / "s"
    code = (
        "import os, sys; from pathlib import Path; from ropewalk.store.drivers.directory import DirectoryBlobs\n"
        "b = DirectoryBlobs(Path(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    print(*b.put_many([os.urandom(300_000), os.urandom(10)]), sep='\\n', flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == b"ready\n"
        child.stdout.readline()
        # No condition to wait for: the instant is arbitrary on purpose.
        time.sleep(after_s)
        child.send_signal(signal.SIGKILL)
        acknowledged = [line.decode().strip() for line in child.stdout if len(line) == 65]
        child.wait()
    blobs = DirectoryBlobs(root)
    assert incoming(root) == []
    found = stored(root)
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in found.items())
    assert set(acknowledged) <= set(found)
    assert sorted(found) == list(blobs.digests())


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(items=st.lists(st.binary(max_size=2000), max_size=12), chunk=st.integers(1, 3000))
def test_any_bytes_come_back(tmp_path: Path, items: list[bytes], chunk: int) -> None:
    blobs = DirectoryBlobs(tmp_path / "s")
    for digest, data in zip(blobs.put_many(items), items, strict=True):
        assert blobs.get(digest, bytes_max=2000) == data
        with blobs.open(digest) as reader:
            assert b"".join(iter(lambda: reader.read(chunk), b"")) == data
