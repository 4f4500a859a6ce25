"""Fixtures and rules for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The machine is shared: a slow example is no failure, and examples are the same in every run.
settings.register_profile("ropewalk", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ropewalk")

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def vectors() -> Path:
    """Data that nobody here wrote: `$ROPEWALK_VECTORS`, else `../shared/vectors` beside the project."""
    folder = Path(os.environ.get("ROPEWALK_VECTORS", PROJECT.parent / "shared" / "vectors"))
    if not folder.is_dir():
        pytest.skip(f"no outside vectors at {folder}: set ROPEWALK_VECTORS")
    return folder


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where `ROPEWALK_ALLOWED_SKIPS` names a list, a skip whose reason is not on it fails the run."""
    listed = os.environ.get("ROPEWALK_ALLOWED_SKIPS")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not listed or reporter is None or hasattr(session.config, "workerinput"):
        return
    lines = Path(listed).read_text(encoding="utf-8").splitlines()
    allowed = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(text in reason for text in allowed):
            reporter.write_line(f"\nskip that is not allowed here: {report.nodeid}: {reason}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
