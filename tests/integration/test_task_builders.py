"""Task builders over real sandboxes, on a small package in several releases that is written here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest

from ropewalk.core.errors import RopewalkError
from ropewalk.core.records import decode, digest
from ropewalk.interface.task import FileSet, Task, TaskKind
from ropewalk.lake.archives import unpack
from ropewalk.reward.globs import matches_any
from ropewalk.reward.ports import GradingSandbox, GradingSandboxes
from ropewalk.sandbox.contract import SandboxSpec
from ropewalk.tasks.builder import TaskBuilder, Workshop, adjacent
from ropewalk.tasks.reasons import advice
from ropewalk.tasks.records import BuildEvent, BuildPlan, MutantPlan, Reason, ReleaseRef, YieldReport
from ropewalk.tasks.requirements import wheel_layer
from ropewalk.tasks.tree import SourceTree, make_tree
from ropewalk.tasks.worlds import TEST_ENV
from tests.grading import GradingWorld, grading_world
from tests.marks import MemoryMarks
from tests.unit.tasks.test_requirements import make_wheel

OLD = '''"""Yarn."""


def chunked(items, size):
    """Pieces of `size` items; the last may be shorter."""
    return [items[at : at + size] for at in range(0, len(items) - size + 1, size)]


def rotated(text, by):
    """The text turned to the left."""
    return text[by:] + text[:by]


def scaled(numbers, factor):
    """Every number times the factor, negative ones twice."""
    return [number * factor for number in numbers]


def countdown(number):
    """From a number to one."""
    found = []
    while number != 0:
        found.append(number)
        number -= 1
    return found


def joined(words, between=" "):
    """Words as one text."""
    text = ""
    for word in words:
        text += word + between
    return text[: len(text) - len(between)]
'''
NEW = (
    OLD.replace("len(items) - size + 1, size", "len(items), size")
    .replace("    return text[by:]", "    by = by % len(text) if text else 0\n    return text[by:]")
    .replace(
        "number * factor for number in numbers", "number * factor * (2 if number < 0 else 1) for number in numbers"
    )
    .replace("while number != 0", "while number > 0")
    + '''

def doubled(words):
    """Every word twice."""
    return [word for word in words for _ in range(2)]
'''
)
TESTS = textwrap.dedent("""
    import pytest

    from yarn import chunked, countdown, doubled, joined, rotated, scaled


    class Chunks:
        size = 3

        def test_last_piece_is_shorter(self):
            assert chunked([11, 22, 33, 44, 55], self.size)[-1] == [44, 55]


    class TestChunked(Chunks):
        def test_even(self):
            assert chunked([1, 2, 3, 4], 2) == [[1, 2], [3, 4]]

        def test_more_than_there_is(self):
            assert chunked(["some", "yarn"], 7) == [["some", "yarn"]]

        def test_text(self):
            assert chunked("ropewalk!", 4) == ["rope", "walk", "!"]

        @pytest.mark.parametrize("size", [4, 5])
        def test_sizes(self, size):
            assert chunked([901, 802, 703, 604, 505, 406], size)[1] == [901, 802, 703, 604, 505, 406][size:]


    class TestLargerChunks(Chunks):
        size = 3


    def test_rotated_once():
        assert rotated("abcdef", 2) == "cdefab"


    def test_rotated_by_more():
        assert rotated("ropewalk", 11) == "ewalkrop"


    def test_rotated_by_much_more():
        assert rotated("hawser", 100) == "erhaws"


    def test_scaled():
        assert scaled([3, -7, 12], 5) == [15, -70, 60]


    def test_scaled_by_nothing():
        assert scaled([], 3) == []


    def test_countdown():
        assert countdown(3) == [3, 2, 1]


    def test_countdown_of_less_than_nothing():
        assert countdown(-1) == []


    def test_joined():
        assert joined(["a", "b"]) == "a b"
        assert joined(["rogue", "yarn"], "'s ") == "rogue's yarn"


    def test_joined_nothing():
        assert joined([]) == ""


    def test_doubled():
        assert doubled(["left", "right"]) == ["left", "left", "right", "right"]
