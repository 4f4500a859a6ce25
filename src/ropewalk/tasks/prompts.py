"""What a policy is told. Never the fixed source, never a held-out test."""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.tasks.bodies import without_parameters

_TESTS_MAX = 12


def release_prompt(
    *,
    distribution: str,
    before: str,
    notes: str,
    killers: Sequence[str],
    command: Sequence[str],
) -> str:
    """The prompt of a release task.

    Args:
        distribution, before: the package and the release whose source the policy gets.
        notes: what the next release's own notes say of this change; may be empty.
        killers: the visible tests that fail now.
        command: runs tests; node ids are appended.
    """
    parts = [
        f"The source of {distribution} {before} is in the current directory. Some tests describe behaviour that it "
        "does not have yet. Change the source so that they pass, and so that every other test still passes."
    ]
    if notes:
        parts.append(f"The project's notes on this change:\n\n{notes}")
    return _ending(parts, killers, command)


def mutant_prompt(*, distribution: str, version: str, killers: Sequence[str], command: Sequence[str]) -> str:
    """The prompt of a mutant task: it does not tell where or what the mistake is."""
    parts = [
        f"The source of {distribution} {version} is in the current directory. One function has a mistake, and some "
        "tests fail because of it. Find it and put it right; every other test must still pass."
    ]
    return _ending(parts, killers, command)


def _ending(parts: list[str], killers: Sequence[str], command: Sequence[str]) -> str:
    functions = list(dict.fromkeys(without_parameters(killer) for killer in killers))
    listed = "\n".join(f"    {name}" for name in functions[:_TESTS_MAX])
    if len(functions) > _TESTS_MAX:
        listed += f"\n    and {len(functions) - _TESTS_MAX} more"
    parts.append(f"Tests that fail now:\n\n{listed}")
    parts.append(f"Run them with:\n\n    {' '.join(command)} {functions[0] if functions else ''}".rstrip())
    parts.append(
        "Only changes to the package's own Python files count. Your work is judged by other tests of the same "
        "behaviour, which are not here."
    )
    return "\n\n".join(parts) + "\n"
