"""Source distributions from a package index, through its JSON interface (PEP 691, PEP 700). Nothing is executed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.records import decode
from ropewalk.lake.downloads import Fetcher, Progress, joined_url, public_url
from ropewalk.lake.records import Pin, Release

JSON_TYPE: Final = "application/vnd.pypi.simple.v1+json"
_HEX: Final = frozenset("0123456789abcdef")


class _File(msgspec.Struct, frozen=True, rename="kebab"):
    """One file of the index's answer; further fields are allowed (PEP 691)."""

    filename: str
    url: str
    hashes: dict[str, str] = {}
    yanked: bool | str = False
    size: int | None = None
    upload_time: str | None = None


class _Project(msgspec.Struct, frozen=True):
    files: tuple[_File, ...]
    meta: dict[str, object] = {}


def list_releases(
    name: str, *, index: str, fetcher: Fetcher, prereleases: bool = False, yanked: bool = False
) -> tuple[Release, ...]:
    """The releases that have a source distribution (.tar.gz before .zip) with a sha256, oldest version first.

    Args:
        name: of the distribution.
        index: the simple index's URL.
        prereleases: also alpha, beta, candidate and development releases.
        yanked: also those that their authors took back.

    Raises:
        CallerError: a malformed name, or the index does not know it.
        UnavailableError: the index does not answer, or not in its JSON interface.
    """
    project = canonicalize_name(name)
    if not project or not all(part.isascii() and part.isalnum() for part in project.split("-")):
        raise CallerError(f"{name[:80]!r} is not a distribution's name.")
    url = f"{index}/{project}/"
    body, headers = fetcher.get(url, name=f"index of {project}", bytes_max=limits.JSON_BYTES_MAX, accept=JSON_TYPE)
    answer = _parse(body, headers.get("Content-Type", ""), url)
    best: dict[Version, Release] = {}
    for file in answer.files:
        parsed = _sdist(file, project)
        if parsed is None or (parsed.is_prerelease and not prereleases) or (file.yanked is not False and not yanked):
            continue
        sha256 = file.hashes.get("sha256", "").lower()
        if len(sha256) != 64 or not _HEX.issuperset(sha256):
            continue
        if parsed in best and not file.filename.endswith(".tar.gz"):
            continue
        best[parsed] = Release(
            distribution=project, version=str(parsed), filename=file.filename, url=_file_url(url, file.url),
            sha256=sha256, bytes=file.size, uploaded=file.upload_time or "", yanked=file.yanked is not False,
        )  # fmt: skip
    return tuple(best[version] for version in sorted(best))


def pick(releases: Sequence[Release], version: str) -> Release:
    """The release of that version (`1.0` is `1.0.0`).

    Raises:
        CallerError: not a version, or none of them has it; names the nearest ones there are.
    """
    wanted = _version(version)
    for release in releases:
        if Version(release.version) == wanted:
            return release
    name = releases[0].distribution if releases else "the distribution"
    known = ", ".join(release.version for release in releases[-8:]) or "none"
    raise CallerError(
        f"{name} {version} has no source distribution in the index.", next_step=f"the newest it has: {known}."
    )


def download(
    release: Release, *, fetcher: Fetcher, pin: str | None = None, bytes_max: int = limits.DOWNLOAD_BYTES_MAX,
    progress: Progress | None = None,
) -> bytes:  # fmt: skip
    """The archive's bytes, with the sha256 that the index states and, where given, the pinned one.

    Raises:
        IntegrityError: the index, the pin and the bytes do not agree; nothing was stored.
        and what `Fetcher.get` raises.
    """
    if pin is not None and pin != release.sha256:
        raise IntegrityError(
            f"{release.filename}: the index offers sha256 {release.sha256}, pinned is {pin}. Nothing was fetched.",
            next_step="do not use the file; find out whether the index or the pin is wrong.",
        )
    body, _ = fetcher.get(
        release.url, name=release.filename, bytes_max=bytes_max, sha256=release.sha256, progress=progress
    )
    return body


def read_pins(path: Path) -> tuple[Pin, ...]:
    """Pins in the form of pip's requirements files: one `name==version --hash=sha256:…` a line, `#` comments.

    Raises:
        CallerError: no such file, or a line of another form (names its number).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CallerError(f"The pin file {path} cannot be read: {error}.") from error
    pins = []
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, separator, version = words[0].partition("==")
        sha256 = words[1].removeprefix("--hash=sha256:") if len(words) == 2 else ""
        if not separator or not name or len(sha256) != 64 or not _HEX.issuperset(sha256):
            raise CallerError(f"{path}, line {number}: not of the form 'name==version --hash=sha256:…'.")
        pins.append(Pin(distribution=canonicalize_name(name), version=str(_version(version)), sha256=sha256))
    return tuple(pins)


def _parse(body: bytes, content_type: str, url: str) -> _Project:
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind not in (JSON_TYPE, "application/json"):
            raise CallerError(f"it is of type {kind or 'unknown'!r}")
        answer = decode(body, _Project, what="answer")
        if not str(answer.meta.get("api-version", "1.0")).startswith("1."):
            raise CallerError(f"it speaks version {answer.meta['api-version']!r}")
    except CallerError as error:
        raise UnavailableError(
            f"{public_url(url)} does not answer as a JSON package index (PEP 691): {error.message}",
            next_step="set ROPEWALK_INDEX_URL to a simple index that does.",
        ) from error
    return answer


def _sdist(file: _File, project: str) -> Version | None:
    try:
        name, version = parse_sdist_filename(file.filename)
    except InvalidSdistFilename:
        return None
    plain = file.filename.isascii() and file.filename.isprintable() and "/" not in file.filename
    return version if name == project and plain else None


def _file_url(base: str, url: str) -> str:
    target = joined_url(base, url)
    if not target:
        raise UnavailableError(
            f"{public_url(base)} offers a file at {public_url(url)!r}, which is neither http nor https.",
            next_step="use another index.",
        )
    return target


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise CallerError(f"{text[:80]!r} is not a version (PEP 440).") from error
