"""How one source enters the raw zone: fetch or pack, check to the end, read what it says of itself, store."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import msgspec
from packaging.version import InvalidVersion, Version

from ropewalk.core.clock import Clock
from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.core.records import Record, digest_bytes
from ropewalk.lake import pypi
from ropewalk.lake.archives import survey
from ropewalk.lake.downloads import Fetcher, Progress
from ropewalk.lake.index import index_url
from ropewalk.lake.licences import (
    METADATA_BYTES_MAX,
    Metadata,
    check_licence,
    is_metadata,
    licence_of,
    metadata_of,
)
from ropewalk.lake.raw import RawZone
from ropewalk.lake.records import NO_HUMAN_DATA, Attestation, LicenceRecord, Pin, RawRecord, Release
from ropewalk.lake.sources import PathSource, PypiSource, pack_directory, read_archive
from ropewalk.security.data_classes import most_restricted


class Terms(Record):
    """On what terms sources enter: who vouches for them, and how they may be used."""

    attested_by: str
    """Who states that they hold no human data: a role or an organisation."""
    attested_text: str = NO_HUMAN_DATA
    licence: str | None = None
    """SPDX expression, where the source's metadata states none; None: that of the stored file, what the metadata
    states for a new one."""
    overrides_licence: bool = False
    """Whether `licence` may be another than the stated one: a decision somebody takes on purpose."""
    data_class: str | None = None
    """None: that of the stored file, `public` for a new one."""
    lowers: bool = False
    """Whether `data_class` may be less restricted than the stored file's: a decision somebody takes on purpose."""


class Offers:
    """One distribution's releases in the index, asked for when first needed: what is stored needs no network."""

    def __init__(self, distribution: str, index: str | None, fetcher: Fetcher | None) -> None:
        self.distribution = distribution
        self._index = index
        self._fetcher = fetcher
        self._stack = contextlib.ExitStack()
        self._releases: tuple[Release, ...] | None = None

    def __enter__(self) -> Offers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def fetch(self, version: str, pin: str | None, progress: Progress | None) -> tuple[Release, bytes]:
        """The release of that version and its archive's verified bytes. Raises what `ropewalk.lake.pypi` does."""
        if self._fetcher is None:
            self._fetcher = self._stack.enter_context(Fetcher())
        if self._releases is None:
            self._releases = pypi.list_releases(
                self.distribution, index=index_url(self._index), fetcher=self._fetcher, prereleases=True, yanked=True
            )
        release = pypi.pick(self._releases, version)
        return release, pypi.download(release, fetcher=self._fetcher, pin=pin, progress=progress)


