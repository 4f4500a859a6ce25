"""Images with the real tools: a docker-registry, images by buildah, umoci and mmdebstrap, and sandboxes on them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.app.ropewalk import Ropewalk
from ropewalk.benchmarks import image_pull
from ropewalk.core.errors import CallerError, DeniedError, IntegrityError
from ropewalk.store.layout import Layout
from tests.images import Answer, FakeRegistry, Request, image, layer, member, push, serving, write_layout
from tests.integration.command_line import ropewalk
from tests.shared_image import lend_default_image

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"


def tool(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        pytest.skip(f"{name} is not installed (apt install {name})")
    return found


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real registry on loopback."""
    tool("docker-registry")
    with image_pull.registry(tmp_path_factory.mktemp("registry")) as served:
        yield served


@pytest.fixture
def state(tmp_path: Path) -> Path:
    lend_default_image(Layout(tmp_path / "state"))
    return tmp_path / "state"


def programs() -> list[tuple[tarfile.TarInfo, bytes]]:
    """A static shell, where the machine has one; else this machine's own with its libraries."""
    found = []
    for name in ("sh", "cat", "ls", "id", "rm"):
        program = Path(shutil.which(name) or f"/bin/{name}").resolve()
        found.append(member(f"bin/{name}", program.read_bytes(), mode=0o755))
        needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout.split()
        found += [member(word.lstrip("/"), Path(word).resolve().read_bytes(), mode=0o755)
                  for word in needed if word.startswith("/") and Path(word).exists()]  # fmt: skip
    return list({info.name: (info, data) for info, data in found}.values())


BASE = layer(
    member("etc/", None), member("etc/passwd", b"root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n"),
    member("d/", None), member("d/low", b"low"), member("d/gone", b"gone"), member("o/", None), member("o/old", b"old"),
    *programs(),
)  # fmt: skip
CHANGES = layer(
    member("d/", None), member("d/.wh.gone"), member("d/hard", kind=tarfile.LNKTYPE, linkname="d/low"),
    member("o/", None), member("o/.wh..wh..opq"), member("o/new", b"new"),
)  # fmt: skip
IMAGE = image(
    BASE, CHANGES, Env=["COLOUR=blue"], User="1000:1000", WorkingDir="/srv", Entrypoint=["/bin/sh", "-c"],
    Cmd=["echo $COLOUR; echo $PWD"],
)  # fmt: skip


def test_a_pulled_image_is_what_it_says_inside_of_a_sandbox(host: str, state: Path) -> None:
    """Whiteouts and opaque folders hide, links of layers below are there, the configuration holds."""
    push(host, "x", "1", IMAGE)
    pulled = ropewalk("image", "pull", f"{host}/x:1", "--json", state=state)
    assert pulled.code == 0, pulled.err
    created = ropewalk("sandbox", "create", "--image", f"{host}/x:1", state=state)
    assert created.code == 0, created.err
    id = created.out.strip()
    try:
        root = os.geteuid() == 0  # elsewhere there is one user inside
        looked = ropewalk(
            "sandbox", "exec", id, "--user", "root", "ls /d /o; cat /d/hard; echo $COLOUR; echo $PWD", state=state
        )
        assert looked.out == "/d:\nhard\nlow\n\n/o:\nnew\nlowblue\n/srv\n", looked.err
        if root:
            assert ropewalk("sandbox", "exec", id, "id -u", state=state).out == "1000\n"
            assert ropewalk("sandbox", "exec", id, "--entrypoint", state=state).out == "blue\n/srv\n"
        again = ropewalk("sandbox", "exec", id, "--user", "root", "--entrypoint", "--", "echo $COLOUR-", state=state)
        assert again.out == "blue-\n", again.err
        refused = ropewalk("image", "rm", f"{host}/x:1", state=state)
        assert refused.code == 6 and "stands on the image" in refused.err
    finally:
        assert ropewalk("sandbox", "kill", id, state=state).code == 0
    assert ropewalk("image", "rm", f"{host}/x:1", state=state).code == 0
    assert not list((state / "layers/known").rglob("*/*"))


def test_an_entrypoint_that_an_image_has_not_is_a_clear_error(state: Path, tmp_path: Path) -> None:
    made = ropewalk("sandbox", "create", str(write_layout(tmp_path / "plain", ("p:1", image(BASE)))), state=state)
    id = made.out.strip()
    try:
        refused = ropewalk("sandbox", "exec", id, "--entrypoint", state=state)
        assert refused.code == 2 and "p:1 has no entrypoint and no command" in refused.err
    finally:
        ropewalk("sandbox", "kill", id, state=state)


