"""Images made by hand, and a registry that serves them and lies as it is told."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def member(name: str, data: bytes | None = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A file, or with `data` None a folder; `kind` makes it another thing."""
    info = tarfile.TarInfo(name)
    info.type = fields.pop("kind", tarfile.DIRTYPE if data is None else tarfile.REGTYPE)
    info.mode = 0o755 if info.type == tarfile.DIRTYPE else 0o644
    info.size = len(data or b"")
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data or b""


def layer(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as file:
        for info, data in members:
            file.addfile(info, io.BytesIO(data))
    return out.getvalue()


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


class Image(NamedTuple):
    """Blobs by digest, and the manifest among them."""

    manifest: str
    blobs: dict[str, bytes]

    @property
    def size(self) -> int:
        return len(self.blobs[self.manifest])

    @property
    def layers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.blobs[self.manifest])["layers"]
        return found


def image(
    *layers: bytes, pack: Callable[[bytes], bytes] = packed, suffix: str = "+gzip", architecture: str = "",
    **config: Any,
) -> Image:  # fmt: skip
    """An OCI image of these layers; `config` are fields of its runtime configuration."""
    from ropewalk.sandbox.oci.documents import machine_platform

    text = json.dumps({
        "architecture": architecture or machine_platform().architecture, "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": [sha256(each) for each in layers]},
    }).encode()  # fmt: skip
    blobs = {sha256(text): text}
    described = []
    for each in layers:
        data = pack(each)
        blobs[sha256(data)] = data
        described.append({"mediaType": LAYER + suffix, "digest": sha256(data), "size": len(data)})
    manifest = json.dumps({
        "schemaVersion": 2, "mediaType": MANIFEST, "layers": described,
        "config": {"mediaType": CONFIG, "digest": sha256(text), "size": len(text)},
    }).encode()  # fmt: skip
    blobs[sha256(manifest)] = manifest
    return Image(sha256(manifest), blobs)


def write_layout(folder: Path, *images: tuple[str, Image]) -> Path:
    """An OCI layout of these, by name ("" for none)."""
    (folder / "blobs/sha256").mkdir(parents=True)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    manifests = []
    for name, each in images:
        for digest, data in each.blobs.items():
            (folder / "blobs/sha256" / digest[7:]).write_bytes(data)
        notes = {"annotations": {"org.opencontainers.image.ref.name": name}} if name else {}
        manifests.append({"mediaType": MANIFEST, "digest": each.manifest, "size": each.size, **notes})
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
    return folder


Answer = tuple[int, dict[str, str], bytes]
Fault = Callable[["Request", Answer], "Answer | None"]
"""Is given a request and the right answer; returns what to say instead, or None after it said it itself."""


class Request(NamedTuple):
    handler: BaseHTTPRequestHandler
    path: str
    headers: dict[str, str]


class FakeRegistry:
    """Serves images by tag, or what a real registry (`upstream`) says, and lets `fault` change it."""

    def __init__(self, images: dict[str, Image] | None = None, *, upstream: str = "") -> None:
        self.images = images or {}
        self.upstream = upstream
        self.fault: Fault = lambda request, answer: answer
        self.requests: list[str] = []
        self.extra: dict[str, tuple[str, bytes]] = {}
        """More manifests by tag, with their media type."""
        self.host = ""
        self._lock = threading.Lock()

    def count(self, part: str) -> int:
        return sum(part in path for path in self.requests)

    def right(self, path: str, headers: dict[str, str]) -> Answer:
        if self.upstream:
            kept = {name: value for name, value in headers.items() if name in ("accept", "range", "authorization")}
            response = httpx2.get(f"http://{self.upstream}{path}", headers=kept)
            passed = ("content-type", "docker-content-digest", "www-authenticate", "content-range")
            return (
                response.status_code,
                {n: v for n, v in response.headers.items() if n.lower() in passed},
                response.content,
            )
        kind, _, name = path.rpartition("/")
        if kind.endswith("manifests"):
            media, data = self.extra.get(name, ("", b""))
            if found := self.images.get(name):
                media, data = MANIFEST, found.blobs[found.manifest]
            for each in self.images.values():
                if name in each.blobs and not data:
                    media, data = MANIFEST, each.blobs[name]
            if data:
                return 200, {"Content-Type": media, "Docker-Content-Digest": sha256(data)}, data
        for each in self.images.values():
            if name in each.blobs:
                data = each.blobs[name]
                if (wanted := headers.get("range")) is not None:
                    start = int(wanted.removeprefix("bytes=").rstrip("-"))
                    return 206, {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}, data[start:]
                return 200, {"Content-Type": "application/octet-stream"}, data
        return 404, {}, b'{"errors": []}'

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        with self._lock:
            self.requests.append(handler.path)
        said = self.fault(Request(handler, handler.path, headers), self.right(handler.path, headers))
        if said is not None:
            send(handler, *said)


def send(
    handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes, *, length: int = -1
) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body) if length < 0 else length))
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def serving(registry: FakeRegistry) -> Iterator[FakeRegistry]:
    """On loopback, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                registry.answer(self)
            except (BrokenPipeError, ConnectionResetError):
                pass

        def log_message(self, *words: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        registry.host = f"127.0.0.1:{server.server_port}"
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()


def push(host: str, repository: str, tag: str, what: Image) -> None:
    """Uploads an image to a registry as the distribution specification has it."""
    with httpx2.Client(base_url=f"http://{host}") as client:
        for digest, data in what.blobs.items():
            if digest == what.manifest:
                continue
            begun = client.post(f"/v2/{repository}/blobs/uploads/")
            place = begun.headers["Location"]
            done = client.put(place, params={**httpx2.URL(place).params, "digest": digest}, content=data)
            assert done.status_code == 201, done.text
        put = client.put(
            f"/v2/{repository}/manifests/{tag}", content=what.blobs[what.manifest], headers={"Content-Type": MANIFEST}
        )
        assert put.status_code == 201, put.text


def names_below(tree: Path) -> Sequence[str]:
    return sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*"))
