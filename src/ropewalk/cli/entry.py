"""Where the `ropewalk` program starts and every command ends: exit codes and error texts are decided here."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import ropewalk
from ropewalk.cli.commands import entries, top_help
from ropewalk.cli.enduring import Enduring
from ropewalk.cli.exit_codes import EXIT_INTERRUPTED, EXIT_UNAVAILABLE, EXIT_USAGE
from ropewalk.core.errors import RopewalkError, leaves
from ropewalk.machinery.redaction import without_hidden

EVERYWHERE_FLAGS = ("--profile", "--state")
NAMES_MAX = 2
"""Words of the longest command name: `task build`."""
HELP_FLAGS = ("--help", "-h", "help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code. Never raises, except SystemExit for nested shells."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        _set_up()
    try:
        if bad := next((word for word in words if not _is_text(word)), None):
            _block(f"The argument {ascii(bad)[:80]} is not UTF-8 text.")
            return EXIT_USAGE
        return _dispatch(words, log=arguments is None)
    except KeyboardInterrupt as interrupt:
        apps = sys.modules.get("ropewalk.cli.apps")
        hint = str(interrupt) or (apps.interrupt_hint() if apps else "")
        _block("Interrupted. Everything that belonged to this command was cleaned up.", next_step=hint)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has seen enough. Python would complain while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _report(error)


def _set_up() -> None:
    """Streams, also where whoever started us closed them."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  (until the process ends)
    # They stand in for streams until the interpreter's last flush, whose failure would change the exit code.
    setattr(sys, "stdout", Enduring(sys.stdout))  # noqa: B010
    setattr(sys, "stderr", Enduring(sys.stderr, whatever=True))  # noqa: B010


def _behind(words: list[str]) -> list[str]:
    """Options of every command that stand before or between its names, moved behind them."""
    names: list[str] = []
    moved: list[str] = []
    while words and len(names) < NAMES_MAX and words[0] != "--":
        taken = 1
        if words[0].partition("=")[0] in EVERYWHERE_FLAGS:
            taken = 1 if "=" in words[0] else 2
            moved += words[:taken]
        elif names and words[0].startswith("-"):
            break
        else:
            names.append(words[0])
        words = words[taken:]
    return [*names, *moved, *words] if names else []  # not to the end: what stands there may be somebody else's


def _dispatch(words: list[str], *, log: bool) -> int:
    words = _behind(words)
    if not words or words[0] in HELP_FLAGS:
        print(top_help())
        return 0
    if words[0] == "--version":
        print(f"ropewalk {ropewalk.__version__}")
        return 0
    known = {entry.name: entry for entry in entries()}
    if words[0] not in known:
        near = difflib.get_close_matches(words[0], known, 1)
        _block(
            f"There is no command {words[0]!r}.",
            next_step=f"did you mean `ropewalk {near[0]}`?" if near else "`ropewalk --help` lists all commands.",
        )
        return EXIT_USAGE
    from ropewalk.cli.apps import run_words

    if log:
        from ropewalk.machinery import telemetry

        telemetry.configure()
    return run_words(words, known[words[0]])


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _report(error: Exception) -> int:
    """Prints an error as one block and returns its exit code."""
    if os.environ.get("ROPEWALK_DEBUG"):
        import traceback

        print(without_hidden("".join(traceback.format_exception(error))), file=sys.stderr)
    inside = list(leaves(error))
    known = [leaf for leaf in inside if isinstance(leaf, RopewalkError)]
    if known:
        worst = max(known, key=lambda leaf: leaf.exit_code == 5)
        rule = getattr(worst, "rule", "")
        _block(worst.message, rule=rule, next_step=worst.next_step)
        return worst.exit_code
    first = inside[0]
    if isinstance(first, OSError) and first.errno is not None:
        place = f" ({first.filename})" if first.filename else ""
        _block(
            f"The system refused: {first.strerror}{place}.", next_step="`ropewalk doctor` shows disk and permissions."
        )
        return EXIT_UNAVAILABLE
    _block(
        f"A defect in Ropewalk: {type(first).__name__}: {first}.",
        next_step="set ROPEWALK_DEBUG=1, repeat, and report the traceback.",
    )
    return 1


def _block(message: str, *, rule: str = "", next_step: str = "") -> None:
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    red, dim, off = ("\033[1;31m", "\033[2m", "\033[0m") if colour else ("", "", "")
    lines = [f"{red}error:{off} {message}"]
    if rule:
        lines.append(f"{dim} rule:{off} {rule}")
    if next_step:
        lines.append(f"{dim} next:{off} {next_step}")
    print(without_hidden("\n".join(lines)), file=sys.stderr)