async def test_between_us_and_a_real_registry_somebody_lies(host: str, state: Path) -> None:
    push(host, "lied", "1", IMAGE)
    blob = IMAGE.layers[0]["digest"]

    def swap(request: Request, answer: Answer) -> Answer:
        return (answer[0], answer[1], answer[2][:-1] + bytes([answer[2][-1] ^ 1])) if blob in request.path else answer

    with serving(FakeRegistry(upstream=host)) as proxy:
        async with Ropewalk.open(state=state) as rw:
            proxy.fault = swap
            with pytest.raises(IntegrityError, match=r"Layer 1 of 2 .* is not what its digest says"):
                await rw.pull(f"{proxy.host}/lied:1")
            assert not [r for r in rw.images.records() if r.names]
            proxy.fault = lambda request, answer: answer
            assert (await rw.pull(f"{proxy.host}/lied:1")).user == "1000:1000"
            with pytest.raises(CallerError, match="is not there"):
                await rw.pull(f"{host}/missing:1")


async def test_a_mirror_is_asked_first_and_the_registry_where_it_has_nothing(host: str, state: Path) -> None:
    push(host, "far", "1", IMAGE)
    with serving(FakeRegistry()) as empty, serving(FakeRegistry({"1": IMAGE})) as full:
        profile = state.parent / "mirrored.toml"
        for mirror, name in ((empty, f"{host}/far:1"), (full, "nowhere.example/far:1")):
            profile.write_text(f'tenant = "local"\n[images.mirrors]\n"{name.partition("/")[0]}" = ["{mirror.host}"]\n')
            async with Ropewalk.open(str(profile), state=state) as rw:
                assert (await rw.pull(name)).names[0] == name
                assert mirror.requests
        assert full.count("/manifests/1") == 1  # what it answered is what is pulled


