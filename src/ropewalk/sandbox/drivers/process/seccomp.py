"""The system call filter: what no command in a sandbox may ask of the shared kernel.

A classic BPF program for seccomp(2), put together here so that it needs no library. It denies rather than lists
what is allowed, since images carry any program; what it denies is what reaches other namespaces, the kernel's
less walked paths, or other processes' memory. Denied calls fail with EPERM; `clone3` fails with ENOSYS, so that
the C library falls back to `clone`, whose flags a filter can read. A foreign architecture and x32 kill.
Numbers: the kernel's syscall tables for x86-64 and asm-generic.
"""

from __future__ import annotations

import errno
import platform
import struct

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86-64, aarch64); None where the architecture has no such call
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_setup": (206, 0),  # draws on one count of the whole machine, fs.aio-max-nr
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "acct": (163, 89),
    "syslog": (103, 116),
    "lookup_dcookie": (212, 18),
    "vmsplice": (278, 75),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    "vhangup": (153, 58),
    "nfsservctl": (180, 42),
    "fanotify_init": (300, 262),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "lsm_set_self_attr": (460, 460),
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_PERSONALITY = (135, 92)
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)
_IOCTL = (16, 29)
_PRLIMIT64 = (302, 261)
"""Only for the caller itself: a command that runs as the agent's user could else cut the agent's limits."""
_SCHEDULING = ((144, 119), (142, 118), (314, 274), (203, 122))
"""sched_setscheduler, sched_setparam, sched_setattr and sched_setaffinity: not of process 1, which is the agent."""
_SETPRIORITY, _IOPRIO_SET = (141, 140), (251, 30)
"""Of one process that is not the agent: of a group or of a user the agent is a member, too."""
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1

_CLONE_NEW = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME."""
_FAMILIES_ALLOWED = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK (getaddrinfo asks it for interfaces). No ALG, PACKET, VSOCK, XDP …"""
_IOCTLS_DENIED = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX push input into a terminal."""

_ALLOW = 0x7FFF0000
_EPERM = 0x00050000 | errno.EPERM
_ENOSYS = 0x00050000 | errno.ENOSYS
_KILL = 0x80000000

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1 = 0, 4, 16, 24


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _return(value: int) -> bytes:
    return _instruction(_RETURN, value)


def _on(number: int, body: list[bytes]) -> list[bytes]:
    """`body`, which ends in a return, for one system call; others skip it."""
    return [_instruction(_JUMP_EQUAL, number, 0, len(body)), *body]


def _unless_argument(offset: int, allowed: tuple[int, ...]) -> list[bytes]:
    """Allows only these values of an argument's low word."""
    tests = [_instruction(_JUMP_EQUAL, value, len(allowed) - at, 0) for at, value in enumerate(allowed)]
    return [_instruction(_LOAD, offset), *tests, _return(_EPERM), _return(_ALLOW)]


def _only_of_others(which: int) -> list[bytes]:
    """Allows calls whose first argument says "of one process" (`which`), unless the second names process 1."""
    return [
        _instruction(_LOAD, _ARGUMENT_0), _instruction(_JUMP_EQUAL, which, 1, 0), _return(_EPERM),
        *_if_argument(_ARGUMENT_1, 1),
    ]  # fmt: skip


def _if_argument(offset: int, refused: int) -> list[bytes]:
    """Refuses one value of an argument's low word."""
    return [_instruction(_LOAD, offset), _instruction(_JUMP_EQUAL, refused, 0, 1), _return(_EPERM), _return(_ALLOW)]


def program(machine: str = "") -> bytes:
    """The filter's instructions for an architecture, this machine's by default.

    Raises:
        ValueError: an architecture other than x86-64 and aarch64.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        raise ValueError(f"no system call table for {machine}")
    column = ("x86_64", "aarch64").index(machine)
    code = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        _return(_KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        code += [_instruction(_JUMP_GREATER_EQUAL, 0x40000000, 0, 1), _return(_KILL)]
    code += _on(_CLONE[column], [
        _instruction(_LOAD, _ARGUMENT_0), _instruction(_JUMP_SET, _CLONE_NEW, 0, 1), _return(_EPERM), _return(_ALLOW),
    ])  # fmt: skip
    code += _on(_CLONE3[column], [_return(_ENOSYS)])
    code += _on(_PERSONALITY[column], _unless_argument(_ARGUMENT_0, (0, 0xFFFFFFFF)))
    for call in (_SOCKET, _SOCKETPAIR):
        code += _on(call[column], _unless_argument(_ARGUMENT_0, _FAMILIES_ALLOWED))
    denied_ioctls = [_instruction(_JUMP_EQUAL, value, len(_IOCTLS_DENIED) - at, 0)
                     for at, value in enumerate(_IOCTLS_DENIED)]  # fmt: skip
    code += _on(_IOCTL[column], [_instruction(_LOAD, _ARGUMENT_1), *denied_ioctls, _return(_ALLOW), _return(_EPERM)])
    code += _on(_PRLIMIT64[column], _unless_argument(_ARGUMENT_0, (0,)))
    for call in _SCHEDULING:
        code += _on(call[column], _if_argument(_ARGUMENT_0, 1))
    code += _on(_SETPRIORITY[column], _only_of_others(_PRIO_PROCESS))
    code += _on(_IOPRIO_SET[column], _only_of_others(_IOPRIO_WHO_PROCESS))
    numbers = [call[column] for call in _DENIED.values()]
    for number in numbers:
        if number is not None:
            code += _on(number, [_return(_EPERM)])
    code.append(_return(_ALLOW))
    return b"".join(code)
