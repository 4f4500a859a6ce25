"""A user's requirements as an offline layer: wheels, fetched by pip, unpacked where the image looks for them.

pip does the choosing, with the user's own configuration, or from a folder of wheels without a network. Only wheels
are taken, so that nothing of a package runs on this machine. A wheel must fit the image's Python: pure, or built for
this interpreter, from which the default image is made.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.core.records import Record, digest_bytes

_PIP_TIMEOUT_S: Final = 600.0
_SITE_FOLDERS: Final = (
    "usr/local/lib/python3*/site-packages", "usr/local/lib/python3*/dist-packages", "usr/lib/python3*/site-packages",
    "usr/lib/python3/dist-packages", "opt/*/lib/python3*/site-packages",
)  # fmt: skip
_WHEELS_MAX: Final = 200


class Wheel(Record):
    """One pinned wheel."""

    filename: str
    name: str
    version: str
    sha256: str


class WheelLayer(Record):
    """Requirements as they were resolved: the same record, the same bytes in every sandbox."""

    requirements: tuple[str, ...]
    """As the user wrote them, comments and blank lines removed."""
    wheels: tuple[Wheel, ...]
    """Sorted by name."""
    layer: str
    """Digest of the layer that holds them unpacked; empty where there are no wheels."""
    modules: tuple[str, ...]
    """Top-level names that can be imported from it."""

    @property
    def layers(self) -> tuple[str, ...]:
        """For a sandbox's spec."""
        return (self.layer,) if self.layer else ()


class LayerRecordLike(Protocol):
    """A stored layer."""

    @property
    def digest(self) -> str: ...


class BuildLayers(Protocol):
    """The part of `ropewalk.sandbox.layers.LayerStore` that builders use."""

    def add_files(self, files: Mapping[str, bytes], *, modes: Mapping[str, int] | None = None) -> LayerRecordLike:
        """Stores files as a layer."""
        ...

    def path(self, digest: str) -> Path:
        """Where a layer lies."""
        ...


Unpack = Callable[[Path, Path], object]
"""Unpacks an untrusted archive into a new folder (`ropewalk.lake.archives.unpack`)."""


def check_plugins(names: Iterable[str]) -> None:
    """Returns if these can be modules.

    Raises:
        CallerError: one cannot; most often it is the name of a distribution.
    """
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            guess = re.sub(r"\W+", "_", name).strip("_")
            raise CallerError(
                f"The plugin {name[:80]!r} is no name of a module.",
                next_step=f"name it as Python imports it, most likely --plugin {guess[:80]}.",
            )


