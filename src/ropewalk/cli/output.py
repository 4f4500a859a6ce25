"""What commands print: tables for people on standard output, JSON for scripts, nothing hostile to a terminal."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ropewalk.cli.enduring import Enduring
from ropewalk.core.records import json_text, to_plain

PLAIN_WIDTH = 1_000_000
"""Where nothing is a terminal: no table is so wide that it folds, and a script's `grep` finds whole ids."""

TASK_WIDTH = 40
"""Of the column that names tasks, on a terminal."""


def console(*, error: bool = False) -> Console:
    """A console on standard output or error; without markup, so that no text can style itself. Where nobody reads it
    any more, nothing is said and nothing ends."""
    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    file: Any = Enduring(stream, whatever=error)
    return Console(file=file, markup=False, emoji=False, highlight=False, width=width, soft_wrap=not stream.isatty())


def safe(value: object) -> str:
    """A text that can only show itself on a terminal: control and direction-changing characters are spelled out."""
    return "".join(
        character
        if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
        else f"\\u{ord(character):04x}"
        for character in str(value)
    )


def counted(number: int, word: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def print_json(value: Any) -> None:
    """Records or plain values as JSON, indented, on standard output."""
    print(json_text(to_plain(value), indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table; columns whose name begins with `>` are right-aligned. `empty` is said where there is no row.

    A column without any content is left out. On a terminal long names of tasks are folded; a script finds them whole.
    """
    made = [[safe("" if cell is None else cell) for cell in row] for row in rows]
    if not made:
        print(empty)
        return
    shown = [place for place in range(len(columns)) if any(row[place] for row in made)]
    columns, made = [columns[place] for place in shown], [[row[place] for place in shown] for row in made]
    folds = console().is_terminal
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold",
            max_width=TASK_WIDTH if folds and column == "task" else None,
        )  # fmt: skip
    for row in made:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console().print(table)


def say(text: object = "", *, style: str = "", error: bool = False) -> None:
    """One line on standard output or error, made safe."""
    console(error=error).print(Text(safe(text), style=style))


_STYLES = {
    "yes": "green",
    "no": "red",
    "keep": "green",
    "ok": "green",
    "complete": "green",
    "broken": "red",
    "incomplete": "red",
    "watch": "yellow",
    "saturated": "yellow",
    "unanchored": "yellow",
}
