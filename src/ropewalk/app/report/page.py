"""The report's page: a run's summary, findings, cost and traces as one HTML file without any outside resource."""

from __future__ import annotations

import ropewalk
from ropewalk.app.report import sections
from ropewalk.app.report.markup import Markup, joined, tag
from ropewalk.app.report.style import STYLE
from ropewalk.core.clock import utc
from ropewalk.core.records import Record
from ropewalk.rollout.findings import Finding
from ropewalk.rollout.summary import RunSummary


class ReportInput(Record):
    """All that a report shows."""

    summary: RunSummary
    findings: tuple[Finding, ...] = ()
    chains: dict[str, str] = {}
    """Reward → its chain back to the raw files, as text."""
    cost: tuple[sections.CostLine, ...] = ()
    cost_bars: dict[str, float] = {}
    """US dollars per sandbox-hour: ours and the anchors, by label."""
    verification: str = "not verified"
    """What `verify` said when the report was made."""
    made_s: float


def render_report(report: ReportInput) -> str:
    """The whole HTML document."""
    summary = report.summary
    body = [
        _head(report),
        tag(
            "main",
            sections.tiles(summary, report.cost),
            sections.pass_rates(summary),
            sections.findings(report.findings),
            sections.terminations(summary),
            sections.times(summary),
            sections.cost(report.cost, report.cost_bars),
            sections.catalogue(summary),
            sections.rows(summary),
            sections.rewards(summary, report.chains),
        ),
        tag(
            "footer",
            f"Made by Ropewalk {ropewalk.__version__} at {utc(report.made_s)}. Pass rates carry 95% Wilson score "
            "intervals, those of policies as wide as the differences between tasks make them; unscored episodes are in "
            "no rate. This file loads nothing from anywhere.",
        ),
    ]
    head = joined(
        (
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
            tag("title", f"Ropewalk {summary.run}"),
            Markup(f"<style>{STYLE}</style>"),
        )
    )
    return f'<!doctype html>\n<html lang="en">{tag("head", head)}{tag("body", *body)}</html>\n'


def _head(report: ReportInput) -> Markup:
    summary = report.summary
    state = {"complete": "good", "incomplete": "bad"}.get(summary.state, "warn")
    anchored = "good" if report.verification.startswith(("ok", "verified")) else "warn"
    tasks = len({row.task for row in summary.rows})
    return tag(
        "header",
        _ROPE,
        tag("h1", f"{tasks} tasks, {len(summary.policies)} policies, {len(summary.episodes)} episodes"),
        tag(
            "p",
            tag("span", summary.state, class_=f"tag {state}"),
            " ",
            tag("span", report.verification, class_=f"tag {anchored}"),
            Markup(" &nbsp; "),
            tag("span", f"{utc(summary.started_s)}, {summary.ended_s - summary.started_s:.0f} s", class_="dim"),
        ),
        tag("p", tag("span", summary.run, class_="id"), " from ", tag("span", summary.plan, class_="id"), class_="dim"),
    )


def _rope() -> Markup:
    """A rope of slanting strands, every fifth of them the rogue's yarn."""
    strands = [
        Markup(
            f'<line x1="{x}%" y1="10" x2="{x + 1.5}%" y2="0" stroke="var({"--accent" if x % 5 == 0 else "--line"})"'
            ' stroke-width="7"/>'
        )
        for x in range(100)
    ]
    return tag("svg", *strands, class_="rope", aria_hidden="true")


_ROPE = _rope()
