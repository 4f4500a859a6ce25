"""From options and `--set` to a plan."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ropewalk.app.building import Built, Gathered, plan_build
from ropewalk.app.plan_checks import check_sources
from ropewalk.app.ropewalk import Ropewalk
from ropewalk.cli.run import _plan, _settings
from ropewalk.core.errors import CallerError
from ropewalk.rollout.plan_file import parse_plan
from ropewalk.tasks.records import ReleaseRef, YieldReport

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


@pytest.mark.parametrize(
    "pairs",
    [["run.group"], ["group=4"], ["run.group=lots"], ["run.groop=4"], ["run.group=[4"], ["source.uris=4"],
     ["policy.openai.token_budget=many"], ["run.group=true"]],
)  # fmt: skip
def test_each_error_of_a_setting_says_what_to_do(pairs: list[str]) -> None:
    with pytest.raises(CallerError) as caught:
        _plan(None, _settings(pairs, []))
    assert caught.value.next_step, caught.value.message


@pytest.mark.parametrize("text", ["a", "[run\ngroup = 4", "x = " + "[" * 200 + "]" * 200, "x = " + "9" * 5000])
def test_each_error_of_a_file_says_what_to_do(text: str, tmp_path: Path) -> None:
    with pytest.raises(CallerError) as caught:
        parse_plan(text)
    assert caught.value.next_step, caught.value.message
    file = tmp_path / "plan.toml"
    file.write_bytes(b"x = '\xff'")
    with pytest.raises(CallerError) as caught:
        _plan(file, {})
    assert "UTF-8" in caught.value.next_step


async def test_a_wheelhouse_may_stand_in_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = parse_plan(f'[source]\nuris = ["{tmp_path}"]\nwheelhouse = "{tmp_path / "wheels"}"\n')
    taken: list[object] = []

    async def build(*_: object, wheelhouse: Path | None, **__: object) -> Built:
        taken.append(wheelhouse)
        return Built(report=YieldReport(sources=(), seconds=0), tasks=())

    monkeypatch.setattr("ropewalk.app.ropewalk.build_tasks", build)
    monkeypatch.setattr("ropewalk.app.ropewalk.plan_build", lambda *_, **__: None)
    monkeypatch.setattr("ropewalk.app.ropewalk.Sources", lambda _: SimpleNamespace(ingest=lambda *_: None))
    async with Ropewalk.open(state=tmp_path / "state") as rw:
        with pytest.raises(CallerError, match="is no folder") as caught:
            await rw.build_tasks(plan)
        assert "pip download" in caught.value.next_step
        (tmp_path / "wheels").mkdir()
        await rw.build_tasks(plan)
        await rw.build_tasks(plan, wheelhouse=tmp_path)
    assert taken == [tmp_path / "wheels", tmp_path]
