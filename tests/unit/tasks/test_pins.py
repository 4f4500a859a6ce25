from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.core.errors import CallerError
from ropewalk.tasks.pins import load_pins
from ropewalk.tasks.records import ReleaseRef


@pytest.mark.parametrize("name", ["demo", "full"])
def test_the_pinned_catalogues_fit(name: str) -> None:
    pins = load_pins(name)
    refs = {
        (release.distribution, release.version): ReleaseRef(
            distribution=release.distribution,
            version=release.version,
            raw=release.sha256,
            licence="MIT",
            commit="c" * 64,
        )
        for release in pins.releases
    }
    plan = pins.plan(refs, tenant="acme")
    assert len(plan.pairs) == len(pins.pairs)
    assert all(pair.before.distribution == pair.after.distribution for pair in plan.pairs)
    assert sum(len(pins.pins(distribution)) for distribution in pins.distributions) == len(pins.releases)
    assert all(len(release.sha256) == 64 for release in pins.releases)


def test_the_full_catalogue_has_five_distributions() -> None:
    assert len({pair.distribution for pair in load_pins("full").pairs}) >= 5


def test_a_release_that_is_not_in_the_lake_is_named() -> None:
    with pytest.raises(CallerError, match="pinned releases are not in the lake"):
        load_pins("demo").plan({}, tenant="acme")


def test_an_unknown_catalogue_lists_the_known_ones() -> None:
    with pytest.raises(CallerError) as caught:
        load_pins("everything")
    assert "demo" in caught.value.next_step


def test_pins_without_a_digest_or_with_unknown_keys_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "pins.toml"
    pair = '[[pair]]\ncatalogues = ["demo"]\ndistribution = "a"\nbefore = "1"\nafter = "2"\n'
    file.write_text('[[release]]\ndistribution = "a"\nversion = "1"\nsha256 = "x"\n' + pair)
    with pytest.raises(CallerError, match="no sha256 for a 2"):
        load_pins("demo", path=file)
    file.write_text(pair + "colour = 1\n")
    with pytest.raises(CallerError, match=r"colour|release"):
        load_pins("demo", path=file)
