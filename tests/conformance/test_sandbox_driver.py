"""Every sandbox driver keeps the contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processworld import process_world

from ropewalk.testing.sandbox import SandboxConformance, SandboxWorld


@pytest.fixture
def world(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxWorld]:
    # The folder above is one for all workers of a run.
    with process_world(tmp_path / "state", tmp_path_factory.getbasetemp().parent / "ropewalk-shared") as made:
        yield made


class TestProcess(SandboxConformance):
    """As whoever runs the tests."""
