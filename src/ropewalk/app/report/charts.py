"""Charts as inline SVG. Horizontal places are percentages, so that a chart fits a phone and keeps its stroke widths.

Every chart has a title and a description for screen readers, and says its numbers in text as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ropewalk.app.report.markup import Markup, tag


class Whisker(NamedTuple):
    """A rate with its interval."""

    label: str
    rate: float | None
    low: float
    high: float
    note: str
    series: int
    """Which of the chart's colours, from 0."""


class Bar(NamedTuple):
    """One bar of a chart, made of parts."""

    label: str
    parts: Mapping[str, float]
    note: str


def whiskers(rows: Sequence[Whisker], *, title: str, threshold: float | None = None, axis: bool = True) -> Markup:
    """Dot and whisker, one line each, over a scale from 0 to 100%.

    Args:
        rows: in the order in which they stand.
        title: what the chart shows, for people who do not see it.
        threshold: a rate to mark by a dashed line.
        axis: whether to write the scale above the first line.
    """
    above = tag("div", tag("span", "", class_="label"), _axis(), tag("span", "", class_="note"), class_="row axis")
    lines = [above] if axis else []
    for row in rows:
        shapes = [_rule(x, "grid") for x in (0, 25, 50, 75, 100)]
        if threshold is not None:
            shapes.append(_rule(threshold * 100, "threshold"))
        shapes.append(
            tag("line", x1=_percent(row.low), x2=_percent(row.high), y1=11, y2=11, class_=f"whisker s{row.series}")
        )
        shapes += [
            tag("line", x1=_percent(end), x2=_percent(end), y1=6, y2=16, class_=f"whisker s{row.series}")
            for end in (row.low, row.high)
        ]
        if row.rate is not None:
            shapes.append(tag("circle", cx=_percent(row.rate), cy=11, r=5, class_=f"dot s{row.series}"))
        spoken = f"{row.label}: {row.note}"
        drawn = tag("svg", tag("title", spoken), *shapes, role="img", width="100%", height=22, class_="plot")
        lines.append(_row(row.label, drawn, row.note))
    return tag("figure", tag("figcaption", title, class_="spoken"), *lines, class_="chart")


def stacked(bars: Sequence[Bar], *, title: str, order: Sequence[str], unit: str, full: bool = True) -> Markup:
    """Stacked horizontal bars with a legend.

    Args:
        bars: in the order in which they stand.
        title: what the chart shows.
        order: all parts in the order in which they are stacked; their place decides the colour.
        unit: after each number.
        full: every bar fills the width (shares); otherwise the longest does (amounts).
    """
    longest = max((sum(bar.parts.values()) for bar in bars), default=0.0)
    used = [name for name in order if any(bar.parts.get(name) for bar in bars)]
    lines = []
    for bar in bars:
        total = sum(bar.parts.values())
        scale = total if full else longest
        position, shapes = 0.0, []
        for name in used:
            share = bar.parts.get(name, 0.0) / scale if scale else 0.0
            if share <= 0:
                continue
            spoken = f"{bar.label}: {name} {number(bar.parts[name])}{unit}"
            shapes.append(
                tag(
                    "rect",
                    tag("title", spoken),
                    x=_percent(position),
                    width=_percent(share),
                    y=2,
                    height=18,
                    class_=f"part c{order.index(name) % 9}",
                )
            )
            position += share
        said = ", ".join(f"{name} {number(value)}{unit}" for name, value in bar.parts.items() if value)
        drawn = tag(
            "svg", tag("title", f"{bar.label}: {said}"), *shapes, role="img", width="100%", height=22, class_="plot"
        )
        lines.append(_row(bar.label, drawn, bar.note))
    legend = tag(
        "ul",
        *(tag("li", tag("i", class_=f"c{order.index(name) % 9}", aria_hidden="true"), name) for name in used),
        class_="legend",
    )
    return tag("figure", tag("figcaption", title, class_="spoken"), legend, *lines, class_="chart")


def legend(names: Sequence[str]) -> Markup:
    """The colours of series, by name."""
    return tag(
        "ul",
        *(tag("li", tag("i", class_=f"s{index}", aria_hidden="true"), name) for index, name in enumerate(names)),
        class_="legend",
    )


def number(value: float) -> str:
    """A number for people: three significant digits, no exponent for common sizes."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 0.001:
        return f"{value:.3g}"
    return f"{value:.2e}"


def _row(label: str, drawn: Markup, note: str) -> Markup:
    return tag("div", tag("span", label, class_="label"), drawn, tag("span", note, class_="note"), class_="row")


def _axis() -> Markup:
    ticks = [
        tag("text", f"{x}%", x=f"{x}%", y=14, text_anchor="start" if x == 0 else "end" if x == 100 else "middle")
        for x in (0, 50, 100)
    ]
    return tag("svg", *ticks, width="100%", height=18, class_="plot", aria_hidden="true")


def _rule(x: float, kind: str) -> Markup:
    return tag("line", x1=f"{x:g}%", x2=f"{x:g}%", y1=0, y2=22, class_=kind)


def _percent(share: float) -> str:
    return f"{min(max(share, 0.0), 1.0) * 100:.2f}%"
