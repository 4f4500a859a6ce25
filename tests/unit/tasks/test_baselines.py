"""What is said of tests that do not pass on the source they belong to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.marks import MemoryMarks

from ropewalk.core.clock import SystemClock
from ropewalk.core.outcomes import Termination
from ropewalk.interface.task import TaskKind
from ropewalk.reward.suite import SuitePlan, SuiteRecord, TestOutcome
from ropewalk.tasks.baselines import left_out, missing_modules, nothing_passes
from ropewalk.tasks.bench import Bench as RealBench
from ropewalk.tasks.bench import BuildWorld
from ropewalk.tasks.killers import find_killers, make_pair
from ropewalk.tasks.mutants import MutantBuilder
from ropewalk.tasks.quota import Quota
from ropewalk.tasks.reasons import MEANINGS, advice, examples, why_fewer, why_nothing
from ropewalk.tasks.records import BuildPlan, MutantPlan, Reason, Rejection, ReleaseRef, SourceYield, YieldReport
from ropewalk.tasks.tree import SourceTree, make_tree

MODULES = ("tests/test_a.py", "tests/test_b.py", "tests/test_c.py")
LOST = "tests/test_b.py: E   ModuleNotFoundError: No module named 'tabulate'"


def tree() -> SourceTree:
    files = {"pkg/__init__.py": b"def f(x):\n    return x + 1\n", **dict.fromkeys(MODULES, b"import pkg\n")}
    return make_tree(files, distribution="ledgerly", version="0.3.0")


def outcome(name: str, outcome: str = "passed", message: str = "") -> TestOutcome:
    return TestOutcome(key=name, node_id=name, outcome=outcome, seconds=0.1, message=message)


def suite(*tests: TestOutcome, problem: str = "", complete: bool = True) -> SuiteRecord:
    return SuiteRecord(
        tests=tests, complete=complete, problem=problem, exit_code=1, signal=None, termination=Termination.FINISHED,
        truncated=False, duration_s=1.0, cpu_s=1.0,
    )  # fmt: skip


GOOD = outcome("tests/test_a.py::test_one")
WRONG = outcome("tests/test_a.py::test_two", "failed", "AssertionError")


def test_nothing_is_said_where_all_is_well() -> None:
    assert left_out(tree(), MODULES, suite(GOOD)) == () and nothing_passes(tree(), MODULES, suite(GOOD)) == ""


def test_what_fails_is_counted_and_named() -> None:
    said = left_out(tree(), MODULES, suite(GOOD, WRONG, problem=LOST))
    assert said == (
        "ledgerly 0.3.0: 1 of 2 tests fails here and is left out: tests/test_a.py::test_two (AssertionError)",
        "ledgerly 0.3.0: 1 of 3 test modules cannot be imported here and is left out: tests/test_b.py "
        "(ModuleNotFoundError: No module named 'tabulate')",
    )
    (said_of_two,) = left_out(tree(), MODULES, suite(GOOD, WRONG, outcome("tests/test_c.py::test_x", "error")))
    assert "2 of 3 tests fail here and are left out" in said_of_two and said_of_two.endswith("(AssertionError), …")


def test_a_suite_of_which_nothing_passes_names_what_is_missing() -> None:
    more = "tests/test_c.py: E   ModuleNotFoundError: No module named 'numpy.core'"
    one, two = (nothing_passes(tree(), MODULES, suite(problem=text)) for text in (LOST, f"{LOST}; {more}"))
    assert one == (
        "ledgerly 0.3.0: no test passes on its own source in the sandbox. "
        "First: ModuleNotFoundError: No module named 'tabulate' (tests/test_b.py)"
    )
    assert (missing_modules(one), missing_modules(two)) == (("tabulate",), ("tabulate", "numpy"))
    failed = nothing_passes(tree(), MODULES, suite(WRONG))
    assert failed.endswith("First: AssertionError (tests/test_a.py::test_two)") and missing_modules(failed) == ()


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (suite(GOOD, complete=False, problem="the record stops early"), "the record stops early"),
        (suite(), "pytest collected 0 tests and ended with 1"),
        (suite(outcome("t", "skipped")), "pytest collected 1 tests"),
    ],
)
def test_every_other_way_to_have_no_test_is_told(record: SuiteRecord, said: str) -> None:
    assert said in nothing_passes(tree(), MODULES, record)


def test_what_a_package_says_can_do_nothing_on_a_terminal() -> None:
    hostile = "\x1b]0;owned\x07\u202eabc" + "x" * 5000
    said = (*left_out(tree(), MODULES, suite(GOOD, outcome("t", "failed", hostile))),
            nothing_passes(tree(), MODULES, suite(outcome("t", "failed", hostile))))  # fmt: skip
    assert all(text.isprintable() and len(text) < 400 for text in said)


class Bench:
    """Gives one record for every run."""

    clock = SystemClock()

    def __init__(self, record: SuiteRecord) -> None:
        self._record = record

    async def layer(self, files: object) -> str:
        return "a" * 64

    async def baseline(self, *_: object, **__: object) -> SuiteRecord:
        return self._record


async def test_no_sandbox_of_a_suite_is_made_without_its_room(tmp_path: Path) -> None:
    rooms = live = most = 0

    @asynccontextmanager
    async def room() -> AsyncIterator[None]:
        nonlocal rooms
        rooms += 1
        yield
        rooms -= 1

    class Box:
        async def close(self) -> None:
            nonlocal live
            live -= 1

    class Sandboxes:
        async def create(self, spec: object) -> Box:
            nonlocal live, most
            live += 1
            most = max(most, live)
            assert live <= rooms
            await anyio.lowlevel.checkpoint()
            return Box()

    class Runner:
        async def run(self, box: object, plan: object, **_: object) -> SuiteRecord:
            return suite(GOOD)

    nothing: Any = None
    made: Any = Sandboxes()
    layers: Any = SimpleNamespace(add_files=lambda files: SimpleNamespace(digest="c" * 64))
    runner: Any = Runner()
    bench = RealBench(
        made, nothing, layers, BuildWorld(tenant="t", image="d" * 64, image_layers=()), tmp_path, MemoryMarks(),
        parallel=2, room=room, runner=runner,
    )  # fmt: skip
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(
                partial(bench.run, tree(), "e" * 64, {}, SuitePlan(workdir="/", files=()), data_class="public")
            )
    assert most == 2 and not rooms


PLAN = MutantPlan(
    release=ReleaseRef(distribution="ledgerly", version="0.3.0", raw="a" * 64, licence="MIT", commit="b" * 64), count=2
)


async def mutants(record: SuiteRecord) -> SourceYield:
    bench: Any = Bench(record)
    assembly: Any = None
    places = Quota(BuildPlan(pairs=(), mutants=(PLAN,), tenant="t", control_only=True)).mutants(0)
    return await MutantBuilder(bench, assembly, seed=0).build(PLAN, tree(), lambda stage, detail: None, places)


async def test_mutants_of_a_suite_that_passes_nowhere_give_the_reason() -> None:
    found = await mutants(suite(problem=LOST))
    assert [each.reason for each in found.rejections] == [Reason.BASELINE_FAILS]
    assert "No module named 'tabulate'" in found.rejections[0].detail and found.left_out == ()


async def test_mutants_that_no_function_can_have_give_the_reason_and_what_is_left_out() -> None:
    found = await mutants(suite(GOOD, WRONG))
    assert [each.reason for each in found.rejections] == [Reason.ONE_BODY]
    assert len(found.left_out) == 1 and found.tests == 1


async def test_pairs_of_a_suite_that_passes_nowhere_give_the_reason() -> None:
    bench: Any = Bench(suite(problem=LOST))
    found = await find_killers(bench, await make_pair(bench, tree(), tree(), data_class="public"))
    assert "No module named 'tabulate'" in found.problem and not found.killers


def test_every_reason_has_a_meaning_and_a_next_step() -> None:
    assert set(MEANINGS) == set(Reason) and all(all(texts) for texts in MEANINGS.values())


@pytest.mark.parametrize(
    ("first", "helps"),
    [
        ("AssertionError", "make them pass on their own source"),
        ("SyntaxError: invalid syntax (src/pkg/a.py:3)", "cannot parse"),
        ("fixture 'mocker' not found", "--plugin pytest_mock, and --requirements FILE"),
        ("fixture 'ours' not found", "--plugin MODULE with the pytest plugin that has 'ours'"),
        ("Error importing plugin \"pytest_mok\": No module named 'pytest_mok'", "name a plugin by its module"),
    ],
)
def test_what_helps_follows_from_what_went_wrong(first: str, helps: str) -> None:
    detail = nothing_passes(tree(), MODULES, suite(outcome("tests/test_a.py::test_two", "error", first)))
    assert helps in advice(Rejection(name="ledgerly", reason=Reason.BASELINE_FAILS, detail=detail))
    (said,) = left_out(tree(), MODULES, suite(GOOD, outcome("tests/test_a.py::test_two", "error", first)))
    assert ("--plugin" in said) is ("fixture" in first)


def fewer(*rejections: Rejection, came: int = 1, share_max: float | None = 0.25) -> str:
    return why_fewer(report(*rejections), came=came, wanted=4, mutant_share_max=share_max)


def test_fewer_tasks_than_wanted_are_explained() -> None:
    guessed = [Rejection(name=f"m{n}", reason=Reason.LOW_ENTROPY, detail="worth 0 bits") for n in range(2)]
    said = fewer(*guessed, Rejection(name="m3", reason=Reason.QUOTA, detail="25% at most"))
    assert said.startswith(
        "4 tasks were wanted and 1 came: 2 × what tests compare can be guessed (m0: worth 0 bits); 1"
    )
    assert "stand nowhere in the source" in said and "raise tasks.mutant_share_max" in said
    assert "mutant_share_max" not in fewer(*guessed, share_max=None)
    assert fewer(share_max=None).endswith("the sources hold no more. Next: name more releases.")
    assert "the sources hold no more" in fewer()
    assert fewer(*guessed, came=4) == fewer(*guessed, came=0) == ""


def test_each_reason_has_an_example_and_what_helps() -> None:
    tried = [Rejection(name=f"m{number}", reason=Reason.SURVIVES, detail="4 tests pass") for number in range(3)]
    ((line, helps),) = examples(report(*tried))
    assert line == "survives 3: no test notices the mistakes that were tried, e.g. m0: 4 tests pass"
    assert helps == MEANINGS[Reason.SURVIVES][1]


def report(*rejections: Rejection) -> YieldReport:
    source = SourceYield(name="ledgerly 0.3.0 mutants", kind=TaskKind.MUTANT, distribution="ledgerly")
    return YieldReport(
        sources=(SourceYield(name=source.name, kind=source.kind, distribution="ledgerly", rejections=rejections),),
        seconds=1,
    )


def test_no_tasks_are_explained_by_what_ended_their_source() -> None:
    detail = nothing_passes(tree(), MODULES, suite(problem=LOST))
    refused = Rejection(name="ledgerly 0.3.0 mutants", reason=Reason.BASELINE_FAILS, detail=detail)
    message, next_step = why_nothing(report(refused))
    assert message == f"The sources gave no task: {detail}."
    assert next_step.startswith("--requirements FILE with tabulate in it")
    bare = Rejection(name="ledgerly 0.3.0 mutants", reason=Reason.NO_TESTS, detail="ledgerly 0.3.0 holds no tests.")
    assert why_nothing(report(bare)) == (
        "The sources gave no task: ledgerly 0.3.0 holds no tests.",
        MEANINGS[Reason.NO_TESTS][1],
    )


def test_no_tasks_are_explained_by_the_most_frequent_reason_with_an_example() -> None:
    tried = [Rejection(name=f"m{number}", reason=Reason.SURVIVES, detail="4 tests pass") for number in range(3)]
    message, next_step = why_nothing(report(Rejection(name="m9", reason=Reason.LEAK, detail="x.py"), *tried))
    assert "3 × no test notices the mistakes that were tried (m0: 4 tests pass); 1 × the answer" in message
    assert next_step == MEANINGS[Reason.SURVIVES][1] == advice(tried[0])
    assert "nothing to build from" in why_nothing(report())[0]
