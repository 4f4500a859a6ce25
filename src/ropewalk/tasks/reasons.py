"""Why sources gave no task, for people: what happened, and what helps."""

from __future__ import annotations

from typing import Final

from ropewalk.tasks.baselines import missing_modules
from ropewalk.tasks.records import Reason, Rejection, YieldReport

SHOWN_MAX: Final = 3
MEANINGS: Final[dict[Reason, tuple[str, str]]] = {
    Reason.NO_KILLERS: ("no test fails before and passes after", "name another pair of releases."),
    Reason.HANGS: ("too many tests hang on the older source", "name another pair of releases."),
    Reason.NO_TESTS: ("there are no tests", "name the tests `test_*.py`, or name a source that ships its tests."),
    Reason.BASELINE_FAILS: (
        "no test passes on its own source in the sandbox",
        "give what the tests need: --requirements FILE, --plugin MODULE; nothing else is installed in the sandbox.",
    ),
    Reason.IMPORT_FAILS: ("the older source does not fit the newer tests", "name another pair of releases."),
    Reason.UNSTABLE: ("tests do not behave the same every time", "make the tests deterministic."),
    Reason.ONE_BODY: ("too few different tests reach the same function", "write more tests of the same functions."),
    Reason.NOT_GRADABLE: ("tests compare nothing that can be judged outside", "assert on plain data: numbers, text."),
    Reason.LOW_ENTROPY: ("what tests compare can be guessed", "compare values instead of truth, larger ones."),
    Reason.UNSPECIFIED: ("tests ask for what nothing visible mentions", "name another pair of releases."),
    Reason.GRADER: ("the grader was refused", "the detail says why."),
    Reason.NOOP_PASSES: ("doing nothing passes", "name another pair of releases."),
    Reason.ORACLE_FAILS: ("the right answer fails", "make the tests deterministic."),
    Reason.LEAK: ("the answer could be found in the sandbox", "do not put the package itself into the requirements."),
    Reason.SURVIVES: ("no test notices the mistakes that were tried", "write tests of more functions."),
    Reason.QUOTA: ("mutants would be more than a quarter", "name pairs of releases too."),
    Reason.UNREADABLE: ("a source cannot be worked with", "the detail says what is odd."),
    Reason.INFRASTRUCTURE: ("our side failed", "repeat the command."),
}
"""What each reason means, and what to do about it."""


def why_nothing(report: YieldReport) -> tuple[str, str]:
    """What to tell somebody who got no task: the sentence and the next step.

    What ended a whole source comes first, in its own words; then the most frequent reasons with one example each.
    """
    whole = [each for source in report.sources for each in source.rejections if each.name == source.name]
    single = [each for source in report.sources for each in source.rejections if each.name != source.name]
    first = next(iter(whole), None)
    said = [_detail(each) for each in {each.detail: each for each in whole}.values()]
    for reason, count in sorted(_counts(single).items(), key=lambda item: -item[1]):
        example = next(each for each in single if each.reason is reason)
        first = first or example
        said.append(f"{count} × {MEANINGS[reason][0]} ({_detail(example)})")
    more = f"; {len(said) - SHOWN_MAX} more" if len(said) > SHOWN_MAX else ""
    told = "; ".join(said[:SHOWN_MAX]) or "there was nothing to build from"
    return f"The sources gave no task: {told}{more}.".replace("..", "."), advice(first) if first else ""


def advice(rejection: Rejection) -> str:
    """What helps."""
    missing = missing_modules(rejection.detail) if rejection.reason is Reason.BASELINE_FAILS else ()
    if missing:
        return f"--requirements FILE with {' and '.join(missing)} in it (or --plugin, if it is one of pytest's)."
    return MEANINGS[rejection.reason][1]


def _counts(rejections: list[Rejection]) -> dict[Reason, int]:
    found: dict[Reason, int] = {}
    for each in rejections:
        found[each.reason] = found.get(each.reason, 0) + 1
    return found


def _detail(rejection: Rejection) -> str:
    told = f"{rejection.name}: {rejection.detail}" if rejection.detail else rejection.name
    # A source's own sentence names it already.
    return rejection.detail if rejection.reason in (Reason.BASELINE_FAILS, Reason.NO_TESTS) else told
