from __future__ import annotations

import ast
import base64
import bz2
import gzip
import importlib.util
import io
import lzma
import marshal
import py_compile
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from tests.absurd_archives import ABSURD_TARS, ABSURD_ZIPS, overlapping_zip
from tests.marks import MemoryMarks

from ropewalk.tasks import bodies, leaks
from ropewalk.tasks.bodies import functions
from ropewalk.tasks.fingerprints import Fingerprints, take_fingerprints
from ropewalk.tasks.leaks import Leak, Scanner, scan_text
from ropewalk.tasks.tree import make_tree

BEFORE = b'''def chunked(items, size):
    """Pieces."""
    return [items[i : i + size] for i in range(0, len(items), size) if size]


def helper(x):
    return x
'''
AFTER = b'''def chunked(items, size):
    """Pieces."""
    if size < 1:
        raise ValueError("a size must be at least one, and this one is less")
    found = [items[start : start + size] for start in range(0, len(items), size)]
    return found


def helper(x):
    return x
'''
TESTS = b"""from pkg import chunked


def test_visible():
    assert chunked([1, 2], 1) == [[1], [2]]


def test_secret():
    found = chunked([10, 20, 30, 40], 3)
    assert found == [[10, 20, 30], [40]]
    assert chunked([], 3) == []
"""
TREE = make_tree({"pkg/__init__.py": BEFORE}, distribution="pkg", version="1.0")


def secrets() -> Fingerprints:
    return take_fingerprints(
        TREE,
        before={"pkg/__init__.py": BEFORE},
        after={"pkg/__init__.py": AFTER},
        tests={"tests/test_pkg.py": TESTS},
        held_out={functions(TESTS)["test_secret"].digest},
    )


@pytest.mark.parametrize(
    "odd", [b"-" * 50_000 + b"1", b"(" * 5_000 + b")" * 5_000, b"9" * 5_000, b"a.b" + b".c" * 50_000]
)
def test_a_module_that_cannot_be_compiled_hides_no_secret_of_another(odd: bytes) -> None:
    odd = b"def odd(x):\n    return x + 1\n\nx = " + odd + b"\n"
    found = take_fingerprints(
        TREE,
        before={"pkg/__init__.py": BEFORE, "pkg/odd.py": odd},
        after={"pkg/__init__.py": AFTER, "pkg/odd.py": odd + b"\n"},
        tests={"tests/test_pkg.py": TESTS, "tests/test_odd.py": odd},
        held_out={functions(TESTS)["test_secret"].digest},
    )
    assert found.secrets == secrets().secrets


MARKS = MemoryMarks()


