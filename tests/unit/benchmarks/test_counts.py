"""What the benchmarks count: leftovers of every kind, and groups that are not what they are called."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from ropewalk.benchmarks import census
from ropewalk.benchmarks.killed_sandboxes import tally, underpaid
from ropewalk.core.outcomes import Termination
from ropewalk.reward.verdict import Reward
from ropewalk.rollout.rows import EpisodeRow, EpisodeState, GroupRow
from ropewalk.store.blobs import open_blobs
from ropewalk.store.database import Database
from ropewalk.store.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "state").ensure()


@pytest.mark.parametrize(
    "name",
    [
        "sandboxes/01JD",
        "sandboxes/.new-01JD",
        "layers/.staging-x",
        "layers/.removed-0123",
        f"layers/{'a' * 64}/.record.json.x8_q",
        "images/.staging-x",
        "images/.default-0123.x8_q",
        "snapshots/.0123.json.x8_q",
        "blobs/incoming/0123",
        "lake/raw/acme/content/.0123.x8_q",
        "runs/01JD/.report.html.x8_q",
        "tasks/baselines/0123.json.77.part",
        "tasks/indexes/0123.part77",
        "keys/.ring.x8_q",
        ".tenants.json.x8_q",
        ".probe-x/file",
        "somebody-else",
    ],
)
def test_each_kind_of_leftover_is_counted(layout: Layout, name: str) -> None:
    before = census.files(layout)
    place = layout.root / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("x")
    assert str(place) in census.files(layout) - before


def test_leftovers_beside_the_state_are_counted(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = census.take(layout)
    (tmp_path / "ropewalk-wheels-x").mkdir()
    (tmp_path / "another").mkdir()
    files = [line for line in census.take(layout).left_since(before) if line.startswith("files:")]
    assert files == [f"files: {tmp_path / 'ropewalk-wheels-x'}"]


def test_what_stays_is_no_leftover(layout: Layout) -> None:
    before = census.files(layout)
    open_blobs(layout.blobs).put(b"bytes")
    Database.open(layout.database).close()
    for name in ("snapshots/.lock", "images/.default.lock", "layers/.lock", "tenants.json", "tenants.lock", "keys/ring",
                 f"layers/{'a' * 64}/tree/.git/.hidden", "runs/01JD.lock", "tasks/admitted/0123.json"):  # fmt: skip
        (layout.root / name).parent.mkdir(parents=True, exist_ok=True)
        (layout.root / name).write_text("x")
    assert census.files(layout) == before


def reward(episode: str, value: float | None) -> Reward:
    return Reward(
        id=f"reward:{episode}", episode=episode, task="t", run="r", policy="oracle", value=value, cause="", verdict="v",
        termination=Termination.FINISHED, truncated=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "cause", "values", "is_incomplete", "is_refused"),
    [
        ("complete", "", (1.0, 0.0), False, False),
        ("complete", "", (1.0, None), True, False),
        ("complete", "", (1.0,), True, False),
        ("open", "", (1.0, 1.0), True, False),
        ("refused", "", (1.0, None), True, False),
        ("refused", "sandbox_lost", (1.0, None), False, True),
        ("refused", "task_not_ready", (), False, True),
    ],
)
def test_a_group_is_whole_only_with_a_value_for_each_member(
    state: str, cause: str, values: tuple[float | None, ...], is_incomplete: bool, is_refused: bool
) -> None:
    group = GroupRow(id="g", run="r", place=0, task="t", policy="oracle", state=state, cause=cause)
    rows = [
        EpisodeRow(id=f"e{n}", run="r", place=n, group_id="g", task="t", policy="oracle", position=n, seed=0,
                   state=EpisodeState.SEALED)
        for n in range(2)
    ]  # fmt: skip
    incomplete, refused = tally([group], rows, [reward(f"e{n}", value) for n, value in enumerate(values)], size=2)
    assert (incomplete == [group], refused == [group]) == (is_incomplete, is_refused)


@pytest.mark.parametrize(("policy", "value", "undisturbed", "is_underpaid"), [
    ("oracle", 1.0, 1.0, False), ("oracle", 0.0, 1.0, True), ("oracle", 0.0, None, True), ("oracle", None, 1.0, False),
    ("search", 1.0, 1.0, False), ("search", 0.0, 0.0, False), ("search", 0.0, 1.0, True), ("search", 1.0, 0.0, False),
    ("search", None, 1.0, False), ("search", 0.0, None, False),
])  # fmt: skip
def test_a_fake_zero_is_less_than_the_same_seed_gets_undisturbed(
    policy: str, value: float | None, undisturbed: float | None, is_underpaid: bool
) -> None:
    row = EpisodeRow(
        id="e0", run="r", place=0, group_id="g", task="t", policy=policy, position=3, seed=0, state=EpisodeState.SEALED
    )
    assert underpaid([row], [reward("e0", value)], {("t", policy, 3): undisturbed}) == (
        [("t", policy, 3)] if is_underpaid else []
    )


def test_a_census_of_a_state_in_use_survives_what_is_removed_meanwhile(layout: Layout) -> None:
    """Folders come and go while a runner works; the count goes on with what is there."""
    ended = threading.Event()

    def churn() -> None:
        while not ended.is_set():
            place = layout.sandboxes / "01JD" / "a" / "b"
            place.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(layout.sandboxes / "01JD")

    worker = threading.Thread(target=churn)
    worker.start()
    try:
        for _ in range(100):
            census.files(layout)
    finally:
        ended.set()
        worker.join()
