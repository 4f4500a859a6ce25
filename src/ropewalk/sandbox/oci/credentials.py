"""Who we are to a registry: by reference (`env:`, `file:`), or out of a Docker configuration that the user names."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.records import decode
from ropewalk.machinery.redaction import hide
from ropewalk.sandbox.oci.references import DOCKER_HUB
from ropewalk.security.private_files import read_private
from ropewalk.security.references import resolve_secret

_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io")


class Login(NamedTuple):
    """For one registry."""

    user: str
    password: str

    @property
    def basic(self) -> str:
        """The header's value (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class _Entry(msgspec.Struct, frozen=True):
    auth: str = ""


class _DockerConfig(msgspec.Struct, frozen=True, rename="camel"):
    auths: dict[str, _Entry] | None = None
    creds_store: str = ""
    cred_helpers: dict[str, str] | None = None


class Credentials:
    """Looked up when a registry asks, never before."""

    def __init__(self, references: Mapping[str, str] | None = None, docker_config: Path | None = None) -> None:
        """
        Args:
            references: by host: where `USER:PASSWORD` is, as `env:NAME` or `file:PATH`.
            docker_config: a `config.json` as `docker login` writes it; read only where it is named.
        """
        self._references = references or {}
        self._docker_config = docker_config

    def login(self, host: str) -> Login | None:
        """For a registry's host; None: we have none.

        Raises:
            CallerError: a reference or file that does not hold what it should.
            DeniedError: others may read the file.
        """
        if host in self._references:
            return _login(resolve_secret(self._references[host]), f"The secret for {host}")
        return self._from_docker(host, self._docker_config) if self._docker_config else None

    def _from_docker(self, host: str, path: Path) -> Login | None:
        text = read_private(path.expanduser(), bytes_max=limits.SECRET_BYTES_MAX)
        config = decode(text, _DockerConfig, what=str(path))
        keys = (
            _HUB_KEYS if host == DOCKER_HUB else (host, f"https://{host}", f"https://{host}/v2/", f"https://{host}/v1/")
        )
        for key in keys:
            entry = (config.auths or {}).get(key)
            if entry is not None and entry.auth:
                try:
                    return _login(base64.b64decode(entry.auth, validate=True).decode(), f"{path}, {key}")
                except (binascii.Error, UnicodeDecodeError):
                    raise CallerError(f"{path}: what it has for {key} is not base64.") from None
        if config.creds_store or host in (config.cred_helpers or {}):
            raise CallerError(
                f"{path} leaves the login for {host} to a helper program, and none is run here.",
                next_step="put USER:PASSWORD into a variable or file and name it as env:NAME or file:PATH.",
            )
        return None


def _login(text: str, what: str) -> Login:
    user, colon, password = text.partition(":")
    if not colon or not user:
        raise CallerError(f"{what} is not of the form USER:PASSWORD.")
    hide(password)
    return Login(user, password)
