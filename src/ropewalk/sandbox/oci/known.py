"""Which stored layer an image's layer became, so that nobody fetches it twice.

A file per tenant and digest of the unpacked archive (`diff_id`) or, where layers below decided what came out of it, of
the whole chain (`ChainID`, OCI image specification 1.1, config.md): `layers/known/<tenant>/<digest>`. Written after
the bytes were here and right; so a tenant gets no layer for naming its digest. Until the layer is surely on the disk
the file names the boot of this machine behind the layer, and counts for that one alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from ropewalk.machinery.files import replace_whole
from ropewalk.sandbox.layers import LayerStore
from ropewalk.security.tenants import PUBLIC

_FOLDER = "known"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class KnownLayers:
    """Of one store, for one tenant."""

    def __init__(self, layers: LayerStore, root: Path, tenant: str) -> None:
        self._layers = layers
        self._root = root / _FOLDER
        self._tenant = tenant

    def find(self, diff_ids: Sequence[str], at: int) -> str | None:
        """The stored layer that the image's layer `at` became here, if it is still there and ours."""
        for key in (chain_id(diff_ids[: at + 1]), diff_ids[at]):
            for tenant in dict.fromkeys((self._tenant, PUBLIC)):
                try:
                    digest, boot = _read(self._file(tenant, key))
                except OSError:
                    continue
                if boot in ("", _boot()) and self._layers.is_usable(digest, self._tenant):
                    return digest
        return None

    def note(self, diff_ids: Sequence[str], at: int, digest: str, *, alone: bool) -> None:
        """Keeps what a layer became. `alone`: whatever lies below it, it would have become the same."""
        key = diff_ids[at] if alone else chain_id(diff_ids[: at + 1])
        text = f"{digest} {_boot()}"
        replace_whole(self._file(self._tenant, key), text.encode(), durable=False, parents=True)

    def settled(self, diff_ids: Sequence[str]) -> None:
        """What an image's layers became is on the disk now, and counts after a crash of the machine, too."""
        for at, diff_id in enumerate(diff_ids):
            for file in (self._file(self._tenant, key) for key in (diff_id, chain_id(diff_ids[: at + 1]))):
                with suppress(FileNotFoundError):
                    digest, boot = _read(file)
                    if boot:
                        replace_whole(file, digest.encode(), durable=False)

    def _file(self, tenant: str, key: str) -> Path:
        return self._root / tenant / key.removeprefix("sha256:")


def forget_lost(layers: LayerStore, root: Path) -> None:
    """Removes notes of layers that are gone."""
    there = layers.digests()
    for file in (root / _FOLDER).glob("*/*"):
        if _DIGEST.fullmatch(file.name) and _read(file)[0] not in there:
            file.unlink(missing_ok=True)


def _read(file: Path) -> tuple[str, str]:
    digest, _, boot = file.read_text("ascii").strip().partition(" ")
    return digest, boot


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def chain_id(diff_ids: Sequence[str]) -> str:
    """Of layers on top of each other, lowest first: the lowest one's `diff_id`, then sha256 of both with a space."""
    chain = diff_ids[0]
    for diff_id in diff_ids[1:]:
        chain = f"sha256:{hashlib.sha256(f'{chain} {diff_id}'.encode()).hexdigest()}"
    return chain
