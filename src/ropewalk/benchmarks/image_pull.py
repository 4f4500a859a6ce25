"""An image from a registry to its first command, beside `skopeo copy` and `umoci unpack` of the same one.

The image has twenty layers, each half noise and half text, in files of some sizes; `ROPEWALK_BENCH_IMAGE_MIB` sets how
much in all (2048 by default). It lies in a docker-registry(1) on this machine, so that no network is measured.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2

from ropewalk.app.ropewalk import Ropewalk
from ropewalk.benchmarks.promises import Measurement, measured
from ropewalk.core.limits import MIB
from ropewalk.sandbox.drivers.process import bubblewrap
from ropewalk.sandbox.oci.documents import CONFIG_TYPES, LAYER_TYPE, MANIFEST_TYPES, machine_platform

SIZE_VARIABLE = "ROPEWALK_BENCH_IMAGE_MIB"
LAYERS = 20
PRESENT = 18
"""Of the warm pull's layers, nine in ten."""
_FILES = (4096, 65_536, MIB, 16 * MIB)
_START_TIMEOUT_S = 10.0
_PROGRAMS = ("docker-registry", "skopeo", "umoci")


async def measure(progress: Callable[[str], None]) -> list[Measurement]:
    """`image.pull_cold_ratio`, `image.pull_warm_ratio`."""
    ids = ("image.pull_cold_ratio", "image.pull_warm_ratio")
    missing = [name for name in _PROGRAMS if _program(name) is None]
    if missing:
        note = f"not installed: {', '.join(missing)} (apt install them)"
        return [measured(id, None, note=note) for id in ids]
    size = int(os.environ.get(SIZE_VARIABLE, "2048")) * MIB
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-") as folder:
        return await _measure(Path(folder), size, progress)


async def _measure(folder: Path, size: int, progress: Callable[[str], None]) -> list[Measurement]:
    with registry(folder) as host:
        progress(f"filling the registry with an image of {size // MIB} MiB in {LAYERS} layers")
        _fill(host, size)
        found = []
        for tag, warm in (("cold", ()), ("warm", ("base",))):
            image = f"{host}/bench:{tag}"
            progress(f"{tag}: skopeo and umoci")
            theirs_s = _peer_s(folder / f"peer-{tag}", host, tag, warm)
            progress(f"{tag}: ropewalk")
            known = [f"{host}/bench:{each}" for each in ("first", *warm)]
            ours_s, cpu_s = await _ours_s(folder / f"state-{tag}", image, known)
            shutil.rmtree(folder / f"state-{tag}")
            found.append(
                measured(
                    f"image.pull_{tag}_ratio",
                    ours_s / theirs_s,
                    peers={"skopeo + umoci": 1.0},
                    note=f"{size // MIB} MiB: {ours_s:.2f} s ({cpu_s:.2f} s of CPU) against {theirs_s:.2f} s",
                )
            )
    return found


async def _ours_s(state: Path, image: str, known: Sequence[str]) -> tuple[float, float]:
    """Wall and our CPU seconds from the pull to the end of the first command, where these images are there already."""
    async with Ropewalk.open(state=state) as rw:
        there = [await rw.pull(each) for each in known]
        async with rw.sandbox(there[0].digest) as ready:  # what the first sandbox alone takes is no part of it
            await ready.exec(["/bin/true"])
        start, cpu = time.perf_counter(), time.process_time()
        record = await rw.pull(image)
        async with rw.sandbox(record.digest) as sandbox:
            result = await sandbox.exec(["/bin/true"])
            spent = time.perf_counter() - start
        if not result.ok:
            raise RuntimeError(f"the image's first command failed: {result}")
        return spent, time.process_time() - cpu


