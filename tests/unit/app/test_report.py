"""The report: complete without the network, and nothing in a name or a detail can break out of its place."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.app.report import render_report
from ropewalk.app.report.charts import Bar, Whisker, number, stacked, whiskers
from ropewalk.app.report.markup import anchor, coded, tag, text
from tests.unit.app.samples import HOSTILE, POLICIES, report

VOID = {"meta", "br", "hr"}


class Reader(HTMLParser):
    """Checks nesting and collects what a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def test_it_needs_nothing_from_outside() -> None:
    html = render_report(report())
    reader = read(html)
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.tags)
    assert not [value for name, value in reader.attributes if name in ("src", "href", "xlink:href")]
    assert "url(" not in html and "@import" not in html
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in reader.attributes


def test_hostile_names_stay_text() -> None:
    reader = read(render_report(report(hostile=True)))
    assert "script" not in reader.tags
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in reader.text
    assert "\u202e" not in reader.text and "\\u202e" in reader.text


def test_everything_is_in_it() -> None:
    reader = read(render_report(report()))
    for wanted in (
        *POLICIES,
        "unanchored",
        "incomplete",
        "1 of 4, 1 unscored",
        "$0.0068",
        "anchor $0.025",
    ):
        assert wanted in reader.text
    assert reader.text.count("more-itertools-9.1.0.tar.gz") == 72
    for section in ("Pass rate", "Diagnosis", "How episodes ended", "Where the time went", "Cost", "Catalogue"):
        assert section in reader.text


def test_every_chart_speaks() -> None:
    html = render_report(report())
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert drawings
    assert all("<title>" in drawing or "aria-hidden" in drawing for drawing in drawings)


@given(st.text(max_size=60))
def test_text_and_attributes_round_trip(value: str) -> None:
    reader = read(tag("p", value, title=value))
    shown = "".join(c if c.isprintable() or c in "\n\t " else "" for c in value)
    assert reader.tags == ["p"]
    assert [name for name, _ in reader.attributes] == ["title"]
    if shown == value and "\r" not in value:
        assert reader.text == value
        assert reader.attributes[0][1] == value


def test_commands_in_a_text_are_set_as_code() -> None:
    assert coded("see `ropewalk export`.") == "see <code>ropewalk export</code>."
    assert coded("`<b>` it") == "<code>&lt;b&gt;</code> it"
    assert coded("an odd ` stays") == "an odd ` stays"
    shown = render_report(report())
    assert "`" not in shown and "<code>ropewalk trace REWARD</code>" in shown
    assert "the goal, a price" in shown


def test_long_text_says_that_it_is_cut() -> None:
    assert text("a" * 5000).endswith("… [cut]")
    assert HOSTILE not in text(HOSTILE)


@given(st.floats(-1, 2), st.floats(-1, 2), st.floats(-1, 2))
def test_whiskers_never_leave_the_chart(low: float, rate: float, high: float) -> None:
    drawn = whiskers([Whisker("a", rate, low, high, "n", 0)], title="t")
    places = [float(x) for x in re.findall(r'(?:x1|x2|cx)="(-?[\d.]+)%"', drawn)]
    assert all(0 <= place <= 100 for place in places)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(0, 1e6), max_size=3))
def test_stacked_parts_fill_the_bar_and_no_more(parts: dict[str, float]) -> None:
    drawn = stacked([Bar("x", parts, "")], title="t", order=("a", "b", "c"), unit="")
    widths = [float(width) for width in re.findall(r'<rect[^>]*width="([\d.]+)%"', drawn)]
    assert sum(widths) <= 100.02
    if sum(parts.values()) > 0:
        assert sum(widths) >= 99.9


def test_numbers_and_anchors() -> None:
    assert [number(x) for x in (0, 0.00001, 0.0068, 3.14159, 1234.5)] == ["0", "1.00e-05", "0.0068", "3.14", "1,234"]
    assert anchor("reward:01<b>") == "reward-01-b-"