""")
NOTES = (
    "# Changes\n\n## 2.0\n\n- `rotated` takes any number\n- `scaled` doubles negative numbers\n\n## 1.0\n\n- First\n"
)


def release(version: str, source: str, tests: str = TESTS, **more: bytes) -> SourceTree:
    files = {"yarn.py": source.encode(), "tests/test_yarn.py": tests.encode(), "CHANGES.md": NOTES.encode(), **more}
    return make_tree(files, distribution="yarn", version=version)


def ref(tree: SourceTree) -> ReleaseRef:
    return ReleaseRef(
        distribution=tree.distribution, version=tree.version, raw=tree.digest, licence="MIT", commit=digest("commit")
    )


@pytest.fixture
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GradingWorld]:
    root = tmp_path_factory.getbasetemp().parent / "ropewalk-shared"
    try:
        async with grading_world(root) as made:
            yield made
    except RopewalkError as error:
        if error.exit_code not in (6, 7):
            raise
        pytest.skip(f"no sandboxes on this machine: {error}")


MARKS = MemoryMarks()
MARKS._key = bytes(32)  # one installation, in all processes: they share the indexes of the image


def shop(
    world: GradingWorld, folder: Path, *trees: SourceTree, wheels: tuple[str, ...] = (), parallel: int = 2
) -> Workshop:
    by_raw = {tree.digest: tree for tree in trees}
    indexes = world.sandboxes._layout.root / "indexes"  # of the image, made once for all tests
    indexes.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    if not (folder / "indexes").exists():
        (folder / "indexes").symlink_to(indexes)
    return Workshop(
        sandboxes=world.sandboxes, blobs=world.blobs, layers=world.layers,
        image=world.sandboxes.images.get(world.image),  # type: ignore[attr-defined]
        trees=lambda release: by_raw[release.raw], folder=folder, wheels=wheels,
        parallel=parallel, marks=MARKS,
    )  # fmt: skip


class Noted:
    """Makes the world's sandboxes, and remembers of which data class and how many."""

    def __init__(self, sandboxes: GradingSandboxes) -> None:
        self._sandboxes = sandboxes
        self.classes: set[str] = set()
        self.made = 0

    async def create(self, spec: SandboxSpec) -> GradingSandbox:
        self.classes.add(spec.data_class)
        self.made += 1
        return await self._sandboxes.create(spec)


async def build(world: GradingWorld, folder: Path, *trees: SourceTree, **plan: object) -> YieldReport:
    pairs = adjacent([ref(tree) for tree in trees])
    return await TaskBuilder(shop(world, folder, *trees)).build(BuildPlan(pairs=pairs, tenant="tests", **plan))  # type: ignore[arg-type]