class Entrance:
    """Lets sources into one tenant's raw zone, on one set of terms."""

    def __init__(self, raw: RawZone, terms: Terms, clock: Clock) -> None:
        """
        Raises:
            DeniedError: nobody attests (rule `no_human_data`).
        """
        if not terms.attested_by.strip():
            raise DeniedError(
                "Nobody attests that the source holds no human data.",
                rule="no_human_data",
                next_step="name who does: --attested-by, or attested_by in a plan's [source] or a profile's [lake].",
            )
        self._raw = raw
        self._terms = terms
        self._clock = clock
        self.records: list[RawRecord] = []
        self.stored: list[str] = []

    def enter_release(self, offers: Offers, version: str, pin: str | None, progress: Progress | None) -> None:
        """Takes a release from the raw zone, or else from the index."""
        known = self._raw.find_release(offers.distribution, version) if pin is None else self._raw.find(pin)
        if known is not None and self._raw.holds(known):
            self._reuse(known)
            return
        release, data = offers.fetch(version, pin, progress)
        source = f"pypi:{release.distribution}=={release.version}"
        said = self._survey(data, release.filename)
        self._add(
            data, said, name=release.filename, source=source, path=f"pypi/{release.distribution}/{release.filename}",
            distribution=release.distribution, version=release.version,
        )  # fmt: skip

    def enter_path(self, source: PathSource) -> tuple[str, ...]:
        """Takes a directory, packed, or an archive. Returns what of the directory was left out."""
        path = Path(source.path)
        skipped: tuple[str, ...] = ()
        if source.directory:
            packed = pack_directory(path)
            data, skipped = packed.data, packed.skipped
        else:
            data = read_archive(path)
        said = self._survey(data, path.name)
        distribution = next((one.name for one in said if one.name), "")
        version = next((one.version for one in said if one.version), "")
        # Of a directory only what it calls itself is known outside: the path to it may name a person.
        own = f"{distribution}-{version}" if distribution and version else distribution or path.name
        name = f"{_safe(own)}.tar" if source.directory else _safe(path.name)
        self._add(
            data, said, name=name, source=f"{'directory' if source.directory else 'archive'}:{name}",
            path=f"local/{name}", distribution=distribution, version=version,
        )  # fmt: skip
        return skipped

    def _survey(self, data: bytes, name: str) -> tuple[Metadata, ...]:
        return metadata_of(survey(data, is_metadata, bytes_max=METADATA_BYTES_MAX, name=name))

    def _add(
        self, data: bytes, said: Sequence[Metadata], *, name: str, source: str, path: str, distribution: str,
        version: str,
    ) -> None:  # fmt: skip
        sha256 = digest_bytes(data)
        known = self._raw.find(sha256)
        licence = self._kept_licence(known) or self._licence_of(said, source)
        if known is not None and (known.source, known.licence) == (source, licence) and self._raw.holds(known):
            self._reuse(known)
            return
        now_s = self._clock.now_s()
        self._store(
            data,
            RawRecord(
                sha256=sha256, bytes=len(data), name=name, source=source, path=path, retrieved_s=now_s,
                tenant=self._raw.tenant, data_class=self._class_of(sha256), distribution=distribution,
                version=version, licence=licence, attestation=self._attestation(now_s),
            ),
        )  # fmt: skip

    def _reuse(self, known: RawRecord) -> None:
        """Takes what is stored, under a new record where the terms given now are others."""
        licence = self._kept_licence(known)
        data_class = self._class_of(known.sha256, known)
        if licence is not None and data_class == known.data_class:
            self.records.append(known)
            return
        now_s = self._clock.now_s()
        data = self._raw.read(known)
        if licence is None:
            licence = self._licence_of(self._survey(data, known.name), known.source)
        self._store(
            data,
            msgspec.structs.replace(
                known, licence=licence, data_class=data_class, attestation=self._attestation(now_s)
            ),
        )

    def _kept_licence(self, known: RawRecord | None) -> LicenceRecord | None:
        """The stored file's licence, where the terms do not name another one."""
        given = self._terms.licence
        kept = known is not None and (given is None or check_licence(given) == known.licence.expression)
        return known.licence if known is not None and kept else None

    def _licence_of(self, said: Sequence[Metadata], source: str) -> LicenceRecord:
        terms = self._terms
        return licence_of(said, terms.licence, source=source, overrides=terms.overrides_licence)

    def _class_of(self, sha256: str, *records: RawRecord) -> str:
        """The class of these bytes under the terms: what they ever were, or something more restricted.

        Raises:
            CallerError: no such class.
            DeniedError: the terms name a less restricted one and do not say that they lower it (rule `data_class`).
        """
        stored = self._raw.find(sha256)
        held = most_restricted(*(record.data_class for record in (stored, *records) if record is not None))
        given = self._terms.data_class
        if given is None:
            return held
        if most_restricted(held, given) != given and not self._terms.lowers:
            name = (stored or records[0]).name
            raise DeniedError(
                f"{name} is stored as {held!r}, and would become {given!r}.",
                rule="data_class",
                next_step="leave the class out to keep it; to lower it, say so (--lower-data-class).",
            )
        return given

    def _store(self, data: bytes, record: RawRecord) -> None:
        if self._raw.add(data, record):
            self.stored.append(record.sha256)
        self.records.append(record)

    def _attestation(self, now_s: float) -> Attestation:
        return Attestation(who=self._terms.attested_by, what=self._terms.attested_text, when_s=now_s)


def wanted_versions(source: PypiSource, versions: Sequence[str], pins: Sequence[Pin]) -> list[tuple[str, str | None]]:
    """Which versions to ingest, each with its pinned sha256 where there is one, in the order asked for.

    Raises:
        CallerError: none is named, or one that is no version; two pins that differ.
    """
    # 1.0 and 1.0.0 are one version (PEP 440).
    pinned: dict[Version, str] = {}
    for pin in pins:
        if pin.distribution == source.distribution:
            version = _version(source, pin.version)
            if pinned.setdefault(version, pin.sha256) != pin.sha256:
                raise CallerError(f"{pin.distribution} {pin.version} is pinned to two different sha256.")
    named = [source.version] if source.version else versions
    asked = [_version(source, version) for version in named] or list(pinned)
    if not asked:
        raise CallerError(
            f"No release of {source.distribution} is named.",
            next_step=f"write pypi:{source.distribution}==VERSION, or give versions or pins.",
        )
    return [(str(version), pinned.get(version)) for version in dict.fromkeys(asked)]


def _version(source: PypiSource, text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise CallerError(f"{source.distribution}: {error} (PEP 440).") from error


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".") or "source"
