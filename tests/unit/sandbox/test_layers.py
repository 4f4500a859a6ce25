"""Layers: content-addressed, whole or absent, and never what untrusted trees would like them to be."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.sandbox import flatten, trees
from ropewalk.sandbox import layers as layers_module
from ropewalk.sandbox.layers import LayerStore
from ropewalk.sandbox.trees import TreeEntry
from ropewalk.store.layout import Layout

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be started as root")


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(Layout(tmp_path / "state").ensure())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "sub/deeper").mkdir(parents=True)
    (root / "sub/file").write_text("text")
    (root / "sub/program").write_text("#!/bin/sh\n")
    (root / "sub/program").chmod(0o4755)
    (root / "link").symlink_to("/etc/shadow")
    os.link(root / "sub/file", root / "twin")
    os.mkfifo(root / "pipe")
    (root / "sub/deeper").chmod(0o1777)
    os.utime(root / "sub/file", ns=(1, 981_173_106_123_456_789))
    return root


def test_a_tree_is_kept_as_it_is_but_for_what_is_dangerous(store: LayerStore, source: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(source)
        listener.bind("socket")
    record = store.add_tree(source)
    tree = store.path(record.digest)
    assert record.skipped == 2
    assert sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*")) == [
        "link", "sub", "sub/deeper", "sub/file", "sub/program", "twin",
    ]  # fmt: skip
    assert (tree / "link").readlink() == Path("/etc/shadow")
    assert (tree / "twin").stat().st_ino == (tree / "sub/file").stat().st_ino
    assert (tree / "sub/file").stat().st_mtime_ns == 981_173_106_123_456_789
    assert stat.S_IMODE((tree / "sub/program").stat().st_mode) == 0o755
    assert stat.S_IMODE((tree / "sub/deeper").stat().st_mode) == 0o1777
    store.verify(record.digest)


def test_equal_content_is_one_layer_whatever_its_times(store: LayerStore, source: Path) -> None:
    first = store.add_tree(source)
    os.utime(source / "sub/file", (5, 5))
    assert store.add_tree(source) == first
    (source / "sub/file").chmod(0o600)
    assert store.add_tree(source).digest != first.digest
    assert {record.digest for record in store.records()} >= {first.digest}


DAMAGES: dict[str, Callable[[Path], object]] = {
    "other content": lambda tree: (tree / "sub/file").write_text("TEXT"),
    "another mode": lambda tree: (tree / "sub/file").chmod(0o777),
    "more": lambda tree: (tree / "sub/more").write_text(""),
    "less": lambda tree: (tree / "sub/program").unlink(),
    "no manifest": lambda tree: (tree.parent / "manifest").write_bytes(b""),
    "no tree": lambda tree: shutil.rmtree(tree),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_changed_layer_is_not_used(store: LayerStore, source: Path, damage: Callable[[Path], object]) -> None:
    digest = store.add_tree(source).digest
    assert store.check(digest) == store.path(digest)
    damage(store.path(digest))
    with pytest.raises(IntegrityError, match=digest[:12]):
        store.check(digest)
    with pytest.raises(IntegrityError):
        LayerStore(Layout(store.path(digest).parents[2])).check(digest)


CUT_SHORT: dict[str, Callable[[Path], object]] = {
    **DAMAGES,
    "an empty file": lambda tree: os.truncate(tree / "sub/file", 0),
    "an empty record": lambda tree: os.truncate(tree.parent / "record.json", 0),
}


@pytest.mark.parametrize("members", [3, 700])
@pytest.mark.parametrize("way", ["added", "changed in place", "changed and used"])
def test_what_was_changed_and_put_back_is_seen_before_anybody_vouches(
    store: LayerStore, tmp_path: Path, members: int, way: str
) -> None:
    files = {f"lib/{number}.py": b"0" for number in range(members)}
    digest = store.add_files(files).digest
    other = store.add_files({"lib/other.py": b"1"}).digest
    place = store.check(digest) / "lib"
    store.check(other)
    store.check_unchanged([digest, other])
    if way == "added":
        (place / "sitecustomize.py").write_bytes(b"import fix")
        (place / "sitecustomize.py").unlink()
    else:
        before = (place / "1.py").stat()
        (place / "1.py").write_bytes(b"1")
        (place / "1.py").write_bytes(b"0")
        os.utime(place / "1.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    if way == "changed and used":
        store.check(digest)  # the bytes are right again: sandboxes may stand on them
    with pytest.raises(IntegrityError, match=f"Layer {digest[:12]}… was touched"):
        store.check_unchanged([digest])
    store.check_unchanged([other])


def test_flattening_touches_no_layer_that_is_kept(store: LayerStore) -> None:
    digests = [store.add_files({"a": b"1"}).digest, store.add_files({"b": b"2"}).digest]
    for digest in digests:
        store.check(digest)
    flatten.flatten(store, digests)
    store.check_unchanged(digests)


@pytest.mark.parametrize("transient", [False, True], ids=["kept", "of snapshots"])
@pytest.mark.parametrize("damage", CUT_SHORT.values(), ids=CUT_SHORT)
@pytest.mark.parametrize("again", [False, True], ids=["the same process", "another process"])
def test_a_damaged_layer_is_replaced_by_the_same_content(
    store: LayerStore, source: Path, damage: Callable[[Path], object], transient: bool, again: bool
) -> None:
    """Else what a power loss cut short could never be used, stored or removed again."""
    record = store.add_tree(source, transient=transient)
    tree = store.path(record.digest)
    damage(tree)
    if again:
        store = LayerStore(Layout(tree.parents[2]))
    assert store.add_tree(source, transient=transient) == record
    store.verify(record.digest)
    assert store.record(record.digest) == record
    assert store.transient() == ({record.digest} if transient else set())
    assert [path.name for path in tree.parents[1].iterdir() if path.name.startswith((".removed", ".staging"))] == []


def test_what_is_kept_is_on_the_disk_before_it_has_its_name(
    store: LayerStore, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what snapshots alone need when somebody asks for it, since they are many and most are soon gone."""
    synced: list[set[str]] = []

    def sync(path: Path) -> None:
        whole = [folder for folder in path.glob(".staging-*/layer") if (folder / "record.json").stat().st_size]
        synced.append(store.digests() | ({"staged"} if whole else set()))

    monkeypatch.setattr(layers_module, "sync_filesystem", sync)
    first = store.add_files({"a": b"1"}).digest
    assert synced == [{"staged"}]
    store.add_files({"a": b"1"})
    store.settle([])
    assert len(synced) == 1  # it is there already
    second = store.add_tree(source, transient=True).digest
    assert len(synced) == 1
    store.settle([first, second])
    store.settle([second])
    assert synced[1:] == [{first, second}]
    store.discard(second)
    store.add_tree(source, transient=True)  # a new folder
    store.settle([second])
    store.add_tree(source)  # from now on it is kept
    assert len(synced) == 4
    assert store.transient() == set()
    with pytest.raises(CallerError):
        store.settle(["0" * 64])


