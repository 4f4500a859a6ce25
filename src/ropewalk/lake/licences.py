"""What a source says of itself (name, version, licence), read from its metadata. Nothing is executed.

Order: an SPDX expression in the metadata (PEP 639), the old free-text field, classifiers. Where words name only a
family ("BSD"), the expression is a `LicenseRef-` that says so: a guess would outlive its doubt.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Mapping, Sequence
from email import message_from_bytes, policy
from typing import Any, Final

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.core.limits import MIB
from ropewalk.core.records import Record
from ropewalk.core.toml import parse_toml
from ropewalk.lake.records import LicenceBasis, LicenceRecord

METADATA_BYTES_MAX: Final = 1 * MIB

# Free text and the last part of classifiers, in lower case, that name one licence without doubt.
_PLAIN: Final = {
    "mit": "MIT", "mit license": "MIT", "the mit license": "MIT", "expat": "MIT",
    "the mit license (mit)": "MIT", "mit license (mit)": "MIT",
    "apache 2.0": "Apache-2.0", "apache 2": "Apache-2.0", "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0", "apache license version 2.0": "Apache-2.0",
    "apache software license 2.0": "Apache-2.0", "apache-2": "Apache-2.0", "asl 2.0": "Apache-2.0",
    "bsd 3-clause": "BSD-3-Clause", "bsd-3": "BSD-3-Clause", "3-clause bsd": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause", "new bsd": "BSD-3-Clause", "new bsd license": "BSD-3-Clause",
    "modified bsd license": "BSD-3-Clause", "3-clause bsd license": "BSD-3-Clause", "bsd 3 clause": "BSD-3-Clause",
    "bsd 2-clause": "BSD-2-Clause", "simplified bsd": "BSD-2-Clause", "bsd 2-clause license": "BSD-2-Clause",
    "isc license": "ISC", "isc license (iscl)": "ISC",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0", "mozilla public license 2.0": "MPL-2.0", "mpl 2.0": "MPL-2.0",
    "gnu general public license v2 (gplv2)": "GPL-2.0-only",
    "gnu general public license v2 or later (gplv2+)": "GPL-2.0-or-later",
    "gnu general public license v3 (gplv3)": "GPL-3.0-only",
    "gnu general public license v3 or later (gplv3+)": "GPL-3.0-or-later",
    "gnu lesser general public license v2 (lgplv2)": "LGPL-2.0-only",
    "gnu lesser general public license v2 or later (lgplv2+)": "LGPL-2.0-or-later",
    "gnu lesser general public license v3 (lgplv3)": "LGPL-3.0-only",
    "gnu lesser general public license v3 or later (lgplv3+)": "LGPL-3.0-or-later",
    "gnu affero general public license v3": "AGPL-3.0-only",
    "gnu affero general public license v3 or later (agplv3+)": "AGPL-3.0-or-later",
    "the unlicense (unlicense)": "Unlicense", "mit no attribution license (mit-0)": "MIT-0",
    "boost software license 1.0 (bsl-1.0)": "BSL-1.0",
    "universal permissive license (upl)": "UPL-1.0", "zero-clause bsd (0bsd)": "0BSD",
    "cc0 1.0 universal (cc0 1.0) public domain dedication": "CC0-1.0",
}  # fmt: skip


_NO_FAMILY: Final = frozenset({"license", "licence", "licenseref"})


class Metadata(Record):
    """What a source says of itself; empty where it says nothing."""

    name: str = ""
    """Normalised (PEP 503)."""
    version: str = ""
    expression: str = ""
    field: str = ""
    classifiers: tuple[str, ...] = ()
    """Those that begin with `License ::`."""
    found_in: str = ""


def parse_metadata(path: str, data: bytes) -> Metadata:
    """Out of a `PKG-INFO` or `METADATA` file (email headers), a `pyproject.toml` or a `setup.cfg`, by its name.

    Raises:
        CallerError: a pyproject.toml or setup.cfg that cannot be read.
    """
    try:
        return _PARSERS.get(path.rpartition("/")[2], _from_headers)(path, data)
    except (ValueError, configparser.Error, AttributeError, TypeError, RecursionError) as error:
        raise CallerError(f"{path} cannot be read as metadata: {error}.") from error


def is_metadata(path: str) -> bool:
    """Whether an archive's member may hold metadata: at its top, or one directory below."""
    folder, _, name = path.rpartition("/")
    if name == "METADATA":
        return folder.endswith(".dist-info") and "/" not in folder
    return name in ("PKG-INFO", *_PARSERS) and "/" not in folder


def metadata_of(files: Mapping[str, bytes]) -> tuple[Metadata, ...]:
    """What the metadata files of one source say, the most trusted first: built metadata before its sources.

    Raises:
        CallerError: a file that cannot be read, and no better one before it says all there is to say.
    """
    order = ("METADATA", "PKG-INFO", "pyproject.toml", "setup.cfg")
    said: list[Metadata] = []
    for path in sorted(files, key=lambda path: (order.index(path.rpartition("/")[2]), path)):
        if any(one.name and one.version and (one.expression or one.field or one.classifiers) for one in said):
            break
        said.append(parse_metadata(path, files[path]))
    return tuple(said)


def check_licence(given: str) -> str:
    """An SPDX expression in its canonical form.

    Raises:
        CallerError: it is none.
    """
    expression = _spdx(given)
    if expression is None:
        raise CallerError(
            f"{given[:80]!r} is not an SPDX licence expression.",
            next_step="for instance 'MIT', 'Apache-2.0 OR MIT', or 'LicenseRef-Proprietary' for your own source.",
        )
    return expression


