"""Names of images, as people type them everywhere: `debian:bookworm`, `ghcr.io/acme/tool@sha256:…`.

Grammar: OCI distribution specification 1.1 ("Pulling manifests") for repositories and tags; which part is the host, as
Docker has it: the first one, if it holds a dot or a colon or is `localhost`.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record

DOCKER_HUB: Final = "docker.io"
DEFAULT_TAG: Final = "latest"
_HUB_ADDRESS: Final = "registry-1.docker.io"
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY: Final = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_HOST: Final = re.compile(
    r"(?:(?=[^:]{1,253}(?::|$))[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
    r"|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?"
)
_REPOSITORY_CHARS_MAX: Final = 255


class Reference(Record):
    """Where an image lies and which one it is. A digest wins over a tag."""

    host: str
    """With its port where one was given; `docker.io` is Docker Hub."""
    repository: str
    tag: str = ""
    digest: str = ""
    """`sha256:` and 64 hexadecimal characters; empty: whatever the tag says now."""

    @property
    def name(self) -> str:
        """The shortest way to write it, under which it is kept here."""
        repository = self.repository
        if self.host == DOCKER_HUB:
            repository = repository.removeprefix("library/") if repository.count("/") == 1 else repository
        else:
            repository = f"{self.host}/{repository}"
        tag = f":{self.tag}" if self.tag else ""
        return f"{repository}{tag}{'@' if self.digest else ''}{self.digest}"

    @property
    def wanted(self) -> str:
        """What a registry is asked for: the digest, else the tag."""
        return self.digest or self.tag

    def __str__(self) -> str:
        return self.name


def parse_reference(text: str, *, host: str = DOCKER_HUB) -> Reference:
    """A reference out of what a person typed.

    Args:
        host: of names that have none.

    Raises:
        CallerError: it is none; the message says which part is wrong.
    """
    rest, at, digest = text.strip().partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _wrong(text, "after the @ comes sha256: and 64 hexadecimal digits")
    first, slash, after = rest.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        host, rest = first, after
        if not is_host(host):
            raise _wrong(text, f"{host[:80]!r} is no host")
    repository, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        repository, tag = rest, ""
    elif not _TAG.fullmatch(tag):
        raise _wrong(text, f"{tag[:80]!r} is no tag")
    if len(repository) > _REPOSITORY_CHARS_MAX or not _REPOSITORY.fullmatch(repository):
        raise _wrong(text, f"{repository[:80]!r} is no repository: lower-case letters, digits and . _ - between them")
    if host in ("index.docker.io", _HUB_ADDRESS):
        host = DOCKER_HUB
    if host == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    return Reference(
        host=host.lower(), repository=repository, tag=tag or ("" if digest else DEFAULT_TAG), digest=digest
    )


def is_host(text: str) -> bool:
    """Whether it is a host, with or without a port."""
    port = text.rpartition(":")[2] if ":" in text and not text.endswith("]") else "1"
    return bool(_HOST.fullmatch(text)) and port.isdigit() and 0 < int(port) < 65536


def address_of(host: str) -> str:
    """The host, with its port, that answers for a registry's name."""
    return _HUB_ADDRESS if host == DOCKER_HUB else host


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine by its literal name or address."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _wrong(text: str, why: str) -> CallerError:
    return CallerError(
        f"{text[:200]!r} is not the name of an image: {why}.",
        next_step="write it as [HOST[:PORT]/]NAME[:TAG][@sha256:…], such as debian:bookworm.",
    )
