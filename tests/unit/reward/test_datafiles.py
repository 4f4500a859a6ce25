"""What archives beside the tests show, and those that would hold up whoever opens them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import time
import zipfile
from collections.abc import Callable

import pytest
from tests.absurd_archives import ABSURD_TARS, ABSURD_ZIPS

from ropewalk.reward.values import datafiles
from ropewalk.reward.values.prose import prose

CPU_S_MAX = 2.0
"""On any machine; a parser without bounds takes seconds to hours."""
ABSURD = ABSURD_TARS | ABSURD_ZIPS
TEXT = "table,4711\nquince,0815\n"


@pytest.mark.parametrize("name", ABSURD)
def test_an_absurd_archive_counts_as_unopened_at_once(name: str) -> None:
    data = ABSURD[name]()
    began = time.thread_time()
    (found,) = datafiles.show([("tests/data.bin", data)])
    assert time.thread_time() - began < CPU_S_MAX
    assert found.unopened and not found.wholes and not found.text


def tar(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [tar("kept.csv", TEXT.encode()), zipped("kept.csv", TEXT.encode()),
     gzip.compress(tar("kept.csv", zipped("x", TEXT.encode())))],
    ids=["tar", "zip", "zip in a packed tar"],
)  # fmt: skip
def test_an_archive_shows_its_names_and_what_it_holds(data: bytes) -> None:
    (found,) = datafiles.show([("tests/data.bin", data)])
    assert not found.unopened
    assert found.wholes >= prose(TEXT).wholes | prose("kept.csv").wholes
    assert "quince" in found.text and "kept.csv" in found.text and 4711.0 in found.numbers


def test_a_long_row_of_equal_numbers_is_not_looked_at_one_by_one() -> None:
    began = time.thread_time()
    (found,) = datafiles.show([("table.txt", b"1." * 4_000_000)])
    assert time.thread_time() - began < CPU_S_MAX and found.unopened


@pytest.mark.parametrize("stub", [b"MZ" + bytes(60), b"\x7fELF" + bytes(60), b"\x89PNG\r\n\x1a\n"])
def test_what_stands_before_an_archive_is_looked_at_as_well(stub: bytes) -> None:
    (found,) = datafiles.show([("tool.bin", stub + b"\0written before it\0" + zipped("kept.csv", TEXT.encode()))])
    assert found.wholes >= prose(TEXT).wholes and "written before it" in found.text


@pytest.mark.parametrize(
    "text",
    ["A title\n" + "=" * 72 + "\n" + "-" * 72, "x == y\n" * 40, "%25252525252541" * 20, "50% of it, 30%, 20%\n" * 20,
     "key=value\n" * 40, "=E4=F6=FC" * 20, "f(a=1, b=2)\n" * 30],
)  # fmt: skip
def test_text_with_signs_is_text(text: str) -> None:
    (found,) = datafiles.show([("README.rst", text.encode())])
    assert not found.unopened


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_stream_that_breaks_off_is_not_taken_for_all(pack: Callable[[bytes], bytes]) -> None:
    whole = pack(TEXT.encode()) + pack(TEXT.encode())
    assert not next(iter(datafiles.show([("whole.bin", whole)]))).unopened
    assert next(iter(datafiles.show([("part.bin", whole[:-12])]))).unopened
