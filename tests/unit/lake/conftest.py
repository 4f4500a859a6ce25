"""A package index on loopback that answers as it is told, and a lake that asks it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ropewalk.lake import Fetcher, Lake, Terms
from ropewalk.lake.pypi import JSON_TYPE
from ropewalk.store.blobs import open_blobs
from ropewalk.store.layout import Layout
from ropewalk.testing.clock import ManualClock

Answer = Callable[[BaseHTTPRequestHandler], None]


def sdist(
    name: str = "toy", version: str = "1.0", *, licence: str = "License-Expression: MIT", body: bytes = b""
) -> bytes:
    """A source distribution, gzipped without a time."""
    top = f"{name}-{version}"
    metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{licence}\n\nText\n".encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, data in ((f"{top}/PKG-INFO", metadata), (f"{top}/{name}.py", body or version.encode())):
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)


class Index:
    """Routes by path; `files` fills both the simple page and the download of a distribution."""

    def __init__(self) -> None:
        self.routes: dict[str, Answer] = {}
        self.requests: list[str] = []
        self.listed: dict[str, list[dict[str, Any]]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.requests.append(self.path)
                route = outer.routes.get(self.path)
                if route is None:
                    self.send_response(404)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    route(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.root = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.url = f"{self.root}/simple"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        if not self.thread.is_alive():
            return
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def answer(self, path: str, body: bytes, *, kind: str = "application/octet-stream", status: int = 200,
               **headers: str) -> None:  # fmt: skip
        def respond(request: BaseHTTPRequestHandler) -> None:
            request.send_response(status)
            request.send_header("Content-Type", kind)
            request.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                request.send_header(name.replace("_", "-"), value)
            request.end_headers()
            request.wfile.write(body)

        self.routes[path] = respond

    def offer(self, name: str, filename: str, data: bytes, **fields: Any) -> None:
        """Lists a file and serves it."""
        entry = {"filename": filename, "url": f"../../files/{filename}",
                 "hashes": {"sha256": hashlib.sha256(data).hexdigest()}, "size": len(data),
                 "upload-time": "2024-01-01T00:00:00Z", "extra": 1}  # fmt: skip
        self.listed.setdefault(name, []).append(entry | fields)
        page = {
            "meta": {"api-version": "1.1", "_last-serial": 1},
            "name": name,
            "files": self.listed[name],
            "versions": [],
        }
        self.answer(f"/simple/{name}/", json.dumps(page).encode(), kind=JSON_TYPE)
        self.answer(f"/files/{filename}", data)


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index()
    yield index
    index.close()


@pytest.fixture
def waits() -> list[float]:
    """What the fetcher would have slept."""
    return []


@pytest.fixture
def fetcher(waits: list[float]) -> Iterator[Fetcher]:
    with Fetcher(timeout_s=2.0, sleep=waits.append) as fetcher:
        yield fetcher


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "state").ensure()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lake(layout: Layout, clock: ManualClock) -> Lake:
    return Lake(layout, open_blobs(layout.blobs), clock)


@pytest.fixture
def terms() -> Terms:
    return Terms(attested_by="test bench")


@pytest.fixture
def make_sdist() -> Callable[..., bytes]:
    return sdist
