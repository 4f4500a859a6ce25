"""Fresh held-out cases: where one test body is all there is, the oracle makes more.

Calls of the changed functions are recorded while the visible tests run on the right source. Their arguments are
varied by seed. The right source, run three times, says what is right; kept are calls on which it always says the
same and the wrong source says something else. They become a test module, which is judged like every other one.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio

from ropewalk.core.records import digest
from ropewalk.core.syntax import parse_expression
from ropewalk.sandbox.contract import SandboxSpec
from ropewalk.tasks.assembly import Problem
from ropewalk.tasks.bench import Bench, limit_s
from ropewalk.tasks.bodies import toplevel
from ropewalk.tasks.tree import SourceTree
from ropewalk.tasks.worlds import WORKDIR, import_paths, layer_files_of_tests

CASES_MAX: Final = 12
"""Kept; more would only cost time at every grading."""
_TRIED_MAX: Final = 400
_FUNCTIONS_MAX: Final = 40
"""Whose calls are recorded."""
_REPEATS: Final = 3
_CALL_TIMEOUT_S: Final = 0.5
_PROBE: Final = "/tmp/ropewalk-cases/case_probe.py"
_MODULE: Final = "test_ropewalk_fresh.py"
_SOURCE: Final = Path(__file__).with_name("case_probe.py")


async def make_cases(
    bench: Bench, problem: Problem, wrong: str, right: str, *, functions: Sequence[str], seed: int
) -> Problem | None:
    """The problem with fresh cases that judge it; None where none could be made.

    Args:
        problem: its visible killers show how the functions are called.
        wrong, right: digests of the layers of the source as it is and as it should become.
        functions: `path::dotted name`, the most specific first: the changed ones, then others on the way to them.
        seed: decides the variations.

    Raises:
        SandboxGoneError, UnavailableError: our side failed.
    """
    names = _callable(problem, functions)
    if not names:
        return None
    calls = await _record(bench, problem, right, names)
    tried = list(_variations(calls, problem.tree, seed))[:_TRIED_MAX]
    if not tried:
        return None
    answers = [await _replay(bench, problem, right, tried, hash_seed) for hash_seed in range(_REPEATS)]
    mistaken = await _replay(bench, problem, wrong, tried, 0)
    good: list[tuple[tuple[str, str, str], str]] = []
    for number, call in enumerate(tried):
        said = {answer[number] for answer in answers}
        truth = said.pop() if len(said) == 1 else None
        if truth is not None and mistaken[number] != truth:
            good.append((call, truth))
    if not good:
        return None
    random.Random(f"{seed}:{digest([call for call, _ in good])}").shuffle(good)
    folder = problem.visible_killers[0].partition("::")[0].rpartition("/")[0]
    path = f"{folder}/{_MODULE}" if folder else _MODULE
    text, tests = _module(good[:CASES_MAX])
    return replace(problem, fresh={path: text.encode()}, fresh_tests=tuple(f"{path}::{test}" for test in tests))


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


async def _record(bench: Bench, problem: Problem, source: str, names: Sequence[str]) -> dict[str, list[str]]:
    functions: dict[str, list[str]] = {}
    for symbol in names:
        path, _, name = symbol.partition("::")
        functions.setdefault(f"{WORKDIR}/{path}", []).append(name)
    seconds = sum(problem.seconds.get(test, 0.1) for test in problem.visible_killers)
    plugins = [argument for plugin in bench.world.plugins for argument in ("-p", plugin)]
    job = {"functions": functions, "import_paths": _paths(problem.tree), "tests": problem.visible_killers,
           "arguments": plugins}  # fmt: skip
    output = await _run(bench, problem, source, "record", job, timeout_s=limit_s(seconds + 2.0), hash_seed=0)
    return {key.removeprefix(f"{WORKDIR}/"): texts for key, texts in output.items()} if isinstance(output, dict) else {}


async def _replay(
    bench: Bench, problem: Problem, source: str, calls: Sequence[tuple[str, str, str]], hash_seed: int
) -> list[str | None]:
    job = {"calls": calls, "import_paths": _paths(problem.tree), "call_timeout_s": _CALL_TIMEOUT_S}
    output = await _run(bench, problem, source, "replay", job, timeout_s=60.0, hash_seed=hash_seed)
    if not isinstance(output, list) or len(output) != len(calls):
        return [None] * len(calls)
    return [text if isinstance(text, str) else None for text in output]


async def _run(
    bench: Bench, problem: Problem, source: str, mode: str, job: dict[str, Any], *, timeout_s: float, hash_seed: int
) -> Any:
    files = layer_files_of_tests(problem.tests, import_paths=import_paths(problem.tree), plugins=bench.world.plugins)
    tests = await bench.layer(files)
    world = bench.world
    spec = SandboxSpec(tenant=world.tenant, image=world.image, layers=(*world.wheels, source, tests), workdir=WORKDIR)
    async with bench.slots:
        box = await bench.boxes.create(spec)
        try:
            await box.write_many({_PROBE: _SOURCE.read_bytes()})
            result = await box.exec(
                ["python3", "-P", "-s", "-B", _PROBE, mode],
                cwd=WORKDIR,
                env={"PYTHONHASHSEED": str(hash_seed), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
                stdin=json.dumps(job).encode(),
                timeout_s=timeout_s,
                output_bytes_max=8 * 1024 * 1024,
            )
        finally:
            with anyio.CancelScope(shield=True):
                await box.close()
    try:
        return json.loads(result.stdout)
    except ValueError:
        return None


def _paths(tree: SourceTree) -> list[str]:
    return [f"{WORKDIR}/{path}" for path in import_paths(tree)]


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
            text = _vary(source.choice(calls[function]), source)
            if text is not None and text not in seen:
                seen.add(text)
                made += 1
                yield module, name, text


def _module_name(path: str, tree: SourceTree) -> str:
    inner = path.removeprefix(f"{tree.source_root}/") if tree.source_root else path
    parts = inner.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _vary(text: str, source: random.Random) -> str | None:
    """Arguments with one or two constants or elements changed."""
    try:
        tree = parse_expression(text)
    except SyntaxError:
        return None
    for _ in range(source.choice((1, 1, 2))):
        places = [node for node in ast.walk(tree.body) if isinstance(node, (ast.Constant, ast.List, ast.UnaryOp))]
        places = [node for node in places if not isinstance(node, ast.List) or node.elts]
        if not places:
            return None
        _change(source.choice(places), source)
    return ast.unparse(tree)


def _change(node: ast.AST, source: random.Random) -> None:
    if isinstance(node, ast.List):
        how = source.randrange(4)
        if how == 0:
            del node.elts[source.randrange(len(node.elts))]
        elif how == 1:
            node.elts.insert(source.randrange(len(node.elts) + 1), source.choice(node.elts))
        elif how == 2:
            source.shuffle(node.elts)
        else:
            node.elts.extend(node.elts[: source.randint(1, 3)])
    elif isinstance(node, ast.Constant):
        node.value = _other(node.value, source)


def _other(value: Any, source: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return abs(value + source.choice((-3, -2, -1, 1, 2, 3, 5, 10)))
    if isinstance(value, float):
        return round(abs(value * source.choice((0.5, 2, 3, 10))) + source.randint(0, 9), 3)
    if isinstance(value, str):
        return _other_text(value, source)
    if isinstance(value, bytes):
        return _other_text(value.decode("latin-1"), source).encode("latin-1")
    return value


def _other_text(value: str, source: random.Random) -> str:
    """A piece left out, said twice, or appended."""
    if not value:
        return value
    start = source.randrange(len(value))
    piece = value[start : start + source.randint(1, 4)]
    how = source.randrange(3)
    if how == 0:
        return value[:start] + value[start + len(piece) :]
    return value[:start] + piece + value[start:] if how == 1 else value + piece


def _module(cases: Sequence[tuple[tuple[str, str, str], str]]) -> tuple[str, list[str]]:
    """A test module of these cases, one function each, and the functions' names."""
    modules = sorted({module for (module, _, _), _ in cases})
    lines = ["import itertools", "import math", "import operator", "", *(f"import {module}" for module in modules)]
    tests = []
    for number, ((module, name, text), truth) in enumerate(cases):
        kind, _, expected = truth.partition(" ")
        arguments = _call(text)
        call = f"{module}.{name}({arguments})"
        if kind == "iterator":
            call = f"list(itertools.islice({call}, 200))"
        tests.append(f"test_case_{number}")
        lines += ["", "", f"def test_case_{number}():", f"    assert {call} == {expected}"]
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
