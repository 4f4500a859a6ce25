# ruff: noqa: PTH123
"""Which powers this process has: the machine's root, or an ordinary user's.

Standard library only, since the `process` driver's spawner imports it without site-packages.
"""

from __future__ import annotations

import os
from functools import cache

_ALL_IDS = 2**31


@cache
def is_root() -> bool:
    """Whether this is root over all user ids, not root of some user namespace (`unshare -r`, rootless podman)."""
    return os.geteuid() == 0 and _outside_of_zero()[1] >= _ALL_IDS


@cache
def is_disguised_root() -> bool:
    """Whether user 0 here is user 0 of the namespace around, without its powers: nothing may run as that."""
    return os.geteuid() == 0 and not is_root() and _outside_of_zero()[0] == 0


def _outside_of_zero() -> tuple[int, int]:
    """What user 0 is outside of this user namespace, and how many ids follow it."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        for line in file:
            inside, outside, count = map(int, line.split())
            if inside == 0:
                return outside, count
    return -1, 0
