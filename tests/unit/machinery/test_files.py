"""Files that appear whole or not at all, and locks that die with their holder."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.machinery.files import check_out, locked, replace_whole, replacing, write_out


@pytest.mark.parametrize("durable", [False, True])
def test_content_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path, *, durable: bool) -> None:
    place = tmp_path / "x"
    for data in (b"one", b""):
        replace_whole(place, data, durable=durable)
        assert place.read_bytes() == data
    assert list(tmp_path.iterdir()) == [place]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "x"
    replace_whole(place, b"one")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UnavailableError, match="No space"):
        replace_whole(place, b"two")
    assert place.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [place]
    with pytest.raises(UnavailableError, match="missing"):
        replace_whole(tmp_path / "missing" / "x", b"")


def test_modes_links_and_missing_folders(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b" / "x"
    replace_whole(place, b"1", parents=True)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) & 0o077 == 0
    mask = os.umask(0o027)
    try:
        replace_whole(place, b"2", mode=0o666)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(place.stat().st_mode) == 0o640
    (tmp_path / "elsewhere").write_bytes(b"mine")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    replace_whole(link, b"3")
    assert not link.is_symlink() and (tmp_path / "elsewhere").read_bytes() == b"mine"


@pytest.mark.parametrize("error", [TimeoutError(), KeyError("x"), KeyboardInterrupt()])
def test_what_ends_the_block_leaves_nothing_and_stays_what_it_is(tmp_path: Path, error: BaseException) -> None:
    replace_whole(tmp_path / "x", b"before")
    with pytest.raises(type(error)), replacing(tmp_path / "x") as file:
        file.write(b"half")
        raise error
    assert (tmp_path / "x").read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_one_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    entered = threading.Event()

    def wait() -> None:
        with locked(tmp_path / "lock"):
            entered.set()

    busy = UnavailableError("Busy.", retry_after_s=1.0)
    with locked(tmp_path / "lock"):
        other = threading.Thread(target=wait)
        other.start()
        with pytest.raises(UnavailableError, match="Busy"), locked(tmp_path / "lock", held=busy):
            raise AssertionError("entered twice")
        assert not entered.is_set()
    other.join(20)
    assert entered.is_set()
    with locked(tmp_path / "lock", held=busy):
        pass
    with pytest.raises(UnavailableError, match="cannot be locked"), locked(tmp_path / "missing" / "lock"):
        pass


def test_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "deep" / "lock"
    program = (
        "import sys, pathlib\nfrom ropewalk.machinery.files import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), parents=True):\n print('held', flush=True)\n sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        held = UnavailableError("Held.")
        with pytest.raises(UnavailableError, match="Held"), locked(lock, held=held):
            pass
        holder.kill()
        holder.wait(20)
        with locked(lock, held=held):
            pass


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_what_people_ask_for_is_as_readable_as_they_say(tmp_path: Path, mask: int) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "x")
    before = os.umask(mask)
    try:
        write_out(tmp_path / "link", b"one")
        replace_whole(tmp_path / "private", b"one")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o666 & ~mask
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600
    assert (tmp_path / "link").is_symlink()


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path):
        with pytest.raises(CallerError, match="no file"):
            write_out(place, b"one")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_whether_a_file_can_be_written_is_known_before_there_is_anything_to_write(tmp_path: Path) -> None:
    check_out(tmp_path / "new" / "x.html")
    assert not list((tmp_path / "new").iterdir()), "nothing is left"
    (tmp_path / "file").touch()
    with pytest.raises(CallerError, match="no file"):
        check_out(tmp_path)
    for place in (Path("/proc/nope/x.html"), tmp_path / "file" / "x.html"):
        with pytest.raises(UnavailableError, match="cannot be written"):
            check_out(place)
