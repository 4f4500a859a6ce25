"""Indexes, manifests and configurations of images: read strictly where they decide something, leniently elsewhere.

Formats: OCI image specification 1.1 (image-spec: descriptor.md, image-index.md, manifest.md, config.md) and Docker's
"image manifest version 2, schema 2", which differ in media types only.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.records import decode

INDEX_TYPES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
CONFIG_TYPES: Final = (
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
)
LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
_LAYER: Final = re.compile(
    r"application/vnd\.(?:oci\.image\.layer\.v1\.tar(?:\+(?:gzip|zstd))?"
    r"|docker\.image\.rootfs\.diff\.tar(?:\.gzip|\.zstd)?)"
)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MACHINES: Final = {
    "x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "armv6l": "arm", "i686": "386", "ppc64le": "ppc64le",
    "s390x": "s390x", "riscv64": "riscv64", "loongarch64": "loong64",
}  # fmt: skip


class Platform(msgspec.Struct, frozen=True):
    """What an image runs on, in Go's words."""

    os: str = "linux"
    architecture: str = ""
    variant: str | None = None

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """Names bytes by digest and size."""

    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None
    annotations: dict[str, str] | None = None
    artifact_type: str = ""

    def check(self, what: str, *, bytes_max: int) -> Descriptor:
        """Itself, if it can be fetched.

        Raises:
            CallerError: another algorithm than sha256, or a size that is none or past `bytes_max`.
        """
        if not _DIGEST.fullmatch(self.digest):
            raise CallerError(f"{what} has the digest {self.digest[:100]!r}; only sha256 is known here.")
        if not 0 <= self.size <= bytes_max:
            raise CallerError(f"{what} is said to have {self.size} bytes; {bytes_max} are allowed.")
        return self

    def check_bytes(self, data: bytes, what: str) -> bytes:
        """The bytes themselves, if they are those that it names.

        Raises:
            IntegrityError: they are not.
        """
        found = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if found != self.digest:
            raise IntegrityError(
                f"{what} is not what its digest says: expected {self.digest}, got {found} ({len(data)} bytes).",
                next_step="nothing was stored; do not use that registry or archive before its owner has explained it.",
            )
        return data


class Index(msgspec.Struct, frozen=True, rename="camel"):
    """Several manifests of one name, mostly one per platform."""

    manifests: list[Descriptor]
    schema_version: int = 2
    media_type: str = ""


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """One image: its configuration and its layers, lowest first."""

    config: Descriptor
    layers: list[Descriptor]
    schema_version: int = 2
    media_type: str = ""


class StartConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """How programs of an image want to be started. Absent and null mean the same (Go writes either)."""

    user: str | None = None
    env: list[str] | None = None
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    working_dir: str | None = None
    labels: dict[str, str] | None = None


class RootFiles(msgspec.Struct, frozen=True):
    """The layers' digests, unpacked."""

    type: str = "layers"
    diff_ids: list[str] | None = None


class Config(msgspec.Struct, frozen=True):
    """An image's configuration, as far as it matters here."""

    rootfs: RootFiles
    architecture: str = ""
    os: str = "linux"
    variant: str | None = None
    config: StartConfig | None = None

    @property
    def platform(self) -> Platform:
        """What it runs on."""
        return Platform(os=self.os, architecture=self.architecture, variant=self.variant)


def read_top(data: bytes, what: str) -> Index | Manifest:
    """An index or a manifest, whatever it was sent as.

    Raises:
        CallerError: it is neither.
    """
    plain = decode(data, dict[str, Any], what=what)
    if plain.get("schemaVersion") == 1:
        raise CallerError(
            f"{what} is a manifest of schema 1, which registries gave up in 2019.",
            next_step="push the image again with a current tool.",
        )
    return decode(data, Index, what=what) if "manifests" in plain else decode(data, Manifest, what=what)


