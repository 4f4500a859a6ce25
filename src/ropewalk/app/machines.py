"""Where sandboxes run: driver, images, layers, the sandbox service and the fleet, wired from a profile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import anyio.to_thread
import msgspec

from ropewalk.app.configuration import FleetSettings, SandboxSettings, check_drivers
from ropewalk.app.ground import StandsOnGround, open_ground
from ropewalk.core.errors import CallerError
from ropewalk.core.limits import MIB
from ropewalk.orchestration.contract import FleetProbe
from ropewalk.orchestration.fleet import open_fleet
from ropewalk.sandbox import drivers
from ropewalk.sandbox.contract import Probe, SandboxDriver, SandboxSpec
from ropewalk.sandbox.images import ImageRecord, ImageStore
from ropewalk.sandbox.layers import LayerStore
from ropewalk.sandbox.sandboxes import Sandboxes
from ropewalk.security.data_classes import most_restricted
from ropewalk.security.tenants import TenantContext
from ropewalk.store.layout import Layout

Progress = Callable[[str], None]


@runtime_checkable
class SupportsClose(Protocol):
    """A driver that holds something of this process."""

    def close(self) -> None:
        """Lets go of it."""
        ...


class Machines:
    """Belongs to one event loop."""

    def __init__(self, ground: StandsOnGround, *, driver: str = "") -> None:
        self.ground = ground
        self.settings = ground.profile.family(SandboxSettings)
        self.tenant = ground.tenant
        self.layers = LayerStore(ground.layout, tenant=self.tenant)
        self.images = ImageStore(ground.layout, self.layers, tenant=self.tenant)
        self.driver_name = driver or self.settings.driver
        self.driver: SandboxDriver = drivers.load(
            self.driver_name, ground.layout, layers=self.layers, images=self.images
        )
        mine = TenantContext(tenant=self.tenant)
        self.sandboxes = Sandboxes(
            self.driver, ground.layout, images=self.images, layers=self.layers, tenant=mine
        )  # fmt: skip
        fleet = ground.profile.family(FleetSettings)
        self.fleet = open_fleet(fleet.driver, config=fleet.local)

    def probe(self) -> Probe:
        """What the driver can do here."""
        return self.driver.probe()

    @cached_property
    def declares(self) -> tuple[str, ...]:
        """The driver's restrictions and powers, in words of `sandbox.contract.Probe`."""
        return self.probe().declares

    def close(self) -> None:
        """Ends what is attached to this process; detached sandboxes go on."""
        if isinstance(self.driver, SupportsClose):
            self.driver.close()

    def check_class(self, data_class: str) -> None:
        """Returns if data of this class may meet all drivers at work here; see `check_drivers`."""
        check_drivers(self.ground.profile, data_class, sandbox=self.driver_name)

    async def image(self, name: str = "default", *, progress: Progress | None = None) -> ImageRecord:
        """An image by name (`debian:bookworm`), digest (also its beginning) or label. Nothing is fetched; what lies in
        a file or directory `app.images` takes in.

        Raises:
            CallerError: nothing of that name, or several begin with it.
            UnavailableError: it cannot be built here.
        """
        if name == "default":
            return await anyio.to_thread.run_sync(partial(self.images.default, progress))
        return await anyio.to_thread.run_sync(self.images.find, name)

    async def spec(
        self, image: str | ImageRecord, *, memory_mib: int | None = None, disk_mib: int | None = None, **fields: object
    ) -> SandboxSpec:
        """A spec with the profile's defaults where `fields` (those of `SandboxSpec`) are None or not there.

        Args:
            image: it, or its name as `image` takes it.

        Raises:
            CallerError: an unknown field, or no such image.
            DeniedError: data of its class (the image's, or what `fields` say) may not meet a driver at work here, or it
                would be another tenant's.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        for name, size in (("memory_bytes", memory_mib), ("disk_bytes", disk_mib)):
            if size is not None:
                given[name] = _whole(size, name.replace("_bytes", "_mib")) * MIB
        if unknown := sorted(set(given) - set(SandboxSpec.__struct_fields__)):
            raise CallerError(
                f"A sandbox has no setting {unknown[0]!r}.",
                next_step=f"use one of memory_mib, disk_mib, {', '.join(SandboxSpec.__struct_fields__)}.",
            )
        TenantContext(tenant=self.tenant).check_owns(str(given.get("tenant", self.tenant)), what="sandboxes of others")
        wanted = str(given.get("data_class", "public"))
        self.check_class(wanted)
        record = await self.image(image) if isinstance(image, str) else image
        data_class = most_restricted(wanted, record.data_class)
        self.check_class(data_class)
        defaults: dict[str, object] = {
            "tenant": self.tenant,
            "image": record.digest,
            "memory_bytes": self.settings.defaults.memory_mib * MIB,
            "disk_bytes": self.settings.defaults.disk_mib * MIB,
            "cpus": self.settings.defaults.cpus,
            "workdir": record.workdir,
            "user": record.user.partition(":")[0],
        }
        try:
            return msgspec.convert({**defaults, **given, "data_class": data_class}, SandboxSpec)
        except msgspec.ValidationError as error:
            message, _, field = str(error).partition(" - at `$.")
            raise CallerError(f"The sandbox's {field.rstrip('`') or 'spec'}: {message}.") from error


@asynccontextmanager
async def open_machines(
    profile: str | None = None, *, state: Path | None = None, driver: str = ""
) -> AsyncIterator[Machines]:
    """Sandboxes alone, until the block ends; what a killed process left of them is removed first.

    Args:
        profile, state: as of `open_ground`.
        driver: replaces the profile's.

    Raises:
        CallerError: no such profile or driver.
        UnavailableError: the state directory cannot be used.
    """
    machines = Machines(open_ground(profile, state=state), driver=driver)
    try:
        await machines.sandboxes.reap()
        yield machines
    finally:
        machines.close()


def on_disk(name: str) -> Path | None:
    """The file or directory that somebody means who names an image so; None: it is an image's name.

    A path is what begins like one (`./root`, `/srv/root`) and every file that is there: a folder of a plain name must
    not stand in an image's way.
    """
    path = Path(name)
    return path if path.is_file() or (name.startswith((".", "/")) and path.is_dir()) else None


def _whole(size: object, name: str) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
        raise CallerError(f"{name} is {str(size)[:40]!r}.", next_step="give a whole number of MiB above 0.")
    return size


def probe_fleet(settings: FleetSettings) -> FleetProbe:
    """What the profile's fleet driver finds.

    Raises:
        CallerError: there is no such driver, or settings that it cannot have.
    """
    return open_fleet(settings.driver, config=settings.local).probe()


def probe_driver(name: str, layout: Layout) -> Probe:
    """What a driver can do here; it is let go of afterwards.

    Raises:
        CallerError: there is no such driver.
        UnavailableError: what it needs is not installed.
    """
    driver = drivers.load(name, layout)
    try:
        return driver.probe()
    finally:
        if isinstance(driver, SupportsClose):
            driver.close()
