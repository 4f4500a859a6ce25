"""Answers a registry's challenge: Basic, or a token from the service that it names.

Bearer: distribution's "Token Authentication Specification" (docs/spec/auth/token.md); challenges: RFC 9110, 11.6.1.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import httpx2
import msgspec

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, DeniedError, UnavailableError
from ropewalk.core.records import decode
from ropewalk.machinery.redaction import hide
from ropewalk.sandbox.oci.credentials import Credentials

Fetch = Callable[[str, dict[str, str], dict[str, str]], httpx2.Response]
"""GET of an address with parameters and headers; the whole answer. Checks first whether the address is allowed."""

_PARAMETER = re.compile(r'([A-Za-z0-9_-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_TOKEN_LIFE_S = 60.0
"""Where the service says nothing (its specification)."""
_EARLY_S = 10.0


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""
    expires_in: float | None = None


class Authorizer:
    """Of one registry and one repository. For many threads."""

    def __init__(self, host: str, repository: str, credentials: Credentials, fetch: Fetch) -> None:
        self._host = host
        self._scope = f"repository:{repository}:pull"
        self._credentials = credentials
        self._fetch = fetch
        self._lock = threading.Lock()
        self._header = ""
        self._until_s = 0.0

    def header(self) -> str:
        """What to send now; empty: nothing known yet."""
        return self._header if time.monotonic() < self._until_s else ""

    def answer(self, challenge: str, sent: str) -> bool:
        """Gets what a challenge asks for; False: `sent` was it already, and is refused.

        Raises:
            CallerError: our credentials cannot be read.
            DeniedError: a scheme we do not speak, or the token's service refuses us.
            UnavailableError: the token's service does not answer, or not with a token.
        """
        with self._lock:
            if (known := self.header()) and known != sent:
                return True  # another thread was faster
            if sent and sent == self._header:
                self._header = ""
                if sent.startswith("Basic ") or time.monotonic() < self._until_s - _EARLY_S:
                    return False
            scheme, _, rest = challenge.strip().partition(" ")
            if scheme.lower() == "basic":
                login = self._credentials.login(self._host)
                if login is None:
                    return False
                self._header, self._until_s = login.basic, float("inf")
                return True
            if scheme.lower() != "bearer":
                raise DeniedError(
                    f"{self._host} asks for a login by {scheme[:40]!r}, which is not known here.", rule="registry"
                )
            self._take_token({m[1].lower(): m[2] or m[3] or "" for m in _PARAMETER.finditer(rest)})
            return True

    def _take_token(self, challenge: dict[str, str]) -> None:
        realm = challenge.get("realm", "")
        if not realm:
            raise UnavailableError(f"{self._host} asks for a token and does not say where from.")
        login = self._credentials.login(self._host)
        parameters = {"scope": challenge.get("scope") or self._scope}
        if service := challenge.get("service"):
            parameters["service"] = service
        response = self._fetch(realm, parameters, {"Authorization": login.basic} if login else {})
        if response.status_code in (400, 401, 403):
            raise denied(self._host, "gives no token", response.status_code, known=login is not None)
        try:
            if response.status_code != 200:
                raise CallerError(f"HTTP {response.status_code}")
            token = decode(response.content, _Token)
            value = token.token or token.access_token
            if not value or not value.isascii() or not value.isprintable() or len(value) > limits.IMAGE_TOKEN_BYTES_MAX:
                raise CallerError("no token")
        except CallerError as error:
            raise UnavailableError(
                f"The service that gives tokens for {self._host} answers wrongly: {error.message}.", retry_after_s=30.0
            ) from error
        hide(value)
        self._header = f"Bearer {value}"
        life_s = token.expires_in if token.expires_in is not None else _TOKEN_LIFE_S
        self._until_s = time.monotonic() + max(life_s, _TOKEN_LIFE_S) - _EARLY_S


def denied(host: str, what: str, status: int, *, known: bool) -> DeniedError:
    """A registry, or its token service, that does not let us."""
    return DeniedError(
        f"{host} {what} (HTTP {status}){'' if known else '; no login for it is configured'}.",
        rule="registry",
        next_step="check the name and the login"
        + (": --credentials env:NAME or file:PATH with USER:PASSWORD, or --docker-config FILE." if not known else "."),
    )
