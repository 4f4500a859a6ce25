"""Tenants: whose state and whose sandboxes. Explicit everywhere; only the profiles that ship name one."""

from __future__ import annotations

import re
from typing import Final

from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.core.records import Record

PUBLIC: Final = "public"
"""Stands for every tenant where something is said to be somebody's; nobody is called so."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,38}")


def check_tenant(name: str) -> str:
    """The name itself, if it is one: `[a-z0-9][a-z0-9-]{0,38}`, safe as a file name and a host name.

    Raises:
        CallerError: it is not.
    """
    if name == PUBLIC or not _NAME.fullmatch(name):
        raise CallerError(
            f"{name[:80]!r} is not the name of a tenant.",
            next_step="use 1 to 39 lower-case letters, digits and hyphens, beginning with a letter or a digit"
            f" (but {PUBLIC!r}, which means all).",
        )
    return name


def check_owner(name: str) -> str:
    """The name itself, if it is a tenant's or `public`.

    Raises:
        CallerError: it is not.
    """
    return name if name == PUBLIC else check_tenant(name)


class TenantContext(Record):
    """On whose behalf something is done. Passed along, never looked up."""

    tenant: str

    def __post_init__(self) -> None:
        check_tenant(self.tenant)

    def check_owns(self, owner: str, *, what: str) -> None:
        """Refuses what is another tenant's. The message names neither the owner nor whether it exists.

        Raises:
            DeniedError: rule `tenant`.
        """
        if owner != self.tenant:
            raise DeniedError(f"The tenant {self.tenant} has no {what}.", rule="tenant")
