# ruff: noqa: PTH101, PTH102, PTH211
# pathlib would double the time that the spawner takes to start.
"""A sandbox's root file system, built by the process that will become its bubblewrap, in namespaces of its own.

Standard library only, since the spawner imports it without site-packages. Everything is mounted in a private mount
namespace below `/tmp`, which a small private tmpfs covers; the host sees none of it, and all of it ends with the
last process in that namespace:

    /tmp/l/0 …    read-only layers, lowest first, owners translated to the tenant's ids
    /tmp/b/…      what of the host bubblewrap needs, read-only
    /tmp/w        a tmpfs of the sandbox's disk size: u is what overlayfs writes to, w its scratch folder
    /tmp/m        the overlay of these, which bubblewrap makes the root; on it, read-only, what the agent runs with,
                  and /dev (made in /tmp/d), for which bubblewrap would read the table of mounts once per device

Paths in overlayfs' options are relative, since all options together must fit into one page.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypedDict

from ropewalk.sandbox import privilege
from ropewalk.sandbox.drivers.process import kernel

PRIVATE = "/tmp"
SHARED_MEMORY_BYTES = 64 * 1024 * 1024
TERMINALS_MAX = 64
"""Of one sandbox; a machine has 4096 by default (`kernel.pty.max`), a quarter of them out of sandboxes' reach."""
INOTIFY_INSTANCES_MAX, INOTIFY_WATCHES_MAX = 8, 8192
"""Of a sandbox that draws on the allowance of the user who started it. By default that has 128 instances."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "fd": "/proc/self/fd",
    "core": "/proc/kcore", "ptmx": "pts/ptmx",
}  # fmt: skip


class RootPlan(TypedDict):
    """What to mount."""

    layers: list[str]
    """Folders on the host, lowest first."""
    binds: dict[str, str]
    """Folders on the host by the name below /tmp/b: bubblewrap."""
    inside: dict[str, str]
    """Folders on the host by their place in the sandbox, where a layer holds a folder: what the agent runs with."""
    owner: int
    """The host's id for user and group 0 of the sandbox."""
    disk_bytes: int
    upper_mode: int
    """Permissions of the root folder."""


class Identity(NamedTuple):
    """Who a sandbox's users are on the host."""

    mapping: int
    """A descriptor of a user namespace with the tenant's ids, by which owners of files are translated."""
    account: int
    """A host id of the tenant's. What the kernel counts per user (inotify instances and watches, message queues'
    bytes, pending signals, processes) it counts for whoever made the user namespace: here for no other sandbox."""
    map_ids: Callable[[], None]
    """Has the tenant's ids mapped in the caller's fresh user namespace by somebody who may."""


def build(plan: RootPlan, identity: Identity | None) -> None:
    """Mounts it all and enters a user namespace of its own; `identity` None: one that maps only the caller.

    Raises:
        OSError: the kernel refused a step; its text names the step.
    """
    uid, gid = os.geteuid(), os.getegid()
    userns_fd = None if identity is None else identity.mapping
    if userns_fd is None:
        if privilege.is_disguised_root():
            raise OSError(errno.EPERM, "user namespace: user 0 would be the host's root inside, too")
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
        kernel.map_self(uid, gid)
        _limit_inotify()
    else:
        kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    # Opened before the private tmpfs hides them: they may lie below /tmp.
    trees = [kernel.clone_tree(path) for path in plan["layers"]]
    trees += [kernel.clone_tree(path) for path in plan["binds"].values()]
    inside = {place: kernel.clone_tree(path) for place, path in plan["inside"].items()}
    devices = {name: kernel.clone_tree(f"/dev/{name}") for name in _DEVICES}
    places = [f"l/{at}" for at in range(len(plan["layers"]))] + [f"b/{name}" for name in plan["binds"]]
    kernel.mount("tmpfs", PRIVATE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    os.chdir(PRIVATE)
    for folder in ("l", "b", "w", "m", "d"):
        os.mkdir(folder, 0o755)
    for tree, place in zip(trees, places, strict=True):
        os.mkdir(place, 0o755)
        kernel.make_read_only(tree, userns_fd)
        kernel.attach(tree, place)
        os.close(tree)
    owner = None if userns_fd is None else plan["owner"]
    _mount_overlay(plan, rootless=userns_fd is None)
    for place, tree in inside.items():
        kernel.make_read_only(tree, userns_fd)
        _attach_below(f"{PRIVATE}/m", place, tree, owner)
        os.close(tree)
    _mount_devices(devices, owner)
    if identity is not None:
        # With root's powers until then: some machines let nobody else make user namespaces. In it these bits are gone.
        with suppress(OSError):  # without CAP_SETPCAP
            kernel.prctl(kernel.PR_SET_SECUREBITS, kernel.SECBIT_NO_SETUID_FIXUP)
        os.seteuid(identity.account)
        kernel.unshare(kernel.CLONE_NEWUSER)
        identity.map_ids()
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)


