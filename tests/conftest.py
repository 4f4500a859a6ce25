"""Fixtures and rules for every test."""

from __future__ import annotations

import gc
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The machine is shared: a slow example is no failure, and examples are the same in every run.
settings.register_profile("ropewalk", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ropewalk")

PROJECT = Path(__file__).resolve().parent.parent


_allowed: list[bool] = []
"""Whether the test that runs may leave this machine."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "network: reaches the package index that pip uses; all others stay on loopback")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So it is where a script starts the tests in the background; what they start would never be interrupted.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    # Some 6,000 tests and all that was imported for them stay until the end: without this, each full collection of
    # garbage walks through them for a third of a second.
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Around a test and the fixtures that are made for it."""
    _allowed.append(item.get_closest_marker("network") is not None)
    try:
        return (yield)
    finally:
        _allowed.pop()


@pytest.fixture(scope="session", autouse=True)
def loopback_only() -> Iterator[None]:
    """Connections and look-ups that leave this machine fail the test, unless it is marked `network`."""
    connect, connect_ex, look_up = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        def guard(self: socket.socket, address: Any) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6):
                _check(address[0])
            return call(self, address)

        return guard

    def looked_up(host: Any, *arguments: Any, **named: Any) -> Any:
        _check(host)
        return look_up(host, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded(connect))
        patch.setattr(socket.socket, "connect_ex", guarded(connect_ex))
        patch.setattr(socket, "getaddrinfo", looked_up)
        yield


def _check(host: str | bytes | None) -> None:
    name = host.decode() if isinstance(host, bytes) else host or "localhost"
    try:
        local = ipaddress.ip_address(name).is_loopback or ipaddress.ip_address(name).is_unspecified
    except ValueError:
        local = name == "localhost" or name == socket.gethostname()
    if not local and not (_allowed and _allowed[-1]):
        pytest.fail(f"a test reached for {name}: mark it `network`, or give it a server on loopback")


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
