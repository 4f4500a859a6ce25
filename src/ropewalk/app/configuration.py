"""What a profile configures: one record per driver family, and the profiles that ship."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.limits import MIB
from ropewalk.core.records import Record
from ropewalk.machinery.drivers import scheme_of
from ropewalk.machinery.profile import Profile, parse_profile
from ropewalk.orchestration.drivers.local import LocalFleetConfig
from ropewalk.sandbox.oci.references import DOCKER_HUB
from ropewalk.security.data_classes import Use, check_allowed

DEFAULT_PROFILE: Final = "embedded"
SHIPPED: Final = Path(__file__).with_name("profiles")


class SandboxDefaults(Record):
    """[sandbox.defaults]: of sandboxes that are made by hand (`sandbox create`, `rw.sandbox`) and say nothing else.
    Runs, gradings and builds take what their tasks say, so that the same task is the same everywhere."""

    memory_mib: int = limits.SANDBOX_MEMORY_BYTES // MIB
    """Beside `disk_mib`; see `SandboxSpec.memory_bytes` for what bounds both."""
    disk_mib: int = limits.SANDBOX_DISK_BYTES // MIB
    cpus: float = limits.SANDBOX_CPUS


class SandboxSettings(Record):
    """[sandbox]"""

    driver: str = "process"
    defaults: SandboxDefaults = SandboxDefaults()


class ImageSettings(Record):
    """[images]"""

    registry: str = DOCKER_HUB
    """Host of names that have none: `debian` is `docker.io/library/debian`."""
    mirrors: dict[str, tuple[str, ...]] = {}
    """By a registry's host: hosts that are asked first, in this order."""
    credentials: dict[str, str] = {}
    """By host: where `USER:PASSWORD` is, as `env:NAME` or `file:PATH`."""
    docker_config: str = ""
    """A `config.json` as `docker login` writes it; empty: none is read."""


class BlobSettings(Record):
    """[blobs]"""

    uri: str = ""
    """`file:///absolute/path`; empty: inside the state directory."""


class KeySettings(Record):
    """[keys]"""

    driver: str = "file"
    passphrase: str = ""
    """Reference (`env:NAME`, `file:PATH`) to what encrypts the keys; empty: mode 0600 alone protects them."""


class FleetSettings(Record):
    """[fleet]"""

    driver: str = "local:"
    local: LocalFleetConfig = LocalFleetConfig()
    """[fleet.local], for that driver."""


class LakeSettings(Record):
    """[lake]"""

    attested_by: str = ""
    """Role or organisation that states that sources hold no human data, where no command, plan or caller names another;
    empty: each ingest must name one."""


FAMILIES: Final[dict[str, type[Record]]] = {
    "sandbox": SandboxSettings,
    "images": ImageSettings,
    "blobs": BlobSettings,
    "keys": KeySettings,
    "fleet": FleetSettings,
    "lake": LakeSettings,
}


def check_drivers(
    profile: Profile,
    data_class: str,
    families: Iterable[str] = ("sandbox", "blobs", "keys", "fleet"),
    *,
    sandbox: str = "",
) -> None:
    """Returns if data of a class may meet the drivers that a profile chooses.

    Args:
        families: those that it would meet.
        sandbox: replaces the profile's sandbox driver.

    Raises:
        DeniedError: it may not meet one of them, or there is no such class.
    """
    blobs = profile.family(BlobSettings).uri
    chosen = {
        "sandbox": sandbox or profile.family(SandboxSettings).driver,
        "blobs": blobs if "://" in blobs else "file",
        "keys": profile.family(KeySettings).driver,
        "fleet": profile.family(FleetSettings).driver,
    }
    for family in families:
        check_allowed(data_class, Use.DRIVER, f"{family}:{scheme_of(chosen[family])}")


def shipped_profiles() -> tuple[str, ...]:
    """Names of the profiles that come with Ropewalk."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def open_profile(name: str | None = None) -> Profile:
    """A profile by name or path; without one `$ROPEWALK_PROFILE`, else `embedded`.

    Raises:
        CallerError: no such profile, or the file has something in it that no profile knows.
    """
    chosen = name or os.environ.get("ROPEWALK_PROFILE") or DEFAULT_PROFILE
    shipped = shipped_profiles()
    path = SHIPPED / f"{chosen}.toml" if chosen in shipped else Path(chosen)
    if chosen not in shipped and "/" not in chosen and not chosen.endswith(".toml"):
        raise CallerError(
            f"There is no profile {chosen!r}.",
            next_step=f"use one of {', '.join(shipped)}, or the path of a TOML file.",
        )
    try:
        with path.open("rb") as file:
            text = file.read(limits.PROFILE_BYTES_MAX + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise CallerError(f"The profile {path} cannot be read: {error}.") from error
    return parse_profile(text, name=path.stem, families=FAMILIES)