def test_a_disk_that_takes_nothing_keeps_nothing(
    store: LayerStore, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    second = store.add_tree(source, transient=True).digest
    monkeypatch.setattr(layers_module, "sync_filesystem", fail)
    with pytest.raises(UnavailableError, match="Input/output error"):
        store.add_files({"a": b"1"})
    with pytest.raises(UnavailableError):
        store.settle([second])
    assert store.digests() == {second}


def test_files_become_a_layer(store: LayerStore) -> None:
    record = store.add_files({"work/a.py": b"1", "work/b/c": b"2"}, modes={"work/a.py": 0o6755})
    tree = store.path(record.digest)
    assert (tree / "work/b/c").read_bytes() == b"2"
    assert stat.S_IMODE((tree / "work/a.py").stat().st_mode) == 0o755
    assert store.add_files({"work/b/c": b"2", "work/a.py": b"1"}, modes={"work/a.py": 0o755}) == record


def test_what_takes_long_to_look_over_is_known_as_such(store: LayerStore) -> None:
    few = store.add_files({"a": b"1"}).digest
    some = store.add_files({f"work/{at}": b"" for at in range(100)}).digest
    many = store.add_files({f"work/{at}": b"" for at in range(600)}).digest  # of which only the top is looked at
    fresh = LayerStore(Layout(store.path(few).parents[2]))
    assert not fresh.is_quick((few,)), "it was never read"
    for digest in (few, some, many):
        fresh.check(digest)
    assert fresh.is_quick((few, many))
    assert not fresh.is_quick((few, some))


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", ".", "a\0b"])
def test_names_outside_of_the_layer_are_refused(store: LayerStore, name: str) -> None:
    with pytest.raises(CallerError):
        store.add_files({name: b""})


def test_a_file_that_is_a_folder_is_refused(store: LayerStore) -> None:
    with pytest.raises(CallerError, match="at once"):
        store.add_files({"a": b"", "a/b": b""})


def test_bounds_hold(store: LayerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "deep"
    (deep / "/".join(["d"] * 200)).mkdir(parents=True)
    with pytest.raises(CallerError, match="deeper"):
        store.add_tree(deep)
    wide = tmp_path / "wide"
    wide.mkdir()
    for number in range(6):
        (wide / str(number)).write_bytes(b"x" * 100)
    monkeypatch.setattr(limits, "TREE_MEMBERS_MAX", 3)
    with pytest.raises(CallerError, match="more than 3"):
        store.add_tree(wide)
    monkeypatch.setattr(limits, "TREE_MEMBERS_MAX", 100)
    monkeypatch.setattr(limits, "TREE_BYTES_MAX", 300)
    with pytest.raises(CallerError, match="larger"):
        store.add_tree(wide)
    assert not list(store.records())
    assert not list((tmp_path / "state/layers").iterdir())


@pytest.mark.parametrize("way", ["copied", "with a larger bound", "made of several"])
def test_what_is_stored_can_be_read_again(
    store: LayerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A layer past what `verify` reads would be stored, and then be called damaged for ever."""
    monkeypatch.setattr(limits, "TREE_BYTES_MAX", 1000)
    kept = []
    with pytest.raises(CallerError, match="1000"):
        if way == "made of several":
            kept = [store.add_files({str(number): bytes(400)}).digest for number in range(3)]
            flatten.flatten(store, kept)
        else:
            (tmp_path / "tree").mkdir()
            (tmp_path / "tree" / "file").write_bytes(bytes(1500))
            store.add_tree(tmp_path / "tree", bytes_max=2000 if way == "with a larger bound" else None)
    assert store.digests() == set(kept)
    for digest in store.digests():
        store.verify(digest)


def test_unknown_layers_and_sources_are_refused(store: LayerStore, tmp_path: Path) -> None:
    for digest in ("0" * 64, "", "../../etc", "x" * 64):
        with pytest.raises(CallerError):
            store.path(digest)
    for path in (tmp_path / "missing", tmp_path / "file"):
        (tmp_path / "file").write_text("")
        with pytest.raises(CallerError):
            store.add_tree(path)


def test_a_full_disk_leaves_nothing(store: LayerStore, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UnavailableError, match="No space"):
        store.add_tree(source)
    monkeypatch.undo()
    assert not list(store.records())


def test_a_removed_layer_is_gone(store: LayerStore, source: Path) -> None:
    digest = store.add_tree(source).digest
    store.remove(digest)
    store.remove(digest)
    with pytest.raises(CallerError):
        store.path(digest)


def test_a_killed_writer_leaves_nothing_after_a_sweep(store: LayerStore, tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom ropewalk.sandbox import trees\n"
        "from ropewalk.sandbox.layers import LayerStore\nfrom ropewalk.store.layout import Layout\n"
        "def make(target):\n  target.mkdir(); (target / 'half').write_text('x')\n"
        "  print('half', flush=True); time.sleep(60)\n"
        "LayerStore(Layout(Path(sys.argv[1]))).add_made(make)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "state")], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half\n"
        assert store.sweep() == 0  # somebody is at work
        writer.send_signal(signal.SIGKILL)
    for staging in (tmp_path / "state/layers").iterdir():
        os.utime(staging, (1, 1))
    assert store.sweep() == 1
    assert not list((tmp_path / "state/layers").iterdir())


@as_root
def test_owners_are_translated(store: LayerStore, source: Path) -> None:
    os.chown(source / "sub/file", 1234, 1235)
    squashed = store.path(store.add_tree(source).digest) / "sub/file"
    kept = store.path(store.add_tree(source, owner=trees.as_is).digest) / "sub/file"
    assert (squashed.stat().st_uid, squashed.stat().st_gid) == (0, 0)
    assert (kept.stat().st_uid, kept.stat().st_gid) == (1234, 1235)


def test_names_that_are_no_text_survive(store: LayerStore, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.mkdir()
    names = {b"\xff\xfe", "été".encode(), b"new\nline", b"base64:AAAA", b"\\xff"}
    for name in names:
        (odd / os.fsdecode(name)).write_bytes(name)
    digest = store.add_tree(odd).digest
    assert {os.fsencode(path.name) for path in store.path(digest).iterdir()} == names
    assert {os.fsencode(trees.file_name(entry.path)) for entry in store.entries(digest)} == {*names, b""}
    assert len({entry.path for entry in store.entries(digest)}) == len(names) + 1


# What a stack of layers shows, by overlayfs' own way of looking: from the top down, path by path.
Layer = dict[str, TreeEntry]


def show(stack: list[Layer], path: str = "") -> dict[str, object]:
    """Visible members below a folder: contents of files, None for folders."""
    parts: list[Layer] = []
    for layer in reversed(stack):
        entry = layer.get(path)
        if entry is None:
            continue
        if entry.kind != "directory":
            break
        parts.append(layer)
        if entry.opaque:
            break
    seen: dict[str, object] = {}
    names = {
        name for layer in parts for name in layer if name != "" and name.rpartition("/")[0] == path and name != path
    }
    for name in sorted(names):
        top = next(layer[name] for layer in parts if name in layer)
        if top.kind == "directory":
            seen[name] = (None, top.mode)
            seen.update(show(list(reversed(parts)), name))
        elif top.kind != "whiteout":
            seen[name] = top.sha256
    return seen


names = st.sampled_from("abc")


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    """A well-formed layer: the root, and below folders alone anything."""
    layer: Layer = {"": TreeEntry(path="", kind="directory", mode=0o755)}

    def fill(path: str, depth: int) -> None:
        for name in draw(st.sets(names, max_size=3)):
            inner = f"{path}/{name}".lstrip("/")
            kind = draw(
                st.sampled_from(("file", "whiteout", "directory", "directory") if depth < 2 else ("file", "whiteout"))
            )
            if kind == "directory":
                layer[inner] = TreeEntry(
                    path=inner, kind=kind, mode=draw(st.sampled_from((0o700, 0o755))), opaque=draw(st.booleans())
                )
                fill(inner, depth + 1)
            else:
                layer[inner] = TreeEntry(
                    path=inner, kind=kind, sha256=str(draw(st.integers(0, 9))) if kind == "file" else ""
                )

    fill("", 0)
    return dict(sorted(layer.items(), key=lambda item: item[0].split("/")))


@given(st.lists(layers(), min_size=1, max_size=4), st.lists(layers(), max_size=2))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=200)
def test_a_flattened_stack_shows_the_same_above_anything(stack: list[Layer], below: list[Layer]) -> None:
    merged = {path: entry for path, (entry, _) in flatten.merge([tuple(layer.values()) for layer in stack]).items()}
    assert show([*below, merged]) == show([*below, *stack])


def test_a_hundred_layers_flattened_again_and_again_show_the_same() -> None:
    """As a hundred nested forks do it: whenever there are more than `SNAPSHOT_LAYERS_MAX` they become one."""

    def of(*entries: TreeEntry) -> Layer:
        return {entry.path: entry for entry in (TreeEntry(path="", kind="directory"), *entries)}

    def written(level: int) -> Layer:
        gone = [TreeEntry(path=f"f{level - 3}", kind="whiteout")] if level >= 3 else []
        return of(*(TreeEntry(path=path, kind="file", sha256=f"{level}") for path in ("level", f"f{level}")), *gone)

    whole = [written(level) for level in range(100)]
    stack: list[Layer] = []
    for layer in whole:
        stack.append(layer)
        if len(stack) > limits.SNAPSHOT_LAYERS_MAX:
            merged = flatten.merge([tuple(each.values()) for each in stack])
            stack = [{path: entry for path, (entry, _) in merged.items()}]
    assert show(stack) == show(whole)
    assert show(stack) == {"level": "99", "f97": "97", "f98": "98", "f99": "99"}


def test_flattening_keeps_bytes_links_and_owners(store: LayerStore, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for root in (first, second):
        (root / "d").mkdir(parents=True)
    (first / "d/a").write_text("1")
    (first / "d/b").write_text("gone")
    os.link(first / "d/a", first / "twin")
    (first / "link").symlink_to("d/a")
    (second / "d/a").write_text("2")
    os.mknod(second / "d/b", stat.S_IFCHR, 0)
    os.utime(second / "d/a", ns=(5, 5))
    digests = [store.add_tree(root).digest for root in (first, second)]
    record = flatten.flatten(store, digests)
    tree = store.path(record.digest)
    assert (tree / "d/a").read_text() == "2"
    assert (tree / "twin").read_text() == "1"
    assert (tree / "link").readlink() == Path("d/a")
    assert (tree / "d/a").stat().st_mtime_ns == 5
    assert stat.S_ISCHR((tree / "d/b").stat().st_mode)
    store.verify(record.digest)
    for digest in digests:
        store.verify(digest)
