"""Ingest as a whole: what is stored, what is refused, what is done again, what survives."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.core.errors import CallerError, DeniedError, IntegrityError, UnavailableError
from ropewalk.core.records import digest, digest_bytes
from ropewalk.lake import ArchiveError, Fetcher, Lake, Pin, Terms, canonical_tar, unpack
from ropewalk.lake.sources import pack_directory
from ropewalk.store.blobs import open_blobs
from ropewalk.store.layout import Layout
from ropewalk.testing.clock import ManualClock

Sdist = Callable[..., bytes]


@pytest.fixture
def pypi(index: Any, make_sdist: Sdist) -> Any:
    """An index with three releases of toy."""
    for version in ("1.0", "1.1", "2.0"):
        index.offer("toy", f"toy-{version}.tar.gz", make_sdist(version=version))
    return index


@pytest.fixture(params=["pypi:toy==1.0", "directory", "archive"])
def toy(request: pytest.FixtureRequest, make_sdist: Sdist, tmp_path: Path) -> str:
    """One release, as a source of each sort."""
    if request.param == "pypi:toy==1.0":
        return "pypi:toy==1.0"
    (tmp_path / "toy-1.0.tar.gz").write_bytes(make_sdist(version="1.0"))
    unpack(tmp_path / "toy-1.0.tar.gz", tmp_path / "toy")
    (folder,) = (tmp_path / "toy").iterdir()
    return str(folder if request.param == "directory" else tmp_path / "toy-1.0.tar.gz")


def blob_path(layout: Layout, sha256: str) -> Path:
    (path,) = layout.blobs.rglob(sha256)
    return path


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def test_a_release_enters_with_its_licence_and_its_attestation(
    pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms, make_sdist: Sdist, clock: ManualClock
) -> None:
    result = lake.ingest("pypi:Toy==1.1", tenant="acme", terms=terms, index=pypi.url, fetcher=fetcher)
    (record,) = result.records
    data = make_sdist(version="1.1")
    assert lake.read(record.id, tenant="acme") == data
    assert (record.sha256, record.bytes, record.name) == (digest_bytes(data), len(data), "toy-1.1.tar.gz")
    assert (record.distribution, record.version, record.source) == ("toy", "1.1", "pypi:toy==1.1")
    assert record.path == "pypi/toy/toy-1.1.tar.gz"
    assert record.licence.expression == "MIT"
    assert record.id == f"raw:{record.sha256[:32]}"
    assert (record.attestation.who, record.attestation.when_s) == ("test bench", clock.now_s())
    assert record.attestation.claim == "no_human_data"
    assert result.committed and result.stored == (record.sha256,)
    assert result.commit.entries == {record.path: record.sha256}
    assert result.commit.records == {record.sha256: digest(record)}
    assert lake.head(tenant="acme") == lake.commit(result.commit.id, tenant="acme") == result.commit
    assert lake.raw(record.sha256, tenant="acme") == record


def test_steps_hold_what_statements_need(pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms) -> None:
    result = lake.ingest(
        "pypi:toy", versions=["1.0", "2.0"], tenant="acme", terms=terms, index=pypi.url, fetcher=fetcher
    )
    first, second, commit = result.steps
    assert [step.activity for step in result.steps] == ["ingest", "ingest", "commit"]
    assert first.subjects == ((result.records[0].id, result.records[0].sha256),)
    assert first.facts["licence"]["expression"] == "MIT" and second.facts["version"] == "2.0"
    assert commit.subjects == ((result.commit.id, result.commit.digest),)
    assert set(commit.inputs) == {(record.id, record.sha256) for record in result.records}
    # Nothing of this machine stands in what will be signed.
    assert "127.0.0.1" not in repr(result.steps)
    again = lake.ingest(
        "pypi:toy", versions=["1.0", "2.0"], tenant="acme", terms=terms, index=pypi.url, fetcher=fetcher
    )
    assert again.steps == result.steps


def test_the_same_again_stores_nothing_and_asks_nobody(
    pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms, layout: Layout, clock: ManualClock
) -> None:
    first = lake.ingest(
        "pypi:toy", versions=["1.0", "1.1"], tenant="acme", terms=terms, index=pypi.url, fetcher=fetcher
    )
    files = sorted(str(path) for path in layout.root.rglob("*"))
    asked = len(pypi.requests)
    clock.advance(100)
    pypi.close()
    again = lake.ingest("pypi:toy", versions=["1.1", "1.0.0"], tenant="acme", terms=terms, index="http://127.0.0.1:9")
    assert (again.stored, again.committed, again.commit) == ((), False, first.commit)
    assert again.records == first.records[::-1]
    assert sorted(str(path) for path in layout.root.rglob("*")) == files
    assert len(pypi.requests) == asked


def test_pins_decide_and_work_without_a_network(
    pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms, make_sdist: Sdist
) -> None:
    pins = [
        Pin(distribution="toy", version=version, sha256=digest_bytes(make_sdist(version=version)))
        for version in ("1.0", "2.0")
    ]
    other = Pin(distribution="other", version="1", sha256="0" * 64)
    result = lake.ingest("pypi:toy", pins=[*pins, other], tenant="acme", terms=terms, index=pypi.url, fetcher=fetcher)
    assert [record.version for record in result.records] == ["1.0", "2.0"]
    again = lake.ingest("pypi:toy", pins=pins, tenant="acme", terms=terms, index="http://127.0.0.1:9")
    assert again.records == result.records and not again.committed


def test_a_wrong_pin_is_integrity_and_stores_nothing(
    pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms, layout: Layout
) -> None:
    wrong = Pin(distribution="toy", version="1.0", sha256="0" * 64)
    with pytest.raises(IntegrityError, match=r"toy-1\.0"):
        lake.ingest("pypi:toy==1.0", pins=[wrong], tenant="acme", terms=terms, index=pypi.url, fetcher=fetcher)
    with pytest.raises(CallerError, match="two different"):
        lake.ingest(
            "pypi:toy",
            pins=[wrong, Pin(distribution="toy", version="1.0", sha256="1" * 64)],
            tenant="acme",
            terms=terms,
        )
    assert not [path for path in (layout.blobs / "objects").rglob("*") if path.is_file()]
    assert lake.head(tenant="acme") is None


def test_a_wrong_or_hostile_download_stores_nothing(
    pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms, layout: Layout
) -> None:
    pypi.answer("/files/toy-1.0.tar.gz", b"something else")
    with pytest.raises(IntegrityError, match=r"toy-1\.0\.tar\.gz.*Expected.*got"):
        lake.ingest("pypi:toy==1.0", tenant="acme", terms=terms, index=pypi.url, fetcher=fetcher)
    pypi.offer("evil", "evil-1.tar.gz", b"\x1f\x8b but no gzip")
    with pytest.raises(ArchiveError, match=r"evil-1\.tar\.gz"):
        lake.ingest("pypi:evil==1", tenant="acme", terms=terms, index=pypi.url, fetcher=fetcher)
    assert not [path for path in (layout.blobs / "objects").rglob("*") if path.is_file()]


def test_an_interrupted_ingest_goes_on_where_it_stopped(pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms) -> None:
    def stop_at_the_second(name: str, done: int, total: int | None) -> None:
        if name == "toy-1.1.tar.gz":
            raise KeyboardInterrupt

    asked = {"tenant": "acme", "terms": terms, "index": pypi.url, "fetcher": fetcher, "versions": ["1.0", "1.1", "2.0"]}
    with pytest.raises(KeyboardInterrupt):
        lake.ingest("pypi:toy", progress=stop_at_the_second, **asked)
    assert lake.head(tenant="acme") is None
    result = lake.ingest("pypi:toy", **asked)
    assert len(result.records) == 3 and len(result.stored) == 2
    assert pypi.requests.count("/files/toy-1.0.tar.gz") == 1


def test_other_terms_make_another_record_of_the_same_bytes(
    pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms, clock: ManualClock
) -> None:
    asked = {"tenant": "acme", "index": pypi.url, "fetcher": fetcher}
    first = lake.ingest("pypi:toy==1.0", terms=terms, **asked)
    clock.advance(5)
    second = lake.ingest(
        "pypi:toy==1.0", terms=Terms(attested_by="legal", licence="Apache-2.0", overrides_licence=True), **asked
    )
    assert second.committed and second.stored == ()
    assert second.records[0].licence.expression == "Apache-2.0"
    assert second.records[0].retrieved_s == first.records[0].retrieved_s
    assert second.commit.entries == first.commit.entries and second.commit.records != first.commit.records
    assert lake.raw(first.records[0].id, tenant="acme") == second.records[0]
    # The older commit still knows the older terms.
    assert lake.verify(first.commit.id, tenant="acme").files == 1


def test_a_stated_licence_is_not_silently_another_one(
    toy: str, pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms
) -> None:
    asked: dict[str, Any] = {"tenant": "acme", "index": pypi.url, "fetcher": fetcher}
    gpl = Terms(attested_by="legal", licence="GPL-3.0-only")

    def licence_after(terms: Terms) -> str:
        return lake.ingest(toy, terms=terms, **asked).records[0].licence.expression

    for _ in ("a new file", "a stored one"):
        with pytest.raises(DeniedError, match=r"states the licence MIT .*GPL-3.0-only was given") as caught:
            licence_after(gpl)
        assert caught.value.rule == "licence" and "--override-licence" in caught.value.next_step
        assert licence_after(terms) == "MIT"
    assert licence_after(msgspec.structs.replace(gpl, overrides_licence=True)) == "GPL-3.0-only"
    assert licence_after(terms) == licence_after(gpl) == "GPL-3.0-only", "decided once: it stays, and all say so"
    assert licence_after(Terms(attested_by="legal", licence="MIT")) == "MIT", "back to what it states"


RESTRICTED = Terms(attested_by="test bench", data_class="restricted")


def test_a_second_ingest_does_not_lower_the_class_of_a_file(
    toy: str, pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms
) -> None:
    asked: dict[str, Any] = {"tenant": "acme", "index": pypi.url, "fetcher": fetcher}

    def class_after(terms: Terms) -> str:
        return lake.ingest(toy, terms=terms, **asked).records[0].data_class

    assert class_after(RESTRICTED) == "restricted"
    assert class_after(terms) == "restricted"
    assert class_after(Terms(attested_by="legal", licence="Apache-2.0", overrides_licence=True)) == "restricted"
    for lower in ("public", "internal"):
        with pytest.raises(DeniedError, match="restricted") as caught:
            class_after(Terms(attested_by="legal", data_class=lower))
        assert caught.value.rule == "data_class"
    with pytest.raises(CallerError, match="secret"):
        class_after(Terms(attested_by="legal", data_class="secret", lowers=True))
    assert {record.data_class for record in lake.records(tenant="acme")} == {"restricted"}
    assert class_after(Terms(attested_by="legal", data_class="internal", lowers=True)) == "internal"
    assert class_after(RESTRICTED) == "restricted"


def test_the_same_bytes_are_of_one_class_however_they_come(
    pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms, make_sdist: Sdist, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"tenant": "acme", "index": pypi.url, "fetcher": fetcher}
    assert lake.ingest("pypi:toy==1.0", terms=terms, **asked).records[0].data_class == "public"
    (tmp_path / "mine.tar.gz").write_bytes(make_sdist(version="1.0"))
    lake.ingest(tmp_path / "mine.tar.gz", terms=RESTRICTED, **asked)
    # The release's own record is still the public one: what counts is what the bytes became since.
    assert lake.ingest("pypi:toy==1.0", terms=terms, **asked).records[0].data_class == "restricted"
    assert lake.ingest(tmp_path / "mine.tar.gz", terms=terms, **asked).records[0].data_class == "restricted"


def test_tenants_do_not_see_each_other(pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms) -> None:
    result = lake.ingest("pypi:toy==1.0", tenant="acme", terms=terms, index=pypi.url, fetcher=fetcher)
    assert lake.head(tenant="zorg") is None and lake.records(tenant="zorg") == ()
    for call in (
        lambda: lake.read(result.records[0].id, tenant="zorg"),
        lambda: lake.commit(result.commit.id, tenant="zorg"),
        lambda: lake.raw(result.records[0].sha256, tenant="zorg"),
    ):
        with pytest.raises(CallerError):
            call()
    for name in ("", "A", "../acme", "a/b", "-a", "a" * 40, "a\n"):
        with pytest.raises(CallerError, match="tenant"):
            lake.records(tenant=name)


def test_nobody_attesting_or_no_licence_is_denied(
    index: Any, lake: Lake, fetcher: Fetcher, terms: Terms, make_sdist: Sdist, layout: Layout
) -> None:
    index.offer("toy", "toy-1.0.tar.gz", make_sdist(licence="Summary: none"))
    with pytest.raises(DeniedError) as caught:
        lake.ingest("pypi:toy==1.0", tenant="acme", terms=terms, index=index.url, fetcher=fetcher)
    assert caught.value.rule == "licence" and "--licence" in str(caught.value)
    with pytest.raises(DeniedError) as caught:
        lake.ingest("pypi:toy==1.0", tenant="acme", terms=Terms(attested_by=" "), index=index.url, fetcher=fetcher)
    assert caught.value.rule == "no_human_data"
    assert not [path for path in (layout.blobs / "objects").rglob("*") if path.is_file()]
    given = Terms(attested_by="x", licence="MIT")
    assert lake.ingest("pypi:toy==1.0", tenant="acme", terms=given, index=index.url, fetcher=fetcher).committed


@pytest.mark.parametrize(
    "source",
    ["pypi:", "pypi:toy==", "pypi:../x", "pypi:toy", "pypi:toy==latest", "/absent", "s3://x", "git+https://x", ""],
)
def test_malformed_sources_are_the_callers_error(
    source: str, pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file.txt").write_text("x")
    for text in (source, tmp_path / "file.txt", tmp_path / "absent.zip"):
        if text == "":
            monkeypatch.chdir(tmp_path)
            text = "file.txt"
        with pytest.raises(CallerError):
            lake.ingest(text, tenant="acme", terms=terms, index=pypi.url, fetcher=fetcher)
    assert pypi.requests == []


def project(root: Path) -> Path:
    (root / "src" / "toy").mkdir(parents=True)
    (root / "src" / "toy" / "__init__.py").write_text("x = 1\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "pyproject.toml").write_text('[project]\nname = "Toy"\nversion = "0.1"\nlicense = "MIT"\n')
    (root / "link.py").symlink_to("src/toy/__init__.py")
    for name in (".git", "__pycache__", ".venv", "src/toy/__pycache__"):
        (root / name).mkdir()
        (root / name / "junk").write_text("junk")
    (root / "src" / "toy" / "a.pyc").write_text("junk")
    return root


def test_a_directory_enters_as_a_canonical_tar(lake: Lake, terms: Terms, tmp_path: Path) -> None:
    first = lake.ingest(project(tmp_path / "alice-secret"), tenant="acme", terms=terms)
    (record,) = first.records
    assert (record.name, record.source, record.path) == (
        "toy-0.1.tar",
        "directory:toy-0.1.tar",
        "local/toy-0.1.tar",
    )
    assert (record.distribution, record.version, record.licence.found_in) == ("toy", "0.1", "source/pyproject.toml")
    assert "alice" not in repr(first.steps)
    assert first.skipped == (".git", ".venv", "__pycache__", "src/toy/__pycache__", "src/toy/a.pyc")
    done = unpack(lake.read(record.id, tenant="acme"), tmp_path / "out")
    assert done.top == "source"
    assert sorted(done.files) == [
        "source/link.py", "source/pyproject.toml", "source/run.sh", "source/src/toy/__init__.py",
    ]  # fmt: skip
    assert os.access(tmp_path / "out" / "source" / "run.sh", os.X_OK)
    assert not (tmp_path / "out" / "source" / "link.py").is_symlink()
    # The same files elsewhere, at another time, are the same raw file.
    shutil.copytree(tmp_path / "alice-secret", tmp_path / "copy", symlinks=True)
    again = lake.ingest(tmp_path / "copy", tenant="acme", terms=terms)
    assert (again.records, again.stored, again.committed) == (first.records, (), False)
    # Other files are another one, at the same path.
    (tmp_path / "copy" / "run.sh").write_text("#!/bin/sh\nexit 1\n")
    changed = lake.ingest(tmp_path / "copy", tenant="acme", terms=terms)
    assert changed.committed and changed.commit.parents == (first.commit.digest,)
    (change,) = lake.diff(first.commit.id, changed.commit.id, tenant="acme")
    assert (change.path, change.before) == ("local/toy-0.1.tar", record.sha256)
    assert change.after == changed.records[0].sha256
    # Another version stands beside it, under a name of its own.
    (tmp_path / "copy" / "pyproject.toml").write_text('[project]\nname = "Toy"\nversion = "0.2"\nlicense = "MIT"\n')
    second = lake.ingest(tmp_path / "copy", tenant="acme", terms=terms)
    assert {record.source for record in second.records} == {"directory:toy-0.2.tar"}
    assert set(second.commit.entries) == {"local/toy-0.1.tar", "local/toy-0.2.tar"}
    told = [second.commit.id, changed.commit.id, first.commit.id]
    assert [commit.id for commit in lake.log(tenant="acme")] == told


@pytest.mark.parametrize("kind", ["link out", "absolute link", "link to nothing", "fifo", "empty", "control", "case"])
def test_directories_that_cannot_be_packed_say_why(lake: Lake, terms: Terms, tmp_path: Path, kind: str) -> None:
    root = tmp_path / "d"
    root.mkdir()
    if kind == "link out":
        (tmp_path / "secret").write_text("s")
        (root / "l").symlink_to("../secret")
    elif kind == "absolute link":
        (root / "l").symlink_to("/etc/passwd")
    elif kind == "link to nothing":
        (root / "l").symlink_to("nothing")
    elif kind == "fifo":
        os.mkfifo(root / "p")
    elif kind == "control":
        (root / "a\nb").write_text("")
    elif kind == "case":
        (root / "A").write_text("")
        (root / "a").write_text("")
    with pytest.raises(CallerError):
        lake.ingest(root, tenant="acme", terms=terms)


def test_a_local_archive_enters_as_it_is(lake: Lake, terms: Terms, tmp_path: Path, make_sdist: Sdist) -> None:
    path = tmp_path / "my toy-1.0.tar.gz"
    path.write_bytes(make_sdist())
    result = lake.ingest(str(path), tenant="acme", terms=terms)
    assert result.records[0].path == "local/my_toy-1.0.tar.gz"
    assert (result.records[0].distribution, result.records[0].version) == ("toy", "1.0")
    assert lake.read(result.records[0].id, tenant="acme") == make_sdist()
    path.write_bytes(make_sdist()[:-9])
    with pytest.raises(ArchiveError, match="damaged"):
        lake.ingest(str(path), tenant="acme", terms=terms)


@pytest.mark.parametrize("what", ["file", "record", "commit"])
@pytest.mark.parametrize("how", ["flip", "lose"])
def test_a_damaged_raw_zone_is_integrity(
    pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms, layout: Layout, what: str, how: str
) -> None:
    result = lake.ingest("pypi:toy==1.0", tenant="acme", terms=terms, index=pypi.url, fetcher=fetcher)
    record = result.records[0]
    sha256 = {"file": record.sha256, "record": digest(record), "commit": result.commit.digest}[what]
    path = blob_path(layout, sha256)
    damage(path) if how == "flip" else path.unlink()
    with pytest.raises(IntegrityError):
        lake.verify(result.commit.id, tenant="acme")
    if what == "file":
        with pytest.raises(IntegrityError):
            lake.read(record.id, tenant="acme")
        with pytest.raises(IntegrityError), lake.open(record.id, tenant="acme") as reader:
            reader.read()
    elif what == "record":
        with pytest.raises(IntegrityError):
            lake.raw(record.id, tenant="acme")
    else:
        with pytest.raises(IntegrityError):
            lake.head(tenant="acme")
    if (what, how) == ("file", "lose"):
        again = lake.ingest("pypi:toy==1.0", tenant="acme", terms=terms, index=pypi.url, fetcher=fetcher)
        assert not again.committed
        assert lake.verify(again.commit.id, tenant="acme").files == 1


def test_a_pointer_to_another_file_is_integrity(
    pypi: Any, lake: Lake, fetcher: Fetcher, terms: Terms, layout: Layout
) -> None:
    asked = {"tenant": "acme", "terms": terms, "index": pypi.url, "fetcher": fetcher}
    first, second = lake.ingest("pypi:toy", versions=["1.0", "1.1"], **asked).records
    content = layout.lake / "raw" / "acme" / "content"
    shutil.copy(content / second.sha256, content / first.sha256)
    with pytest.raises(IntegrityError, match="leads to another file"):
        lake.raw(first.id, tenant="acme")
    release = layout.lake / "raw" / "acme" / "release" / "toy"
    shutil.copy(release / "1.1", release / "1")
    with pytest.raises(IntegrityError, match="leads to"):
        lake.ingest("pypi:toy==1.0", **asked)
    (release / "1").write_text("garbage\n")
    with pytest.raises(IntegrityError):
        lake.ingest("pypi:toy==1.0", **asked)


def test_a_full_disk_loses_nothing(lake: Lake, terms: Terms, tmp_path: Path, layout: Layout) -> None:
    files = {"source/pyproject.toml": b'[project]\nname = "a"\nlicense = "MIT"\n', "source/big": os.urandom(300_000)}
    (tmp_path / "a.tar").write_bytes(canonical_tar(files))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UnavailableError, match="No room"):
            lake.ingest(tmp_path / "a.tar", tenant="acme", terms=terms)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert lake.records(tenant="acme") == () and lake.head(tenant="acme") is None
    assert lake.ingest(tmp_path / "a.tar", tenant="acme", terms=terms).committed


def test_kill_9_at_any_instant_loses_nothing_and_can_be_repeated(
    tmp_path: Path, terms: Terms, make_sdist: Sdist
) -> None:
    archives = []
    for number in range(6):
        archives.append(tmp_path / f"toy-{number}.tar.gz")
        archives[-1].write_bytes(make_sdist(version=str(number), body=os.urandom(50_000)))
    layout = Layout(tmp_path / "state").ensure()
    code = (
        "import sys; from pathlib import Path\n"
        "from ropewalk.lake import Lake, Terms; from ropewalk.store.blobs import open_blobs\n"
        "from ropewalk.store.layout import Layout\n"
        "layout = Layout(Path(sys.argv[1])); lake = Lake(layout, open_blobs(layout.blobs))\n"
        "for path in sys.argv[2:]:\n"
        "    r = lake.ingest(path, tenant='acme', terms=Terms(attested_by='x'))\n"
        "    print(r.commit.id, flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(layout.root), *map(str, archives)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    with child:
        acknowledged = [child.stdout.readline().decode().strip() for _ in range(2)]
        child.kill()
    lake = Lake(layout, open_blobs(layout.blobs))
    head = lake.head(tenant="acme")
    assert head is not None
    lake.verify(head.id, tenant="acme")
    assert set(acknowledged) <= {commit.id for commit in lake.log(tenant="acme")}
    for path in archives:
        last = lake.ingest(path, tenant="acme", terms=terms)
    assert len(last.commit.entries) == 6
    assert lake.verify(last.commit.id, tenant="acme").files == 6


def test_a_link_to_a_folder_is_named(tmp_path: Path) -> None:
    package(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path / "tests")
    with pytest.raises(CallerError, match=r"again is a link to a folder"):
        pack_directory(tmp_path)


@pytest.mark.parametrize("name", [".env", ".env.local", ".netrc", ".pypirc", "id_ed25519", "server.key", "store.p12"])
def test_what_by_its_name_holds_secrets_never_enters(tmp_path: Path, name: str) -> None:
    package(tmp_path)
    (tmp_path / "deep").mkdir()
    for folder in (tmp_path, tmp_path / "deep"):
        (folder / name).write_text("SECRET")
        (folder / ".env.example").write_text("NAME=")
    packed = pack_directory(tmp_path)
    assert set(packed.skipped) >= {name, f"deep/{name}"} and b"SECRET" not in packed.data
    assert b".env.example" in packed.data


def package(folder: Path) -> None:
    (folder / "tests").mkdir()
    (folder / "tests" / "test_it.py").write_text("def test_it(): pass\n")
