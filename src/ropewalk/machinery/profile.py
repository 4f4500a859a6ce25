"""Profiles: one TOML file that chooses drivers and says what may touch the network.

A profile has three fixed parts (`description`, `tenant` and `[network]`) and one table per driver family. The families
are given to the parser by the composition root, so this module knows no layer.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.core.records import Record
from ropewalk.core.toml import parse_toml

S = TypeVar("S", bound=Record)

LOOPBACK = "loopback"
"""In `endpoints`: whatever resolves to this machine by its literal name or address."""
ANY = "any"


class NetworkRules(Record):
    """What a command may reach. All lists are allow lists: what is not on them is refused."""

    sources: tuple[str, ...] = (ANY,)
    """Schemes of data sources (`pypi`, `directory`, `archive`), or `any`."""
    endpoints: tuple[str, ...] = (ANY,)
    """Hosts of model endpoints, `loopback`, or `any`."""
    registries: tuple[str, ...] = (ANY,)
    """Hosts of image registries, their mirrors, token services and stores, `loopback`, or `any`."""


class Profile(Record):
    """A parsed profile. `families` holds one configuration record per driver family, by name."""

    name: str
    description: str = ""
    tenant: str = ""
    """Owner of everything that is made under it; empty: none is named, and nothing can be made."""
    network: NetworkRules = NetworkRules()
    families: dict[str, Any] = {}

    def family(self, type: type[S]) -> S:
        """The configuration record of that type.

        Raises:
            CallerError: no family of this profile is configured by such a record.
        """
        for record in self.families.values():
            if isinstance(record, type):
                return record
        raise CallerError(f"The profile {self.name!r} has no configuration of type {type.__name__}.")

    def allow_source(self, scheme: str) -> None:
        """Returns if data may be read from sources of this scheme.

        Raises:
            DeniedError: the profile forbids it (rule `profile NAME: network.sources`).
        """
        if ANY in self.network.sources or scheme in self.network.sources:
            return
        raise DeniedError(
            f"The profile {self.name!r} does not allow sources of kind {scheme!r}; "
            f"it allows {_list(self.network.sources)}.",
            rule=f"profile {self.name}: network.sources",
            next_step="name a local directory or archive, or choose another profile with --profile.",
        )

    def allow_endpoint(self, url: str) -> None:
        """Returns if this URL may be called.

        Raises:
            DeniedError: the profile forbids it (rule `profile NAME: network.endpoints`).
            CallerError: not an http or https URL.
        """
        parts = urlsplit(url)
        host = parts.hostname
        if parts.scheme not in ("http", "https") or not host:
            raise CallerError(
                f"{url!r} is not an http or https URL.", next_step="give one like http://127.0.0.1:8000/v1."
            )
        allowed = self.network.endpoints
        if _is_allowed(host, allowed):
            return
        raise DeniedError(
            f"The profile {self.name!r} does not allow calls to {host}; it allows {_list(allowed)}.",
            rule=f"profile {self.name}: network.endpoints",
            next_step="choose another profile with --profile, or add the host to network.endpoints in one of your own.",
        )

    def allow_registry(self, host: str) -> None:
        """Returns if images may be fetched from this host.

        Raises:
            DeniedError: the profile forbids it (rule `profile NAME: network.registries`).
        """
        allowed = self.network.registries
        if not _is_allowed(host, allowed):
            raise DeniedError(
                f"The profile {self.name!r} does not allow images from {host}; it allows {_list(allowed)}.",
                rule=f"profile {self.name}: network.registries",
                next_step="import an archive (`ropewalk image import`), choose another profile with --profile, or add "
                "the host to network.registries in one of your own.",
            )


def parse_profile(text: str, *, name: str, families: Mapping[str, type[Record]]) -> Profile:
    """A profile out of TOML.

    Args:
        text: the file's content, at most limits.PROFILE_BYTES_MAX.
        name: what messages call it.
        families: table name → configuration record; a family without a table gets the record's defaults.

    Raises:
        CallerError: not TOML, an unknown key or table, a wrong type. The message says which key, and what is known.
    """
    if len(text) > limits.PROFILE_BYTES_MAX:
        raise CallerError(f"Profile {name!r}: {len(text)} bytes, {limits.PROFILE_BYTES_MAX} allowed.")
    plain = parse_toml(text, what=f"Profile {name!r}")
    known = {"description", "tenant", "network", *families}
    if unknown := sorted(set(plain) - known):
        raise CallerError(
            f"Profile {name!r}: unknown key {unknown[0]!r}.", next_step=f"use one of {_list(sorted(known))}."
        )
    return Profile(
        name=name,
        description=_convert(plain.get("description", ""), str, f"Profile {name!r}, description"),
        tenant=_convert(plain.get("tenant", ""), str, f"Profile {name!r}, tenant"),
        network=_convert(plain.get("network", {}), NetworkRules, f"Profile {name!r}, [network]"),
        families={
            family: _convert(plain.get(family, {}), type_, f"Profile {name!r}, [{family}]")
            for family, type_ in families.items()
        },
    )


def _convert(plain: Any, type: type[Any], where: str) -> Any:
    try:
        return msgspec.convert(plain, type)
    except msgspec.ValidationError as error:
        fields = getattr(type, "__struct_fields__", ())
        next_step = f"known keys: {_list(fields)}." if "unknown field" in str(error) else ""
        raise CallerError(f"{where}: {error}.", next_step=next_step) from error


def _is_allowed(host: str, allowed: tuple[str, ...]) -> bool:
    return ANY in allowed or host in allowed or (LOOPBACK in allowed and _is_loopback(host))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _list(names: Any) -> str:
    return ", ".join(names) or "none"
