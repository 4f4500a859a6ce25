"""The report's sections, each from the run's summary alone. A section without content is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from ropewalk.app.report.charts import Bar, Whisker, legend, number, stacked, whiskers
from ropewalk.app.report.markup import Markup, anchor, coded, joined, tag
from ropewalk.core.limits import MIB
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record
from ropewalk.reward.catalogue import SATURATED_RATE
from ropewalk.rollout.findings import Finding
from ropewalk.rollout.summary import EpisodeLine, Interval, RunSummary

STAGES = ("prepare", "sandbox", "tests", "model", "policy", "grading", "signing", "other")
TERMINATIONS = tuple(str(each) for each in Termination)
NOTHING = Markup("")


class CostLine(Record):
    """One figure of the cost model with how it came about."""

    label: str
    value: str
    derivation: str = ""


def tiles(summary: RunSummary, cost: Sequence[CostLine]) -> Markup:
    """The few numbers to see first."""
    sealed = sum(1 for line in summary.episodes if line.reward)
    unscored = sum(row.unscored for row in summary.policies)
    shown = [(str(sealed), "signed rewards" + (f", {unscored} unscored" if unscored else ""))]
    shown += [
        (rate(row.passes), f"{row.policy}: passed {row.passes.passed} of {row.passes.n}") for row in summary.policies
    ]
    shown.append((f"{summary.ended_s - summary.started_s:.0f} s", "from start to last signature"))
    if hours := summary.usage.get("sandbox_s"):
        shown.append((f"{number(hours)} s", f"of sandboxes, {number(summary.usage.get('cpu_s', 0.0))} s of CPU"))
    shown += [(line.value, line.label) for line in cost if line.label.startswith("per ")][:2]
    return tag(
        "div", *(tag("div", tag("b", big), tag("span", small), class_="tile") for big, small in shown), class_="tiles"
    )


def pass_rates(summary: RunSummary) -> Markup:
    """Dot and whisker per task and policy."""
    policies = [row.policy for row in summary.policies]
    groups: list[Markup] = []
    for name, rows in groupby(summary.rows, key=lambda row: (row.task, row.task_name)):
        drawn = [
            Whisker(
                row.policy,
                row.passes.rate,
                row.passes.low,
                row.passes.high,
                f"{row.passes.passed} of {row.passes.n}" + (f", {row.unscored} unscored" if row.unscored else ""),
                policies.index(row.policy) % 9 if row.policy in policies else 0,
            )
            for row in rows
        ]
        title = f"Pass rates of {name[1]} by policy"
        chart = whiskers(drawn, title=title, threshold=SATURATED_RATE, axis=not groups)
        groups.append(joined((tag("div", name[1], class_="group"), chart)))
    lead = (
        f"A dot is the share of scored episodes that passed all held-out tests, the line its 95% interval. "
        f"The dashed line at {SATURATED_RATE:.0%} is where a task begins to be saturated."
    )
    return _section("Pass rate by task and policy", lead, legend(policies), *groups) if groups else NOTHING


def findings(found: Iterable[Finding]) -> Markup:
    """What diagnosis says, worst first."""
    tone = {"serious": "bad", "warning": "warn", "note": "dim"}
    order = list(tone)
    items = [
        tag(
            "li",
            tag("span", str(finding.severity), class_=f"tag {tone[str(finding.severity)]}"),
            " ",
            coded(finding.title),
            tag("div", coded(finding.next_step), class_="dim") if finding.next_step else NOTHING,
        )
        for finding in sorted(found, key=lambda finding: order.index(str(finding.severity)))
    ]
    return _section("Diagnosis", "", tag("ul", *items, class_="plain")) if items else NOTHING


def terminations(summary: RunSummary) -> Markup:
    """How episodes ended, by policy."""
    bars = [
        Bar(row.policy, {k: float(v) for k, v in row.terminations.items()}, f"{row.episodes} episodes")
        for row in summary.policies
    ]
    lead = "Infrastructure failures and evictions are never scored; time limits truncate an episode."
    chart = stacked(bars, title="Terminations by policy", order=TERMINATIONS, unit="")
    return _section("How episodes ended", lead, chart) if bars else NOTHING


def times(summary: RunSummary) -> Markup:
    """Where the time went, in all and by policy."""
    order = (*STAGES, *sorted(set(summary.time_s) - set(STAGES)))
    bars = [Bar("whole run", summary.time_s, f"{number(sum(summary.time_s.values()))} s")]
    bars += [Bar(row.policy, row.time_s, f"{number(sum(row.time_s.values()))} s") for row in summary.policies]
    usage = summary.usage
    facts = [("sandbox-seconds", number(usage.get("sandbox_s", 0.0))), ("CPU-seconds", number(usage.get("cpu_s", 0.0)))]
    for key, name in (
        ("memory_bytes_peak", "peak memory of one sandbox"),
        ("memory_bytes_unique", "unique memory of one sandbox"),
    ):
        facts.append((name, f"{number(usage[key] / MIB)} MiB" if usage.get(key) else "not measurable on this machine"))
    facts += [
        (key.replace("_", " "), number(usage[key]))
        for key in ("forks", "tokens_prompt", "tokens_completion")
        if usage.get(key)
    ]
    table = tag("table", *(tag("tr", tag("th", name), tag("td", value)) for name, value in facts))
    lead = "Seconds of work, summed over everything that ran at once; they may exceed the time on the clock."
    chart = stacked(bars, title="Time by stage", order=order, unit=" s")
    return _section("Where the time went", lead, chart, tag("div", table, class_="scroll"))


def cost(lines: Sequence[CostLine], bars: Mapping[str, float]) -> Markup:
    """Cost per sandbox-hour and per rollout, with how it follows, beside what others charge."""
    if not lines:
        return NOTHING
    drawn = [Bar(label, {label: value}, f"${value:.4f}") for label, value in bars.items()]
    chart = (
        stacked(drawn, title="US dollars per sandbox-hour", order=tuple(bars), unit=" $", full=False)
        if drawn
        else NOTHING
    )
    rows = [
        tag("tr", tag("th", line.label), tag("td", line.value, class_="n"), tag("td", line.derivation, class_="dim"))
        for line in lines
    ]
    lead = (
        "What the run would cost on the server that the price file describes; every price, power and utilisation "
        "figure in it can be replaced. Beside it: list prices of others, and the goal, a price that hosted sandboxes "
        "are quoted at and that one's own hardware should stay below."
    )
    return _section("Cost", lead, chart, tag("div", tag("table", *rows), class_="scroll"))


def catalogue(summary: RunSummary) -> Markup:
    """What to do with each task."""
    tone = {"keep": "good", "broken": "bad", "watch": "warn", "saturated": "warn"}
    rows = [
        tag(
            "tr",
            tag("td", call.task_name, class_="name"),
            tag("td", tag("span", call.call, class_=f"tag {tone.get(call.call, 'dim')}")),
            tag("td", call.reason, class_="dim"),
        )
        for call in summary.catalogue
    ]
    head = tag("tr", tag("th", "task"), tag("th", "call"), tag("th", "why"))
    lead = "Keep, watch, saturated (at least 70% passed with 95% confidence) or broken (the right answer is not paid)."
    return _section("Catalogue", lead, tag("div", tag("table", head, *rows), class_="scroll")) if rows else NOTHING


def rows(summary: RunSummary) -> Markup:
    """The table behind the charts."""
    columns = ("task", "policy", "passed", "95%", "mean reward", "steps", "sandbox s", "CPU s", "ended", "group")
    numeric = {"passed", "mean reward", "steps", "sandbox s", "CPU s"}
    head = tag("tr", *(tag("th", name, class_="n" if name in numeric else None) for name in columns))
    body = []
    for row in summary.rows:
        ended = ", ".join(f"{name} {count}" for name, count in row.terminations.items())
        group = "complete" if row.complete else f"refused: {row.refusal}" if row.refusal else "open"
        group += "" if row.advantage else ", no advantage"
        cells: list[tuple[object, bool]] = [
            (f"{row.passes.passed}/{row.passes.n}", True),
            (f"{row.passes.low:.0%}–{row.passes.high:.0%}", False),
            ("–" if row.reward_mean is None else number(row.reward_mean), True),
            (number(row.steps_mean), True),
            (number(row.usage.get("sandbox_s", 0.0)), True),
            (number(row.usage.get("cpu_s", 0.0)), True),
            (ended, False),
            (group, False),
        ]
        body.append(
            tag(
                "tr",
                tag("td", row.task_name, tag("div", row.task, class_="id dim"), class_="name"),
                tag("td", row.policy),
                *(tag("td", value, class_="n" if right else None) for value, right in cells),
            )
        )
    return _section("Every task and policy", "", tag("div", tag("table", head, *body), class_="scroll"))


def rewards(summary: RunSummary, chains: Mapping[str, str]) -> Markup:
    """Each reward with its chain back to the raw files."""
    names = {row.task: row.task_name for row in summary.rows}
    items = [_reward(line, names.get(line.task, line.task), chains) for line in summary.episodes if line.reward]
    lead = "Open one to see the whole chain; `ropewalk trace REWARD` prints the same, checked against the log."
    return _section("Rewards and where they come from", lead, *items) if items else NOTHING


def rate(interval: Interval) -> str:
    """A pass rate as a percentage, or a dash where nothing was scored."""
    return "–" if interval.rate is None else f"{interval.rate:.0%}"


def _reward(line: EpisodeLine, name: str, chains: Mapping[str, str]) -> Markup:
    reward = line.reward or ""
    value = "unscored" if line.value is None else number(line.value)
    tone = "warn" if line.value is None else "good" if line.value > 0 else "dim"
    headline = tag(
        "summary", tag("span", value, class_=f"tag {tone}"), " ", name, ", ", line.policy, f" #{line.index}, ",
        line.cause, ", ", tag("span", reward, class_="id dim"),
    )  # fmt: skip
    chain = chains.get(reward) or f"ropewalk trace {reward}"
    facts = f"{line.episode}: {line.steps} steps, {line.duration_s:.1f} s, {line.termination or 'open'}"
    return tag("details", headline, tag("p", facts, class_="dim"), tag("pre", chain), id=anchor(reward))


def _section(title: str, lead: str, *children: object) -> Markup:
    opening = tag("p", coded(lead), class_="lead") if lead else NOTHING
    return tag("section", tag("h2", title), opening, *children)
