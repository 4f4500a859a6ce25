"""A run's summary with everything in it that a report can show."""

from __future__ import annotations

from ropewalk.app.report import ReportInput
from ropewalk.app.report.sections import CostLine
from ropewalk.core.outcomes import Termination
from ropewalk.rollout.findings import Finding, FindingKind, Severity
from ropewalk.rollout.summary import CatalogueCall, EpisodeLine, Interval, PolicyRow, Row, RunSummary

POLICIES = ("noop", "oracle", "search(forks_max=64)")
NAMES = (
    "more-itertools 9.1.0→10.0.0 ChunkedEvenTests",
    "toolz 0.11.2→0.12.0 test_accumulate",
    "sortedcontainers 2.3.0→2.4.0 test_sorteddict_ior",
    "boltons 23.0.0→23.1.0 test_remap_default",
    "toolz 0.12.0 mutant slice in partition_all",
    "inflect 6.0.4→6.0.5 test_ordinal",
)
ENDS = {"finished": 15, "policy_stop": 6, "timeout": 2, "infrastructure": 1}
HOSTILE = "<script>alert(1)</script>\" onload='x' \u202egnp.exe"


def summary(*, hostile: bool = False) -> RunSummary:
    """Six tasks, three policies, four episodes each."""
    rows, lines, calls = [], [], []
    for index, name in enumerate((HOSTILE, *NAMES[1:]) if hostile else NAMES):
        task = f"task:{index:032x}"
        passed = (0, 4, (index * 2) % 5)
        for place, policy in enumerate(POLICIES):
            count = min(passed[place], 4)
            rows.append(
                Row(
                    task=task,
                    task_name=name,
                    kind="mutant" if "mutant" in name else "release",
                    policy=policy,
                    episodes=4,
                    scored=4 - (place == 2 and index == 3),
                    unscored=int(place == 2 and index == 3),
                    passes=Interval(
                        passed=count, n=4, rate=count / 4, low=max(0, count / 4 - 0.36), high=min(1, count / 4 + 0.36)
                    ),
                    reward_mean=count / 4,
                    steps_mean=(0.0, 1.0, 5.5)[place],
                    terminations={"finished": 3, "policy_stop": 1} if place == 2 else {"finished": 4},
                    causes={"all_matched": count, "value_mismatch": 4 - count},
                    time_s={"sandbox": 2.0, "tests": 3.5 * place, "policy": 0.4, "grading": 2.2},
                    usage={"sandbox_s": 21.0 * (place + 1), "cpu_s": 5.5 * (place + 1), "forks": 30.0 * place},
                    advantage=0 < count < 4,
                    complete=not (place == 2 and index == 3),
                    refusal="one sandbox was lost three times" if place == 2 and index == 3 else "",
                )
            )
            lines += [
                EpisodeLine(
                    episode=f"episode:{index:013d}{place:06d}{number:07d}",
                    task=task,
                    policy=policy,
                    index=number,
                    steps=(0, 1, 6)[place],
                    attempts=1,
                    termination=Termination.FINISHED,
                    truncated=False,
                    value=None if place == 2 and index == 3 and number == 3 else float(number < count),
                    cause="all_matched" if number < count else "value_mismatch",
                    reward=f"reward:{index:013d}{place:06d}{number:07d}",
                    duration_s=3.4,
                )
                for number in range(4)
            ]
        call = ("keep", "watch", "saturated", "broken", "keep", "keep")[index]
        calls.append(CatalogueCall(task=task, task_name=name, call=call, reason="search passes 2 of 4 (15%–85%)"))
    totals = [
        PolicyRow(
            policy=policy,
            episodes=24,
            unscored=int(place == 2),
            passes=Interval(passed=(0, 24, 11)[place], n=24, rate=(0.0, 1.0, 11 / 24)[place], low=0.28, high=0.65),
            steps_mean=(0.0, 1.0, 5.5)[place],
            terminations=ENDS if place == 2 else {"finished": 24},
            time_s={"sandbox": 12.0, "tests": 21.0 * place, "policy": 2.4, "grading": 13.0},
            usage={"sandbox_s": 126.0 * (place + 1)},
        )
        for place, policy in enumerate(POLICIES)
    ]  # fmt: skip
    return RunSummary(
        run="run:01JDY0000000000000000000AA",
        plan="plan:0123456789abcdef0123456789abcdef",
        state="incomplete",
        started_s=1_796_000_000.0,
        ended_s=1_796_000_083.0,
        rows=tuple(rows),
        policies=tuple(totals),
        catalogue=tuple(calls),
        episodes=tuple(lines),
        time_s={"prepare": 9.0, "sandbox": 36.0, "tests": 63.0, "policy": 7.2, "grading": 39.0, "signing": 1.9},
        usage={
            "sandbox_s": 756.0,
            "cpu_s": 140.0,
            "memory_bytes_peak": 61e6,
            "memory_bytes_unique": 22e6,
            "forks": 540.0,
        },
    )


def report(*, hostile: bool = False) -> ReportInput:
    """The summary with findings, cost and chains."""
    made = summary(hostile=hostile)
    chain = "reward:…  1.0\n└─ verdict  all_matched\n   └─ raw  more-itertools-9.1.0.tar.gz  sha256 cabaa3…  MIT"
    return ReportInput(
        summary=made,
        findings=(
            Finding(
                kind=FindingKind.NO_ADVANTAGE,
                severity=Severity.WARNING,
                title=f"14 of 18 groups have no advantage{HOSTILE if hostile else ''}.",
                next_step="drop noop and oracle from the plan, or raise run.group.",
            ),
            Finding(
                kind=FindingKind.GROUP_REFUSED, severity=Severity.SERIOUS, title="One group is refused.", next_step=""
            ),
        ),
        chains={line.reward: chain for line in made.episodes if line.reward},
        cost=(
            CostLine(
                label="per sandbox-hour", value="$0.0068", derivation="$1.79 per server-hour / (376 sandboxes × 70%)"
            ),
            CostLine(label="per rollout", value="$0.000020", derivation="10.5 sandbox-seconds at that price"),
            CostLine(
                label="server per hour", value="$1.79", derivation="capex 32,000 over 3 years, power, space, spares"
            ),
        ),
        cost_bars={"Ropewalk, own hardware": 0.0068, "anchor $0.039": 0.039, "anchor $0.025": 0.025},
        verification="unanchored",
        made_s=1_796_000_100.0,
    )
