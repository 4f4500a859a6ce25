"""Archives whose headers are bombs: refused in no time, and what is usual is read."""

from __future__ import annotations

import io
import resource
import tarfile
import time
import zipfile

import pytest
from tests.absurd_archives import ABSURD_TARS, ABSURD_ZIPS, pax_record, tar_of

from ropewalk.machinery.archives import AbsurdArchiveError, open_tar, open_zip

CPU_S_MAX = 2.0
"""On any machine; without the bounds it is minutes to hours."""


@pytest.mark.parametrize("name", ABSURD_TARS)
def test_an_absurd_tar_is_refused_at_once(name: str) -> None:
    data = ABSURD_TARS[name]()
    began = time.thread_time()
    with pytest.raises(AbsurdArchiveError), open_tar(io.BytesIO(data)) as archive:
        while archive.next() is not None:
            pass
    assert time.thread_time() - began < CPU_S_MAX


@pytest.mark.parametrize("name", ABSURD_ZIPS)
def test_an_absurd_zip_is_refused_at_once(name: str) -> None:
    data = ABSURD_ZIPS[name]()
    began, before = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AbsurdArchiveError):
        open_zip(io.BytesIO(data))
    assert time.thread_time() - began < CPU_S_MAX
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_usual_headers_are_read(form: int) -> None:
    names = ["a", "d/" * 60 + "x" * 200, "caf\u00e9", "1" * 200 + "/" + "1" * 150]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form, pax_headers={"comment": "for all\nof it"}) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uid = 3, 1_700_000_000.123456789, 2**40
            info.pax_headers = {"SCHILY.xattr.user.note": "=" * 10_000}
            archive.addfile(info, io.BytesIO(b"abc"))
    with open_tar(io.BytesIO(buffer.getvalue())) as read:
        found = [(member.name, read.extractfile(member).read()) for member in read]  # type: ignore[union-attr]
    assert found == [(name, b"abc") for name in names]


def test_a_sparse_file_is_read() -> None:
    head = b"".join(
        pax_record(key, value)
        for key, value in [
            (b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", b"hole"),
            (b"GNU.sparse.realsize", b"1003"),
        ]
    )  # fmt: skip
    data = tar_of((tarfile.XHDTYPE, head), (tarfile.REGTYPE, b"1\n1000\n3\n".ljust(512, b"\0") + b"abc"))
    with open_tar(io.BytesIO(data)) as archive:
        member = archive.next()
        assert member is not None
        assert (member.name, archive.extractfile(member).read()) == ("hole", bytes(1000) + b"abc")  # type: ignore[union-attr]


def test_a_zip_of_large_members_is_read() -> None:
    buffer = io.BytesIO()
    content = b"x" * (16 << 20)
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", content)
    with open_zip(buffer) as read, read.open("a") as file:
        assert file.read(1 << 30) == content