def _peer_s(folder: Path, host: str, tag: str, warm: Sequence[str]) -> float:
    """Into a layout that holds `warm` already, unpacked, and a first command in it by bubblewrap."""
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}

    def run(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True, env=environment)

    def copy(name: str) -> None:
        run(_program("skopeo") or "", "copy", "--insecure-policy", "--src-tls-verify=false",
            f"docker://{host}/bench:{name}", f"oci:{folder}/layout:{name}")  # fmt: skip

    for each in warm:
        copy(each)
    rootless = () if os.geteuid() == 0 else ("--rootless",)
    start = time.perf_counter()
    copy(tag)
    run(_program("umoci") or "", "unpack", *rootless, "--image", f"{folder}/layout:{tag}", f"{folder}/bundle")
    run(bubblewrap.find().path, "--unshare-all", "--ro-bind", f"{folder}/bundle/rootfs", "/", "/bin/true")
    spent = time.perf_counter() - start
    shutil.rmtree(folder)
    return spent


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A docker-registry on a free port of this machine, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '{host}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: '{folder}/registry'}}}}\n"
    )
    program = _program("docker-registry") or ""
    with subprocess.Popen(
        [program, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:  # fmt: skip
        try:
            deadline_s = time.monotonic() + _START_TIMEOUT_S
            while True:
                try:
                    httpx2.get(f"http://{host}/v2/")
                    break
                except httpx2.TransportError:
                    if time.monotonic() > deadline_s:
                        raise
                    time.sleep(0.02)
            yield host
        finally:
            process.kill()


def _fill(host: str, size: int) -> None:
    """`bench:cold`, `bench:base` and `bench:warm`, which shares nine layers in ten with `base` and none with `cold`;
    and `bench:first`, of one layer."""
    with httpx2.Client(base_url=f"http://{host}", timeout=60.0) as client:
        _push(client, "first", [_layer(300, _FILES[0], with_programs=True)])
        for tag, seeds in (
            ("cold", range(LAYERS)),
            ("base", range(100, 100 + LAYERS)),
            ("warm", [*range(100, 100 + PRESENT), *range(200, 200 + LAYERS - PRESENT)]),
        ):
            _push(client, tag, [_layer(seed, size // LAYERS, with_programs=at == 0) for at, seed in enumerate(seeds)])


def _push(client: httpx2.Client, tag: str, layers: Sequence[tuple[str, bytes]]) -> None:
    config = json.dumps({
        "architecture": machine_platform().architecture, "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [diff_id for diff_id, _ in layers]},
    }).encode()  # fmt: skip
    described = []
    for kind, data in ((CONFIG_TYPES[0], config), *((f"{LAYER_TYPE}+gzip", packed) for _, packed in layers)):
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        place = client.post("/v2/bench/blobs/uploads/").headers["Location"]
        client.put(place, params={**httpx2.URL(place).params, "digest": digest}, content=data).raise_for_status()
        described.append({"mediaType": kind, "digest": digest, "size": len(data)})
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPES[0], "config": described[0], "layers": described[1:]}
    client.put(
        f"/v2/bench/manifests/{tag}", content=json.dumps(manifest).encode(), headers={"Content-Type": MANIFEST_TYPES[0]}
    ).raise_for_status()


def _layer(seed: int, size: int, *, with_programs: bool) -> tuple[str, bytes]:
    """Its digest, unpacked, and the packed archive: files of the sizes in turn, noise and text in turn."""
    chance = random.Random(seed)
    words = [chance.randbytes(6).hex() for _ in range(4000)]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, f"data/{seed}", None)
        left, number = size, 0
        while left > 0:
            length = min(left, _FILES[number % len(_FILES)])
            noise = number // len(_FILES) % 2 == 0
            data = chance.randbytes(length) if noise else " ".join(chance.choices(words, k=length // 12)).encode()
            _add(archive, f"data/{seed}/{number}", data)
            left, number = left - length, number + 1
        for name, data in _programs() if with_programs else ():
            _add(archive, name, data, mode=0o755)
    plain = out.getvalue()
    return f"sha256:{hashlib.sha256(plain).hexdigest()}", gzip.compress(plain, compresslevel=1, mtime=0)


def _add(archive: tarfile.TarFile, name: str, data: bytes | None, *, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = (tarfile.DIRTYPE, 0o755) if data is None else (tarfile.REGTYPE, mode)
    info.size = len(data or b"")
    archive.addfile(info, io.BytesIO(data or b""))


def _programs() -> Iterator[tuple[str, bytes]]:
    """`true` of this machine with the libraries that it needs."""
    program = Path(shutil.which("true", path="/usr/bin:/bin") or "/bin/true").resolve()
    yield "bin/true", program.read_bytes()
    needed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout.split()
    for word in needed:
        if word.startswith("/") and Path(word).exists():
            yield word.lstrip("/"), Path(word).resolve().read_bytes()


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin")
