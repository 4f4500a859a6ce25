"""How a release's tests do on the very source they belong to, in sentences: what fails there judges nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ropewalk.reward.suite import SuiteRecord
from ropewalk.tasks.tree import SourceTree

LINE_MAX: Final = 200
_FAILS: Final = frozenset({"failed", "error"})
_FIXTURES: Final = {
    "mocker": "pytest_mock", "benchmark": "pytest_benchmark.plugin", "faker": "faker.contrib.pytest.plugin",
    "requests_mock": "requests_mock.contrib._pytest_plugin", "httpserver": "pytest_httpserver.pytest_plugin",
}  # fmt: skip
"""Fixtures of plugins that are widely used, and their modules."""
_MISSING: Final = re.compile(r"No module named '([^'.]+)")


def left_out(tree: SourceTree, modules: Sequence[str], record: SuiteRecord) -> tuple[str, ...]:
    """A sentence each for tests that fail and for modules that cannot be imported; none where all is well.

    Args:
        tree: the release.
        modules: that were to be collected.
        record: its tests on its own source.
    """
    said = []
    failing = [test for test in record.tests if test.outcome in _FAILS]
    if failing:
        first = failing[0]
        hint = plugin_hint(first.message)
        why = f" ({plain(first.message)}{': ' if hint else ''}{hint})" if first.message else ""
        said.append(
            f"{release(tree)}: {_count(len(failing), len(record.tests), 'test')} here and {_are(len(failing))} left "
            f"out: {plain(first.node_id or first.key)}{why}{', …' if len(failing) > 1 else ''}"
        )
    lost = _lost(modules, record)
    if lost:
        said.append(
            f"{release(tree)}: {len(lost)} of {len(modules)} test modules cannot be imported here and "
            f"{_are(len(lost))} left out: {lost[0][0]} ({lost[0][1]}){', …' if len(lost) > 1 else ''}"
        )
    return tuple(said)


def nothing_passes(tree: SourceTree, modules: Sequence[str], record: SuiteRecord) -> str:
    """Why no test can be used, by the first thing that went wrong; empty where one passes."""
    if record.complete and any(test.outcome == "passed" for test in record.tests):
        return ""
    told = f"{release(tree)}: no test passes on its own source in the sandbox"
    if not record.complete:
        return f"{told}: {plain(record.problem or str(record.termination))}"
    lost = _lost(modules, record)
    failing = [test for test in record.tests if test.outcome in _FAILS]
    if lost:
        names = dict.fromkeys(name for _, why in lost for name in _MISSING.findall(why))
        missing = f"; missing: {', '.join(names)}" if len(names) > 1 else ""
        return f"{told}. First: {lost[0][1]} ({lost[0][0]}){missing}"
    if failing:
        return f"{told}. First: {plain(failing[0].message)} ({plain(failing[0].node_id or failing[0].key)})"
    why = plain(record.problem) or f"pytest collected {len(record.tests)} tests and ended with {record.exit_code}"
    return f"{told}. {why}"


def missing_modules(text: str) -> tuple[str, ...]:
    """What Python did not find, by the sentences of this module."""
    listed = re.search(r"; missing: (.+)$", text)
    return tuple(listed[1].split(", ")) if listed else tuple(dict.fromkeys(_MISSING.findall(text)))


def plugin_hint(text: str) -> str:
    """Which option helps where a fixture is not there or asynchronous tests are not run; else empty."""
    if "async def functions are not natively supported" in text:
        return (
            "--plugin pytest_asyncio.plugin --pytest-ini asyncio_mode=auto (or anyio's: --pytest-ini anyio_mode=auto)"
        )
    lost = re.search(r"fixture '(\w+)' not found", text)
    if not lost:
        return ""
    module = _FIXTURES.get(lost[1])
    return f"--plugin {module}" if module else f"--plugin MODULE with the pytest plugin that has {lost[1]!r}"


def release(tree: SourceTree) -> str:
    """Name and version."""
    return f"{tree.distribution} {tree.version}"


def plain(text: str) -> str:
    """One short line of what a package's code said, with nothing that a terminal would obey."""
    shown = "".join(character if character.isprintable() else "?" for character in text.removeprefix("E ").strip())
    return shown if len(shown) <= LINE_MAX else f"{shown[: LINE_MAX - 1]}…"


def _lost(modules: Sequence[str], record: SuiteRecord) -> list[tuple[str, str]]:
    """Modules that could not be collected, each with the reason (as far as the record's line is not cut)."""
    told = dict(part.split(": ", 1) for part in record.problem.split("; ") if ": " in part)
    return [(module, plain(told[module])) for module in modules if module in told] if record.complete else []


def _count(some: int, whole: int, what: str) -> str:
    return f"{some} of {whole} {what}{'' if whole == 1 else 's'} {'fails' if some == 1 else 'fail'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
