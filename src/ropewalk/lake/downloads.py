"""HTTP GET with bounds: bytes, time, attempts and redirects. Verifies while it reads; hands out whole bytes only."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final
from urllib.parse import urljoin, urlsplit, urlunsplit

import httpx2

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, DeniedError, IntegrityError, UnavailableError
from ropewalk.machinery import certificates
from ropewalk.machinery.deadlines import LeastRate, TooSlowError, deadline, with_deadlines

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes so far, and the bytes in all where they are known. May raise to give up."""

_REDIRECTS_MAX: Final = 5
_BACKOFF_S: Final = 0.5
_BACKOFF_MAX_S: Final = 30.0
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_AGAIN: Final = (408, 425, 429, 500, 502, 503, 504)


def public_url(url: str) -> str:
    """The URL without user, password, query and fragment: fit for messages and records."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a malformed address"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def joined_url(base: str, url: str) -> str:
    """The URL seen from a base; "" where it is malformed or leads to another scheme than http and https."""
    try:
        target = urljoin(base, url)
    except ValueError:
        return ""
    return target if _scheme(target) in ("http", "https") else ""


class Fetcher:
    """Fetches from one index and wherever it sends us. Use as a context manager; one per thread."""

    def __init__(
        self,
        *,
        timeout_s: float = limits.DOWNLOAD_TIMEOUT_S,
        headers_timeout_s: float = limits.DOWNLOAD_HEADERS_TIMEOUT_S,
        total_timeout_s: float = limits.DOWNLOAD_TOTAL_TIMEOUT_S,
        attempts_max: int = limits.DOWNLOAD_ATTEMPTS_MAX,
        sleep: Callable[[float], None] = time.sleep,
        chance: random.Random | None = None,
    ) -> None:
        """
        Args:
            timeout_s: of connecting, and without a byte from the other side.
            headers_timeout_s: from a request to the headers of what it leads to.
            total_timeout_s: from a request to the end of the body. A server that is slower is not asked again.
            attempts_max: of one fetch, at failed connections, 408, 425, 429 and 5xx; waits longer each time.
        """
        self._headers_timeout_s = headers_timeout_s
        self._total_timeout_s = total_timeout_s
        self._attempts_max = attempts_max
        self._sleep = sleep
        self._chance = chance or random.Random()
        # `identity`: an archive that is unpacked on its way would not have its digest any more, and could be a bomb.
        headers = {"Accept-Encoding": "identity", "User-Agent": "ropewalk"}
        trusted = certificates.shared(httpx2.create_ssl_context)
        client = httpx2.Client(timeout=timeout_s, follow_redirects=False, headers=headers, verify=trusted)
        self._client = with_deadlines(client)

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(
        self,
        url: str,
        *,
        name: str,
        bytes_max: int,
        accept: str = "*/*",
        sha256: str | None = None,
        progress: Progress | None = None,
    ) -> tuple[bytes, httpx2.Headers]:
        """The body and the headers of the answer 200.

        Args:
            name: of the file, for messages.
            sha256: what the body must have.

        Raises:
            CallerError: not an http or https URL, not found (404, 410), or larger than `bytes_max`.
            DeniedError: a redirect to another scheme than https (rule `redirect`), or 401 or 403 (rule `index`).
            IntegrityError: a wrong sha256, or an answer that breaks off every time.
            UnavailableError: no answer, or failing ones every time, or one that comes too slowly.
        """
        if _scheme(url) not in ("http", "https"):
            raise CallerError(
                f"{name}: cannot be fetched from {public_url(url)!r}.", next_step="use an http or https address."
            )
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._get_once(url, name, bytes_max, accept=accept, sha256=sha256, progress=progress)
            except _AgainError as error:
                if attempt >= self._attempts_max:
                    raise error.final from error
                wait_s = min(_BACKOFF_MAX_S, max(error.after_s, _BACKOFF_S * 2 ** (attempt - 1)))
                self._sleep(wait_s * self._chance.uniform(1.0, 1.25))

    def _get_once(
        self, url: str, name: str, bytes_max: int, *, accept: str, sha256: str | None, progress: Progress | None
    ) -> tuple[bytes, httpx2.Headers]:
        try:
            with deadline(self._total_timeout_s):
                with closing(self._answer(url, name, accept)) as response:
                    _check_status(response, name)
                    body = self._read(response, name, bytes_max, progress)
                return _verified(body, response.headers, name, sha256), response.headers
        except TooSlowError as error:
            raise self._too_slow(url, name) from error
        except httpx2.InvalidURL as error:
            raise CallerError(f"{name}: {public_url(url)!r} is no address: {error}.") from error
        except httpx2.TransportError as error:
            raise _AgainError(
                UnavailableError(
                    f"{name}: {public_url(url)} does not answer: {error or type(error).__name__}.",
                    retry_after_s=_BACKOFF_MAX_S,
                    next_step="check the network, or give a local directory or archive.",
                )
            ) from error

    def _answer(self, url: str, name: str, accept: str) -> httpx2.Response:
        """What the redirects end in; its body is still to come."""
        with deadline(self._headers_timeout_s):
            for _ in range(_REDIRECTS_MAX + 1):
                request = self._client.build_request("GET", url, headers={"Accept": accept})
                response = self._client.send(request, stream=True)
                if response.status_code not in _REDIRECTS:
                    return response
                response.close()
                url = _redirected(url, response.headers.get("Location", ""), name)
        raise UnavailableError(f"{name}: {public_url(url)} redirects more than {_REDIRECTS_MAX} times.")

    def _too_slow(self, where: str, name: str, so_far: int | None = None) -> UnavailableError:
        limit = f"{self._headers_timeout_s:g} s to its headers, {self._total_timeout_s:g} s in all"
        got = "" if so_far is None else f", after {so_far} bytes"
        return UnavailableError(
            f"{name}: {public_url(where)} is too slow{got}: {limit} and {limits.DOWNLOAD_RATE_BYTES_PER_S_MIN} bytes "
            "per second of the body are allowed.",
            retry_after_s=_BACKOFF_MAX_S,
            next_step="check the network, name another index, or give a local directory or archive.",
        )

    def _read(self, response: httpx2.Response, name: str, bytes_max: int, progress: Progress | None) -> bytes:
        where = public_url(str(response.url))
        stated = response.headers.get("Content-Length", "")
        total = int(stated) if stated.isascii() and stated.isdigit() else None
        too_large = CallerError(f"{name}: {where} sends more than the {bytes_max} bytes allowed.")
        if total is not None and total > bytes_max:
            raise too_large
        body = bytearray()
        rate = LeastRate(limits.DOWNLOAD_RATE_BYTES_PER_S_MIN)
        try:
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > bytes_max:
                    raise too_large
                if not rate.is_kept(len(body)):
                    raise self._too_slow(where, name, len(body))
                if progress is not None:
                    progress(name, len(body), total)
        except TooSlowError as error:
            raise self._too_slow(where, name, len(body)) from error
        except httpx2.RemoteProtocolError as error:
            truncated = f"{name}: truncated. Expected {total} bytes, got {len(body)} from {where}. Nothing was stored."
            raise _AgainError(IntegrityError(truncated)) from error
        return bytes(body)


class _AgainError(Exception):
    """Worth another attempt; `final` is the error when there are none left."""

    def __init__(self, final: UnavailableError | IntegrityError, *, after_s: float = 0.0) -> None:
        super().__init__()
        self.final = final
        self.after_s = after_s


def _scheme(url: str) -> str:
    try:
        return urlsplit(url).scheme
    except ValueError:
        return ""


def _redirected(url: str, location: str, name: str) -> str:
    target = joined_url(url, location)
    allowed = ("https",) if _scheme(url) == "https" else ("http", "https")
    if not location or _scheme(target) not in allowed:
        raise DeniedError(
            f"{name}: {public_url(url)} redirects to {public_url(target or location)!r}.",
            rule="redirect",
            next_step="a redirect may lead to https only; use another index.",
        )
    return target


def _check_status(response: httpx2.Response, name: str) -> None:
    where, status = public_url(str(response.url)), response.status_code
    if status == 200:
        return
    if status in (404, 410):
        raise CallerError(f"{name}: {where} has no such file.", next_step="check the name and the version.")
    if status in (401, 403):
        raise DeniedError(f"{name}: {where} refuses access (HTTP {status}).", rule="index")
    failure = UnavailableError(f"{name}: {where} answers HTTP {status}.", retry_after_s=_BACKOFF_MAX_S)
    if status not in _AGAIN:
        raise failure
    asked = response.headers.get("Retry-After", "")
    raise _AgainError(failure, after_s=float(asked) if asked.isascii() and asked.isdigit() else 0.0)


def _verified(body: bytes, headers: httpx2.Headers, name: str, sha256: str | None) -> bytes:
    if headers.get("Content-Encoding", "identity").lower() != "identity" and sha256 is None:
        raise UnavailableError(
            f"{name}: sent in the encoding {headers['Content-Encoding'][:80]!r}, which was not asked for."
        )
    if sha256 is not None:
        got = hashlib.sha256(body).hexdigest()
        if got != sha256:
            raise IntegrityError(
                f"{name}: wrong sha256. Expected {sha256}, got {got} ({len(body)} bytes). Nothing was stored.",
                next_step="do not use the file; ask the index's or the pin file's owner which one is right.",
            )
    return body
