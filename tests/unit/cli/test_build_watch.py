"""What is said of tests that a build could not use."""

from __future__ import annotations

import pytest

from ropewalk.cli.board import Board
from ropewalk.cli.task import NOTES_SHOWN, BuildWatch, print_yield
from ropewalk.interface.task import TaskKind
from ropewalk.tasks.records import BuildEvent, Reason, Rejection, SourceYield, YieldReport


def test_each_sentence_is_said_once_and_not_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    with Board() as board:
        watch = BuildWatch(board)
        for number in range(NOTES_SHOWN + 2):
            for source in ("a pair", "its mutants"):
                watch.observe(
                    BuildEvent(source=source, stage="left_out", detail=f"p {number}: 1 of 12 tests fails\x1b[")
                )
    capsys.readouterr()
    with Board() as board:
        watch_of_a_pair = BuildWatch(board)
        watch_of_a_pair.observe(BuildEvent(source="a pair", stage="remark", detail="p 2: no release notes"))
    capsys.readouterr()
    watch_of_a_pair.print_notes()
    assert "note: p 2: no release notes" in capsys.readouterr().err
    watch.observe(BuildEvent(source="", stage="fewer", detail="4 tasks were wanted and 1 came: [b]why[/b]"))
    watch.print_notes()
    said = capsys.readouterr().err
    assert "note: 4 tasks were wanted and 1 came: [b]why[/b]" in " ".join(said.split())
    assert said.count("1 of 12 tests fails") == NOTES_SHOWN and "2 more" in said and "\x1b[" not in said


def test_the_table_is_followed_by_why_a_source_gave_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    refused = Rejection(name="p 1 mutants", reason=Reason.BASELINE_FAILS, detail="p 1: No module named 'tabulate'")
    tried = Rejection(name="p 1 x in f", reason=Reason.SURVIVES, detail="4 tests pass")
    source = SourceYield(
        name="p 1 mutants", kind=TaskKind.MUTANT, distribution="p", rejections=(refused, tried), left_out=("1 fails",),
        remarks=("p 1: no release notes",),
    )  # fmt: skip
    print_yield(YieldReport(sources=(source,), seconds=1))
    said = capsys.readouterr().out
    assert "note: 1 fails" in said and "note: p 1: no release notes" in said
    assert "--requirements FILE with tabulate in it" in said
    assert "baseline_fails: p 1: No module named" in said
    assert "survives 1: no test notices the mistakes that were tried, e.g. p 1 x in f: 4 tests pass" in said


def test_resolving_requirements_is_a_stage_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with Board() as board:
        watch = BuildWatch(board)
        watch.observe(BuildEvent(source="requirements", stage="resolving", detail="attrs==25.3.0"))
        watch.observe(BuildEvent(source="toy 1.0", stage="started", total=3))
    said = capsys.readouterr().err
    assert "Resolve requirements …" in said and "Build tasks …" in said
    assert said.index("Ingest: ") < said.index("Resolve requirements …"), "it is not counted as ingest"


def test_a_log_counts_sources_and_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    with Board() as board:
        watch = BuildWatch(board)
        watch.observe(BuildEvent(source="a pair", stage="started", total=4))
        watch.observe(BuildEvent(source="a pair", stage="task", detail="one", total=4, tasks=1))
        board.note("said")
        board._printed_s = 0.0  # as if the last line were long ago
        watch.observe(BuildEvent(source="a pair", stage="finished", total=4, tasks=1))
    assert "Build tasks: 1/4 sources, 1 task admitted: a pair: finished" in capsys.readouterr().err
