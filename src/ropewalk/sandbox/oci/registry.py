"""A registry, as far as pulling goes (OCI distribution specification 1.1), bounded, and trusted in nothing.

Whatever is fetched is named by a digest or becomes it: bytes are believed for what they hash to. Plain HTTP is spoken
with this machine's own registries, and with others only where the caller says so.
"""

from __future__ import annotations

import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final
from urllib.parse import urljoin, urlsplit

import httpx2

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, DeniedError, IntegrityError, RopewalkError, UnavailableError
from ropewalk.machinery import certificates
from ropewalk.machinery.deadlines import RATE_WINDOW_S, LeastRate, TooSlowError, deadline, with_deadlines
from ropewalk.sandbox.oci.auth import Authorizer, denied
from ropewalk.sandbox.oci.credentials import Credentials
from ropewalk.sandbox.oci.documents import INDEX_TYPES, MANIFEST_TYPES, Descriptor
from ropewalk.sandbox.oci.references import Reference, address_of, is_loopback

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_REDIRECTS_MAX: Final = 5
_AGAIN: Final = (408, 425, 429, 500, 502, 503, 504)
_BACKOFF_S: Final = 0.5
_BACKOFF_MAX_S: Final = 30.0
_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")


@dataclass
class Access:
    """How registries may be reached."""

    allow: Callable[[str], None] = lambda host: None
    """Raises `DeniedError` for a host (without its port) that may not be reached."""
    credentials: Credentials = field(default_factory=Credentials)
    mirrors: Sequence[str] = ()
    """Hosts that are asked first, in this order."""
    insecure_http: bool = False
    """Whether plain HTTP is spoken, with whatever host."""
    proxies: bool = True
    """Whether a proxy that the environment names may be asked. This machine is never asked for through one."""
    stall_timeout_s: float = limits.IMAGE_STALL_TIMEOUT_S
    answer_timeout_s: float = limits.IMAGE_ANSWER_TIMEOUT_S
    attempts_max: int = limits.IMAGE_ATTEMPTS_MAX
    sleep: Callable[[float], None] = time.sleep
    stop: threading.Event = field(default_factory=threading.Event)
    """Set from another thread, it ends whatever goes on."""


class _AgainError(Exception):
    """Worth another attempt; `final` is the error when there are none left."""

    def __init__(self, final: RopewalkError, *, after_s: float = 0.0) -> None:
        super().__init__()
        self.final = final
        self.after_s = after_s


