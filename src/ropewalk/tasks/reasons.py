"""Why sources gave no task, for people: what happened, and what helps."""

from __future__ import annotations

import re
from typing import Final

from ropewalk.tasks.baselines import missing_modules, plugin_hint
from ropewalk.tasks.records import Reason, Rejection, YieldReport

SHOWN_MAX: Final = 3
MEANINGS: Final[dict[Reason, tuple[str, str]]] = {
    Reason.NO_KILLERS: ("no test fails before and passes after", "name another pair of releases."),
    Reason.HANGS: ("too many tests hang on the older source", "name another pair of releases."),
    Reason.NO_TESTS: (
        "there are no tests",
        "name the tests `test_*.py` (or --pytest-ini python_files=GLOB), or name a source that ships its tests.",
    ),
    Reason.BASELINE_FAILS: (
        "no test passes on its own source in the sandbox",
        "make them pass on their own source; what they need besides it must be named: --requirements FILE, --plugin "
        "MODULE.",
    ),
    Reason.IMPORT_FAILS: ("the older source does not fit the newer tests", "name another pair of releases."),
    Reason.UNSTABLE: ("tests do not behave the same every time", "make the tests deterministic."),
    Reason.ONE_BODY: ("too few different tests reach the same function", "write more tests of the same functions."),
    Reason.NOT_GRADABLE: ("tests compare nothing that can be judged outside", "assert on plain data: numbers, text."),
    Reason.LOW_ENTROPY: (
        "what tests compare can be guessed",
        "name other releases; in tests of your own, expect longer results that stand nowhere in the source or its "
        "examples.",
    ),
    Reason.UNSPECIFIED: ("tests ask for what nothing visible mentions", "name another pair of releases."),
    Reason.GRADER: ("the grader was refused", "the detail says why."),
    Reason.NOOP_PASSES: ("doing nothing passes", "name another pair of releases."),
    Reason.ORACLE_FAILS: ("the right answer fails", "make the tests deterministic."),
    Reason.LEAK: ("the answer could be found in the sandbox", "do not put the package itself into the requirements."),
    Reason.SURVIVES: ("no test notices the mistakes that were tried", "write tests of more functions."),
    Reason.QUOTA: (
        "mutants would be more than their share",
        "name pairs of releases too, or raise tasks.mutant_share_max.",
    ),
    Reason.UNREADABLE: ("a source cannot be worked with", "the detail says what is odd."),
    Reason.INFRASTRUCTURE: ("our side failed", "repeat the command."),
}
"""What each reason means, and what to do about it."""


def why_nothing(report: YieldReport) -> tuple[str, str]:
    """What to tell somebody who got no task: the sentence and the next step.

    What ended a whole source comes first, in its own words; then the most frequent reasons with one example each.
    """
    told, first = _told(report)
    message = f"The sources gave no task: {told or 'there was nothing to build from'}.".replace("..", ".")
    return message, advice(first) if first else ""


def why_fewer(report: YieldReport, *, came: int, wanted: int, mutant_share_max: float | None) -> str:
    """Why fewer tasks came than were wanted, and what helps, in one line; empty where enough came.

    Args:
        report: of the build.
        came, wanted: tasks.
        mutant_share_max: of mutants beside release tasks; None where only one of the kinds was wanted.
    """
    if not 0 < came < wanted:
        return ""
    told, first = _told(report)
    helps = [advice(first)] if first else []
    if mutant_share_max is not None:
        helps.append(
            f"mutants are {mutant_share_max:.0%} at most: raise tasks.mutant_share_max, or want them alone "
            "(tasks.kinds = ['mutant'])."
        )
    said = f"{wanted} tasks were wanted and {came} came: {told or 'the sources hold no more'}."
    helps = helps or ["name more releases."]
    return f"{said} Next: {' Or: '.join(helps)}".replace("..", ".")


def examples(report: YieldReport) -> list[tuple[str, str]]:
    """For each reason why something did not become a task: how often, with one example, and what helps."""
    return [
        (f"{reason} {len(found)}: {MEANINGS[reason][0]}, e.g. {_detail(found[0])}", advice(found[0]))
        for reason, found in _single(report).items()
    ]


def _told(report: YieldReport) -> tuple[str, Rejection | None]:
    """The first few reasons in a sentence, and the rejection whose advice helps most."""
    whole = [each for source in report.sources for each in source.rejections if each.name == source.name]
    first = next(iter(whole), None)
    said = [_detail(each) for each in {each.detail: each for each in whole}.values()]
    for reason, found in sorted(_single(report).items(), key=lambda item: -len(item[1])):
        first = first or found[0]
        said.append(f"{len(found)} × {MEANINGS[reason][0]} ({_detail(found[0])})")
    more = f"; {len(said) - SHOWN_MAX} more" if len(said) > SHOWN_MAX else ""
    return "; ".join(said[:SHOWN_MAX]) + more, first


def advice(rejection: Rejection) -> str:
    """What helps."""
    return (_advice_to_mend(rejection.detail) if rejection.reason is Reason.BASELINE_FAILS else "") or (
        MEANINGS[rejection.reason][1]
    )


def _advice_to_mend(detail: str) -> str:
    """What helps where no test passes, by what went wrong first."""
    if "importing plugin" in detail:
        return "name a plugin by its module (--plugin pytest_mock), and give --requirements FILE with its distribution."
    if missing := missing_modules(detail):
        return f"--requirements FILE with {' and '.join(missing)} in it (or --plugin, if it is one of pytest's)."
    if hint := plugin_hint(detail):
        return f"{hint}, and --requirements FILE with its distribution in it."
    if re.search(r"(Syntax|Indentation|Tab)Error", detail):
        return "mend what this Python cannot parse."
    return ""


def _single(report: YieldReport) -> dict[Reason, list[Rejection]]:
    """Rejections of what is in sources, by reason; not those of whole sources."""
    found: dict[Reason, list[Rejection]] = {}
    for source in report.sources:
        for each in source.rejections:
            if each.name != source.name:
                found.setdefault(each.reason, []).append(each)
    return found


def _detail(rejection: Rejection) -> str:
    told = f"{rejection.name}: {rejection.detail}" if rejection.detail else rejection.name
    # A source's own sentence names it already.
    return rejection.detail if rejection.reason in (Reason.BASELINE_FAILS, Reason.NO_TESTS) else told
