"""A run on the terminal: names instead of ids, and no more columns than there is something to say in."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from ropewalk.cli import output
from ropewalk.cli.board import Board
from ropewalk.cli.output import print_table
from ropewalk.cli.run_view import RunWatch, print_findings, print_summary
from ropewalk.rollout import events
from ropewalk.rollout.findings import Finding, FindingKind, Severity
from ropewalk.rollout.summary import distinct
from tests.unit.app.samples import summary

TASKS = {"task:" + "0a1b" * 8: "toolz mutant", "task:" + "0a1c" * 8: "toolz mutant", "task:" + "f" * 32: "else"}


def test_equal_names_are_told_apart_by_their_ids() -> None:
    assert list(distinct(TASKS).values()) == ["toolz mutant (0a1b0a1b)", "toolz mutant (0a1c0a1c)", "else"]


def test_a_resumed_run_names_its_tasks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.cli.board.PLAIN_PERIOD_S", 0.0)
    task = next(iter(TASKS))
    with Board() as board:
        watch = RunWatch(board)
        watch.observe(
            events.RunStarted(
                run="run:1", tasks=1, policies=("noop",), episodes_total=2, episodes_sealed=1, names=distinct(TASKS)
            )
        )
        watch.observe(
            events.EpisodeStarted(run="run:1", episode="episode:1", task=task, policy="noop", index=0, attempt=1)
        )
        watch.observe(
            events.RewardSealed(
                run="run:1",
                episode="episode:1",
                task=task,
                policy="noop",
                reward="reward:1",
                value=0.0,
                cause="no_change",
            )
        )
    said = capsys.readouterr().err
    assert "Run 1 task × noop" in said, "one is no tasks"
    assert "toolz mutant (0a1b0a1b) noop #0 reward 0" in said and "task:" not in said


def test_what_failed_is_only_said_to_begin_anew_where_it_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropewalk.cli.board.PLAIN_PERIOD_S", 0.0)
    with Board() as board:
        board.begin("Run", total=1)
        watch = RunWatch(board)
        for stage, cause in (("play", "sandbox_lost"), ("play", "endpoint_refused"), ("grade", "starved")):
            for again in (True, False):
                watch.observe(
                    events.AttemptFailed(
                        run="run:1", episode="episode:1", attempt=1, stage=stage, again=again, cause=cause, detail=""
                    )
                )
    said = capsys.readouterr().err
    for words in (
        "lost on our side (sandbox_lost), begins anew", "lost on our side (sandbox_lost), is not scored",
        "the endpoint failed (endpoint_refused), begins anew", "the endpoint failed (endpoint_refused), is not scored",
        "its grading failed (starved), is graded anew", "its grading failed (starved), is not scored",
    ):  # fmt: skip
        assert said.count(words) == 1


def test_counts_of_one_are_singular(capsys: pytest.CaptureFixture[str]) -> None:
    with Board() as board:
        board.begin("Build", total=1, unit="sources")
        board.advance("x")
    assert "1/1 source (" in capsys.readouterr().err


def columns(capsys: pytest.CaptureFixture[str], rows: Sequence[Sequence[object]]) -> list[str]:
    print_table(("task", "note", ">n"), rows, empty="none")
    return capsys.readouterr().out.splitlines()[0].split()


def test_a_column_without_content_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert columns(capsys, [("a", "", 1), ("b", None, 0)]) == ["task", "n"]
    assert columns(capsys, [("a", "", 1), ("b", "x", 0)]) == ["task", "note", "n"]


def test_a_script_finds_each_row_on_one_line_however_wide(capsys: pytest.CaptureFixture[str]) -> None:
    ids = [f"{kind}:{'0A' * 13}" for kind in ("reward", "episode", "task", "run", "snapshot", "statement")]
    print_table(
        ("reward", "episode", "task", "run", "snapshot", ">statement", "note"), [(*ids, "z" * 300)], empty="none"
    )
    _, line = capsys.readouterr().out.splitlines()
    assert line.split() == [*ids, "z" * 300]


def test_long_names_fold_on_a_terminal_and_are_whole_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = summary()
    long = "more-itertools 9.1.0→10.0.0 " + "ChunkedEvenTests_" * 3
    rows = tuple(msgspec.structs.replace(row, task_name=long, task="task:1", refusal="") for row in made.rows[:1])
    made = msgspec.structs.replace(made, rows=rows)
    print_summary(made)
    assert long in capsys.readouterr().out
    plain = output.console

    def terminal(*, error: bool = False) -> output.Console:
        made = plain(error=error)
        made._force_terminal = True
        made.width = 130
        return made

    monkeypatch.setattr(output, "console", terminal)
    print_summary(made)
    assert long not in capsys.readouterr().out


def test_all_that_a_finding_speaks_of_can_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    ids = [f"episode:{number:03}" for number in range(30)]
    finding = Finding(
        kind=FindingKind.TRUNCATED, severity=Severity.NOTE, title="Cut.", next_step="", subjects=tuple(ids)
    )
    print_findings([finding], everything="ropewalk diagnose R --full")
    said = " ".join(capsys.readouterr().out.split())
    assert said.endswith(f"in: {', '.join(ids[:4])} and 26 more (ropewalk diagnose R --full)")
    print_findings([finding], full=True)
    said = capsys.readouterr().out
    assert [id for id in ids if id not in said] == [] and "more" not in said
