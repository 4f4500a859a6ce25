"""The real package index: pinned releases come, with the bytes that were published."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.core.errors import UnavailableError
from ropewalk.lake import Fetcher, Lake, Pin, Release, Terms, unpack
from ropewalk.store.blobs import open_blobs
from ropewalk.store.layout import Layout

# As published; releases on PyPI are never replaced.
TOOLZ = Pin(
    distribution="toolz", version="1.2.0", sha256="9667a038e9d6ecba37995e26cb2f59ec6420b6ad8dd9677de59db9b956b08490"
)
TERMS = Terms(attested_by="ropewalk tests")

pytestmark = pytest.mark.network


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    layout = Layout(tmp_path / "state").ensure()
    return Lake(layout, open_blobs(layout.blobs))


@pytest.fixture
def releases(lake: Lake) -> tuple[Release, ...]:
    try:
        with Fetcher(timeout_s=10.0, attempts_max=2) as fetcher:
            return lake.list_releases("toolz", fetcher=fetcher)
    except UnavailableError as error:
        pytest.skip(f"no package index can be reached: {error.message}")


def test_pinned_releases_come_from_the_index_that_pip_uses(
    lake: Lake, releases: tuple[Release, ...], tmp_path: Path
) -> None:
    assert [release.version for release in releases].index("0.12.0") < [r.version for r in releases].index("1.2.0")
    result = lake.ingest("pypi:toolz", pins=[TOOLZ], tenant="test", terms=TERMS)
    (record,) = result.records
    assert record.sha256 == TOOLZ.sha256
    assert record.licence.expression == "BSD-3-Clause"
    done = unpack(lake.read(record.id, tenant="test"), tmp_path / "toolz")
    assert done.top == "toolz-1.2.0"
    assert "toolz-1.2.0/PKG-INFO" in done.files
    assert lake.verify(result.commit.id, tenant="test").bytes == record.bytes


def test_adjacent_releases_of_another_package_come(lake: Lake, releases: tuple[Release, ...]) -> None:
    result = lake.ingest("pypi:more-itertools", versions=["9.1.0", "10.0.0"], tenant="test", terms=TERMS)
    assert [record.version for record in result.records] == ["9.1.0", "10.0.0"]
    assert {record.licence.expression for record in result.records} == {"MIT"}
