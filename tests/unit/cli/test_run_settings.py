"""From options and `--set` to a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.app.building import Gathered, plan_build
from ropewalk.app.plan_checks import check_sources
from ropewalk.app.ropewalk import Ropewalk
from ropewalk.cli.run import _plan, _settings
from ropewalk.core.errors import CallerError
from ropewalk.rollout.plan_file import parse_plan
from ropewalk.tasks.records import ReleaseRef

REF = ReleaseRef(distribution="pkg", version="1", raw="a" * 64, licence="MIT", commit="b" * 64)


def test_settings_of_pytest_stand_beside_the_plan_s(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('[source.pytest_ini]\nasyncio_mode = "strict"\nxfail_strict = "true"\n')
    given = _settings(["source.pytest_ini.console_output_style=classic"], ["asyncio_mode=auto", "markers=a: b=c"])
    plan = _plan(file, given)
    assert plan.source.pytest_ini == {
        "asyncio_mode": "auto", "xfail_strict": "true", "markers": "a: b=c", "console_output_style": "classic",
    }  # fmt: skip
    build = plan_build(Gathered(releases={"pkg": (REF,)}, pinned={}), plan.tasks, plan.source, tenant="t")
    assert build.pytest_ini == plan.source.pytest_ini


def test_a_value_that_is_no_text_says_how_to_write_it() -> None:
    with pytest.raises(CallerError) as caught:
        parse_plan("[source.pytest_ini]\nxfail_strict = true\n")
    assert "line 1" in caught.value.message and "in quotes" in caught.value.next_step


async def test_settings_that_mean_nothing_start_nothing(tmp_path: Path) -> None:
    plan = _plan(None, {"source.uris": [str(tmp_path)], **_settings([], ["testpaths=tests"])})
    async with Ropewalk.open(state=tmp_path / "state") as rw:
        with pytest.raises(CallerError, match="testpaths"):
            check_sources(plan.source, rw.profile)
