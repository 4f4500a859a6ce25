"""Progress: a live view on a terminal, one plain line per event elsewhere. Always on standard error."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ropewalk.cli.output import console, safe

LINES_KEPT = 5
PLAIN_PERIOD_S = 5.0
"""Without a terminal, counts are printed at most this often."""


class _Stage:
    def __init__(self, title: str, total: int | None, unit: str) -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.done = 0
        self.detail = ""
        self.started_s = time.monotonic()
        self.ended_s: float | None = None

    @property
    def elapsed_s(self) -> float:
        return (self.ended_s or time.monotonic()) - self.started_s

    @property
    def count(self) -> str:
        number = f"{self.done}/{self.total}" if self.total else str(self.done) if self.done else ""
        unit = self.unit.removesuffix("s") if (self.total or self.done) == 1 else self.unit
        return f"{number} {unit}" if number and unit else number


class Board:
    """Stages one after another, each with a count, and the last few things that happened.

    with Board() as board:
        board.begin("Fetch", total=3)
        board.advance("toolz 1.0.0")
        board.end("3 files")
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = console(error=True)
        self._live: Live | None = None
        self._quiet = quiet
        self._stages: list[_Stage] = []
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._printed_s = 0.0

    def __enter__(self) -> Board:
        if self._console.is_terminal and not self._quiet:
            self._live = Live(self, console=self._console, refresh_per_second=8, transient=False)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.clear()
        if kind is None and self._stages and self._stages[-1].ended_s is None:
            self.end()
        if self._live:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def begin(self, title: str, *, total: int | None = None, unit: str = "") -> None:
        """A new stage; one that still runs ends. `unit`: what is counted, where the title does not say it."""
        if self._stages and self._stages[-1].ended_s is None:
            self.end()
        self._stages.append(_Stage(title, total, unit))
        self._lines.clear()
        self._plain(f"{title} …")

    def advance(self, note: str = "", *, by: int = 1) -> None:
        """Some steps more."""
        stage = self._stages[-1]
        stage.done += by
        self.note(note)

    def note(self, text: str) -> None:
        """Something happened."""
        if not text:
            return
        self._lines.append(safe(text).replace("\n", " "))
        now_s = time.monotonic()
        if now_s - self._printed_s >= PLAIN_PERIOD_S:
            self._printed_s = now_s
            stage = self._stages[-1]
            counts = ", ".join(text for text in (stage.count, stage.detail) if text)
            self._plain(f"  {stage.title}: {counts}{': ' if counts else ''}{self._lines[-1]}")

    def detail(self, text: str) -> None:
        """What stands beside the stage's title."""
        self._stages[-1].detail = safe(text)

    def end(self, detail: str = "") -> None:
        """The stage is through."""
        stage = self._stages[-1]
        stage.ended_s = time.monotonic()
        stage.detail = safe(detail) or stage.detail
        self._plain(f"{stage.title}: {stage.detail or stage.count or 'done'} ({stage.elapsed_s:.1f} s)")

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        for _ in range(5):
            table.add_column()
        for stage in self._stages:
            running = stage.ended_s is None
            bar: RenderableType = ""
            if running and stage.total:
                bar = ProgressBar(total=stage.total, completed=min(stage.done, stage.total), width=24)
            table.add_row(
                Text("●" if running else "✓", style="yellow" if running else "green"),
                Text(stage.title, style="bold" if running else ""),
                Text(f"{stage.elapsed_s:5.1f} s", style="dim"),
                bar or Text(stage.detail or stage.count),
                Text(stage.count, style="dim") if bar else Text(""),
            )
        width = max(20, self._console.width - 6)
        recent = [Text(f"    {line[:width]}", style="dim", no_wrap=True, overflow="ellipsis") for line in self._lines]
        return Group(table, *recent)

    def _plain(self, text: str) -> None:
        if self._live is None and not self._quiet:
            self._console.print(text)
