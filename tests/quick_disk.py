"""No wait for the disk, for the folders of tests whose `conftest.py` takes `quick_disk`.

An fsync(2) takes some milliseconds and the tests make some ten thousand. What they promise for a loss of power no test
can see; that it is asked for, and what follows where it fails, is tested with the call replaced. The conformance and
integration tests, and every process that a test starts, wait as users do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_disk() -> Iterator[None]:
    """fsync and fdatasync refuse what is not open, and do no more."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, _is_open)
        yield


def _is_open(descriptor: int) -> None:
    os.fstat(descriptor)
