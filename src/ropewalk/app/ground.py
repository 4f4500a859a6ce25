"""What every command stands on: a profile, a state directory and an owner. Little is loaded for it, so that commands
which need no more than that and sandboxes, or that and the journal, are quick."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from ropewalk.app.configuration import open_profile
from ropewalk.core.errors import CallerError
from ropewalk.machinery.profile import Profile
from ropewalk.security.tenants import check_tenant
from ropewalk.store.layout import Layout, default_state_dir


class StandsOnGround(Protocol):
    """Whatever has these three: the custody of all data, or the bare ground."""

    @property
    def profile(self) -> Profile:
        """What was configured."""
        ...

    @property
    def layout(self) -> Layout:
        """Of the state directory."""
        ...

    @property
    def tenant(self) -> str:
        """Who owns what is made."""
        ...


class Ground(NamedTuple):
    """The three, and nothing else."""

    profile: Profile
    layout: Layout
    tenant: str


def open_ground(profile: str | None = None, *, state: Path | None = None) -> Ground:
    """Opens a state directory under a profile; makes it where it is not there.

    Args:
        profile: name or path; see `open_profile`.
        state: the state directory; see `default_state_dir`.

    Raises:
        CallerError: no such profile, or it names no tenant.
        UnavailableError: the state directory cannot be used.
    """
    opened = open_profile(profile)
    if not opened.tenant:
        raise CallerError(
            f"The profile {opened.name!r} names no tenant, and nothing is made that belongs to nobody.",
            next_step='write tenant = "NAME" at the top of it.',
        )
    return Ground(opened, Layout(state or default_state_dir()).ensure(), check_tenant(opened.tenant))
