"""Fresh held-out cases: where one test body is all there is, the oracle makes more.

Two kinds are tried. Visible killers serve as templates: the values in them are varied by seed, and what they compare
is noted. And calls of functions are recorded while the visible tests run, and their arguments varied. The right
source, asked twice, says what is right; kept are cases on which it always says the same and the wrong source
says something else. They become a test module, which is judged like every other one.
"""

from __future__ import annotations

import ast
import json
import posixpath
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import anyio

from ropewalk.core.records import digest
from ropewalk.core.syntax import parse_expression
from ropewalk.reward.ports import GradingSandbox
from ropewalk.sandbox.contract import SandboxSpec
from ropewalk.tasks.assembly import Problem
from ropewalk.tasks.bench import LINE_PROBE, Bench, limit_s, wall_s
from ropewalk.tasks.bodies import toplevel
from ropewalk.tasks.specified import FairCases
from ropewalk.tasks.templates import (
    expectation,
    find_templates,
    judging_module,
    noting_module,
    vary_templates,
    without_any_test,
)
from ropewalk.tasks.tree import SourceTree
from ropewalk.tasks.variations import vary_arguments
from ropewalk.tasks.worlds import WORKDIR

T = TypeVar("T")
CASES_MAX: Final = 12
"""Kept of those that tell right from wrong; more would only cost time at every grading."""
EQUAL_MAX: Final = 4
"""Kept of those that do not."""
_TRIED_MAX: Final = 400
_FUNCTIONS_MAX: Final = 40
"""Whose calls are recorded."""
_ENOUGH: Final = 4
"""Cases out of templates that make recorded calls needless."""
_CONFIRMED_MAX: Final = 3 * CASES_MAX
"""Telling cases that are asked again."""
_REPEATS: Final = 2
"""Of the question what is right. The grader's recordings, its shipped form and the control ask again, four times."""
_CALL_TIMEOUT_S: Final = 0.3
"""CPU time."""
_HANGS_MAX: Final = 12
"""Calls of one run that hang before the others are not made: variations can hang."""
_BUDGET_S: Final = 45.0
"""Of all calls of one run, where they are slow without hanging."""
_PROBE: Final = "/tmp/ropewalk-cases/case_probe.py"
_LINES: Final = "/tmp/ropewalk-cases/line_probe.py"
_MODULE: Final = "test_ropewalk_fresh.py"
_SOURCE: Final = Path(__file__).with_name("case_probe.py")


async def make_cases(
    bench: Bench,
    problem: Problem,
    wrong: str,
    right: str,
    *,
    functions: Sequence[str],
    seed: int,
    fair: FairCases | None = None,
) -> Problem | None:
    """The problem with fresh cases that judge it; None where none could be made.

    Args:
        problem: its visible killers show how the functions are called.
        wrong, right: digests of the layers of the source as it is and as it should become.
        functions: `path::dotted name`, the most specific first: the changed ones, then others on the way to them.
        seed: decides the variations.
        fair: which cases are left out, since they ask for what nobody is told of.

    Raises:
        SandboxGoneError, UnavailableError: our side failed.
    """
    sources = _Sources(wrong, right, fair.job if fair else {})
    made = await _from_templates(bench, problem, sources, seed)
    if made.telling < _ENOUGH:
        calls = await _from_calls(bench, problem, sources, _callable(problem, functions), seed=seed)
        made = max(made, calls, key=lambda fresh: fresh.telling)
    if not made.telling:
        return None
    folder = made.beside.rpartition("/")[0]
    path = f"{folder}/{_MODULE}" if folder else _MODULE
    return replace(
        problem, fresh={path: made.text.encode()}, fresh_tests=tuple(f"{path}::{test}" for test in made.tests)
    )


@dataclass(frozen=True)
class _Sources:
    """Digests of the layers of both sources, and what the right one may not execute (`FairCases.job`)."""

    wrong: str
    right: str
    bounds: Mapping[str, Any]


