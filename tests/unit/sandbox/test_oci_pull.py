"""Images out of registries, layouts and archives: the right bytes, or one clear error and nothing left behind."""

from __future__ import annotations

import base64
import io
import json
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.images import (
    INDEX,
    MANIFEST,
    Answer,
    FakeRegistry,
    Image,
    Request,
    image,
    layer,
    member,
    names_below,
    packed,
    send,
    serving,
    sha256,
    write_layout,
)

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, DeniedError, IntegrityError, RopewalkError, UnavailableError
from ropewalk.sandbox.images import ImageRecord, ImageStore
from ropewalk.sandbox.layers import LayerStore
from ropewalk.sandbox.oci.assemble import Silent, assemble
from ropewalk.sandbox.oci.credentials import Credentials
from ropewalk.sandbox.oci.documents import parse_platform
from ropewalk.sandbox.oci.export import Format, export
from ropewalk.sandbox.oci.known import KnownLayers
from ropewalk.sandbox.oci.references import parse_reference
from ropewalk.sandbox.oci.registry import Access, Registry
from ropewalk.sandbox.oci.sources import RegistrySource, opened
from ropewalk.sandbox.oci.streams import zstd
from ropewalk.store.layout import Layout

NOISE = bytes(range(256)) * 2000
TWO = image(layer(member("a/", None), member("a/x", b"1")), layer(member("b", NOISE)), Env=["A=b"], Cmd=["run"])
LINK, SYMLINK = tarfile.LNKTYPE, tarfile.SYMTYPE


class Place:
    """A state directory of one tenant."""

    def __init__(self, root: Path, tenant: str = "tests") -> None:
        self.layout = Layout(root).ensure()
        self.layers = LayerStore(self.layout, tenant=tenant)
        self.images = ImageStore(self.layout, self.layers, tenant=tenant)
        self.known = KnownLayers(self.layers, self.layout.layers, tenant)
        self.waits: list[float] = []

    def pull(self, registry: FakeRegistry, name: str = "x:1", **settings: Any) -> ImageRecord:
        platform = settings.pop("platform", "")
        stop = settings.setdefault("stop", threading.Event())
        progress = settings.pop("progress", None)
        access = Access(**{"sleep": self.waits.append, "stall_timeout_s": 5.0, **settings})
        reference = parse_reference(f"{registry.host}/{name}")
        with Registry(reference, access) as connection:
            source = RegistrySource(connection, reference.name, reference.wanted)
            wanted = parse_platform(platform) if platform else None
            return assemble(source, self.layers, self.known, platform=wanted, stop=stop, progress=progress)

    def load(self, path: Path, which: str = "", platform: str = "") -> ImageRecord:
        with opened(path, image=which) as source:
            assert source is not None
            wanted = parse_platform(platform) if platform else None
            return assemble(source, self.layers, self.known, platform=wanted)

    def names(self, record: ImageRecord) -> list[list[str]]:
        return [list(names_below(self.layers.path(digest))) for digest in record.layers]

    def is_clean(self) -> bool:
        """Whether nothing half made is there."""
        return not [path for path in self.layout.layers.iterdir() if path.name.startswith((".staging", ".removed"))]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "state")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serving(FakeRegistry({"1": TWO})) as served:
        yield served


def test_what_was_pulled_is_there_and_not_fetched_again(place: Place, registry: FakeRegistry) -> None:
    record = place.pull(registry)
    assert place.names(record) == [["a", "a/x"], ["b"]]
    assert record.env["A"] == "b" and record.cmd == ("run",) and record.command() == ("run",)
    assert record.origin is not None and record.origin.manifest == TWO.manifest
    for digest in record.layers:
        place.layers.verify(digest)
    blobs = registry.count("/blobs/")
    assert place.pull(registry).digest == record.digest
    assert registry.count("/blobs/") == blobs + 1  # the configuration
    with pytest.raises(CallerError, match="has no entrypoint and no command"):
        place.images.add(ImageRecord(layers=record.layers)).command()


