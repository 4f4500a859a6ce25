"""What vouches for the data: blobs, keys, the log and what is derived from them. Needs no sandbox driver.

Commands that only look (`trace`, `verify`, `report`, `keys`) open this part alone, so that they work also on a
machine that cannot run a sandbox.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.app.configuration import BlobSettings, KeySettings, SandboxSettings, open_profile
from ropewalk.core.errors import CallerError
from ropewalk.machinery.profile import Profile
from ropewalk.provenance.log import Log, revoke_keys, rotate_keys
from ropewalk.security.drivers import DRIVERS as KEY_DRIVERS
from ropewalk.security.tenants import check_tenant
from ropewalk.security.trust import PublicPair
from ropewalk.store.blobs import open_blobs
from ropewalk.store.layout import Layout, default_state_dir

if TYPE_CHECKING:
    from ropewalk.security.drivers.file import FileKeys


class Custody:
    """One state directory under one profile. Use `Custody.open`."""

    def __init__(self, profile: Profile, layout: Layout, *, passphrase: str = "") -> None:
        self.profile = profile
        self.layout = layout
        self.tenant = check_tenant(profile.family(SandboxSettings).tenant)
        self.blobs = open_blobs(profile.family(BlobSettings).uri or layout.blobs)
        self.keys = _open_keys(profile.family(KeySettings), layout, passphrase=passphrase)
        self.log = Log(layout.log, self.keys)

    @classmethod
    @contextmanager
    def open(cls, profile: str | None = None, *, state: Path | None = None, passphrase: str = "") -> Iterator[Custody]:
        """Opens what vouches, until the block ends.

        Args:
            profile: name or path; see `open_profile`.
            state: the state directory; see `default_state_dir`.
            passphrase: reference to what encrypts new keys; replaces the profile's.

        Raises:
            CallerError: no such profile.
            UnavailableError: the state directory cannot be used.
        """
        opened = cls(open_profile(profile), Layout(state or default_state_dir()).ensure(), passphrase=passphrase)
        try:
            yield opened
        finally:
            opened.close()

    def rotate_keys(self) -> PublicPair:
        """See `provenance.log.rotate_keys`."""
        return rotate_keys(self.log)

    def revoke_keys(self, pair_id: str, *, reason: str, from_index: int | None = None) -> PublicPair:
        """See `provenance.log.revoke_keys`."""
        return revoke_keys(self.log, pair_id, reason=reason, from_index=from_index)

    def close(self) -> None:
        """Lets go of files."""


def _open_keys(settings: KeySettings, layout: Layout, *, passphrase: str) -> FileKeys:
    if settings.driver not in KEY_DRIVERS:
        known = ", ".join(sorted(KEY_DRIVERS))
        raise CallerError(f"No key driver is called {settings.driver!r}.", next_step=f"use one of {known}.")
    module, _, name = KEY_DRIVERS[settings.driver][0].partition(":")
    driver: type[FileKeys] = getattr(importlib.import_module(module), name)
    return driver(layout.keys, passphrase=passphrase or settings.passphrase or None)