def contents(world: GradingWorld, layers: tuple[str, ...]) -> Mapping[str, bytes]:
    found = {}
    for layer in layers:
        root = world.layers.path(layer)
        found |= {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return found


async def test_release_tasks(world: GradingWorld, tmp_path: Path) -> None:
    before, after = release("1.0", OLD), release("2.0", NEW)
    report = await build(world, tmp_path, before, after)
    (source,) = report.sources
    assert source.dropped == ("tests/test_yarn.py::test_countdown_of_less_than_nothing",)
    assert source.killers == 10
    records = {record.unit: record for record in report.tasks}
    assert {"TestChunked", "rotated"} <= records.keys(), source.rejections

    for record in report.tasks:
        task = record.task
        assert task.kind is TaskKind.RELEASE
        assert task.visible_killers
        assert set(task.visible_killers) <= set(task.visible_tests)
        assert not set(record.held_out) & set(task.visible_tests)
        assert record.guess_bits >= 10
        assert len(record.verdicts) == 2
        files = contents(world, task.layers)
        assert files["work/yarn.py"] == OLD.encode()
        assert not any(NEW.encode() in content for content in files.values())
        shown = files["work/tests/test_yarn.py"].decode()
        for test in record.held_out:
            if record.fresh_cases == 0:
                assert f"def {test.rpartition('::')[2].partition('[')[0]}(" not in shown
        assert "less_than_nothing" not in shown
        oracle = decode(world.blobs.get(task.oracle, bytes_max=1 << 20), FileSet)
        assert all(matches_any(path, task.editable) for path in oracle.files)
        assert not matches_any("tests/test_yarn.py", task.editable)

    assert "`rotated` takes any number" in records["rotated"].task.prompt
    chunked = records["TestChunked"]
    inherited = {name for name in (*chunked.held_out, *chunked.task.visible_tests) if "last_piece" in name}
    assert inherited <= set(chunked.held_out) or inherited <= set(chunked.task.visible_tests)
    await _fails_its_killers_and_is_mended_by_the_oracle(world, chunked.task)


async def _fails_its_killers_and_is_mended_by_the_oracle(world: GradingWorld, task: Task) -> None:
    spec = SandboxSpec(tenant="tests", image=task.image, layers=task.layers, workdir=task.workdir, env=TEST_ENV)
    sandbox = await world.sandboxes.create(spec)
    try:
        failing = await sandbox.exec([*task.test_command, *task.visible_killers], cwd=task.workdir)
        assert failing.exit_code == 1, failing.stdout
        oracle = decode(world.blobs.get(task.oracle, bytes_max=1 << 20), FileSet)
        for path, sha256 in oracle.files.items():
            await sandbox.write(f"{task.workdir}/{path}", world.blobs.get(sha256, bytes_max=1 << 20))
        mended = await sandbox.exec([*task.test_command, *task.visible_tests], cwd=task.workdir)
        assert mended.exit_code == 0, mended.stdout
    finally:
        await sandbox.close()


TWICE_OLD = '''"""Sizes."""


def size(text):
    """The number of bytes that a text says."""
    return int(text.strip())
'''
TWICE_NEW = TWICE_OLD.replace(
    "    return int(text.strip())",
    """    text = text.strip().lower()
    if text.endswith("k"):
        return 1024 * size(text[:-1])
    if text.startswith("0x"):
        return int(text[2:], 16)
    return int(text)""",
)


def twice_tests(kilo: Sequence[int], hexadecimal: Sequence[int]) -> str:
    lines = ["from yarn import size", "", ""]
    for name, text, numbers in (("kilo", "{}k", kilo), ("hexadecimal", "0x{:x}", hexadecimal)):
        for number in numbers:
            value = number * 1024 if name == "kilo" else number
            lines += [f"def test_{name}_{number}():", f"    assert size({text.format(number)!r}) == {value}", "", ""]
    return "\n".join(lines)


async def test_a_release_without_notes_asks_for_no_other_change_than_it_shows(
    world: GradingWorld, tmp_path: Path
) -> None:
    """One function is changed twice, and nothing but tests says so."""
    seen = []
    for number, (kilo, hexadecimal) in enumerate([((71357, 80221, 93313), (987654321,)), ((71357,), (987654321,))]):
        tests = twice_tests(kilo, hexadecimal).encode()
        trees = (
            make_tree({"yarn.py": text.encode(), "tests/test_yarn.py": tests}, distribution="yarn", version=version)
            for version, text in (("1.0", TWICE_OLD), ("2.0", TWICE_NEW))
        )
        report = await build(world, tmp_path / str(number), *trees)
        (source,) = report.sources
        assert source.killers == len(kilo) + len(hexadecimal)
        assert ["no release notes" in remark for remark in source.remarks] == [True]
        for record in report.tasks:
            judges = [name for name in record.held_out if "test_case" not in name]
            shown = " ".join(record.task.visible_killers)
            seen.append((number, len(judges)))
            assert all("kilo" in name and "kilo" in shown for name in judges)
            assert "hexadecimal" in shown, "its statements are executed by no other test"
    assert (0, 1) in seen or (0, 2) in seen, seen


async def test_one_body_is_judged_by_fresh_cases(world: GradingWorld, tmp_path: Path) -> None:
    start = TESTS.index("class Chunks")
    tests = TESTS[:start] + TESTS[TESTS.index("def test_scaled()") : TESTS.index("def test_countdown()")]
    before, after = release("1.0", OLD, tests), release("2.0", NEW, tests)
    # Where the newer release alone is restricted, every sandbox is: also those that run the older one with its tests.
    (pair,) = adjacent([ref(before), msgspec.structs.replace(ref(after), data_class="restricted")])
    noted = Noted(world.sandboxes)
    plan = BuildPlan(pairs=(pair,), tenant="tests")
    report = await TaskBuilder(replace(shop(world, tmp_path, before, after), sandboxes=noted)).build(plan)
    (record,) = report.tasks
    assert (record.task.data_class, noted.classes) == ("restricted", {"restricted"})
    assert record.fresh_cases >= 3
    assert record.task.visible_killers == ("tests/test_yarn.py::test_scaled",)
    assert "`scaled` doubles negative numbers" in record.task.prompt


@pytest.mark.parametrize(
    ("marked", "expected", "whole"),
    [
        # Where a module lies is the same in the grader's suite as where the case was made.
        ("[__file__, *(number * 2 for number in numbers)]", "[yarn.__file__, 808, 1812, 76]", True),
        # What only a suite has changes every other answer: those cases are left out, the rest judges.
        (
            "[n * (3 if n % 2 and 'PYTEST_CURRENT_TEST' in os.environ else 2) for n in numbers]",
            "[808, 1812, 76]",
            False,
        ),
    ],
    ids=["place", "suite"],
)
async def test_a_case_never_fails_on_the_right_source(
    world: GradingWorld, tmp_path: Path, marked: str, expected: str, whole: bool
) -> None:
    old = "import os\n\n\ndef marked(numbers):\n    return numbers\n"
    tests = f"import yarn\n\n\ndef test_marked():\n    assert yarn.marked([404, 906, 38]) == {expected}\n"
    new = old.replace("return numbers", f"return {marked}")
    notes = {"CHANGES.md": b"# Changes\n\n## 2.0\n\n- `marked` does more\n"}
    report = await build(world, tmp_path, release("1.0", old, tests), release("2.0", new, tests, **notes))
    assert [record.fresh_cases >= 3 for record in report.tasks] == [True], report.sources[0].rejections
    assert (report.tasks[0].fresh_cases == 12) is whole


async def test_mutants_of_a_private_package_in_src_layout_with_wheels_and_a_plugin(
    world: GradingWorld, tmp_path: Path
) -> None:
    wheelhouse = tmp_path / "wheels"
    wheelhouse.mkdir()
    plugin = b"import pytest\n\n\n@pytest.fixture\ndef word():\n    return 'hawser'\n"
    make_wheel(wheelhouse, "wordplugin", files={"wordplugin.py": plugin})
    image = world.sandboxes.images.get(world.image).layers  # type: ignore[attr-defined]
    wheels = await anyio.to_thread.run_sync(
        lambda: wheel_layer(["wordplugin"], world.layers, image=image, unpack=unpack, wheelhouse=wheelhouse)
    )
    tests = TESTS + "\n\ndef test_word(word):\n    assert rotated(word, 2) == 'wserha'\n"
    tree = make_tree(
        {"src/yarn/__init__.py": NEW.encode(), "tests/test_yarn.py": tests.encode(), "pyproject.toml": b""},
        distribution="yarn",
        version="2.0",
    )
    plan = BuildPlan(
        pairs=(),
        mutants=(MutantPlan(release=msgspec.structs.replace(ref(tree), data_class="internal"), count=1),),
        tenant="tests",
        control_only=True,
        plugins=("wordplugin",),
    )
    noted = Noted(world.sandboxes)
    workshop = replace(shop(world, tmp_path / "state", tree, wheels=wheels.layers), sandboxes=noted)
    report = await TaskBuilder(workshop).build(plan)
    assert noted.classes == {"internal"}
    (record,) = report.tasks
    task = record.task
    assert task.kind is TaskKind.MUTANT
    assert task.origin.operator in record.unit
    assert task.layers[:1] == wheels.layers
    assert report.sources[0].tests == 18
    files = contents(world, task.layers)
    assert files["work/src/yarn/__init__.py"] != NEW.encode()
    assert "addopts = -p wordplugin" in files["work/pytest.ini"].decode()
    assert task.origin.operator not in task.prompt


async def test_two_builds_of_the_same_give_the_same_tasks(world: GradingWorld, tmp_path: Path) -> None:
    """Nothing of what the first one kept is there for the second one, and this one is slower."""
    before, after = release("1.0", OLD), release("2.0", NEW)
    pairs = adjacent([ref(before), ref(after)])
    mutants = (MutantPlan(release=ref(after), count=1),)
    plan = BuildPlan(pairs=pairs, mutants=mutants, tenant="tests", seed=3, tasks_max=3)
    found = []
    for name, parallel in (("one", 2), ("two", 1)):
        workshop = shop(world, tmp_path / name, before, after, parallel=parallel)
        report = await TaskBuilder(workshop).build(plan)
        found.append([(record.task, record.held_out, record.points, record.guess_bits) for record in report.tasks])
    assert found[0] == found[1]
    assert [task.kind for task, *_ in found[0]] == [*[TaskKind.RELEASE] * 3, TaskKind.MUTANT]
    assert {task.id for task, *_ in found[0]} == {task.id for task, *_ in found[1]}


async def test_a_build_of_another_number_of_tasks_uses_what_was_built(world: GradingWorld, tmp_path: Path) -> None:
    before, after = release("1.0", OLD), release("2.0", NEW)
    pairs = adjacent([ref(before), ref(after)])

    async def built(count: int) -> tuple[YieldReport, int]:
        noted = Noted(world.sandboxes)
        plan = BuildPlan(pairs=pairs, tenant="tests", tasks_max=count)
        workshop = replace(shop(world, tmp_path, before, after), sandboxes=noted)
        return await TaskBuilder(workshop).build(plan), noted.made

    two, first = await built(2)
    one, less = await built(1)
    three, more = await built(3)
    assert (one.tasks, three.tasks[:2]) == (two.tasks[:1], two.tasks)
    assert less == 1, "the run in which a test hangs: nothing is kept of what was not complete"
    assert len(three.tasks) == 3 and less < more < first


async def test_settings_of_pytest_hold_in_every_run(world: GradingWorld, tmp_path: Path) -> None:
    """Without any of them no test of this package is found, imported, collected or passes."""
    plugin = b"""
def pytest_addoption(parser):
    parser.addini("yarn_colour", "Colour.", default="none")
"""
    head = "from helpers import COLOUR\nfrom yarn import chunked, rotated\n\n\nclass CheckYarn:\n"
    checks = {
        "even": "chunked([71, 82, 93, 64], 2) == [[71, 82], [93, 64]]",
        "rest": "chunked([5150, 6251, 7352], 2) == [[5150, 6251], [7352]]",
        "turn": "rotated('hawserlaid', 3) == 'serlaidhaw'",
        "turns": "rotated('ropewalk', 11) == 'ewalkrop'",
    }
    tests = head + "".join(
        f"    def test_{name}(self, pytestconfig):\n        assert pytestconfig.getini('yarn_colour') == COLOUR\n"
        f"        assert {what}\n\n"
        for name, what in checks.items()
    )
    tree = make_tree(
        {"yarn.py": NEW.encode(), "checks/check_yarn.py": tests.encode(), "checks/conftest.py": plugin,
         "tests/lib/helpers.py": b"COLOUR = 'tarred'\n"},
        distribution="yarn", version="2.0", test_patterns=("check_*.py",),
    )  # fmt: skip
    settings = {
        "python_files": "check_*.py", "python_classes": "Check", "pythonpath": "tests/lib",
        "yarn_colour": "tarred",
    }  # fmt: skip
    mutants = (MutantPlan(release=ref(tree), count=1),)
    plan = BuildPlan(pairs=(), mutants=mutants, tenant="tests", control_only=True, pytest_ini=settings)
    report = await TaskBuilder(shop(world, tmp_path, tree)).build(plan)
    assert [record.task.kind for record in report.tasks] == [TaskKind.MUTANT], report.sources[0].rejections
    await _fails_its_killers_and_is_mended_by_the_oracle(world, report.tasks[0].task)


async def test_a_build_that_is_stopped_keeps_each_task_that_was_built(world: GradingWorld, tmp_path: Path) -> None:
    tree = release("2.0", NEW)
    plan = BuildPlan(pairs=(), mutants=(MutantPlan(release=ref(tree), count=2),), tenant="tests", control_only=True)
    told: list[str] = []
    with anyio.CancelScope() as scope:

        def stop_at_the_first(event: BuildEvent) -> None:
            if event.stage == "task":
                told.append(event.detail)
                scope.cancel()

        await TaskBuilder(shop(world, tmp_path, tree)).build(plan, on_event=stop_at_the_first)
    stopped_s = time.time()
    report = await TaskBuilder(shop(world, tmp_path, tree)).build(plan)
    assert [record.ended_s < stopped_s for record in report.tasks] == [True, False]
    assert report.tasks[0].task.name == told[0]


async def test_a_package_that_carries_its_own_answer_is_refused(world: GradingWorld, tmp_path: Path) -> None:
    hidden = NEW[NEW.index("def chunked") :].encode()
    tests = TESTS[: TESTS.index("def test_rotated_once()")].encode()
    before = make_tree(
        {"yarn/__init__.py": OLD.encode(), "yarn/next.txt": hidden, "tests/test_yarn.py": tests},
        distribution="yarn",
        version="1.0",
    )
    after = make_tree(
        {"yarn/__init__.py": NEW.encode(), "tests/test_yarn.py": tests}, distribution="yarn", version="2.0"
    )
    report = await build(world, tmp_path, before, after, tasks_max=1)
    assert report.tasks == ()
    assert Reason.LEAK in report.reasons
    assert any("next.txt" in rejection.detail for rejection in report.sources[0].rejections)


async def test_what_gives_no_task_says_why(world: GradingWorld, tmp_path: Path) -> None:
    untested = make_tree({"yarn.py": NEW.encode()}, distribution="yarn", version="3.0")
    broken = release("2.5", "def nothing(): ...\n")
    same = release("2.1", NEW)
    report = await build(world, tmp_path, release("2.0", NEW), same, broken, untested)
    assert [source.rejections[0].reason for source in report.sources] == [
        Reason.NO_KILLERS, Reason.BASELINE_FAILS, Reason.NO_TESTS,
    ]  # fmt: skip


async def test_a_broken_package_is_told_by_its_own_mistake(world: GradingWorld, tmp_path: Path) -> None:
    trees = (
        make_tree({"yarn.py": b"def spun():\n    return (1,\n", "test_yarn.py": b"import yarn\ndef test_a(): ...\n"},
                  distribution="yarn", version="4.0"),
        make_tree({"yarn.py": b"", "test_yarn.py": b"def test_a(mocker):\n    assert mocker\n"},
                  distribution="yarn", version="4.1"),
    )  # fmt: skip

    async def refusals(*plugins: str) -> list[str]:
        mutants = tuple(MutantPlan(release=ref(tree), count=1) for tree in trees)
        plan = BuildPlan(pairs=(), mutants=mutants, tenant="tests", control_only=True, plugins=plugins)
        report = await TaskBuilder(shop(world, tmp_path, *trees)).build(plan)
        return [f"{each.detail} {advice(each)}" for source in report.sources for each in source.rejections]

    unparsed, unplugged = await refusals()
    assert "(yarn.py:2)" in unparsed and "mend what this Python cannot parse" in unparsed
    assert "fixture 'mocker' not found" in unplugged and "--plugin pytest_mock" in unplugged
    misnamed, _ = await refusals("pytest_mok")
    assert 'importing plugin "pytest_mok"' in misnamed and "by its module" in misnamed


BUILDER = """
import json, sys
from pathlib import Path
import anyio
from ropewalk.tasks.builder import TaskBuilder, adjacent
from ropewalk.tasks.records import BuildPlan
from tests.grading import grading_world
from tests.integration import test_task_builders as own

async def main():
    async with grading_world(Path(sys.argv[1])) as world:
        trees = own.three_releases()
        plan = BuildPlan(pairs=adjacent([own.ref(tree) for tree in trees]), tenant="tests")
        tell = lambda event: print(json.dumps([event.stage, event.source, event.tasks]), flush=True)
        report = await TaskBuilder(own.shop(world, Path(sys.argv[2]), *trees, parallel=1)).build(plan, on_event=tell)
        refused = [str(each) for source in report.sources for each in source.rejections]
        print(json.dumps(["report", [task.id for task in report.tasks], refused]), flush=True)

anyio.run(main)
"""


def three_releases() -> list[SourceTree]:
    keep = (
        TESTS[: TESTS.index("class Chunks")]
        + TESTS[TESTS.index("def test_rotated_once") : TESTS.index("def test_scaled()")]
    )
    middle = OLD.replace("    return text[by:]", "    by = by % len(text) if text else 0\n    return text[by:]")
    return [release("1.0", OLD, keep), release("1.5", middle, keep), release("2.0", NEW, keep)]


def events(process: subprocess.Popen[str], until: str) -> list[list[object]]:
    found: list[list[object]] = []
    assert process.stdout is not None
    for line in process.stdout:
        found.append(json.loads(line))
        if found[-1][0] == until:
            break
    return found


@pytest.mark.slow
async def test_a_killed_build_goes_on_where_it_stopped(world: GradingWorld, tmp_path: Path) -> None:
    root = world.sandboxes._layout.root
    command = [sys.executable, "-c", BUILDER, str(root), str(tmp_path)]
    repository = Path(__file__).parents[2]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=repository, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(repository)},
        )  # fmt: skip

    first = await anyio.to_thread.run_sync(start)
    seen = await anyio.to_thread.run_sync(events, first, "finished")
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    done = seen[-1][1]

    second = await anyio.to_thread.run_sync(start)
    again = await anyio.to_thread.run_sync(events, second, "report")
    second.communicate()
    stages = [(event[0], event[1]) for event in again[:-1]]
    assert ("resumed", done) in stages
    assert ("started", done) not in stages
    assert {source for _, source in stages} >= {"yarn 1.0→1.5", "yarn 1.5→2.0"}
    assert second.returncode == 0
    assert len(again[-1][1]) == 1, again[-1]  # type: ignore[arg-type]
    assert not list(tmp_path.rglob("*.part"))