def test_only_what_is_missing_is_fetched(place: Place, registry: FakeRegistry) -> None:
    place.pull(registry)
    more = [layer(member("a/", None), member("a/x", b"1")), layer(member("b", NOISE)), layer(member("c", b"3"))]
    registry.images["2"] = image(*more)
    before = len(registry.requests)
    record = place.pull(registry, "x:2")
    assert place.names(record)[2] == ["c"]
    assert [path.rpartition("/")[2] for path in registry.requests[before:] if "/blobs/" in path][1:] == [
        registry.images["2"].layers[2]["digest"]
    ]


def test_layers_may_be_packed_by_zstd_or_not_at_all(place: Place, registry: FakeRegistry) -> None:
    registry.images = {
        "z": image(layer(member("z", NOISE)), pack=zstd.compress, suffix="+zstd"),
        "p": image(layer(member("z", NOISE)), pack=bytes, suffix=""),
    }
    assert place.pull(registry, "x:z").layers == place.pull(registry, "x:p").layers


def listed(registry: FakeRegistry, tag: str, **by_platform: Image) -> None:
    """An index of images."""
    found = []
    for name, each in by_platform.items():
        registry.images[f"{tag}-{name}"] = each
        system, architecture = name.split("_")
        found.append({"mediaType": MANIFEST, "digest": each.manifest, "size": each.size,
                      "platform": {"os": system, "architecture": architecture}})  # fmt: skip
    data = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": found}).encode()
    registry.extra[tag] = (INDEX, data)


def test_of_an_index_this_machines_image_or_the_one_that_is_asked_for(place: Place, registry: FakeRegistry) -> None:
    from ropewalk.sandbox.oci.documents import machine_platform

    mine, other = image(layer(member("mine"))), image(layer(member("other")), architecture="s390x")
    listed(registry, "many", **{f"linux_{machine_platform().architecture}": mine, "linux_s390x": other})
    assert place.names(place.pull(registry, "x:many")) == [["mine"]]
    assert place.names(place.pull(registry, "x:many", platform="linux/s390x")) == [["other"]]
    with pytest.raises(CallerError, match=r"no image for linux/riscv64; it has .*linux/s390x"):
        place.pull(registry, "x:many", platform="linux/riscv64")
    registry.images["alone"] = other
    with pytest.raises(CallerError, match=r"is for linux/s390x; this machine is"):
        place.pull(registry, "x:alone")


