"""Licences out of metadata: what is sure, what is only a family, what is missing."""

from __future__ import annotations

import pytest

from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.lake.licences import Metadata, is_metadata, licence_of, metadata_of, parse_metadata
from ropewalk.lake.records import LicenceBasis

B = LicenceBasis
C = "Classifier: License ::"


def headers(*lines: str) -> Metadata:
    return parse_metadata(
        "toy-1/PKG-INFO", "\n".join(["Name: Toy.Thing", "Version: 1.0", *lines, "", "License: body"]).encode()
    )


@pytest.mark.parametrize(
    ("lines", "expression", "basis"),
    [
        (["License-Expression: mit or apache-2.0"], "MIT OR Apache-2.0", B.METADATA_EXPRESSION),
        (["License-Expression: MIT", "License: GPL"], "MIT", B.METADATA_EXPRESSION),
        (["License: BSD-3-Clause"], "BSD-3-Clause", B.METADATA_FIELD),
        (["License: the mit license"], "MIT", B.METADATA_FIELD),
        (["License: Apache License, Version 2.0"], "Apache-2.0", B.METADATA_FIELD),
        (["License: BSD", f"{C} OSI Approved :: BSD License"], "LicenseRef-BSD-License", B.CLASSIFIER),
        ([f"{C} OSI Approved :: MIT License"], "MIT", B.CLASSIFIER),
        (["License: UNKNOWN", f"{C} OSI Approved :: ISC License (ISCL)"], "ISC", B.CLASSIFIER),
        ([f"{C} OSI Approved", f"{C} OSI Approved :: MIT License"], "MIT", B.CLASSIFIER),
        ([f"{C} OSI Approved :: MIT License", f"{C} OSI Approved :: Apache Software License"],
         "LicenseRef-MIT-License-Apache-Software-License", B.CLASSIFIER),
        (["License: my own terms"], "LicenseRef-my-own-terms", B.METADATA_FIELD),
        (["License: Copyright 2020\n        All rights reserved"], "LicenseRef-Copyright-2020", B.METADATA_FIELD),
    ],
)  # fmt: skip
def test_metadata_gives_the_best_it_says(lines: list[str], expression: str, basis: LicenceBasis) -> None:
    record = licence_of([headers(*lines)], None, source="toy")
    assert (record.expression, record.basis, record.found_in) == (expression, basis, "toy-1/PKG-INFO")


@pytest.mark.parametrize(
    ("lines", "given", "agrees"),
    [
        (["License: MIT"], "MIT", True),
        (["License: MIT"], "MIT OR Apache-2.0", False),
        (["License: MIT"], "GPL-3.0-only", False),
        (["License-Expression: LicenseRef-BSD"], "BSD-3-Clause", False),
        (["License: BSD"], "BSD-3-Clause", True),
        (["License: BSD"], "BSD-3-Clause AND MIT", False),
        (["License: BSD"], "Apache-2.0", False),
        ([f"{C} OSI Approved :: GNU General Public License (GPL)"], "GPL-3.0-or-later", True),
        ([f"{C} Other/Proprietary License"], "MIT", False),
        ([f"{C} Other/Proprietary License"], "LicenseRef-Proprietary", False),
        ([], "MIT", True),
    ],
)
def test_a_given_licence_may_be_more_precise_than_the_stated_one_but_no_other(
    lines: list[str], given: str, agrees: bool
) -> None:
    if agrees:
        assert licence_of([headers(*lines)], given, source="toy").expression == given
        return
    with pytest.raises(DeniedError, match=f"toy states the licence .*{given}") as caught:
        licence_of([headers(*lines)], given, source="toy")
    assert caught.value.rule == "licence" and "--override-licence" in caught.value.next_step
    assert licence_of([headers(*lines)], given, source="toy", overrides=True).expression == given


def test_what_the_user_gives_on_purpose_comes_first() -> None:
    record = licence_of([headers("License: MIT")], "apache-2.0", source="toy", overrides=True)
    assert (record.expression, record.basis, record.found_in) == ("Apache-2.0", B.GIVEN, "")
    assert licence_of([], "LicenseRef-Proprietary", source="toy").expression == "LicenseRef-Proprietary"
    for nonsense in ("", "whatever", "MIT AND", "(MIT"):
        with pytest.raises(CallerError, match="SPDX"):
            licence_of([headers("License: MIT")], nonsense, source="toy")


@pytest.mark.parametrize("lines", [[], ["License: UNKNOWN"], ["License:"], [f"{C} OSI Approved"]])
def test_no_licence_is_refused(lines: list[str]) -> None:
    with pytest.raises(DeniedError, match="--licence") as caught:
        licence_of([headers(*lines)], None, source="toy 1.0")
    assert caught.value.rule == "licence"


def test_pyproject_and_setup_cfg_are_read() -> None:
    pyproject = b'[project]\nname = "A_b"\nversion = "2"\nlicense = "MIT"\n'
    assert licence_of([parse_metadata("source/pyproject.toml", pyproject)], None, source="").expression == "MIT"
    old = parse_metadata(
        "pyproject.toml", b'[project]\nname = "a"\nlicense = {text = "MIT License"}\ndynamic = ["version"]\n'
    )
    assert (old.name, old.version, licence_of([old], None, source="").expression) == ("a", "", "MIT")
    by_file = parse_metadata("pyproject.toml", b'[project]\nname = "a"\nlicense = {file = "LICENSE"}\n'
                             b'classifiers = ["License :: OSI Approved :: MIT License", "Topic :: X"]\n')  # fmt: skip
    assert licence_of([by_file], None, source="").basis is B.CLASSIFIER
    cfg = parse_metadata("setup.cfg", b"[metadata]\nname = a\nversion = attr: a.__version__\nlicense = MIT\n"
                         b"classifiers =\n  License :: OSI Approved :: MIT License\n")  # fmt: skip
    assert (cfg.version, cfg.field, len(cfg.classifiers)) == ("", "MIT", 1)
    assert parse_metadata("setup.cfg", b"[flake8]\n") == Metadata(found_in="setup.cfg")


@pytest.mark.parametrize(
    ("path", "data"), [("pyproject.toml", b"not = = toml"), ("pyproject.toml", b"\xff"),
                       ("pyproject.toml", b"project = 5"), ("setup.cfg", b"no section"), ("setup.cfg", b"\xff\xfe")],
)  # fmt: skip
def test_unreadable_metadata_names_its_file(path: str, data: bytes) -> None:
    with pytest.raises(CallerError, match=path):
        parse_metadata(path, data)


def test_built_metadata_comes_before_its_sources_and_makes_them_unneeded() -> None:
    broken = {"p-1/pyproject.toml": b"not toml", "p-1/PKG-INFO": b"Name: p\nVersion: 1\nLicense: MIT\n\n"}
    assert [one.found_in for one in metadata_of(broken)] == ["p-1/PKG-INFO"]
    with pytest.raises(CallerError, match="pyproject"):
        metadata_of({**broken, "p-1/PKG-INFO": b"Name: p\nVersion: 1\n\n"})


def test_only_the_top_holds_metadata() -> None:
    yes = ["PKG-INFO", "a-1/PKG-INFO", "source/pyproject.toml", "a/setup.cfg", "a-1.dist-info/METADATA"]
    no = ["a/b/PKG-INFO", "METADATA", "a/METADATA", "x/a.dist-info/METADATA", "a/tests/pyproject.toml", "PKG-INFO2"]
    assert all(map(is_metadata, yes)) and not any(map(is_metadata, no))
