"""What is wrong with a plan's prices is known before a run, and not when it is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.app.plan_checks import check_plan
from ropewalk.app.ropewalk import Ropewalk
from ropewalk.core.errors import CallerError
from ropewalk.rollout.plan import Plan, PricePlan, TasksPlan


@pytest.mark.parametrize(
    ("price", "said"),
    [
        (PricePlan(set={"utilization": 0.3}), "'utilization'"),
        (PricePlan(set={"utilisation": 3.0}), "a share of 1"),
        (PricePlan(file="nope.toml"), "nope.toml"),
    ],
)
async def test_prices_that_make_no_sense_start_nothing(tmp_path: Path, price: PricePlan, said: str) -> None:
    plan = Plan(price=price, tasks=TasksPlan(ids=("task:0",)))
    async with Ropewalk.open(state=tmp_path / "state") as rw:
        with pytest.raises(CallerError, match=r"\[price\]") as refused:
            check_plan(plan, rw.profile)
        assert said in refused.value.message
        with pytest.raises(CallerError, match=r"\[price\]"):
            await rw.run(plan)
