"""The second look at a sandbox whose agent says nothing."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from ropewalk.core.outcomes import Termination
from ropewalk.sandbox import silence
from ropewalk.sandbox.contract import Held, SandboxGoneError, SandboxStats

IDLE, BUSY, UNKNOWN = {"cpu_s": 0.001}, {"cpu_s": 9.0}, {"cpu_s": None}


@pytest.mark.parametrize(("before", "after", "expected"), [
    ({}, BUSY, Termination.TIMEOUT),
    ({}, IDLE, Termination.INFRASTRUCTURE),
    ({}, UNKNOWN, Termination.TIMEOUT),
    (UNKNOWN, BUSY, Termination.TIMEOUT),
    ({}, {**BUSY, "held": Held.STOPPED}, Termination.INFRASTRUCTURE),
    ({"held": Held.STOPPED}, IDLE, Termination.INFRASTRUCTURE),
    ({"held": Held.SAVED}, IDLE, None),
    ({"held": Held.SAVED}, BUSY, None),
    ({}, {**BUSY, "held": Held.SAVED}, None),
    ({}, {**IDLE, "held": Held.SAVED}, None),
])  # fmt: skip
async def test_whose_doing_it_is(
    before: dict[str, Any], after: dict[str, Any], expected: Termination | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "SECOND_LOOK_S", 0.1)
    looks = [{"cpu_s": 0.0, **before}, after]

    async def stats() -> SandboxStats:
        return SandboxStats(**{**dict.fromkeys(SandboxStats.__struct_fields__), **looks.pop(0)})

    found = await silence.explain(stats, anyio.sleep_forever)
    assert (found.termination if found else None) is expected
    if found:
        assert found.stats is not None and found.stats.cpu_s == after["cpu_s"]


async def test_the_death_of_the_sandbox_is_told() -> None:
    async def stats() -> SandboxStats:
        raise SandboxGoneError("It is dead.")

    with pytest.raises(SandboxGoneError, match="dead"):
        await silence.explain(stats, anyio.sleep_forever)