class Registry:
    """One repository in one registry. For many threads; use as a context manager."""

    def __init__(self, reference: Reference, access: Access, *, host: str = "") -> None:
        """
        Args:
            host: to ask instead of the reference's, which it mirrors.
        """
        self.host = host or reference.host
        self._reference = reference
        self._access = access
        self._chance = random.Random()
        self._plain = access.insecure_http or is_loopback(self.host)
        self._base = f"{'http' if self._plain else 'https'}://{address_of(self.host)}/v2/{reference.repository}/"
        trusted = certificates.shared(httpx2.create_ssl_context)  # decides nothing about who is asked
        self._direct = _client(access, trusted, proxies=False)
        self._usual = _client(access, trusted, proxies=True) if access.proxies else self._direct
        self._authorizer = Authorizer(self.host, reference.repository, access.credentials, self._fetch_token)

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._direct.close()
        self._usual.close()

    def manifest(self, wanted: str) -> bytes:
        """The manifest or index of a tag or digest. Of a digest the bytes are checked.

        Raises:
            CallerError: there is none, or it is larger than limits.IMAGE_MANIFEST_BYTES_MAX.
            DeniedError: the registry refuses us, or leads to where nothing may be fetched from.
            IntegrityError: the bytes are not what the digest, ours or the registry's own, says.
            UnavailableError: no answer, or failing ones every time.
        """
        what = f"The manifest {wanted} of {self.host}/{self._reference.repository}"
        accept = ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))

        def fetch() -> bytes:
            with closing(self._send(f"{self._base}manifests/{wanted}", {"Accept": accept}, what)) as response:
                data = _whole(response, what, limits.IMAGE_MANIFEST_BYTES_MAX)
                said = response.headers.get("Docker-Content-Digest", "")
                for digest in (wanted if ":" in wanted else "", said):
                    if digest.startswith("sha256:"):
                        Descriptor(digest=digest, size=len(data)).check_bytes(data, what)
                return data

        return self._retried(fetch)

    def small(self, descriptor: Descriptor, what: str, bytes_max: int) -> bytes:
        """A blob that fits into memory, checked. Raises as `manifest` and `Blob.read`."""
        descriptor.check(what, bytes_max=bytes_max)
        with Blob(self, descriptor, what) as blob:
            data = b"".join(iter(lambda: blob.read(1 << 20), b""))
        return descriptor.check_bytes(data, what)

    def blob(self, descriptor: Descriptor, what: str) -> Blob:
        """A blob to read; who reads it checks its digest."""
        return Blob(self, descriptor, what)

    def open_blob(self, digest: str, offset: int, what: str) -> httpx2.Response:
        """The answer to a request of a blob from an offset on; its body is still to come."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        with deadline(self._access.answer_timeout_s):
            return self._send(self._base + f"blobs/{digest}", headers, what)

    def wait(self, attempt: int, after_s: float) -> None:
        """Between two attempts, longer each time."""
        wait_s = min(_BACKOFF_MAX_S, max(after_s, _BACKOFF_S * 2 ** (attempt - 1)))
        self._access.sleep(wait_s * self._chance.uniform(1.0, 1.25))
        self.check_stop()

    def check_stop(self) -> None:
        """Raises:
        UnavailableError: somebody wants us to stop.
        """
        if self._access.stop.is_set():
            raise UnavailableError("Pulling was stopped.", retry_after_s=0.0)

    @property
    def attempts_max(self) -> int:
        """Failures in a row."""
        return self._access.attempts_max

    def _retried(self, fetch: Callable[[], bytes]) -> bytes:
        for attempt in range(1, self.attempts_max + 1):
            try:
                with deadline(self._access.answer_timeout_s):
                    return fetch()
            except TooSlowError as error:
                raise self._silent("it is too slow", error) from error
            except _AgainError as error:
                if attempt == self.attempts_max:
                    raise error.final from error
                self.wait(attempt, error.after_s)
            except httpx2.TransportError as error:
                if attempt == self.attempts_max:
                    raise self._silent(str(error), error) from error
                self.wait(attempt, 0.0)
        raise AssertionError

    def _send(self, url: str, headers: dict[str, str], what: str) -> httpx2.Response:
        """Follows challenges and redirects; the answer is 200 or 206, and open."""
        own = urlsplit(url).netloc
        challenged = 0
        for _ in range(_REDIRECTS_MAX + 1):
            is_own = urlsplit(url).netloc == own
            sent = self._authorizer.header() if is_own else ""
            response = self._ask(url, {**headers, **({"Authorization": sent} if sent else {})}, what)
            status = response.status_code
            if status in (200, 206):
                return response
            try:
                if status in _REDIRECTS:
                    url = _led_to(url, response.headers.get("Location", ""))
                    continue
                challenge = response.headers.get("WWW-Authenticate", "")
                if status == 401 and is_own and challenge and challenged < 2:
                    challenged += 1
                    if self._authorizer.answer(challenge, sent):
                        continue
                self._refuse(response, what)
            finally:
                response.close()
        raise UnavailableError(f"{what}: {self.host} redirects more than {_REDIRECTS_MAX} times.")

    def _refuse(self, response: httpx2.Response, what: str) -> None:
        status = response.status_code
        if status in (404, 410):
            raise CallerError(f"{what} is not there.", next_step="check the name and the tag.")
        if status in (401, 403):
            raise denied(self.host, f"does not hand out {what[0].lower()}{what[1:]}", status,
                         known=self._access.credentials.login(self.host) is not None)  # fmt: skip
        failure = UnavailableError(f"{what}: {self.host} answers HTTP {status}.", retry_after_s=_BACKOFF_MAX_S)
        if status not in _AGAIN:
            raise failure
        asked = response.headers.get("Retry-After", "")
        raise _AgainError(failure, after_s=float(asked) if asked.isascii() and asked.isdigit() else 0.0)

    def _ask(
        self, url: str, headers: dict[str, str], what: str, parameters: dict[str, str | list[str]] | None = None
    ) -> httpx2.Response:
        """One GET; the answer is open.

        Raises:
            DeniedError: the profile or plain HTTP forbids the address.
        """
        try:
            parts = urlsplit(url)
            host, netloc = parts.hostname or "", parts.netloc.rpartition("@")[2]
            _ = parts.port
        except ValueError:
            host, netloc = "", ""
        if not host or parts.scheme not in ("http", "https"):
            raise DeniedError(f"{what}: {self.host} leads to no http or https address.", rule="redirect")
        if parts.scheme == "http" and not (self._plain and (self._access.insecure_http or is_loopback(netloc))):
            raise DeniedError(
                f"{what}: {self.host} leads to {netloc[:200]} by plain HTTP.",
                rule="redirect",
                next_step="registries are reached by https; --insecure-http allows the other.",
            )
        self._access.allow(host)
        client = self._direct if is_loopback(netloc) else self._usual
        return client.send(client.build_request("GET", url, params=parameters, headers=headers), stream=True)

    def _fetch_token(self, url: str, parameters: dict[str, str], headers: dict[str, str]) -> httpx2.Response:
        what = "The token"
        try:
            response = self._ask(url, headers, what, _joined(url, parameters))
            try:
                data = _whole(response, what, limits.IMAGE_TOKEN_BYTES_MAX)
            finally:
                response.close()
        except (httpx2.InvalidURL, ValueError) as error:
            raise UnavailableError(f"{self.host} names no address for tokens: {error}.") from error
        return httpx2.Response(response.status_code, headers={}, content=data)

    def _silent(self, why: str, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"The registry {self.host} does not answer: {why or type(error).__name__}.",
            retry_after_s=_BACKOFF_MAX_S,
            next_step="check the network and the host's name; what was fetched is kept, so that a new pull goes on.",
        )


def _client(access: Access, trusted: ssl.SSLContext, *, proxies: bool) -> httpx2.Client:
    client = httpx2.Client(
        timeout=httpx2.Timeout(access.stall_timeout_s),
        follow_redirects=False,
        # `identity`: bytes that are unpacked on their way would not have their digest any more.
        headers={"Accept-Encoding": "identity", "User-Agent": "ropewalk"},
        limits=httpx2.Limits(max_connections=2 * limits.IMAGE_LAYERS_AT_ONCE),
        verify=trusted,
        trust_env=proxies,
    )
    return with_deadlines(client)


class Blob:
    """A blob's bytes as they come. A connection that breaks or stalls is taken up again where it was."""

    def __init__(self, registry: Registry, descriptor: Descriptor, what: str) -> None:
        self._registry = registry
        self._descriptor = descriptor
        self._what = what
        self._response: httpx2.Response | None = None
        self._chunks: Iterator[bytes] = iter(())
        self._at = 0
        self._skip = 0
        self._rest = b""
        self._failures = 0
        self._rate = LeastRate(limits.IMAGE_RATE_BYTES_PER_S_MIN)

    def __enter__(self) -> Blob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def read(self, size: int, /) -> bytes:
        """See `ByteSource`.

        Raises:
            CallerError: the registry has no such blob.
            DeniedError: it refuses us, or leads to where nothing may be fetched from.
            IntegrityError: more bytes than the manifest says.
            UnavailableError: it breaks off or stalls every time.
        """
        while not self._rest:
            if self._at >= self._descriptor.size and self._response is None:
                return b""
            self._registry.check_stop()
            try:
                self._more()
            except TooSlowError as error:
                self._close()
                raise self._lost(error) from error
            except (_AgainError, httpx2.TransportError) as error:
                self._close()
                self._failures += 1
                if self._failures >= self._registry.attempts_max:
                    raise self._lost(error) from error
                self._registry.wait(self._failures, error.after_s if isinstance(error, _AgainError) else 0.0)
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def _more(self) -> None:
        if self._response is None:
            self._open()
        with deadline(RATE_WINDOW_S):
            data = next(self._chunks, b"")
        if not data:
            self._close()
            if self._at < self._descriptor.size:  # though the answer came to its end
                raise _AgainError(
                    IntegrityError(
                        f"{self._what} ends after {self._at} of {self._descriptor.size} bytes that its manifest says.",
                        next_step="nothing was stored; pull again, or ask that registry's owner.",
                    )
                )
            return
        if self._skip:
            drop = min(self._skip, len(data))
            data, self._skip = data[drop:], self._skip - drop
            if not data:
                return
        self._at += len(data)
        if self._at > self._descriptor.size:
            raise IntegrityError(
                f"{self._what} has more than the {self._descriptor.size} bytes that its manifest says.",
                next_step="nothing was stored; do not use that registry before its owner has explained it.",
            )
        self._rest = data
        self._failures = 0
        if not self._rate.is_kept(self._at):
            raise TooSlowError("too few bytes")

    def _open(self) -> None:
        response = self._registry.open_blob(self._descriptor.digest, self._at, self._what)
        self._skip = self._at
        if response.status_code == 206:
            start = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if start is None or int(start[1]) > self._at:
                response.close()
                raise UnavailableError(f"{self._what}: {self._registry.host} sends another part than it was asked for.")
            self._skip = self._at - int(start[1])
        self._response = response
        self._chunks = response.iter_raw()

    def _close(self) -> None:
        if self._response is not None:
            with suppress(httpx2.HTTPError):
                self._response.close()
        self._response, self._chunks, self._rest = None, iter(()), b""

    def _lost(self, error: Exception) -> RopewalkError:
        if isinstance(error, _AgainError):
            return error.final
        so_far = f"after {self._at} of {self._descriptor.size} bytes"
        if isinstance(error, TooSlowError):
            why = f"is too slow, {so_far}"
        else:
            why = f"{'stalls' if isinstance(error, httpx2.TimeoutException) else 'breaks off'} {so_far}, every time"
        return UnavailableError(
            f"{self._what}: {self._registry.host} {why}.",
            retry_after_s=_BACKOFF_MAX_S,
            next_step="pull again later; layers that are whole are kept.",
        )


def _whole(response: httpx2.Response, what: str, bytes_max: int) -> bytes:
    data = bytearray()
    for chunk in response.iter_raw():
        data += chunk
        if len(data) > bytes_max:
            raise CallerError(f"{what} has more than the {bytes_max} bytes allowed.")
    return bytes(data)


def _led_to(url: str, location: str) -> str:
    """Where a redirect leads; "" where that is no address."""
    try:
        return urljoin(url, location)
    except ValueError:
        return ""


def _joined(url: str, parameters: dict[str, str]) -> dict[str, str | list[str]]:
    """With those that the address has already, which `params` would replace."""
    return {**httpx2.QueryParams(urlsplit(url).query), **parameters}