def _limit_inotify() -> None:
    """Of the caller's user namespace, in which there is one user. A read-only /proc/sys is declared by the probe."""
    with suppress(OSError):
        kernel.write("/proc/sys/user/max_inotify_instances", str(INOTIFY_INSTANCES_MAX))
        kernel.write("/proc/sys/user/max_inotify_watches", str(INOTIFY_WATCHES_MAX))


def _attach_below(root: str, place: str, tree: int, owner: int | None) -> None:
    """Not through links, and whatever became of the folders on the way: commands may move those of a saved state."""
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in place.split("/"):
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            inner = os.open(part, flags, dir_fd=fd)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                os.unlink(part, dir_fd=fd)
            elif error.errno != errno.ENOENT:
                raise
            os.mkdir(part, 0o755, dir_fd=fd)
            if owner is not None:
                os.chown(part, owner, owner, dir_fd=fd, follow_symlinks=False)
            inner = os.open(part, flags, dir_fd=fd)
        os.close(fd)
        fd = inner
    kernel.attach(tree, f"/proc/self/fd/{fd}/.")
    os.close(fd)


def _mount_devices(devices: dict[str, int], owner: int | None) -> None:
    """Harmless devices of the host, terminals and shared memory of the sandbox's own."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    ids = "" if owner is None else f",uid={owner},gid={owner}"
    kernel.mount("tmpfs", "/tmp/d", "tmpfs", flags, f"mode=755,size=64k{ids}")
    os.chdir("/tmp/d")
    for name, tree in devices.items():
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
        kernel.attach(tree, name)
        os.close(tree)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, name)
    os.mkdir("shm")
    kernel.mount("tmpfs", "shm", "tmpfs", flags, f"mode=1777,size={SHARED_MEMORY_BYTES}{ids}")
    os.mkdir("pts")
    terminals = kernel.MS_NOSUID | kernel.MS_NOEXEC
    kernel.mount("devpts", "pts", "devpts", terminals, f"newinstance,ptmxmode=0666,mode=620,max={TERMINALS_MAX}")
    top = os.open(".", os.O_PATH | os.O_CLOEXEC)
    os.chdir("/")
    kernel.make_read_only(top, None)
    _attach_below(f"{PRIVATE}/m", "dev", top, owner)
    os.close(top)


def _mount_overlay(plan: RootPlan, *, rootless: bool) -> None:
    inodes = max(4096, plan["disk_bytes"] // 4096)
    kernel.mount(
        "tmpfs",
        "w",
        "tmpfs",
        kernel.MS_NOSUID | kernel.MS_NODEV,
        f"mode=755,size={plan['disk_bytes']},nr_inodes={inodes}",
    )
    for folder, mode in (("w/u", plan["upper_mode"]), ("w/w", 0o700)):
        os.mkdir(folder, mode)
        os.chmod(folder, mode)
        if not rootless:
            os.chown(folder, plan["owner"], plan["owner"])
    os.chdir("l")  # so that the lower folders' names are a number each
    lower = ":".join(str(at) for at in reversed(range(len(plan["layers"]))))
    options = f"lowerdir={lower},upperdir=../w/u,workdir=../w/w,redirect_dir=nofollow,index=off,metacopy=off"
    kernel.mount(
        "overlay", "../m", "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, options + (",userxattr" if rootless else "")
    )
    os.chdir("/")