class Store:
    """Layers that are plain folders."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, files: dict[str, bytes]) -> str:
        for path, content in files.items():
            place = self.root / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        return name

    def path(self, digest: str) -> Path:
        return self.root / digest


CLEAN = {
    "work/pkg/__init__.py": BEFORE,
    "work/pkg-1.0.dist-info/METADATA": b"Name: pkg\nVersion: 1.0\n",
    "work/tests/test_pkg.py": TESTS[: TESTS.index(b"def test_secret")],
}


def scan(tmp_path: Path, planted: dict[str, bytes], *, in_image: bool = False) -> tuple[Leak, ...]:
    store = Store(tmp_path)
    stdlib = {"usr/local/lib/python3.11/chunks.py": b"def chunked(a):\n    return [a]\n"}
    image = store.put("image", stdlib | (planted if in_image else {}))
    task = store.put("task", CLEAN | ({} if in_image else planted))
    return Scanner(store, tmp_path / "index", MARKS).scan(secrets(), image=[image], layers=[task])


def archived(make: Callable[[bytes], bytes]) -> bytes:
    return make(AFTER)


def tarred(content: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        member = tarfile.TarInfo("pkg/__init__.py")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def zipped(content: bytes) -> bytes:
    return zipped_as("pkg/__init__.py", content)


def zipped_as(name: str, content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return stream.getvalue()


def compiled(content: bytes, folder: Path) -> bytes:
    source = folder / "m.py"
    source.write_bytes(content)
    return Path(py_compile.compile(str(source), cfile=str(folder / "m.pyc"), doraise=True) or "").read_bytes()


def test_a_clean_task_has_no_leaks(tmp_path: Path) -> None:
    assert scan(tmp_path, {}) == ()


FUNCTION = AFTER[: AFTER.index(b"\n\ndef helper")] + b"\n"
RENAMED = b"class Tools:\n    def pieces(items, size):\n" + b"".join(
    b"    " + line + b"\n" for line in FUNCTION.splitlines()[2:]
)
SECRET = TESTS[TESTS.index(b"def test_secret") :]
PLANTED: dict[str, tuple[str, bytes]] = {
    "the whole file": ("fixed file", AFTER),
    "the function in another file": ("fixed function", b"import os\n\n\n" + FUNCTION),
    "the function without its docstring": ("fixed function", FUNCTION.replace(b'    """Pieces."""\n', b"")),
    "a tar": ("fixed file", tarred(AFTER)),
    "a gzipped tar": ("fixed file", gzip.compress(tarred(AFTER))),
    "a zip": ("fixed file", zipped(AFTER)),
    "gzip": ("fixed file", gzip.compress(AFTER)),
    "bzip2": ("fixed file", bz2.compress(AFTER)),
    "xz": ("fixed file", lzma.compress(AFTER)),
    "an object of git": ("fixed file", zlib.compress(b"blob %d\0" % len(AFTER) + AFTER)),
    "base64": ("encoded", base64.b64encode(b"x" + AFTER)),
    "base64 in lines": ("encoded", b"data = '''\n" + base64.encodebytes(b"xy" + AFTER) + b"'''\n"),
    "a held-out test": ("held-out test", b"def test_secret():\n" + b"\n".join(SECRET.splitlines()[1:]) + b"\n"),
    "the tests' whole module": ("fixed file", TESTS),
    "base64 of a held-out test": ("encoded", base64.b64encode(SECRET)),
}


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("in_image", [False, True])
def test_planted(what: str, in_image: bool, tmp_path: Path) -> None:
    kind, content = PLANTED[what]
    place = "usr/share/odd.py" if in_image else "work/odd.py"
    found = scan(tmp_path, {place: content}, in_image=in_image)
    assert kind in {leak.kind for leak in found}, found
    assert all(leak.path.startswith(place) for leak in found)


def test_a_new_name_does_not_hide_a_function_in_a_task(tmp_path: Path) -> None:
    assert {leak.kind for leak in scan(tmp_path, {"work/pkg/tools.py": RENAMED})} == {"fixed function"}


def test_a_held_out_test_in_a_text_or_patch(tmp_path: Path) -> None:
    patch = b"".join(b"+" + line + b"\n" for line in SECRET.splitlines())
    assert {leak.kind for leak in scan(tmp_path, {"work/notes.txt": patch})} == {"held-out test"}


@pytest.mark.parametrize("in_image", [False, True])
def test_compiled_modules(in_image: bool, tmp_path: Path) -> None:
    planted = {"usr/odd.pyc" if in_image else "work/pkg/__pycache__/m.pyc": compiled(AFTER, tmp_path)}
    kind = "compiled" if in_image else "unreadable"  # what we did not compile is not opened
    assert {leak.kind for leak in scan(tmp_path / "l", planted, in_image=in_image)} == {kind}


def test_compiled_by_another_python(tmp_path: Path) -> None:
    foreign = b"\x01\x02\r\n" + b"\0" * 12 + marshal.dumps(compile(AFTER, "m", "exec"))
    assert {leak.kind for leak in scan(tmp_path, {"work/x.pyc": foreign})} == {"unreadable"}


def test_a_damaged_compiled_module_is_no_crash(tmp_path: Path) -> None:
    broken = compiled(AFTER, tmp_path)[:40]
    assert scan(tmp_path / "l", {"work/x.pyc": broken + b"chunk"}) == ()


@pytest.mark.parametrize("packed", [False, True])
def test_compiled_modules_of_others_are_never_loaded(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes of such a module can ask for all memory, or crash the interpreter."""

    def refuse(data: bytes) -> None:
        raise AssertionError("loaded")

    bomb = importlib.util.MAGIC_NUMBER + b"\0" * 12 + b"(" + struct.pack("<i", 2**31 - 1)
    planted = {"work/a.zip": zipped_as("b.pyc", bomb)} if packed else {"work/x.pyc": bomb}
    monkeypatch.setattr(leaks, "_load", refuse)
    assert scan(tmp_path, planted) == ()