def test_a_hard_link_may_lead_to_a_layer_below_and_a_folder_on_the_way_is_the_one_below(
    place: Place, registry: FakeRegistry
) -> None:
    low = layer(
        member("tmp/", None, mode=0o1777), member("bin/", None, mode=0o750), member("bin/x", b"low", mode=0o751)
    )
    middle = layer(member("gone", b"1"), member("bin/.wh.y"))
    high = layer(
        member("hard", kind=LINK, linkname="bin/x"), member("again", kind=LINK, linkname="hard"), member("tmp/t")
    )
    registry.images = {"1": image(low, middle, high), "2": image(high)}
    record = place.pull(registry)
    tree = place.layers.path(record.layers[2])
    assert (tree / "hard").read_bytes() == b"low" and (tree / "hard").stat().st_mode & 0o777 == 0o751
    assert (tree / "hard").samefile(tree / "again")
    assert (tree / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert (place.layers.path(record.layers[1]) / "bin").stat().st_mode & 0o7777 == 0o750
    place.layers.verify(record.layers[2])
    place.layers.verify(record.layers[1])
    with pytest.raises(CallerError, match="hard link to what is not there"):
        place.pull(registry, "x:2")  # the same layer on nothing: what it became above does not count here
    hidden = layer(member("bin/.wh.x"))
    registry.images["3"] = image(low, hidden, high)
    with pytest.raises(CallerError, match="hard link to what is not there"):
        place.pull(registry, "x:3")
    registry.images["4"] = image(layer(member("lib", kind=SYMLINK, linkname="usr/lib")), layer(member("lib/x")))
    with pytest.raises(CallerError, match="link in a layer below"):
        place.pull(registry, "x:4")
    assert place.is_clean()


def test_a_layer_that_comes_twice_is_there_once(place: Place, registry: FakeRegistry) -> None:
    one, two = layer(member("one")), layer(member(".wh.one"))
    registry.images["1"] = image(one, two, one)
    record = place.pull(registry)
    assert place.names(record) == [["one"], ["one"]] and len(set(record.layers)) == 2


# What a registry may do


def on(part: str, say: Any) -> Any:
    def fault(request: Request, answer: Answer) -> Answer | None:
        result: Answer | None = say(request, answer) if part in request.path else answer
        return result

    return fault


BLOB = TWO.layers[1]["digest"]
CONFIG = json.loads(TWO.blobs[TWO.manifest])["config"]["digest"]
OTHER = packed(layer(member("evil", NOISE)))


@pytest.mark.parametrize(
    ("part", "say", "error", "says"),
    [
        (BLOB, lambda r, a: (200, {}, OTHER), IntegrityError, "ends after"),
        (BLOB, lambda r, a: (200, {}, a[2][:-9] + b"123456789"), IntegrityError, "digest says"),
        (BLOB, lambda r, a: (200, {}, a[2] + b"more"), IntegrityError, "more than the"),
        (BLOB, lambda r, a: (200, {}, b"x" * len(a[2])), IntegrityError, "digest says"),
        (BLOB, lambda r, a: (404, {}, b""), CallerError, "Layer 2 of 2 .* is not there"),
        (BLOB, lambda r, a: (500, {}, b""), UnavailableError, "HTTP 500"),
        (BLOB, lambda r, a: (418, {}, b""), UnavailableError, "HTTP 418"),
        (BLOB, lambda r, a: (206, {"Content-Range": "bytes 7-9/10"}, b"abc"), UnavailableError, "another part"),
        (BLOB, lambda r, a: (307, {"Location": r.path}, b""), UnavailableError, "redirects more than"),
        (BLOB, lambda r, a: (307, {"Location": "ftp://127.0.0.1/x"}, b""), DeniedError, "no http or https"),
        (BLOB, lambda r, a: (307, {"Location": "http://registry.example/x"}, b""), DeniedError, "by plain HTTP"),
        (BLOB, lambda r, a: (307, {"Location": "http://[bad/x"}, b""), DeniedError, "no http"),
        (CONFIG, lambda r, a: (200, {}, a[2].replace(b"run", b"rum")), IntegrityError, "digest says"),
        ("manifests", lambda r, a: (200, a[1], a[2].replace(b"2", b"3", 1)), IntegrityError, "digest says"),
        ("manifests", lambda r, a: (200, {}, b"[]"), CallerError, "The manifest|x:1"),
        ("manifests", lambda r, a: (200, {}, b"{" * 10_000), CallerError, "x:1"),
        ("manifests", lambda r, a: (200, {}, bytes(limits.IMAGE_MANIFEST_BYTES_MAX + 1)), CallerError, "more than the"),
        ("manifests", lambda r, a: (404, {}, b""), CallerError, "manifest 1 of .* is not there"),
        ("manifests", lambda r, a: (401, {}, b""), DeniedError, "no login for it is configured"),
        ("manifests", lambda r, a: (401, {"WWW-Authenticate": "Negotiate"}, b""), DeniedError, "'Negotiate'"),
        ("manifests", lambda r, a: (401, {"WWW-Authenticate": "Bearer x=y"}, b""), UnavailableError, "where from"),
        ("manifests", lambda r, a: (401, {"WWW-Authenticate": 'Bearer realm="http://evil.example/t"'}, b""),
         DeniedError, "by plain HTTP"),
        ("manifests", lambda r, a: (403, {}, b""), DeniedError, "HTTP 403"),
        ("manifests", lambda r, a: (503, {"Retry-After": "7"}, b""), UnavailableError, "HTTP 503"),
    ],
)  # fmt: skip
def test_a_registry_that_lies_or_fails_is_one_clear_error(
    place: Place, registry: FakeRegistry, part: str, say: Any, error: type[RopewalkError], says: str
) -> None:
    registry.fault = on(part, say)
    with pytest.raises(error, match=says):
        place.pull(registry, attempts_max=3)
    assert place.is_clean() and not list(place.images.records())
    registry.fault = lambda request, answer: answer
    assert place.names(place.pull(registry)) == [["a", "a/x"], ["b"]]  # and what was right is kept


def test_it_waits_as_long_as_it_is_told_and_longer_each_time(place: Place, registry: FakeRegistry) -> None:
    registry.fault = on(
        "manifests", lambda r, a: (429, {"Retry-After": "7"}, b"") if registry.count("manifests") < 3 else a
    )
    place.pull(registry)
    assert len(place.waits) == 2 and all(7 <= wait_s < 10 for wait_s in place.waits)
    place.waits.clear()
    registry.fault = lambda request, answer: (502, {}, b"")
    with pytest.raises(UnavailableError):
        place.pull(registry)
    assert place.waits == sorted(place.waits) and len(place.waits) == limits.IMAGE_ATTEMPTS_MAX - 1


@pytest.mark.parametrize("with_range", [True, False])
def test_a_connection_that_breaks_goes_on_where_it_was(place: Place, registry: FakeRegistry, with_range: bool) -> None:
    noise = layer(member("noise", bytes(i * 7 % 251 for i in range(300_000))))
    registry.images["1"] = broken = image(noise, pack=bytes, suffix="")
    asked: list[str] = []

    def fault(request: Request, answer: Answer) -> Answer | None:
        if broken.layers[0]["digest"] not in request.path:
            return answer
        asked.append(request.headers.get("range", ""))
        body = answer[2]
        if not with_range:
            answer = (200, {}, noise)
            body = noise
        if len(asked) < 4:
            send(
                request.handler,
                answer[0],
                answer[1],
                body[: 100_000 * (1 if with_range else len(asked))],
                length=len(body),
            )
            request.handler.close_connection = True
            return None
        return answer

    registry.fault = fault
    assert place.names(place.pull(registry)) == [["noise"]]
    assert asked[0] == "" and all(each.startswith("bytes=") for each in asked[1:]) and len(asked) == 4


def test_a_registry_that_stalls_is_given_up(place: Place, registry: FakeRegistry) -> None:
    released = threading.Event()

    def fault(request: Request, answer: Answer) -> Answer | None:
        if BLOB not in request.path:
            return answer
        send(request.handler, 200, {}, answer[2][:100], length=len(answer[2]))
        request.handler.wfile.flush()
        released.wait(20)
        return None

    registry.fault = fault
    started_s = time.monotonic()
    try:
        with pytest.raises(UnavailableError, match=r"Layer 2 of 2 .* stalls after 100 of \d+ bytes, every time"):
            place.pull(registry, stall_timeout_s=0.2, attempts_max=2)
    finally:
        released.set()
    assert time.monotonic() - started_s < 10 and place.is_clean()


def test_a_registry_that_drips_is_given_up(
    place: Place, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte per connection is no progress either."""
    monkeypatch.setattr("ropewalk.machinery.deadlines.RATE_WINDOW_S", 0.2)
    monkeypatch.setattr(limits, "IMAGE_RATE_BYTES_PER_S_MIN", 1 << 20)

    def fault(request: Request, answer: Answer) -> Answer | None:
        if BLOB not in request.path:
            return answer
        send(request.handler, answer[0], answer[1], answer[2][:1], length=len(answer[2]))
        request.handler.close_connection = True
        return None

    registry.fault = fault
    with pytest.raises(UnavailableError, match="is too slow, after"):
        place.pull(registry, sleep=lambda wait_s: time.sleep(0.01))


OK = "HTTP/1.1 200 OK\r\n"
DRIPPED = {
    "header": ("/manifests/", f"{OK}X-Slow: "),
    "redirect": ("/manifests/", "HTTP/1.1 307 There\r\nLocation: /"),
    "manifest": ("/manifests/", f"{OK}Content-Type: application/json\r\nContent-Length: 4000000\r\n\r\n{{"),
    "challenge": ("/manifests/", "HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm=x"),
    "token's header": ("/token", f"{OK}X-Slow: "),
    "token": ("/token", f"{OK}Content-Length: 100000\r\n\r\n{{"),
    "layer's header": (BLOB, f"{OK}X-Slow: "),
    "head of a layer's chunk": (BLOB, f"{OK}Transfer-Encoding: chunked\r\n\r\n5;x="),
}


@pytest.mark.parametrize("what", DRIPPED)
def test_an_answer_that_drips_runs_out_of_time_and_is_not_asked_for_again(
    place: Place, registry: FakeRegistry, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropewalk.sandbox.oci.registry.RATE_WINDOW_S", 0.3)
    path, start = DRIPPED[what]
    ended = threading.Event()
    login = bearer(registry, "me", "se:cret")

    def fault(request: Request, answer: Answer) -> Answer | None:
        if path not in request.path:
            found: Answer | None = login(request, answer) if path == "/token" else answer
            return found
        request.handler.close_connection = True
        with suppress(OSError):
            request.handler.wfile.write(start.encode())
            while not ended.wait(0.02):
                request.handler.wfile.write(b"1")
        return None

    registry.fault = fault
    started_s = time.monotonic()
    try:
        with pytest.raises(UnavailableError, match="too slow"):
            place.pull(registry, answer_timeout_s=0.3)
    finally:
        ended.set()
    assert time.monotonic() - started_s < 10 and place.waits == [] and place.is_clean()


def test_one_failed_layer_ends_the_others_and_stopping_ends_all(place: Place, registry: FakeRegistry) -> None:
    stop = threading.Event()

    class Stopping(Silent):
        def fetched(self, bytes: int) -> None:
            stop.set()

    with pytest.raises(UnavailableError, match="stopped"):
        place.pull(registry, stop=stop, progress=Stopping())
    assert place.is_clean()


# Logins


def bearer(registry: FakeRegistry, user: str, password: str) -> Any:
    """As Docker's own token service: a token for whoever logs in."""
    basic = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def fault(request: Request, answer: Answer) -> Answer:
        if request.path.startswith("/token"):
            if request.headers.get("authorization") != basic:
                return 401, {}, b""
            assert "scope=repository%3Ax%3Apull" in request.path and "service=here" in request.path
            return 200, {}, json.dumps({"token": "abc.def", "expires_in": 300}).encode()
        if request.headers.get("authorization") != "Bearer abc.def":
            return 401, {"WWW-Authenticate": f'Bearer realm="http://{registry.host}/token",service="here"'}, b""
        return answer

    return fault


def test_a_token_is_asked_for_once_with_the_login_that_is_named(
    place: Place, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.fault = bearer(registry, "me", "se:cret")
    with pytest.raises(DeniedError, match="gives no token"):
        place.pull(registry)
    monkeypatch.setenv("LOGIN", "me:se:cret")
    assert place.pull(registry, credentials=Credentials({registry.host: "env:LOGIN"})).layers
    assert registry.count("/token") == 2
    config = tmp_path / "config.json"
    auth = base64.b64encode(b"me:se:cret").decode()
    config.write_text(json.dumps({"auths": {registry.host: {"auth": auth}, "b": {}}, "credsStore": "x"}))
    config.chmod(0o600)
    assert place.pull(registry, credentials=Credentials({}, config)).layers
    config.write_text(json.dumps({"credsStore": "desktop"}))
    with pytest.raises(CallerError, match="helper program"):
        place.pull(registry, credentials=Credentials({}, config))
    monkeypatch.setenv("LOGIN", "nocolon")
    with pytest.raises(CallerError, match="USER:PASSWORD") as refused:
        place.pull(registry, credentials=Credentials({registry.host: "env:LOGIN"}))
    assert "nocolon" not in str(refused.value)


@pytest.mark.parametrize("password", ["right", "wrong"])
def test_basic(place: Place, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    basic = "Basic " + base64.b64encode(b"me:right").decode()
    registry.fault = lambda request, answer: (
        answer if request.headers.get("authorization") == basic else (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")
    )
    monkeypatch.setenv("LOGIN", f"me:{password}")
    credentials = Credentials({registry.host: "env:LOGIN"})
    if password == "right":
        assert place.pull(registry, credentials=credentials).layers
        return
    with pytest.raises(DeniedError, match="HTTP 401") as refused:
        place.pull(registry, credentials=credentials)
    assert password not in str(refused.value) and len(registry.requests) <= 3


def test_a_login_does_not_follow_a_redirect(
    place: Place, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGIN", "me:right")
    basic = "Basic " + base64.b64encode(b"me:right").decode()
    with serving(FakeRegistry({"1": TWO})) as store:
        seen: list[str | None] = []

        def stored(request: Request, answer: Answer) -> Answer:
            seen.append(request.headers.get("authorization"))
            return answer

        store.fault = stored

        def fault(request: Request, answer: Answer) -> Answer:
            if request.headers.get("authorization") != basic:
                return 401, {"WWW-Authenticate": "Basic"}, b""
            return (
                (307, {"Location": f"http://{store.host}{request.path}"}, b"") if "/blobs/" in request.path else answer
            )

        registry.fault = fault
        assert place.pull(registry, credentials=Credentials({registry.host: "env:LOGIN"})).layers
        assert seen == [None] * 3


def test_where_nothing_may_be_fetched_from_nothing_is(place: Place, registry: FakeRegistry) -> None:
    def allow(host: str) -> None:
        raise DeniedError(f"not {host}", rule="profile")

    with pytest.raises(DeniedError, match=r"not 127\.0\.0\.1"):
        place.pull(registry, allow=allow)
    assert not registry.requests


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    """What the environment names, for all hosts."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(FakeRegistry({"1": TWO})) as served:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://{served.host}")
        yield served


def test_a_registry_of_this_machine_is_asked_by_nobody_else(
    place: Place, registry: FakeRegistry, proxy: FakeRegistry
) -> None:
    token = (200, {}, b'{"token": "t"}')
    registry.fault = lambda request, answer: (
        token if request.path.startswith("/token")
        else answer if request.headers.get("authorization")
        else (401, {"WWW-Authenticate": f'Bearer realm="http://{registry.host}/token"'}, b"")
    )  # fmt: skip
    assert place.pull(registry).layers
    assert registry.count("/token") and registry.count("/blobs/") and not proxy.requests


@pytest.mark.parametrize("proxies", [True, False])
def test_a_proxy_is_asked_only_where_the_network_is_open(
    proxy: FakeRegistry, proxies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo

    def looked_up(host: str, *arguments: Any, **named: Any) -> Any:
        if host == "registry.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return look_up(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    access = Access(insecure_http=True, proxies=proxies, attempts_max=1, stall_timeout_s=5.0)
    with Registry(parse_reference("registry.invalid/x:1"), access) as registry:
        if proxies:
            assert registry.manifest("1")
        else:
            with pytest.raises(UnavailableError, match="does not answer"):
                registry.manifest("1")
    assert bool(proxy.requests) == proxies


# Files


def test_layouts_and_archives_give_the_same_image_and_come_back_the_same(place: Place, tmp_path: Path) -> None:
    low = layer(member("d/", None, mode=0o2750, mtime=9),
                member("d/x", NOISE, pax_headers={"SCHILY.xattr.user.a": "ü"}),
                member("d/y", kind=LINK, linkname="d/x"), member("s", kind=SYMLINK, linkname="d"),
                member("z", b""))  # fmt: skip
    high = layer(member("d/.wh.x"), member("new/", None), member("new/.wh..wh..opq"), member("é", b"1"))
    made = image(low, high, Env=["B=2", "A=1"], User="1000:5", WorkingDir="srv/./app", Entrypoint=["/x"], Cmd=["y"])
    record = place.images.add(place.load(write_layout(tmp_path / "layout", ("acme/x:1", made))))
    assert (record.workdir, record.user, record.entrypoint, record.names) == (
        "/srv/app",
        "1000:5",
        ("/x",),
        ("acme/x:1",),
    )
    assert record.command() == ("/x", "y") and record.command(["z"]) == ("/x", "z")
    for form in Format:
        for gzip in (False, True):
            out = tmp_path / f"{form}-{gzip}"
            export(record, place.layers, out, form, gzip=gzip)
            other = Place(tmp_path / f"state-{form}-{gzip}")
            again = other.load(out)
            assert again.digest == record.digest and again.layers == record.layers, form
            export(other.images.add(again), other.layers, tmp_path / "again", form, gzip=gzip)
            if form is not Format.OCI_DIRECTORY:
                assert (tmp_path / "again").read_bytes() == out.read_bytes()
                (tmp_path / "again").unlink()
            else:
                assert {p.name: p.read_bytes() for p in out.rglob("*") if p.is_file()} == {
                    p.name: p.read_bytes() for p in (tmp_path / "again").rglob("*") if p.is_file()
                }
                (tmp_path / "again").rename(tmp_path / f"again-{gzip}")
    with pytest.raises(CallerError, match="there already"):
        export(record, place.layers, tmp_path / "layout", Format.OCI_DIRECTORY)


def docker_archive(path: Path, *saved: tuple[str, Image, list[bytes]]) -> Path:
    """As `docker save` wrote it before it wrote layouts, with its links from one layer to an equal one."""
    seen: dict[str, str] = {}
    with tarfile.open(path, "w") as file:

        def add(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))

        manifest = []
        for tag, each, layers in saved:
            config = next(digest for digest, data in each.blobs.items() if b"rootfs" in data)
            add(f"{config[7:]}.json", each.blobs[config])
            names = []
            for number, data in enumerate(layers):
                name = f"{config[7:19]}-{number}/layer.tar"
                names.append(name)
                if first := seen.get(sha256(data)):
                    info = tarfile.TarInfo(name)
                    info.type, info.linkname = SYMLINK, f"../{first}"
                    file.addfile(info)
                else:
                    add(name, data)
                    seen[sha256(data)] = name
            manifest.append({"Config": f"{config[7:]}.json", "RepoTags": [tag], "Layers": names})
        add("manifest.json", json.dumps(manifest).encode())
    return path


def test_what_docker_saved(place: Place, tmp_path: Path) -> None:
    layers = [layer(member("a", b"1")), layer(member("b", NOISE))]
    one, two = image(*layers), image(layers[0])
    path = docker_archive(tmp_path / "saved.tar", ("one:1", one, layers), ("two:1", two, layers[:1]))
    assert place.names(place.load(path, "one:1")) == [["a"], ["b"]]
    assert place.names(place.load(path, "two:1")) == [["a"]]
    (tmp_path / "packed.tar.gz").write_bytes(packed(path.read_bytes()))
    assert place.load(tmp_path / "packed.tar.gz", "one:1").names == ("one:1",)
    with pytest.raises(CallerError, match="several images: one:1, two:1"):
        place.load(path)
    with pytest.raises(CallerError, match="no image 'x'"):
        place.load(path, "x")
    swapped = docker_archive(tmp_path / "swapped.tar", ("one:1", one, layers[::-1]))
    with pytest.raises(IntegrityError, match="digest says"):
        Place(tmp_path / "another").load(swapped)


def test_a_layout_with_several_images_or_wrong_bytes(place: Place, tmp_path: Path) -> None:
    other = image(layer(member("other")))
    folder = write_layout(tmp_path / "layout", ("one", TWO), ("two", other))
    assert place.names(place.load(folder, "two")) == [["other"]]
    with pytest.raises(CallerError, match="several images: one, two"):
        place.load(folder)
    blob = folder / "blobs/sha256" / BLOB[7:]
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match="Layer 2 of 2 of layout"):
        place.load(folder, "one")
    blob.unlink()
    with pytest.raises(CallerError, match="cannot be read"):
        place.load(folder, "one")
    (folder / "index.json").write_text("{}")
    with pytest.raises(CallerError):
        place.load(folder)
    assert place.is_clean()


# Tenants


def test_a_tenant_gets_no_layer_for_naming_its_digest(tmp_path: Path, registry: FakeRegistry) -> None:
    mine, theirs = Place(tmp_path / "state", "mine"), Place(tmp_path / "state", "theirs")
    record = mine.images.add(mine.pull(registry))
    assert [each.digest for each in mine.images.records()] == [record.digest] and not list(theirs.images.records())
    for refused in (
        lambda: theirs.images.get(record.digest),
        lambda: theirs.images.add(record),
        lambda: theirs.layers.check_usable(record.layers, "theirs"),
        lambda: theirs.images.check_usable(record.digest, "theirs"),
        lambda: theirs.images.publish(record.digest),
    ):
        with pytest.raises(CallerError, match="There is no"):
            refused()
    blobs = registry.count("/blobs/")
    again = theirs.images.add(theirs.pull(registry))
    assert registry.count("/blobs/") == blobs + 3  # it had to show that it can get them
    assert again.digest == record.digest and theirs.images.get(record.digest)
    theirs.images.remove(record.digest)
    assert not list(theirs.images.records()) and mine.images.get(record.digest)


def test_what_the_operator_published_is_everybodys(tmp_path: Path, registry: FakeRegistry) -> None:
    mine, theirs = Place(tmp_path / "state", "mine"), Place(tmp_path / "state", "theirs")
    record = mine.images.add(mine.pull(registry))
    mine.images.publish(record.digest)
    theirs.layers.check_usable(record.layers, "theirs")
    assert theirs.images.get(record.digest).digest == record.digest and theirs.images.is_public(record.digest)
    secret = mine.images.add(ImageRecord(layers=record.layers[:1]), data_class="restricted")
    with pytest.raises(DeniedError, match="restricted"):
        mine.images.publish(secret.digest)


def test_a_name_is_one_images(place: Place, registry: FakeRegistry) -> None:
    one, two = (place.pull(registry), ImageRecord(layers=place.pull(registry).layers[:1]))
    import msgspec

    one = place.images.add(msgspec.structs.replace(one, names=("x:1",), label="x:1"))
    assert place.images.find("x:1").digest == one.digest == place.images.find(TWO.manifest).digest
    two = place.images.add(msgspec.structs.replace(two, names=("x:1", "y:latest")))
    assert place.images.find("x:1").digest == two.digest == place.images.find("y").digest
    assert place.images.get(one.digest).names == () and place.images.get(one.digest).label == ""
    assert (
        place.images.find(one.digest[:8]).digest == one.digest == place.images.find(f"image:{one.digest[:32]}").digest
    )
    with pytest.raises(CallerError, match="No images are called 'z'"):
        place.images.find("z")
