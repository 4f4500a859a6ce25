"""Tests stay on this machine: the rule of tests/conftest.py can fail one."""

from __future__ import annotations

import socket

import pytest


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"])
def test_no_other_machine_is_reached(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as plain, pytest.raises(pytest.fail.Exception, match="reached for"):
        plain.connect((address, 9))
    with pytest.raises(pytest.fail.Exception, match="reached for"):
        socket.create_connection((address, 9), timeout=0.1)


def test_no_name_is_looked_up() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"reached for example\.org"):
        socket.getaddrinfo("example.org", 443)


def test_loopback_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5.0).close()
        assert socket.getaddrinfo("localhost", 80)


@pytest.mark.network
def test_marked_tests_may() -> None:
    with socket.socket() as plain:
        plain.settimeout(0.01)
        with pytest.raises(OSError):
            plain.connect(("192.0.2.1", 9))