def test_a_huge_module_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    real = bodies.parse_module

    def count(source: bytes | str) -> ast.Module:
        parsed.append(len(source))
        return real(source)

    monkeypatch.setattr(bodies, "parse_module", count)
    huge = b"x = 1\n" * 400_000
    assert scan(tmp_path / "a", {"work/a.zip": zipped_as("b.py", huge)}) == ()
    assert {leak.kind for leak in scan(tmp_path / "b", {"work/a.zip": zipped_as("b.py", huge + AFTER)})} == {
        "unreadable"
    }
    assert max(parsed, default=0) < 100_000


def in_tar(*contents: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for number, content in enumerate(contents):
            member = tarfile.TarInfo(str(number))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


BOTTOMLESS: dict[str, Callable[[], bytes]] = {
    "entries that share a member": lambda: overlapping_zip(),
    "one file of zeros": lambda: zipped_as("x", bytes(65 << 20)),
    "zeros, gzipped": lambda: gzip.compress(bytes(65 << 20)),
    "zeros, bzip2": lambda: bz2.compress(bytes(65 << 20)),
    "zeros, xz": lambda: lzma.compress(bytes(65 << 20), preset=0),
    "zeros, zlib": lambda: zlib.compress(bytes(65 << 20)),
    "archives of archives": lambda: in_tar(*[zipped_as("x", in_tar(*[bytes(4 << 20)] * 4))] * 5),
    "too many files": lambda: gzip.compress(in_tar(*[b""] * 5_001)),
    "too many files, in parts": lambda: in_tar(*[zipped_as("x", in_tar(*[b""] * 1_000))] * 6),
    "too deep": lambda: gzip.compress(gzip.compress(gzip.compress(gzip.compress(AFTER)))),
    **ABSURD_TARS,
    **ABSURD_ZIPS,
}  # fmt: skip


@pytest.mark.parametrize("name", BOTTOMLESS)
def test_what_holds_too_much_is_refused_in_bounded_time(tmp_path: Path, name: str) -> None:
    planted = {"work/data.bin": BOTTOMLESS[name]()}
    began = time.thread_time()
    assert {leak.kind for leak in scan(tmp_path, planted)} == {"unreadable"}
    assert time.thread_time() - began < 20


@pytest.mark.parametrize("name", ["many digits", "a directory alone", "too many files, in parts"])
def test_an_image_that_holds_too_much_is_refused(tmp_path: Path, name: str) -> None:
    found = scan(tmp_path, {"work/data.bin": BOTTOMLESS[name]()}, in_image=True)
    assert {leak.kind for leak in found} == {"unreadable"}


def test_what_holds_much_is_looked_through(tmp_path: Path) -> None:
    large = gzip.compress(in_tar(bytes(20 << 20), bytes(20 << 20), AFTER))
    assert "fixed file" in {leak.kind for leak in scan(tmp_path, {"work/data.bin": large})}


def test_an_image_is_indexed_once_however_many_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    real = leaks._build_index

    def count(root: Path) -> dict[str, list[str]]:
        made.append(root)
        time.sleep(0.05)  # long enough that all of them have asked
        return real(root)

    monkeypatch.setattr(leaks, "_build_index", count)
    store = Store(tmp_path)
    image = store.put("image", {"usr/lib/python3.11/a.py": b"def chunked(a):\n    return [a]\n"})
    scanner = Scanner(store, tmp_path / "index", MARKS)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: scanner.scan(secrets(), image=[image], layers=[]), range(8)))
    assert found == [()] * 8
    assert len(made) == 1


