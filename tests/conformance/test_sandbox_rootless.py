"""The process driver as an ordinary user: the same contract, tried by root as somebody else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.shared_image import lend_default_image_to
from tests.users import UID, run_as

from ropewalk.store.layout import Layout

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs as an ordinary user already")

SUITE = """
import sys
import pytest
sys.path.insert(0, sys.argv[1])
sys.exit(pytest.main([
    "-q", "-x", "-p", "no:cacheprovider", "-p", "no:hypothesispytest",
    "--timeout", "120", "--rootdir", sys.argv[1], "--confcutdir", sys.argv[1],
    "--import-mode=importlib", "-o", "anyio_mode=auto", "-o", "filterwarnings=error", "-o", "markers=slow",
    "--basetemp", sys.argv[1] + "/tmp", "-k", sys.argv[2], sys.argv[1],
]))
"""
CLAUSES = (
    "idempotent_by_id or full_disk or loses_nothing or saved_state or identities or out_of_sight or outlive or "
    "dangerous_calls or few_and_final or hosts_root or counts"
)
"""Those that could differ; `ROPEWALK_TEST_ALL=1` runs them all."""


@pytest.fixture
def place() -> Iterator[Path]:
    # Not below pytest's own folder, which nobody else may enter.
    root = Path(f"/var/tmp/ropewalk-rootless-{os.getpid()}")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(mode=0o755)
    try:
        lend_default_image_to(Layout(root / "ropewalk-shared"), UID)
        yield root
    finally:
        shutil.rmtree(root)


@pytest.mark.timeout(240)
def test_the_contract_holds_without_root(place: Path) -> None:
    here = Path(__file__)
    for name in (here.parent / "test_sandbox_driver.py", here.parents[1] / "security/test_isolation.py",
                 here.parents[1] / "security/test_shared_counts.py", here.parents[1] / "conftest.py"):  # fmt: skip
        shutil.copy(name, place / name.name)
    (place / "tests").mkdir()
    for part in ("__init__", "processworld", "shared_image"):  # of the tests, what these three import
        shutil.copy(here.parents[1] / f"{part}.py", place / "tests")
    for path in (place, *place.rglob("*")):
        os.chown(path, UID, UID, follow_symlinks=False)
    wanted = "test" if os.environ.get("ROPEWALK_TEST_ALL") else CLAUSES
    answer = run_as(SUITE, str(place), wanted, timeout_s=220)
    assert answer.returncode == 0, answer.stdout[-5000:] + answer.stderr[-2000:]
    assert " passed" in answer.stdout
