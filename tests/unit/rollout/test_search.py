"""The search's parts: candidate edits undo small mistakes, lines are found, tests run and stop as they should."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.errors import CallerError
from ropewalk.core.outcomes import Termination
from ropewalk.interface.episode import ToolCall, ToolResult
from ropewalk.interface.task import Task
from ropewalk.rollout.episodes.context import SearchContext
from ropewalk.rollout.plan import SearchSettings
from ropewalk.rollout.policies.search import policy, visible_tests
from ropewalk.rollout.policies.search.candidates import Candidate, candidates, parses_differently
from ropewalk.rollout.policies.search.localise import localise
from ropewalk.rollout.policies.search.policy import SearchPolicy, dealt
from ropewalk.rollout.policies.search.visible_tests import PytestAnswer, pytest_command
from ropewalk.sandbox.contract import SandboxGoneError
from ropewalk.tasks.bodies import Function
from ropewalk.tasks.operators import mutate, mutations
from tests.unit.rollout.worlds import Durable, Result

SOURCE = '''def window(items, size=2, strict=True, *, fill=None):
    """Windows of `size` items."""
    found = []
    count = 0
    for start in range(0, len(items) - size + 1):
        piece = items[start : start + size]
        if strict and len(piece) != size or not piece:
            continue
        if count >= 10:
            return found
        count += 1
        found.append(join(piece, fill))
    return found


def join(one, two):
    total = one * 2
    return (total, two)
'''


def everywhere(source: str) -> dict[int, float]:
    return dict.fromkeys(range(1, source.count("\n") + 2), 1.0)


def test_candidates_undo_nearly_every_mutation() -> None:
    """Each mutant of every operator has a candidate that gives the original program back."""
    source = SOURCE.encode()
    original = _dump(source)
    missed: dict[str, int] = {}
    total = 0
    for node in ast.parse(source).body:
        assert isinstance(node, Function)
        for edit in mutations(source, node.name, node):
            mutant = mutate(source, edit)
            if mutant is None:
                continue
            total += 1
            ideas = candidates("a.py", mutant, everywhere(mutant.decode()))
            repaired = (_dump(idea.apply(mutant)) for idea in ideas)
            if original not in repaired:
                missed[edit.operator] = missed.get(edit.operator, 0) + 1
    assert total > 30
    # What a dropped statement said is lost; that it can be guessed at all is luck.
    assert set(missed) <= {"dropped_statement"}, missed


class WithoutPass(ast.NodeTransformer):
    """A `pass` beside other statements means nothing."""

    def visit_Pass(self, node: ast.Pass) -> None:
        return None


def _dump(source: bytes) -> str:
    try:
        return ast.dump(WithoutPass().visit(ast.parse(source)))
    except SyntaxError:
        return ""


def test_candidates_stay_on_suspicious_lines_and_are_ranked() -> None:
    ideas = candidates("a.py", SOURCE.encode(), {17: 0.9, 7: 0.1})
    assert ideas == sorted(ideas, key=lambda idea: -idea.score)
    assert ideas[0].line == 17 and {idea.line for idea in ideas} <= {1, 7, 17}
    assert candidates("a.py", b"def f(:\n", {1: 1.0}) == []
    assert candidates("a.py", SOURCE.encode(), {}) == []
    same = ideas[0].__class__(path="a.py", operator="x", line=1, start=0, end=0, text=" ", score=1.0)
    assert not parses_differently(same, SOURCE.encode())


def test_members_of_a_group_try_different_edits_and_each_the_same_again() -> None:
    ideas = candidates("a.py", SOURCE.encode(), everywhere(SOURCE))
    orders = [dealt(ideas, random.Random(seed), position=seed, members=4) for seed in range(4)]
    assert all(sorted(order, key=repr) == sorted(ideas, key=repr) for order in orders)
    first = [(idea.start, idea.end, idea.text) for order in orders for idea in order[: len(ideas) // 4]]
    assert len(first) == len(set(first)), "each has a share of its own"
    best = sorted(idea.score for idea in ideas)[-8:]
    assert sorted(idea.score for order in orders for idea in sorted(order[: len(ideas) // 4], key=by_score)[:2]) == best
    again = dealt(ideas, random.Random(1), position=1, members=4)
    assert again == orders[1] and again != dealt(ideas, random.Random(5), position=1, members=4)


def by_score(idea: Candidate) -> float:
    return -idea.score


def test_localisation_prefers_lines_of_failing_tests(tmp_path: Path) -> None:
    task = Durable(tmp_path).task()
    a, b = task.visible_tests
    answer = PytestAnswer(
        exit_code=1, outcomes={a: "failed", b: "passed"}, durations={a: 0.1, b: 0.2},
        lines={a: {"/work/pkg/code.py": [1, 2]}, b: {"/work/pkg/code.py": [2, 3]}}, stopped=None, problems=[],
    )  # fmt: skip
    found = localise(task, answer, {a})
    assert found.failing == (a,) and found.passing == (b,)
    assert found.suspicion["pkg/code.py"][1] == 1.0
    assert found.suspicion["pkg/code.py"][2] == pytest.approx(0.5**0.5)
    assert 3 not in found.suspicion["pkg/code.py"]


def test_commands_other_than_pytest_are_refused(tmp_path: Path) -> None:
    durable = Durable(tmp_path)
    assert pytest_command(durable.task(test_command=("python3", "-I", "-m", "pytest", "-q"))) == (
        ["python3", "-I"],
        ["-q"],
    )
    assert pytest_command(durable.task(test_command=("pytest",))) == (["python3"], [])
    with pytest.raises(CallerError, match="needs pytest"):
        pytest_command(durable.task(test_command=("make", "test")))


@pytest.mark.parametrize(
    "output", ["", "noise", visible_tests.MARK, visible_tests.MARK + "{", visible_tests.MARK + '{"exit_code": "x"}']
)
def test_what_a_sandbox_says_may_be_anything(output: str) -> None:
    assert visible_tests._read(output) is None


PACKAGE = {
    "pkg/__init__.py": "",
    "pkg/code.py": "def double(x):\n    return x + 2\n\n\ndef half(x):\n    return x // 2\n",
    "tests/test_code.py": (
        "from pkg.code import double, half\n\n\n"
        "def test_a():\n    assert double(3) == 6\n\n\n"
        "def test_b():\n    assert half(4) == 2\n\n\n"
        "def test_c():\n    print('noise')\n    assert double(2) == 4\n"
    ),
}


class FolderFork:
    """A fork that is a folder of this machine; the code in it is this test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for path, text in PACKAGE.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)

    def _place(self, path: str) -> Path:
        return self.folder / path.lstrip("/") if path.startswith(visible_tests.FOLDER) else self.folder / path

    async def write(self, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            self._place(path).parent.mkdir(parents=True, exist_ok=True)
            self._place(path).write_bytes(data.replace(b"/work", str(self.folder).encode()))

    async def exec(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float) -> Any:
        argv = [str(self._place(part)) if part.startswith(visible_tests.FOLDER) else part for part in command]
        argv[0] = sys.executable
        done = subprocess.run(  # noqa: ASYNC221  (nothing else runs meanwhile)
            argv, cwd=self.folder, capture_output=True, text=True, timeout=timeout_s,
            env={"PATH": "/usr/bin:/bin", **(env or {})}, check=False,
        )  # fmt: skip
        return Result(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)


A, B, C = (f"tests/test_code.py::test_{name}" for name in "abc")


def real_task(folder: Path) -> Task:
    return Durable(folder).task(visible_tests=(A, B, C), visible_killers=(A,))


async def test_a_traced_run_inside(tmp_path: Path) -> None:
    fork = FolderFork(tmp_path)
    run = await visible_tests.run_tests(
        fork, real_task(tmp_path), first=[A], rest=[B, C], trace=["pkg/code.py"], timeout_s=30.0
    )  # fmt: skip
    assert run.answer is not None, json.dumps(PACKAGE)
    assert run.answer.outcomes == {A: "failed", B: "passed", C: "passed"}
    code = str(tmp_path / "pkg/code.py")
    assert run.answer.lines == {A: {code: [1, 2]}, B: {code: [5, 6]}, C: {code: [1, 2]}}
    assert run.failing([A, B]) == {A}


async def test_runs_stop_as_early_as_is_sound(tmp_path: Path) -> None:
    fork, task = FolderFork(tmp_path), real_task(tmp_path)

    async def run(source: bytes) -> PytestAnswer:
        done = await visible_tests.run_tests(
            fork, task, first=[A], rest=[B, C], failing_max=0, timeout_s=30.0, files={"pkg/code.py": source}
        )
        assert done.answer is not None
        return done.answer

    no_better = await run(PACKAGE["pkg/code.py"].encode())
    assert no_better.outcomes == {A: "failed"} and no_better.stopped == "no better"
    breaks = await run(b"def double(x):\n    return x * 2\n\n\ndef half(x):\n    return x\n")
    assert breaks.outcomes == {A: "passed", B: "failed"} and breaks.stopped == f"{B} fails too"
    right = await run(b"def double(x):\n    return x * 2\n\n\ndef half(x):\n    return x // 2\n")
    assert right.outcomes == {A: "passed", B: "passed", C: "passed"} and right.stopped is None
    gone = await run(b"syntax error(\n")
    assert gone.problems and not gone.outcomes


class FolderBench:
    """Forks that are folders."""

    def __init__(self, root: Path, forks: int = 50, steps: int = 20) -> None:
        self.root = root
        self.forks_left = forks
        self.steps_left = steps
        self.kept: dict[str, bytes] = {}
        self.steps: list[tuple[ToolCall, ToolResult]] = []
        self.die: Termination | None = None

    @asynccontextmanager
    async def fork(self) -> Any:
        self.forks_left -= 1
        if self.die and self.steps:
            raise SandboxGoneError("gone", termination=self.die)
        fork = FolderFork(self.root / str(self.forks_left))
        await fork.write(self.kept)
        yield fork

    async def step(self, call: ToolCall, result: ToolResult, *, files: Mapping[str, Any], time_s: Any) -> None:
        self.steps_left -= 1
        self.steps.append((call, result))
        self.kept.update(files)


def search_context(bench: FolderBench, task: Task, seed: int = 1) -> SearchContext:
    sources = {"pkg/code.py": PACKAGE["pkg/code.py"].encode()}
    return SearchContext(task, seed=seed, sources=sources, bench=bench)


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of traced lines, which name the fork's folder here, as they would be inside."""
    read = visible_tests._read

    def renamed(output: str) -> PytestAnswer | None:
        answer = read(output)
        if answer is None:
            return None
        lines = {t: {f"/work/pkg/{Path(p).name}": n for p, n in files.items()} for t, files in answer.lines.items()}
        return PytestAnswer(**{**{f: getattr(answer, f) for f in answer.__struct_fields__}, "lines": lines})

    monkeypatch.setattr(visible_tests, "_read", renamed)


async def test_a_search_mends_the_function(tmp_path: Path, in_place: None) -> None:
    bench, task = FolderBench(tmp_path), real_task(tmp_path)
    end = await SearchPolicy(SearchSettings()).run(search_context(bench, task))
    assert end is None, bench.steps
    assert b"x * 2" in bench.kept["pkg/code.py"]
    call, result = bench.steps[-1]
    assert call.arguments["old"] == "+" and call.arguments["new"] == "*" and result.output.endswith("; kept")
    assert all(result.output.endswith("dropped") for _, result in bench.steps[:-1])
    assert bench.forks_left == 50 - 1 - len(bench.steps), "one fork to trace, one per step"


async def test_what_parses_whole_modules_runs_beside_the_event_loop(
    tmp_path: Path, in_place: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_loop: dict[str, list[bool]] = {}
    calls = {name: getattr(policy, name) for name in ("candidates", "parses_differently", "localise")}
    for name in calls:

        def noting(*arguments: Any, name: str = name) -> Any:
            on_the_loop.setdefault(name, []).append(threading.current_thread() is threading.main_thread())
            return calls[name](*arguments)

        monkeypatch.setattr(policy, name, noting)
    task = real_task(tmp_path)
    bench = FolderBench(tmp_path)
    await SearchPolicy(SearchSettings()).run(search_context(bench, task))
    assert b"x * 2" in bench.kept["pkg/code.py"]
    assert set(on_the_loop) == {"candidates", "parses_differently", "localise"}
    assert len(on_the_loop["candidates"]) > 1, "made anew after an edit that was kept"
    assert not any(any(each) for each in on_the_loop.values())


async def test_a_search_ends_by_budget(tmp_path: Path, in_place: None) -> None:
    task = real_task(tmp_path)
    policy = SearchPolicy(SearchSettings())
    for bench in (FolderBench(tmp_path / "s", steps=0), FolderBench(tmp_path / "f", forks=1)):
        end = await policy.run(search_context(bench, task))
        assert end is not None and end.truncated and end.termination is Termination.POLICY_STOP
        assert ("steps" if bench.steps_left == 0 else "forks") in end.detail


async def test_an_edit_that_eats_all_memory_is_dropped_and_a_lost_fork_is_not(tmp_path: Path, in_place: None) -> None:
    task = real_task(tmp_path)
    policy = SearchPolicy(SearchSettings())
    await policy.run(search_context(FolderBench(tmp_path / "first", steps=0), task))
    bench = FolderBench(tmp_path, steps=2)
    bench.die, bench.steps = Termination.OUT_OF_MEMORY, [(ToolCall(name="x"), ToolResult(output=""))]
    end = await policy.run(search_context(bench, task))
    assert end is not None and bench.steps[-1][1].termination is Termination.OUT_OF_MEMORY
    bench = FolderBench(tmp_path, steps=2)
    bench.die, bench.steps = Termination.INFRASTRUCTURE, [(ToolCall(name="x"), ToolResult(output=""))]
    with pytest.raises(SandboxGoneError):
        await policy.run(search_context(bench, task))


ODD = {
    "mark": b"\xef\xbb\xbf" + SOURCE.encode(),
    "cookie": ("# coding: latin-1\n" + SOURCE.replace("Windows", "F\xe9n\xeatres")).encode("latin-1"),
    "cookie of ascii": ("# coding: cp1252\n" + SOURCE).encode(),
    "no encoding": SOURCE.replace("Windows", "F\xe9n\xeatres").encode("latin-1"),
}


@pytest.mark.parametrize("source", ODD.values(), ids=ODD)
def test_sources_in_other_encodings_are_left_alone(source: bytes) -> None:
    assert candidates("a.py", source, everywhere(SOURCE)) == []
    for node in ast.parse(SOURCE).body:
        assert isinstance(node, Function)
        assert mutations(source, node.name, node) == ()


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_lines_are_counted_as_python_does(end: str) -> None:
    source = SOURCE.replace("\n", end).encode()
    plain = {(idea.line, idea.operator) for idea in candidates("a.py", SOURCE.encode(), everywhere(SOURCE))}
    assert {(idea.line, idea.operator) for idea in candidates("a.py", source, everywhere(SOURCE))} == plain
