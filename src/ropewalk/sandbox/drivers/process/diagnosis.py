"""Why a machine refuses what isolation needs, and the setting or package that helps."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from ropewalk.sandbox import privilege

_REFUSALS = {errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSPC, errno.EUSERS, errno.ENODEV, errno.ENOSYS}
_WORDS = ("not permitted", "permission denied", "no permissions", "creating new namespace failed", "user namespace")


def reasons(text: str, number: int) -> tuple[str, ...]:
    """What to do about a refusal, likeliest first; empty where the failure is of another kind (out of processes …).

    Args:
        text: the failed step's message, as the spawner or bubblewrap gave it.
        number: its errno; 0 where only the text is known.
    """
    if not (number in _REFUSALS or any(word in text.lower() for word in _WORDS)):
        return ()
    if "mount_setattr" in text and number == errno.EINVAL:
        return (
            "The state directory's file system cannot translate owners: set ROPEWALK_STATE to a folder on ext4, xfs or "
            "btrfs, or run as an ordinary user.",
        )
    if "overlay" in text and number in (errno.ENODEV, errno.EINVAL):
        return ("The kernel has no usable overlayfs: run 'modprobe overlay'; Linux 5.19 or later is needed.",)
    if "host's root" in text:
        return ("Leave the user namespace (unshare -r) and run as an ordinary user or as root.",)
    if number == errno.ENOSYS:
        return ("The kernel is too old or filters the call: Linux 5.12 or later is needed.",)
    return (*_settings(), *_confinement()) or ("Ask the machine's administrator to allow user namespaces.",)


def _settings() -> tuple[str, ...]:
    found = []
    if _number("user/max_user_namespaces") == 0:
        found.append("User namespaces are switched off: 'sysctl -w user.max_user_namespaces=15000'.")
    if _number("kernel/unprivileged_userns_clone") == 0 and not privilege.is_root():
        found.append("Only root may make user namespaces: 'sysctl -w kernel.unprivileged_userns_clone=1'.")
    if _number("kernel/apparmor_restrict_unprivileged_userns") == 1 and not privilege.is_root():
        found.append(
            "AppArmor restricts user namespaces (Ubuntu 24.04 does): "
            "'sysctl -w kernel.apparmor_restrict_unprivileged_userns=0', or install the package 'apparmor-profiles' "
            "and enable its profile for bwrap."
        )
    return tuple(found)


def _confinement() -> tuple[str, ...]:
    """Signs of being in a container."""
    with suppress(OSError):
        if "Seccomp:\t2" in Path("/proc/self/status").read_text():
            return (
                "A system call filter is on this process, as in a container: start the container with "
                "'--security-opt seccomp=unconfined --security-opt systempaths=unconfined', or run outside of it.",
            )
    return ()


def _number(name: str) -> int | None:
    with suppress(OSError, ValueError):
        return int(Path("/proc/sys", name).read_text())
    return None
