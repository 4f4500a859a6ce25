"""Certificates are parsed once in a process, and anew where the environment names others."""

from __future__ import annotations

import ssl

import httpx2
import pytest

from ropewalk.lake.downloads import Fetcher
from ropewalk.machinery.certificates import shared
from ropewalk.sandbox.oci.references import parse_reference
from ropewalk.sandbox.oci.registry import Access, Registry


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ssl.SSLContext]:
    """What the HTTP library was asked for."""
    found: list[ssl.SSLContext] = []

    def load() -> ssl.SSLContext:
        found.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return found[-1]

    monkeypatch.setattr(httpx2, "create_ssl_context", load)
    return found


def test_all_clients_of_a_process_share_them(made: list[ssl.SSLContext]) -> None:
    for _ in range(2):
        with Fetcher(), Registry(parse_reference("debian:bookworm"), Access()):
            assert len(made) == 1


def test_they_are_loaded_anew_for_another_environment(
    made: list[ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    first = shared(httpx2.create_ssl_context)
    monkeypatch.setenv("SSL_CERT_FILE", "/elsewhere.pem")
    assert shared(httpx2.create_ssl_context) is not first
    monkeypatch.delenv("SSL_CERT_FILE")
    assert shared(httpx2.create_ssl_context) is first
    assert len(made) == 2


def test_what_cannot_be_loaded_is_tried_again() -> None:
    calls: list[int] = []

    def load() -> ssl.SSLContext:
        calls.append(1)
        raise FileNotFoundError("no such bundle")

    for count in (1, 2):
        with pytest.raises(FileNotFoundError):
            shared(load)
        assert len(calls) == count