def read_requirements(path: Path) -> tuple[str, ...]:
    """Requirements out of a file, one a line.

    Raises:
        CallerError: no such file; a line that is no requirement (pip's options, URLs of version control, paths).
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CallerError(f"{path} cannot be read: {error}.", next_step="name a requirements file.") from error
    found = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.split(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise CallerError(
                f"{path}, line {number}: {line!r} is not a requirement.",
                next_step="write NAME, NAME==VERSION or NAME>=VERSION; options for pip belong into its configuration.",
            ) from error
        if requirement.url:
            raise CallerError(
                f"{path}, line {number}: requirements by address are not taken.", next_step="name a wheel's release."
            )
        found.append(line)
    return tuple(found)


def resolve_wheels(
    requirements: Sequence[str], destination: Path, *, wheelhouse: Path | None = None, timeout_s: float = _PIP_TIMEOUT_S
) -> tuple[Path, ...]:
    """Has pip fetch wheels for these requirements and all that they require.

    Args:
        requirements: as `read_requirements` gives them.
        destination: an empty folder.
        wheelhouse: a folder of wheels; then no network is used at all.

    Raises:
        CallerError: pip finds no fitting wheels; the message ends with pip's own words.
        UnavailableError: no pip here, or it took too long.
    """
    if not requirements:
        return ()
    command = [*_pip(), "download", "--only-binary", ":all:", "--dest", str(destination), "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--python-version", f"{sys.version_info.major}.{sys.version_info.minor}"]
    if wheelhouse is not None:
        if not wheelhouse.is_dir():
            raise CallerError(f"{wheelhouse} is not a folder of wheels.", next_step="fill one with `pip download`.")
        command += ["--no-index", "--find-links", str(wheelhouse)]
    try:
        answer = subprocess.run(
            [*command, "--", *requirements], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"pip did not end within {timeout_s:.0f} s.", retry_after_s=60.0) from error
    if answer.returncode:
        words = [line for line in answer.stderr.splitlines() if line.startswith("ERROR")] or answer.stderr.splitlines()
        raise CallerError(
            f"pip found no wheels for {', '.join(requirements)}: {' '.join(words[-2:])[-600:]}",
            next_step="pin releases that have wheels for this Python, or give --wheelhouse.",
        )
    return tuple(sorted(destination.glob("*.whl")))


def wheel_layer(
    requirements: Sequence[str],
    layers: BuildLayers,
    *,
    image: Iterable[str],
    unpack: Unpack,
    wheelhouse: Path | None = None,
) -> WheelLayer:
    """Resolves requirements and stores them as one layer above an image.

    Args:
        requirements: as `read_requirements` gives them.
        layers: takes the layer.
        image: digests of the image's layers, which tell where its Python looks for packages.
        unpack: opens the wheels.
        wheelhouse: see `resolve_wheels`.

    Raises:
        CallerError: a wheel that does not fit, or two that hold the same file; or see `resolve_wheels`.
    """
    if not requirements:
        return WheelLayer(requirements=(), wheels=(), layer="", modules=())
    site = site_folder(layers, image)
    with tempfile.TemporaryDirectory(prefix="ropewalk-wheels-") as folder:
        destination = Path(folder, "wheels")
        destination.mkdir()
        paths = resolve_wheels(requirements, destination, wheelhouse=wheelhouse)
        if len(paths) > _WHEELS_MAX:
            raise CallerError(f"{len(paths)} wheels are too many ({_WHEELS_MAX}).", next_step="require less.")
        wheels = tuple(sorted((_describe(path) for path in paths), key=lambda wheel: wheel.name))
        files: dict[str, bytes] = {}
        for number, path in enumerate(paths):
            place = Path(folder, str(number))
            unpack(path, place)
            for name, content in _installed(place):
                if files.setdefault(f"{site}/{name}", content) != content:
                    raise CallerError(f"{path.name} and another wheel both hold {name}.", next_step="drop one of them.")
    layer = layers.add_files(files).digest if files else ""
    return WheelLayer(requirements=tuple(requirements), wheels=wheels, layer=layer, modules=_modules(files, site))


def site_folder(layers: BuildLayers, image: Iterable[str]) -> str:
    """Where an image's Python looks for packages: the folder that holds its pytest.

    Raises:
        CallerError: the image has no pytest.
    """
    for digest in image:
        root = layers.path(digest)
        for pattern in _SITE_FOLDERS:
            for found in sorted(root.glob(f"{pattern}/_pytest")):
                return found.parent.relative_to(root).as_posix()
    raise CallerError("The image has no pytest.", next_step="use the default image, or install pytest into yours.")


def _pip() -> list[str]:
    """A pip that can be run: this environment's, else one on the path."""
    candidates = [[sys.executable, "-m", "pip"]]
    candidates += [[found] for name in ("pip3", "pip") if (found := shutil.which(name))]
    candidates += [[found, "-m", "pip"] for name in ("python3",) if (found := shutil.which(name))]
    for command in candidates:
        try:
            if subprocess.run([*command, "--version"], capture_output=True, timeout=60, check=False).returncode == 0:
                return command
        except (OSError, subprocess.TimeoutExpired):
            continue
    raise UnavailableError(
        "No pip here to fetch wheels with.", next_step="apt install python3-pip, or python -m ensurepip."
    )


def _describe(path: Path) -> Wheel:
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise CallerError(f"{path.name} is not a wheel's name.") from error
    if tags.isdisjoint(sys_tags()):
        raise CallerError(f"{path.name} is built for another Python or machine.", next_step="use a pure wheel.")
    if path.stat().st_size > limits.ARCHIVE_BYTES_MAX:
        raise CallerError(f"{path.name} is larger than {limits.ARCHIVE_BYTES_MAX} bytes.")
    return Wheel(
        filename=path.name, name=canonicalize_name(name), version=str(version), sha256=digest_bytes(path.read_bytes())
    )


def _installed(folder: Path) -> Iterator[tuple[str, bytes]]:
    """What of an unpacked wheel goes into site-packages (PEP 427); scripts, headers and data do not."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink() or path.suffix == ".pyc":
            continue
        parts = PurePosixPath(path.relative_to(folder).as_posix()).parts
        if parts[0].endswith(".data"):
            if len(parts) < 3 or parts[1] not in ("purelib", "platlib"):
                continue
            parts = parts[2:]
        if len(parts) == 1 and parts[0].endswith(".pth"):
            continue  # runs code at every start of the interpreter
        yield "/".join(parts), path.read_bytes()


def _modules(files: Iterable[str], site: str) -> tuple[str, ...]:
    tops = {path.removeprefix(f"{site}/").split("/")[0] for path in files}
    names = {top.split(".")[0] for top in tops if not top.endswith((".dist-info", ".txt", ".md"))}
    return tuple(sorted(names))
