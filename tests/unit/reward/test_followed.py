"""What calls are given and give back is noted, by the calls from outside that they serve."""

from __future__ import annotations

import importlib
import sys
import textwrap
import threading
import types
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ropewalk.reward.values import encode


class Heard:
    """A process whose source is text, and what was told of it."""

    def __init__(self, folder: Path, followed: Any, source: str) -> None:
        self.lines: list[tuple[str, Any]] = []
        self.failures: list[str] = []
        self.source = types.ModuleType("source")
        exec(compile(textwrap.dedent(source), str(folder / "source.py"), "exec"), self.source.__dict__)
        places = followed.Places(f"{folder}/", frozenset())
        self.follow = followed.Followed(
            places, lambda frame: None, lambda line, told: self.lines.append((line, told)), self.failures.append
        )
        self.trace = self.follow.trace

    def __enter__(self) -> Heard:
        self.before = sys.gettrace(), sys.getprofile()
        threading.setprofile(self.follow)
        sys.settrace(self.trace)
        sys.setprofile(self.follow)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        sys.settrace(None)
        threading.setprofile(None)
        sys.settrace(self.before[0])
        sys.setprofile(self.before[1])
        self.follow.flush()

    def _told(self, line: str) -> list[Any]:
        return [each for name, told in self.lines if name == line for each in told]

    @property
    def made(self) -> dict[int, list[Any]]:
        """Call → values."""
        values, found = self._told("n"), defaultdict(list)
        for call, number in self._told("w"):
            found[call].append(values[number])
        return found

    @property
    def rows(self) -> list[list[Any]]:
        """What variables were, time after time."""
        values, found = self._told("n"), defaultdict(list)
        for row, number, _ in self._told("y"):
            found[row].append(values[number])
        return list(found.values())

    @property
    def calls(self) -> list[int]:
        """The calls that values were said to come from."""
        return [told for line, told in self.lines if line == "o"]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setitem(sys.modules, "encode", encode)
    monkeypatch.setitem(sys.modules, "opened", importlib.import_module("ropewalk.reward.values.opened"))
    followed = importlib.import_module("ropewalk.reward.values.followed")
    return lambda source: Heard(tmp_path, followed, source)


def test_one_generator_is_one_call_however_often_it_goes_on(heard: Any) -> None:
    with heard("def some():\n    for k in range(5):\n        yield k * 7001\n\ndef other(x):\n    return x") as told:
        list(told.source.some())
        told.source.other(70_002)
    assert sorted(told.made) == [1, 2]
    assert [0, 7001, 14002, 21003, 28004] in [row[:5] for row in told.rows]


def test_one_coroutine_is_one_call(heard: Any) -> None:
    source = (
        "import asyncio\nasync def wait():\n    for k in range(3):\n        await asyncio.sleep(0)\n    return 7001"
    )
    with heard(source) as told:
        coroutine = told.source.wait()
        for _ in range(4):
            try:
                coroutine.send(None)
            except StopIteration:
                break
    assert set(told.made) <= {0, 1} and 7001 in told.made[1]


@pytest.mark.parametrize("target", ["item", "item, other", "(other, item)", "*other, item"])
def test_what_a_loop_binds_is_a_row(heard: Any, target: str) -> None:
    source = f"def ask(rows):\n    for {target} in rows:\n        pass"
    rows = {"item": [7001, 7002, 7003], "item, other": [(7001, 1), (7002, 2), (7003, 3)]}
    with heard(source) as told:
        told.source.ask(rows.get(target, [(1, 7001), (2, 7002), (3, 7003)]))
    assert [7001, 7002, 7003] in told.rows


def test_numbers_name_the_same_values_from_several_threads(heard: Any) -> None:
    source = """
        def ask(mine):
            for k in range(400):
                hold(mine * 100_000 + k)

        def hold(value):
            return value
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with heard(source) as told:
            threads = [threading.Thread(target=told.source.ask, args=(mine,)) for mine in (2, 3, 4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    held = [sorted(value for value in values if isinstance(value, int)) for call, values in told.made.items() if call]
    assert sorted(held) == [[mine * 100_000 + k for k in range(400)] for mine in (2, 3, 4)]


def test_generators_that_are_closed_do_not_pile_up(heard: Any) -> None:
    with heard("def some():\n    while True:\n        yield 7001\n\ndef other():\n    pass") as told:
        for _ in range(600):
            generator = told.source.some()
            next(generator)
            generator.close()
            told.source.other()
    assert len(told.follow._generators) <= 200


def test_a_value_comes_from_the_call_that_gave_it_back(heard: Any) -> None:
    with heard("def ask(x):\n    return [x, 7001]") as told:
        first = told.source.ask(1)
        told.source.ask(2)
        told.follow.flush(first)
        told.follow.flush([1, 7001])
    assert told.calls[:2] == [1, 2], "of what nobody gave back, the last"


@pytest.mark.parametrize("value", ["list(range(30_000))", "'x' * 300_000"])
def test_what_is_too_large_to_be_noted_makes_nothing_secret(heard: Any, value: str) -> None:
    with heard(f"def ask():\n    held = {value}\n    return len(held)") as told:
        told.source.ask()
    assert told.failures == [f"a value of the source, builtins.{'list' if 'list' in value else 'str'} too large"]