def read_manifest(data: bytes, what: str) -> Manifest:
    """A manifest of an image that can be unpacked here.

    Raises:
        CallerError: it is none: an index, an artifact that is no image, foreign or encrypted layers, too many or too
            large ones.
    """
    manifest = read_top(data, what)
    if isinstance(manifest, Index):
        raise CallerError(f"{what} is an index inside of an index.")
    if manifest.config.media_type not in (*CONFIG_TYPES, ""):
        raise CallerError(
            f"{what} is no image but a {manifest.config.media_type[:100]!r}.", next_step="name a container image."
        )
    if not 0 < len(manifest.layers) <= limits.IMAGE_LAYERS_MAX:
        raise CallerError(f"{what} has {len(manifest.layers)} layers; 1 to {limits.IMAGE_LAYERS_MAX} are allowed.")
    manifest.config.check(f"The configuration of {what}", bytes_max=limits.IMAGE_CONFIG_BYTES_MAX)
    for at, layer in enumerate(manifest.layers):
        if layer.media_type and not _LAYER.fullmatch(layer.media_type):
            raise CallerError(
                f"Layer {at + 1} of {what} is a {layer.media_type[:100]!r}, which cannot be unpacked here.",
                next_step="use an image whose layers are tar archives, plain, gzip or zstd.",
            )
        layer.check(f"Layer {at + 1} of {what}", bytes_max=limits.IMAGE_BYTES_MAX)
    if (total := sum(layer.size for layer in manifest.layers)) > limits.IMAGE_BYTES_MAX:
        raise CallerError(f"{what} has {total} bytes of layers; {limits.IMAGE_BYTES_MAX} are allowed.")
    return manifest


def read_config(data: bytes, what: str, *, layers: int) -> Config:
    """A configuration that fits a manifest of so many layers.

    Raises:
        CallerError: it is none, or names another number of layers.
    """
    config = decode(data, Config, what=f"The configuration of {what}")
    found = config.rootfs.diff_ids or []
    if len(found) != layers or not all(_DIGEST.fullmatch(each) for each in found):
        raise CallerError(f"The configuration of {what} names {len(found)} layers, its manifest {layers}.")
    return config


def machine_platform() -> Platform:
    """This machine's."""
    machine = platform.machine()
    variant = {"armv7l": "v7", "armv6l": "v6"}.get(machine)
    return Platform(os="linux", architecture=_MACHINES.get(machine, machine), variant=variant)


def parse_platform(text: str) -> Platform:
    """`linux/arm64` or `linux/arm/v7`.

    Raises:
        CallerError: it is none.
    """
    parts = text.split("/")
    if not 2 <= len(parts) <= 3 or not all(re.fullmatch(r"[a-z0-9_.-]{1,32}", part) for part in parts):
        raise CallerError(f"{text[:80]!r} is not a platform.", next_step="write it as linux/amd64 or linux/arm/v7.")
    return Platform(os=parts[0], architecture=parts[1], variant=parts[2] if len(parts) == 3 else None)


def choose(manifests: Sequence[Descriptor], wanted: Platform, what: str) -> Descriptor:
    """The one manifest of an index for a platform: of its variant, else without one, else the first of any.

    Raises:
        CallerError: there is none. The message names what there is.
    """
    images = [each for each in manifests if each.media_type in (*MANIFEST_TYPES, "") and not each.artifact_type]
    fitting = [each for each in images if fits(each.platform, wanted)]
    if len(images) == 1 and images[0].platform is None:
        fitting = images  # as layouts have it; the configuration is looked at
    if not fitting:
        there = sorted({str(each.platform) for each in images if each.platform and each.platform.os != "unknown"})
        raise CallerError(
            f"{what} has no image for {wanted}; it has {', '.join(there) or 'none at all'}.",
            next_step="name one of them with --platform, if this machine can run it." if there else "",
        )

    def variant(found: Descriptor) -> str:
        return (found.platform.variant if found.platform else None) or ""

    return min(fitting, key=lambda each: (variant(each) != (wanted.variant or ""), variant(each) != "", variant(each)))


def fits(found: Platform | None, wanted: Platform) -> bool:
    """Whether an image for one platform is for the other. Variants tell only where both have one on 32-bit ARM."""
    if found is None or (found.os, found.architecture) != (wanted.os, wanted.architecture):
        return False
    return wanted.architecture != "arm" or not (found.variant and wanted.variant) or found.variant <= wanted.variant
