"""Fetching: wrong, cut, slow, endless, hostile answers."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from ropewalk.core.errors import CallerError, DeniedError, IntegrityError, UnavailableError
from ropewalk.lake.downloads import Fetcher, public_url
from ropewalk.machinery import deadlines

DATA = b"0123456789" * 10
SHA = hashlib.sha256(DATA).hexdigest()


def test_a_file_comes_whole_with_progress(index: Any, fetcher: Fetcher) -> None:
    index.answer("/f", DATA)
    seen: list[tuple[str, int, int | None]] = []
    body, _ = fetcher.get(f"{index.root}/f", name="f", bytes_max=100, sha256=SHA, progress=lambda *a: seen.append(a))
    assert body == DATA
    assert seen[-1] == ("f", 100, 100)


def test_progress_may_give_up(index: Any, fetcher: Fetcher) -> None:
    index.answer("/f", DATA)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetcher.get(f"{index.root}/f", name="f", bytes_max=100, progress=stop)


def test_a_wrong_hash_names_file_expected_and_got_and_is_not_tried_again(
    index: Any, fetcher: Fetcher, waits: list[float]
) -> None:
    index.answer("/f", DATA + b"!")
    with pytest.raises(IntegrityError) as caught:
        fetcher.get(f"{index.root}/f", name="toy-1.0.tar.gz", bytes_max=1000, sha256=SHA)
    text = str(caught.value)
    assert "toy-1.0.tar.gz" in text and SHA in text and hashlib.sha256(DATA + b"!").hexdigest() in text
    assert waits == []


def test_a_cut_answer_is_tried_again_then_named(index: Any, fetcher: Fetcher, waits: list[float]) -> None:
    def cut(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "100")
        request.end_headers()
        request.wfile.write(DATA[:40])
        request.close_connection = True

    index.routes["/f"] = cut
    with pytest.raises(IntegrityError, match=r"f: truncated. Expected 100 bytes, got 40"):
        fetcher.get(f"{index.root}/f", name="f", bytes_max=100, sha256=SHA)
    assert len(index.requests) == 4
    assert waits == sorted(waits) and len(waits) == 3 and waits[0] >= 0.5


def test_a_cut_answer_without_a_length_fails_its_hash(index: Any, fetcher: Fetcher) -> None:
    def cut(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Connection", "close")
        request.end_headers()
        request.wfile.write(DATA[:40])
        request.close_connection = True

    index.routes["/f"] = cut
    with pytest.raises(IntegrityError, match="40 bytes"):
        fetcher.get(f"{index.root}/f", name="f", bytes_max=100, sha256=SHA)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_failing_servers_are_asked_again(index: Any, fetcher: Fetcher, waits: list[float], status: int) -> None:
    answers = iter([status, status, 200])

    def flaky(request: BaseHTTPRequestHandler) -> None:
        index.answer("/once", DATA, status=next(answers), Retry_After="7")
        index.routes["/once"](request)

    index.routes["/f"] = flaky
    assert fetcher.get(f"{index.root}/f", name="f", bytes_max=100)[0] == DATA
    assert len(waits) == 2 and all(7 <= wait <= 10 for wait in waits)


def test_a_server_that_keeps_failing_is_unavailable(index: Any, fetcher: Fetcher) -> None:
    index.answer("/f", b"", status=503)
    with pytest.raises(UnavailableError, match="503") as caught:
        fetcher.get(f"{index.root}/f", name="f", bytes_max=100)
    assert caught.value.retry_after_s
    assert len(index.requests) == 4


@pytest.mark.parametrize(
    ("status", "error"), [(404, CallerError), (410, CallerError), (401, DeniedError), (403, DeniedError),
                          (204, UnavailableError), (418, UnavailableError), (304, UnavailableError)],
)  # fmt: skip
def test_other_answers_are_final(
    index: Any, fetcher: Fetcher, waits: list[float], status: int, error: type[Exception]
) -> None:
    index.answer("/f", b"", status=status)
    with pytest.raises(error):
        fetcher.get(f"{index.root}/f", name="f", bytes_max=100)
    assert waits == []


def test_nobody_there_is_unavailable(fetcher: Fetcher, waits: list[float]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UnavailableError, match="does not answer"):
        fetcher.get(f"http://127.0.0.1:{port}/f", name="f", bytes_max=100)
    assert len(waits) == 3


def test_garbage_instead_of_http_is_unavailable(index: Any, fetcher: Fetcher) -> None:
    def garbage(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"\x00\xff rubbish\r\n\r\n")
        request.close_connection = True

    index.routes["/f"] = garbage
    with pytest.raises(UnavailableError, match="does not answer"):
        fetcher.get(f"{index.root}/f", name="f", bytes_max=100)


def test_a_server_that_hangs_is_unavailable(index: Any, waits: list[float]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Fetcher(timeout_s=0.05, attempts_max=2, sleep=waits.append) as fetcher,
        pytest.raises(UnavailableError),
    ):
        fetcher.get(f"http://127.0.0.1:{silent.getsockname()[1]}/f", name="f", bytes_max=100)
    assert len(waits) == 1


DRIPPED = {
    "status": b"HTTP/1.1 200 O",
    "header": b"HTTP/1.1 200 OK\r\nX-Slow: ",
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: /",
    "error": b"HTTP/1.1 503 Busy\r\nRetry-After: 1",
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
    "head of a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=",
    "trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Slow: ",
}


@pytest.mark.parametrize("what", DRIPPED)
def test_a_server_that_drips_runs_out_of_time_and_is_not_asked_again(index: Any, waits: list[float], what: str) -> None:
    ended = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        with suppress(OSError):
            request.wfile.write(DRIPPED[what])
            while not ended.wait(0.02):
                request.wfile.write(b"1")

    index.routes["/f"] = drip
    started_s = time.monotonic()
    is_body = what in ("body", "head of a chunk", "trailer")
    limits_s = {"headers_timeout_s": 60.0, "total_timeout_s": 0.2} if is_body else {"headers_timeout_s": 0.2}
    try:
        said = "too slow" + (", after [0-9]+ bytes" if is_body else "")
        with Fetcher(sleep=waits.append, **limits_s) as fetcher, pytest.raises(UnavailableError, match=said):
            fetcher.get(f"{index.root}/f", name="f", bytes_max=1 << 40)
    finally:
        ended.set()
    assert waits == [] and len(index.requests) == 1 and time.monotonic() - started_s < 5


def test_a_body_comes_at_a_least_rate(index: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "RATE_WINDOW_S", 0.1)
    ended = threading.Event()

    def slow(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        with suppress(OSError):
            request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + bytes(5000))
            while not ended.wait(0.02):
                request.wfile.write(b"1")

    index.routes["/f"] = slow
    try:
        with Fetcher() as fetcher, pytest.raises(UnavailableError, match=r"too slow, after 50\d\d bytes"):
            fetcher.get(f"{index.root}/f", name="f", bytes_max=1 << 40)
    finally:
        ended.set()


def test_a_connection_that_is_used_again_has_a_time_limit_of_its_own(index: Any) -> None:
    index.answer("/f", DATA)
    with Fetcher(headers_timeout_s=0.5, total_timeout_s=0.5) as fetcher:
        for _ in range(3):
            assert fetcher.get(f"{index.root}/f", name="f", bytes_max=100)[0] == DATA
            time.sleep(0.3)  # the limit is over before the last one


@pytest.mark.parametrize("length", [True, False])
def test_more_than_allowed_is_not_read(index: Any, fetcher: Fetcher, length: bool) -> None:
    def endless(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        if length:
            request.send_header("Content-Length", str(1 << 40))
        request.send_header("Connection", "close")
        request.end_headers()
        request.close_connection = True
        try:
            while True:
                request.wfile.write(bytes(65536))
        except OSError:
            pass

    index.routes["/f"] = endless
    with pytest.raises(CallerError, match="100000 bytes allowed"):
        fetcher.get(f"{index.root}/f", name="f", bytes_max=100_000)


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://127.0.0.1/f", "data:text/plain,x", "javascript:1", "", "gopher://x/", "http://[::1"],
)
def test_redirects_to_other_schemes_are_refused(index: Any, fetcher: Fetcher, location: str) -> None:
    index.answer("/f", b"", status=302, Location=location)
    with pytest.raises(DeniedError) as caught:
        fetcher.get(f"{index.root}/f", name="f", bytes_max=100)
    assert caught.value.rule == "redirect"


def test_redirects_are_followed_but_not_for_ever(index: Any, fetcher: Fetcher) -> None:
    index.answer("/a", b"", status=301, Location="/b")
    index.answer("/b", DATA)
    assert fetcher.get(f"{index.root}/a", name="f", bytes_max=100)[0] == DATA
    index.answer("/b", b"", status=301, Location="/a")
    with pytest.raises(UnavailableError, match="redirects more than"):
        fetcher.get(f"{index.root}/a", name="f", bytes_max=100)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "nonsense", ""])
def test_other_schemes_are_the_callers_error(fetcher: Fetcher, url: str) -> None:
    with pytest.raises(CallerError, match="cannot be fetched"):
        fetcher.get(url, name="f", bytes_max=100)


@pytest.mark.parametrize("url", ["http://[::1", "http://\x00/"])
def test_malformed_addresses_are_the_callers_error(fetcher: Fetcher, url: str) -> None:
    with pytest.raises(CallerError):
        fetcher.get(url, name="f", bytes_max=100)


def test_an_encoding_nobody_asked_for_is_refused_where_no_hash_decides(index: Any, fetcher: Fetcher) -> None:
    index.answer("/f", b"x", Content_Encoding="gzip")
    with pytest.raises(UnavailableError, match="encoding"):
        fetcher.get(f"{index.root}/f", name="f", bytes_max=100)
    # Some servers call a .tar.gz "encoded": its bytes are what the hash is of.
    index.answer("/f", DATA, Content_Encoding="gzip")
    assert fetcher.get(f"{index.root}/f", name="f", bytes_max=100, sha256=SHA)[0] == DATA


def test_secrets_in_addresses_do_not_reach_messages(index: Any, fetcher: Fetcher) -> None:
    url = index.root.replace("http://", "http://user:hunter2@") + "/f?token=hunter3"
    assert "hunter" not in public_url(url)
    with pytest.raises(CallerError) as caught:
        fetcher.get(url, name="f", bytes_max=100)
    assert "hunter" not in str(caught.value)