def test_version_control(tmp_path: Path) -> None:
    assert [leak.kind for leak in scan(tmp_path, {"work/.git/HEAD": b"ref: x\n"})] == ["version control"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("usr/local/lib/python3.11/site-packages/pkg-1.1.dist-info/METADATA", "other release"),
        ("work/pkg-2.0-py3.11.egg-info/PKG-INFO", "other release"),
        ("root/.cache/pkg-1.1-py3-none-any.whl", "other release"),
        ("usr/local/lib/python3.11/site-packages/pkg/__init__.py", "installed package"),
        ("usr/lib/python3/dist-packages/pkg.py", "installed package"),
    ],
)
def test_other_releases_and_installed_copies(path: str, kind: str, tmp_path: Path) -> None:
    for in_image in (False, True):
        found = scan(tmp_path / str(in_image), {path: b""}, in_image=in_image)
        assert {leak.kind for leak in found} == {kind}


def test_the_package_in_its_own_tree_and_a_namesake_deeper_down_are_fine(tmp_path: Path) -> None:
    assert scan(tmp_path, {"usr/local/lib/python3.11/xml/pkg.py": b"x = 1\n"}, in_image=True) == ()


def test_what_both_states_hold_is_no_secret() -> None:
    names = {secret.place for secret in secrets().secrets}
    assert names == {"pkg/__init__.py::chunked", "tests/test_pkg.py::test_secret"}


def test_a_function_that_only_got_another_signature_is_no_leak_in_the_older_source(tmp_path: Path) -> None:
    signed = BEFORE.replace(b"def chunked(items, size):", b"def chunked(items: list, size: int = 3) -> list:")
    store = Store(tmp_path)
    task = store.put("task", CLEAN)
    files = ({"pkg/__init__.py": BEFORE}, {"pkg/__init__.py": signed})
    found = Scanner(store, tmp_path / "index", MARKS).scan(
        take_fingerprints(TREE, before=files[0], after=files[1]), image=[], layers=[task]
    )
    assert found == ()


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "task" / "work").mkdir(parents=True)
    (tmp_path / "fixed.py").write_bytes(AFTER)
    (tmp_path / "task" / "work" / "link.py").symlink_to(tmp_path / "fixed.py")
    assert scan(tmp_path, {}) == ()


def test_the_index_of_an_image_is_kept_and_used(tmp_path: Path) -> None:
    assert scan(tmp_path, {}) == ()
    kept = list((tmp_path / "index").iterdir())
    assert len(kept) == 1
    stamp = kept[0].stat().st_mtime_ns
    assert scan(tmp_path, {}) == ()
    assert kept[0].stat().st_mtime_ns == stamp


def _emptied(data: bytes) -> bytes:
    return data.partition(b"\n")[0] + b"\n" + msgspec.msgpack.encode({})


@pytest.mark.parametrize(
    "change",
    [
        _emptied,
        lambda data: data[:-3],
        lambda data: data[: data.index(b"\n")],
        lambda data: data.partition(b"\n")[2],
        lambda data: b"",
        lambda data: MemoryMarks().make("scan index", "of another installation").encode() + data[64:],
        lambda data: b"\xff" + data,
    ],
)
def test_an_index_that_is_not_ours_hides_nothing_and_is_made_again(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    planted = {"usr/lib/python3.11/hidden.py": AFTER}
    found = scan(tmp_path, planted, in_image=True)
    assert found
    (kept,) = (tmp_path / "index").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(change(whole))
    assert scan(tmp_path, planted, in_image=True) == found
    assert kept.read_bytes() == whole


def test_the_index_of_one_layer_is_not_anothers(tmp_path: Path) -> None:
    store = Store(tmp_path)
    clean, dirty = store.put("clean", {"usr/a.py": b"x = 1\n"}), store.put("dirty", {"usr/b.py": AFTER})
    scanner = Scanner(store, tmp_path / "index", MARKS)
    found = scanner.scan(secrets(), image=[clean, dirty], layers=[])
    assert found
    files = {path.name.partition(".")[0]: path for path in (tmp_path / "index").iterdir()}
    files["dirty"].write_bytes(files["clean"].read_bytes())
    assert Scanner(store, tmp_path / "index", MARKS).scan(secrets(), image=[clean, dirty], layers=[]) == found


def test_a_prompt_that_tells_too_much() -> None:
    assert scan_text("Make chunked refuse sizes below one.", secrets()) == ()
    assert [leak.kind for leak in scan_text("Hint:\n\n" + SECRET.decode(), secrets())] == ["held-out test"]
    assert [leak.kind for leak in scan_text(AFTER.decode(), secrets())] == ["fixed function"]