async def test_the_air_gapped_profile_reaches_loopback_alone(
    host: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(host, "near", "1", IMAGE)
    async with Ropewalk.open("air-gapped", state=state) as rw:
        with serving(FakeRegistry()) as proxy:
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(name, f"http://{proxy.host}")
            assert await rw.pull(f"{host}/near:1")
            assert not proxy.requests
        for name in ("debian:bookworm", "ghcr.io/a/b", "127.0.0.1.evil.example/x"):
            with pytest.raises(DeniedError, match="does not allow images from") as refused:
                await rw.pull(name)
            assert refused.value.rule == "profile air-gapped: network.registries"


def test_a_pull_that_is_killed_leaves_nothing_and_goes_on(host: str, state: Path) -> None:
    """Its first layer is whole when it dies in the second."""
    push(host, "killed", "1", IMAGE)
    small = IMAGE.layers[1]["digest"]
    with serving(FakeRegistry(upstream=host)) as proxy:
        released = threading.Event()

        def hold(request: Request, answer: Answer) -> Answer:
            if small in request.path:
                released.wait(60)
            return answer

        proxy.fault = hold
        environment = {**os.environ, "ROPEWALK_STATE": str(state), "HOME": str(state.parent)}
        process = subprocess.Popen(
            [sys.executable, "-m", "ropewalk", "image", "pull", f"{proxy.host}/killed:1"], env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            deadline_s = time.monotonic() + 60
            while not (list((state / "layers/known").glob("local/*")) and proxy.count(small)):
                assert time.monotonic() < deadline_s and process.poll() is None
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            released.set()
        proxy.fault = lambda request, answer: answer
        before = proxy.count(IMAGE.layers[0]["digest"])
        time.sleep(1.1)  # between a staging folder's making and its locking there is an instant
        assert ropewalk("image", "pull", f"{proxy.host}/killed:1", state=state).code == 0
        assert proxy.count(IMAGE.layers[0]["digest"]) == before
    assert not [path for path in (state / "layers").iterdir() if path.name.startswith(".staging")]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="buildah needs root or delegated user ids")
async def test_a_dockerfile_becomes_an_image(state: Path, tmp_path: Path) -> None:
    """With a base image of ours, and no network."""
    tool("buildah")
    (tmp_path / "context").mkdir()
    (tmp_path / "context/file").write_text("from the context\n")
    (tmp_path / "context/Dockerfile").write_text(
        'FROM acme/base:1 AS built\nARG V\nUSER root\nCOPY file /file\nRUN echo "built $V" > /made && rm -r /o\n'
        "FROM built\nENV STAGE=last\n"
    )
    async with Ropewalk.open("air-gapped", state=state) as rw:
        base = await rw.import_image(write_layout(tmp_path / "layout", ("acme/base:1", IMAGE)))
        built = await rw.build_image(tmp_path / "context", name="acme/tool:1", arguments={"V": "7"})
        assert built.env["STAGE"] == "last" and built.names == ("acme/tool:1",) and built.layers[:2] == base.layers
        async with rw.sandbox("acme/tool:1") as sandbox:
            result = await sandbox.exec("cat /file /made; ls /; echo $STAGE", user="root")
            assert result.stdout.startswith("from the context\nbuilt 7\n") and "\no\n" not in result.stdout
        (tmp_path / "context/Dockerfile").write_text("FROM acme/base:1\nRUN cat /nowhere\n")
        with pytest.raises(CallerError, match=r"(?s)The build failed .*nowhere"):
            await rw.build_image(tmp_path / "context")
        assert not list((state / "images").glob(".staging-*"))


def test_without_buildah_the_error_names_the_package(state: Path, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    missing = ropewalk("image", "build", tmp_path, state=state, PATH="/nonexistent")
    assert missing.code == 7 and "apt install buildah" in missing.err


async def test_what_umoci_makes_and_reads(state: Path, tmp_path: Path) -> None:
    """Its layers come in, and ours go out to it."""
    umoci = tool("umoci")
    layout = tmp_path / "made"

    def run(*words: str) -> None:
        subprocess.run([umoci, *words], check=True, capture_output=True)

    run("init", "--layout", str(layout))
    run("new", "--image", f"{layout}:one")
    (tmp_path / "content").mkdir()
    (tmp_path / "content/x").write_text("by umoci")
    rootless = () if os.geteuid() == 0 else ("--rootless",)
    run("insert", *rootless, "--image", f"{layout}:one", str(tmp_path / "content"), "/put")
    run("config", "--image", f"{layout}:one", "--config.env", "A=b", "--config.workingdir", "/put")
    async with Ropewalk.open(state=state) as rw:
        record = await rw.import_image(layout)
        assert (record.env["A"], record.workdir) == ("b", "/put")
        assert (rw.machines.layers.path(record.layers[0]) / "put/x").read_text() == "by umoci"
        await rw.import_image(write_layout(tmp_path / "ours", ("x:1", IMAGE)))
        await rw.export_image("x:1", tmp_path / "out", form="oci-dir")
    index = json.loads((tmp_path / "out/index.json").read_text())
    index["manifests"][0]["annotations"] = {"org.opencontainers.image.ref.name": "out"}
    (tmp_path / "out/index.json").write_text(json.dumps(index))
    run("unpack", *rootless, "--image", f"{tmp_path}/out:out", str(tmp_path / "bundle"))
    rootfs = tmp_path / "bundle/rootfs"
    assert sorted(p.name for p in (rootfs / "d").iterdir()) == ["hard", "low"]
    assert [p.name for p in (rootfs / "o").iterdir()] == ["new"]


@pytest.mark.slow
@pytest.mark.network
def test_a_debian_by_mmdebstrap_boots(host: str, state: Path, tmp_path: Path) -> None:
    program = tool("mmdebstrap")
    made = subprocess.run(
        [program, "--variant=extract", "--include=busybox-static", "bookworm", tmp_path / "root.tar"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"no package index can be reached: {made.stderr[-300:]}")
    with tarfile.open(tmp_path / "root.tar") as archive:
        shell = archive.getmember("./bin/busybox")
        assert shell.size
    push(host, "debian", "bookworm", image((tmp_path / "root.tar").read_bytes()))
    assert ropewalk("image", "pull", f"{host}/debian:bookworm", state=state).code == 0
    id = ropewalk("sandbox", "create", f"{host}/debian:bookworm", state=state).out.strip()
    try:
        said = ropewalk("sandbox", "exec", id, "--", "/bin/busybox", "uname", "-s", state=state)
        assert said.out == "Linux\n", said.err
    finally:
        ropewalk("sandbox", "kill", id, state=state)


async def test_faster_than_skopeo_and_umoci(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark at a size for every day; see specification.toml for the promise."""
    for name in ("docker-registry", "skopeo", "umoci"):
        tool(name)
    monkeypatch.setenv(image_pull.SIZE_VARIABLE, "16")
    found = await image_pull.measure(lambda text: None)
    assert [each.value is not None and each.value < 1 for each in found] == [True, True], found