def licence_of(
    metadata: Sequence[Metadata], given: str | None, *, source: str, overrides: bool = False
) -> LicenceRecord:
    """The licence record: what the metadata says; what the user gives, where it says nothing or leaves it open.

    Args:
        metadata: the most trusted first.
        given: an SPDX expression; `LicenseRef-Proprietary` for a user's own closed source.
        source: for messages.
        overrides: whether `given` may be another licence than the stated one: a decision somebody takes on purpose.

    Raises:
        CallerError: `given` is not an SPDX expression.
        DeniedError: there is no licence anywhere, or another one is stated than given (rule `licence`).
    """
    stated = _stated(metadata)
    if given is not None:
        expression = check_licence(given)
        if stated is not None and not overrides and not _agree(stated, expression):
            raise DeniedError(
                f"{source} states the licence {stated.expression} ({stated.stated!r} in {stated.found_in}), and "
                f"{expression} was given.",
                rule="licence",
                next_step="leave the licence out to keep the stated one; if another really holds, "
                f"`ropewalk lake ingest SOURCE --licence '{expression}' --override-licence` says so.",
            )
        return LicenceRecord(expression=expression, basis=LicenceBasis.GIVEN, stated=given, found_in="")
    if stated is not None:
        return stated
    raise DeniedError(
        f"{source} states no licence, so nobody may be given what is made from it.",
        rule="licence",
        next_step="give one as an SPDX expression (--licence MIT; LicenseRef-Proprietary for your own source).",
    )


def _stated(metadata: Sequence[Metadata]) -> LicenceRecord | None:
    for one in metadata:
        for basis, stated, expression in _candidates(one):
            if expression is not None:
                return LicenceRecord(expression=expression, basis=basis, stated=stated, found_in=one.found_in)
    return None


def _agree(stated: LicenceRecord, expression: str) -> bool:
    """Whether a given expression is the stated one, or says precisely what free text left open (`BSD`)."""
    if stated.expression == expression:
        return True
    if stated.basis is LicenceBasis.METADATA_EXPRESSION or not stated.expression.startswith("LicenseRef-"):
        return False
    words = {word for word in re.findall(r"[a-z]+", stated.stated.lower()) if word not in _NO_FAMILY}
    named = [part for part in re.split(r"[() ]+", expression) if part not in ("", "AND", "OR", "WITH")]
    return all(any(word.startswith(family) for word in words) for family in map(_family, named))


def _family(licence: str) -> str:
    return re.split(r"[^a-z]", licence.lower())[0]


def _candidates(metadata: Metadata) -> list[tuple[LicenceBasis, str, str | None]]:
    ends = [line.rpartition("::")[2].strip() for line in metadata.classifiers]
    # "License :: OSI Approved" alone names none; several classifiers may mean "either" or "both".
    ends = [end for end in ends if end not in ("OSI Approved", "License")]
    joined = " / ".join(ends)
    field = metadata.field.strip().partition("\n")[0][:200]
    return [
        (LicenceBasis.METADATA_EXPRESSION, metadata.expression, _spdx(metadata.expression)),
        (LicenceBasis.METADATA_FIELD, field, _spdx(field) or _PLAIN.get(_folded(field))),
        (LicenceBasis.CLASSIFIER, joined, _PLAIN.get(_folded(joined))),
        (LicenceBasis.CLASSIFIER, joined, _reference(joined)),
        (LicenceBasis.METADATA_FIELD, field, _reference(field[:60])),
    ]


def _spdx(text: str) -> str | None:
    try:
        return str(canonicalize_license_expression(text)) if text.strip() else None
    except InvalidLicenseExpression:
        return None


def _reference(text: str) -> str | None:
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")
    return f"LicenseRef-{slug}" if slug and slug.lower() not in ("unknown", "none", "license") else None


def _folded(text: str) -> str:
    return " ".join(text.lower().split())


def _from_headers(path: str, data: bytes) -> Metadata:
    message = message_from_bytes(data, policy=policy.compat32)

    def value(name: str) -> str:
        text = str(message.get(name) or "").strip()
        return "" if text == "UNKNOWN" else text

    classifiers = (str(line).strip() for line in message.get_all("Classifier", []))
    return Metadata(
        name=canonicalize_name(value("Name")), version=value("Version"), expression=value("License-Expression"),
        field=value("License"), classifiers=tuple(c for c in classifiers if c.startswith("License ::")), found_in=path,
    )  # fmt: skip


def _from_pyproject(path: str, data: bytes) -> Metadata:
    project: dict[str, Any] = parse_toml(data, what=path).get("project", {})
    licence = project.get("license", "")
    return Metadata(
        name=canonicalize_name(str(project.get("name", ""))), version=str(project.get("version", "")),
        expression=licence if isinstance(licence, str) else "",
        field=str(licence.get("text", "")) if isinstance(licence, dict) else "",
        classifiers=tuple(str(c) for c in project.get("classifiers", ()) if str(c).startswith("License ::")),
        found_in=path,
    )  # fmt: skip


def _from_setup_cfg(path: str, data: bytes) -> Metadata:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(data.decode())
    section = dict(parser["metadata"]) if parser.has_section("metadata") else {}

    def literal(name: str) -> str:
        text = section.get(name, "").strip()
        return "" if text.startswith(("attr:", "file:")) else text

    lines = [line.strip() for line in section.get("classifiers", "").splitlines()]
    return Metadata(
        name=canonicalize_name(literal("name")), version=literal("version"), field=literal("license"),
        classifiers=tuple(line for line in lines if line.startswith("License ::")), found_in=path,
    )  # fmt: skip


_PARSERS: Final[dict[str, Callable[[str, bytes], Metadata]]] = {
    "pyproject.toml": _from_pyproject,
    "setup.cfg": _from_setup_cfg,
}
