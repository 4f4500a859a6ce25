"""How commands are declared: one cyclopts app per file, with examples, loaded when it is named."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError
from rich.console import Console

from ropewalk.cli.commands import CommandEntry

F = TypeVar("F", bound=Callable[..., Any])

HELP_WIDTH = 110
ARGUMENT_INDENT = 4
EVERYWHERE = Group("Everywhere", sort_key=100)


@Parameter(name="*")
@dataclass(frozen=True)
class Place:
    """Where a command works: options that every command has."""

    profile: Annotated[str | None, Parameter(group=EVERYWHERE)] = None
    """Profile by name (embedded, air-gapped) or a TOML file. Default: $ROPEWALK_PROFILE, else embedded."""
    state: Annotated[Path | None, Parameter(group=EVERYWHERE)] = None
    """State directory. Default: $ROPEWALK_STATE, else ~/.local/state/ropewalk."""


_FOREIGN: set[Callable[..., Any]] = set()
_HINTS: list[str] = []
HERE = Place()
"""The default of every command's `place`."""


def noun(name: str, text: str) -> App:
    """An app that only has subcommands."""
    return App(name=name, help=text, **_STYLE)


def verb(name: str, *, examples: Sequence[str]) -> App:
    """An app whose default is the command itself; its help is the function's docstring."""
    return App(name=name, help_epilogue=_epilogue(examples), **_STYLE)


def command(app: App, name: str, *, examples: Sequence[str], foreign: bool = False) -> Callable[[F], F]:
    """Registers a function as a subcommand. `foreign`: its last words are another program's command line."""

    def register(function: F) -> F:
        if foreign:
            _FOREIGN.add(function)
        app.command(function, name=name, help_epilogue=_epilogue(examples), **_STYLE)
        return function

    return register


def on_interrupt(text: str) -> None:
    """What to say where Ctrl-C ends the command from here on: how to go on."""
    _HINTS.append(text)


def interrupt_hint() -> str:
    """What the command said last by `on_interrupt`."""
    return _HINTS[-1] if _HINTS else ""


def run_words(words: list[str], entry: CommandEntry) -> int:
    """Loads the module of one command and runs the words on it; the first word is the command's name.

    Returns:
        The exit code: what the command returned, or 2 for a command line that does not fit.
    """
    root = App(name="ropewalk", **_STYLE)
    root.command(f"ropewalk.cli.{entry.module}:app", name=entry.name)
    _unwrap_docs(root[entry.name])
    try:
        words = _guarded(root, words)
        code = root(words, console=_console(), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print(f"error: {_plain(error)}", file=sys.stderr)
        chain = list(error.command_chain or ()) or [entry.name]
        print(f" next: ropewalk {' '.join([*chain, '--help'])}", file=sys.stderr)
        return 2
    return int(code or 0)


def _guarded(root: App, words: list[str]) -> list[str]:
    """Where a command's words are somebody else's program and its options, `--` before the first of them: nothing
    behind it is ours, whether or not it looks so."""
    app, place = root, 0
    while place < len(words) and not words[place].startswith("-") and words[place] in app:
        app, place = app[words[place]], place + 1
    if app.default_command not in _FOREIGN:
        return words
    found = app.assemble_argument_collection()
    takes = {name: each.token_count()[0] for each in found for name in each.names if name.startswith("-")}
    ours = sum(each.index is not None for each in found) - 1
    while place < len(words) and words[place] != "--":
        name, is_whole, _ = words[place].partition("=")
        if name in takes:
            place += 1 + (0 if is_whole else takes[name])
        elif words[place].startswith("-") and len(words[place]) > 1:
            return words  # no option of ours: that is for the parser to say
        elif ours:
            ours -= 1
            place += 1
        else:
            return [*words[:place], "--", *words[place:]]
    return words


def _unwrap_docs(app: App) -> None:
    """Joins the lines of every paragraph, so that help breaks them where the terminal ends and not where code does."""
    function = app.default_command
    if function is not None and function.__doc__:
        function.__doc__ = unwrap(function.__doc__)
    for name in app:
        if not name.startswith("-"):
            _unwrap_docs(app[name])


def unwrap(doc: str) -> str:
    """A docstring with one line per paragraph and one per argument."""
    lines: list[str] = []
    for line in inspect.cleandoc(doc).splitlines():
        indent = len(line) - len(line.lstrip())
        starts_anew = not line.strip() or not lines or not lines[-1].strip() or lines[-1].endswith("Args:")
        if starts_anew or (indent == ARGUMENT_INDENT and ": " in line):
            lines.append(line)
        else:
            lines[-1] += " " + line.strip()
    return "\n".join(lines)


def _console() -> Console:
    """For help and usage errors; as wide as a page where nothing says how wide it is."""
    return Console(width=None if sys.stdout.isatty() else HELP_WIDTH, markup=False, emoji=False, highlight=False)


def _epilogue(examples: Sequence[str]) -> str:
    return "Examples:\n" + "\n".join(f"  {example}" for example in examples)


def _plain(error: CycloptsError) -> str:
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"Nothing takes {' '.join(map(repr, error.unused_tokens))}."
    text = str(error).strip()
    return text or type(error).__name__


_STYLE: dict[str, Any] = {
    "help_format": "plaintext",
    "help_formatter": "plain",
    "version_flags": [],
    "result_action": "return_int_as_exit_code_else_zero",
    "suppress_keyboard_interrupt": False,
    "default_parameter": Parameter(negative=()),
}