@dataclass(frozen=True)
class _Told(Generic[T]):
    """Cases with what is right.

    Attributes:
        telling: the wrong source says something else.
        equal: it says the same. Without any of these, one answer to everything could be right.
    """

    telling: list[tuple[T, str]]
    equal: list[tuple[T, str]]

    @property
    def cases(self) -> list[tuple[T, str]]:
        """All of them."""
        return [*self.telling, *self.equal]


@dataclass(frozen=True)
class _Fresh:
    """A test module of cases.

    Attributes:
        beside: path of the test module in whose folder it belongs.
        telling: how many of them the wrong source fails.
    """

    text: str = ""
    tests: tuple[str, ...] = ()
    beside: str = ""
    telling: int = 0


async def _from_templates(bench: Bench, problem: Problem, sources: _Sources, seed: int) -> _Fresh:
    path, templates = find_templates(problem.tests, problem.visible_killers)
    if not templates:
        return _Fresh()
    bodies = list(vary_templates(templates, seed, count=_TRIED_MAX // 2))
    preamble = without_any_test(problem.tests[path].decode("utf-8", "replace"))
    folder = path.rpartition("/")[0]
    place = f"{WORKDIR}/{folder}/{_MODULE}" if folder else f"{WORKDIR}/{_MODULE}"

    async def ask(side: _Side, cases: Sequence[str], hash_seed: int) -> list[str | None]:
        job = {"path": place, "count": len(cases)}
        module = noting_module(preamble, cases)
        output = await side.run("notes", job, timeout_s=60.0, hash_seed=hash_seed, files={place: module.encode()})
        return _texts(output, len(cases))

    async with _sides(bench, problem, sources) as sides:
        told = await _telling(bodies, sides, ask, seed)
    text, tests = judging_module(preamble, told.cases)
    return _Fresh(text, tuple(tests), path, len(told.telling))


async def _from_calls(bench: Bench, problem: Problem, sources: _Sources, names: Sequence[str], *, seed: int) -> _Fresh:
    if not names:
        return _Fresh()

    async def ask(side: _Side, cases: Sequence[tuple[str, str, str]], hash_seed: int) -> list[str | None]:
        output = await side.run("replay", {"calls": cases}, timeout_s=60.0, hash_seed=hash_seed)
        return _texts(output, len(cases))

    async with _sides(bench, problem, sources) as sides:
        calls = await _record(bench, problem, sides.right, names)
        tried = list(_variations(calls, problem.tree, seed))[:_TRIED_MAX]
        told = await _telling(tried, sides, ask, seed) if tried else _Told[tuple[str, str, str]]([], [])
    text, tests = _module(told.cases)
    return _Fresh(text, tuple(tests), problem.visible_killers[0].partition("::")[0], len(told.telling))


async def _telling(
    cases: Sequence[T],
    sides: _Sides,
    ask: Callable[[_Side, Sequence[T], int], Awaitable[list[str | None]]],
    seed: int,
) -> _Told[T]:
    """Cases on which the right source always says the same, in random order by seed.

    All are asked of the right source once, those with an answer of the wrong one, and some of those that it answers
    otherwise of the right one again: most cases tell nothing, and every answer costs time.
    """
    first = await ask(sides.right, cases, 0)
    answered = [(case, truth) for case, truth in zip(cases, first, strict=True) if truth is not None]
    if not answered:
        return _Told([], [])
    mistaken = await ask(sides.wrong, [case for case, _ in answered], 0)
    pairs = list(zip(answered, mistaken, strict=True))
    pairs.sort(key=lambda pair: digest([seed, repr(pair[0][0])]))  # one more or less does not move the others
    telling = _unlike(pair for pair, said in pairs if said != pair[1])[:_CONFIRMED_MAX]
    equal = _unlike(pair for pair, said in pairs if said == pair[1])[: 3 * EQUAL_MAX] if telling else []
    for hash_seed in range(1, _REPEATS):
        if telling:
            again = await ask(sides.right, [case for case, _ in (*telling, *equal)], hash_seed)
            said = iter(again)
            telling = [pair for pair in telling if next(said) == pair[1]]
            equal = [pair for pair in equal if next(said) == pair[1]]
    return _Told(telling[:CASES_MAX], equal[:EQUAL_MAX] if telling else [])


def _unlike(pairs: Iterable[tuple[T, str]]) -> list[tuple[T, str]]:
    """One case of each truth: a value that is expected twice is worth no more."""
    return list({truth: (case, truth) for case, truth in pairs}.values())


def _callable(problem: Problem, functions: Sequence[str]) -> list[str]:
    """Functions that a right solution must have, so that calling them is fair.

    Those are module-level ones that the visible killers' own module names, and public ones that are there already.
    Functions that the visible killers themselves name come first.
    """
    tested = {killer.partition("::")[0] for killer in problem.visible_killers}
    words = set(re.findall(r"\w+", " ".join(problem.tests[path].decode("utf-8", "replace") for path in sorted(tested))))
    there = {f"{path}::{name}" for path, source in problem.before.items() for name in toplevel(source)}
    found = []
    for symbol in dict.fromkeys(functions):
        name = symbol.partition("::")[2]
        if "." in name or name.startswith("__"):
            continue
        if name in words or (symbol in there and not name.startswith("_")):
            found.append(symbol)
    return sorted(found, key=lambda symbol: symbol.partition("::")[2] not in words)[:_FUNCTIONS_MAX]


async def _record(bench: Bench, problem: Problem, side: _Side, names: Sequence[str]) -> dict[str, list[str]]:
    functions: dict[str, list[str]] = {}
    for symbol in names:
        path, _, name = symbol.partition("::")
        functions.setdefault(f"{WORKDIR}/{path}", []).append(name)
    seconds = sum(problem.seconds.get(test, 0.1) for test in problem.visible_killers)
    plugins = [argument for plugin in bench.world.plugins for argument in ("-p", plugin)]
    job = {"functions": functions, "tests": problem.visible_killers, "arguments": plugins}
    output = await side.run("record", job, timeout_s=wall_s(limit_s(seconds + 2.0)), hash_seed=0)
    return {key.removeprefix(f"{WORKDIR}/"): texts for key, texts in output.items()} if isinstance(output, dict) else {}


def _texts(output: Any, count: int) -> list[str | None]:
    """What a run said, in the shape it must have: it comes out of a sandbox."""
    if not isinstance(output, list) or len(output) != count:
        return [None] * count
    return [text if isinstance(text, str) else None for text in output]


@dataclass(frozen=True)
class _Side:
    """A sandbox with one of the two sources and the tests."""

    sandbox: GradingSandbox
    import_paths: tuple[str, ...]
    bounds: Mapping[str, Any]

    async def run(
        self, mode: str, job: dict[str, Any], *, timeout_s: float, hash_seed: int, files: Mapping[str, bytes] = {}
    ) -> Any:
        """What the probe says, which is untrusted: any JSON value, None where it says nothing."""
        whole = {
            **job, **self.bounds, "import_paths": self.import_paths, "call_timeout_s": _CALL_TIMEOUT_S,
            "budget_s": _BUDGET_S, "hangs_max": _HANGS_MAX,
        }  # fmt: skip
        programs = {_PROBE: _SOURCE.read_bytes(), _LINES: LINE_PROBE.read_bytes()}
        await self.sandbox.write_many({**programs, **files})
        result = await self.sandbox.exec(
            ["python3", "-P", "-s", "-B", _PROBE, mode],
            cwd=WORKDIR,
            env={"PYTHONHASHSEED": str(hash_seed), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdin=json.dumps(whole).encode(),
            timeout_s=timeout_s,
            output_bytes_max=8 * 1024 * 1024,
        )
        try:
            return json.loads(result.stdout)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True)
class _Sides:
    wrong: _Side
    right: _Side


@asynccontextmanager
async def _sides(bench: Bench, problem: Problem, sources: _Sources) -> AsyncIterator[_Sides]:
    """Both sources in sandboxes, and a slot to use them."""
    world = bench.world
    paths = world.import_paths(problem.tree)
    tests = await bench.layer(world.files_of_tests(problem.tests, problem.tree))

    async def open_side(stack: AsyncExitStack, source: str, bounds: Mapping[str, Any]) -> _Side:
        layers = (*world.wheels, source, tests)
        sandbox = await bench.sandboxes.create(
            SandboxSpec(
                tenant=world.tenant, image=world.image, layers=layers, workdir=WORKDIR, data_class=problem.data_class
            )
        )
        stack.push_async_callback(_close, sandbox)
        # As the suite has them: a module's own path must be the same there.
        return _Side(sandbox, tuple(posixpath.normpath(f"{WORKDIR}/{path}") for path in paths), bounds)

    async with bench.slot(), AsyncExitStack() as stack:
        yield _Sides(await open_side(stack, sources.wrong, {}), await open_side(stack, sources.right, sources.bounds))


async def _close(sandbox: GradingSandbox) -> None:
    with anyio.CancelScope(shield=True):
        await sandbox.close()


def _variations(calls: dict[str, list[str]], tree: SourceTree, seed: int) -> Iterator[tuple[str, str, str]]:
    """Calls to try: module, function, arguments as text. Recorded ones themselves are left out: they are visible."""
    source = random.Random(seed)
    seen = {text for texts in calls.values() for text in texts}
    functions = sorted(calls)
    share = _TRIED_MAX // max(1, len(functions))
    for function in functions:
        path, _, name = function.partition("::")
        module = _module_name(path, tree)
        made = 0
        for _ in range(share * 4):
            if made >= share or not calls[function]:
                break
            text = vary_arguments(source.choice(calls[function]), source)
            if text is not None and text not in seen:
                seen.add(text)
                made += 1
                yield module, name, text


def _module_name(path: str, tree: SourceTree) -> str:
    inner = path.removeprefix(f"{tree.source_root}/") if tree.source_root else path
    parts = inner.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module(cases: Sequence[tuple[tuple[str, str, str], str]]) -> tuple[str, list[str]]:
    """A test module of these cases, one function each, and the functions' names."""
    modules = sorted({module for (module, _, _), _ in cases})
    lines = [
        "import itertools",
        "import math",
        "import operator",
        "",
        "import pytest",
        *(f"import {module}" for module in modules),
    ]
    tests = []
    for number, ((module, name, text), truth) in enumerate(cases):
        kind, _, expected = truth.partition(" ")
        arguments = _call(text)
        call = f"{module}.{name}({arguments})"
        if kind == "iterator":
            call = f"list(itertools.islice({call}, 200))"
        tests.append(f"test_case_{number}")
        lines += [
            "",
            "",
            f"def test_case_{number}():",
            f"    assert {call} == {expectation(parse_expression(expected).body)}",
        ]
    return "\n".join(lines) + "\n", tests


def _call(text: str) -> str:
    """`((1, 2), {'a': 3})` → `1, 2, a=3`."""
    tree = parse_expression(text).body
    assert isinstance(tree, ast.Tuple)
    positional, keywords = tree.elts
    assert isinstance(positional, ast.Tuple)
    assert isinstance(keywords, ast.Dict)
    parts = [ast.unparse(element) for element in positional.elts]
    for key, value in zip(keywords.keys, keywords.values, strict=True):
        assert isinstance(key, ast.Constant)
        parts.append(f"{key.value!s}={ast.unparse(value)}")
    return ", ".join(parts)
