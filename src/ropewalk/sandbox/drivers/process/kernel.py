"""Linux calls that Python does not offer: mount namespaces, idmapped mounts, user namespaces.

Standard library only, since the spawner imports it without site-packages. Structures and numbers are those of
the kernel's uapi headers (linux/mount.h, linux/sched.h); the numbers used here are equal on x86-64 and aarch64.
"""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REC = 0x4000
MS_PRIVATE = 1 << 18

PR_SET_PDEATHSIG = 1
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 4

CLONE_INTO_CGROUP = 0x200000000

_SYS_CLONE3 = 435
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442

_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_AT_EMPTY_PATH = 0x1000
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_NOSUID = 0x2
_MOUNT_ATTR_NODEV = 0x4
_MOUNT_ATTR_IDMAP = 0x00100000

_libc = ctypes.CDLL(None, use_errno=True)
_libc_holding = ctypes.PyDLL(None)
"""Calls that keep the interpreter's lock."""


class _CloneArguments(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls", "set_tid",
            "set_tid_size", "cgroup",
        )
    )  # fmt: skip


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def fork_into(group_fd: int) -> int:
    """fork(2) whose child is born in a version 2 control group: clone3(2). Only for a process with one thread.

    Moving a process there afterwards makes the kernel wait until every CPU has seen it, some 20 ms. The call
    may be refused (before Linux 5.7, or by a filter).

    Returns:
        The child's pid, or 0 in the child; negative where nothing was forked.
    """
    arguments = _CloneArguments(flags=CLONE_INTO_CGROUP, exit_signal=17, cgroup=group_fd)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = _libc_holding.syscall(
        ctypes.c_long(_SYS_CLONE3), ctypes.byref(arguments), ctypes.c_size_t(ctypes.sizeof(arguments))
    )
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    result = _libc.mount(
        source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode() or None
    )
    _check(result, f"mount {kind or 'flags'} on {target}")


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def clone_tree(path: str | int) -> int:
    """A detached copy of the mount below a path or an O_PATH descriptor: open_tree(2). Returns a descriptor."""
    directory, name, flags = (path, b"", _AT_EMPTY_PATH) if isinstance(path, int) else (-100, os.fsencode(path), 0)
    number = _libc.syscall(
        ctypes.c_long(_SYS_OPEN_TREE),
        ctypes.c_int(directory),
        ctypes.c_char_p(name),
        ctypes.c_uint(flags | _OPEN_TREE_CLONE | os.O_CLOEXEC),
    )
    return _check(number, "open_tree")


def make_read_only(tree_fd: int, userns_fd: int | None) -> None:
    """Read-only, no setuid, no devices; owners translated through a user namespace: mount_setattr(2).

    Idmapped mounts need Linux 5.12 and below overlayfs 5.19.
    """
    flags = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
    attributes = _MountAttr(
        attr_set=flags | (_MOUNT_ATTR_IDMAP if userns_fd is not None else 0), userns_fd=userns_fd or 0
    )
    number = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(tree_fd),
        ctypes.c_char_p(b""),
        ctypes.c_uint(_AT_EMPTY_PATH),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(number, "mount_setattr")


def attach(tree_fd: int, target: str) -> None:
    """Puts a detached mount in its place: move_mount(2)."""
    number = _libc.syscall(
        ctypes.c_long(_SYS_MOVE_MOUNT),
        ctypes.c_int(tree_fd),
        ctypes.c_char_p(b""),
        ctypes.c_int(-100),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH),
    )
    _check(number, f"move_mount to {target}")


def write(path: str, value: str) -> None:
    """To a file of the kernel's. Without Python's layers of files, which take longer than all the rest, in a fresh fork
    above all."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode("ascii"))
    finally:
        os.close(fd)


def map_ids(pid: int, base: int, count: int) -> None:
    """Fills the id maps of another process's fresh user namespace: 0 … count - 1 inside are base … outside."""
    for name in ("uid_map", "gid_map"):
        write(f"/proc/{pid}/{name}", f"0 {base} {count}\n")


def map_self(uid: int, gid: int) -> None:
    """Fills the caller's own fresh user namespace: 0 inside is `uid` outside, and nobody else exists."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1\n"), ("gid_map", f"0 {gid} 1\n")):
        write(f"/proc/self/{name}", text)
