"""The command line's reference page, made from the commands themselves.

python -m ropewalk.cli.reference > docs/reference/cli.md
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Iterator

from cyclopts import App

from ropewalk.cli.commands import GROUPS, CommandEntry
from ropewalk.cli.entry import main

HEAD = """# Command line

Every command takes `--state DIR` (default `$ROPEWALK_STATE`, else `~/.local/state/ropewalk`) and `--profile NAME|FILE`
(default `$ROPEWALK_PROFILE`, else `embedded`). Where a script would read it, `--json` prints JSON on standard output;
progress and errors go to standard error.

| exit code | means |
|---|---|
| 0 | ok |
| 1 | a defect in Ropewalk; `ROPEWALK_DEBUG=1` shows the traceback |
| 2 | the call does not fit: an unknown option, id, key or file |
| 3 | tainted: something was made from what you asked about |
| 4 | incomplete: a group was refused, a chain does not reach raw files, a log is unanchored, a replay differs |
| 5 | integrity: something was tampered with or lost |
| 6 | denied; the rule is named |
| 7 | unavailable: something is missing, full, or does not answer |
| 130 | interrupted; it says how to go on |

`sandbox exec`, `sandbox attach` and `episode attach` exit as the command inside does (124: it timed out).
"""


def reference() -> str:
    """The whole page as Markdown."""
    parts = [HEAD]
    for title, entries in GROUPS:
        parts.append(f"## {title}\n")
        for entry in entries:
            parts += [_section(words) for words in command_words(entry)]
    return "\n".join(parts)


def command_words(entry: CommandEntry) -> Iterator[tuple[str, ...]]:
    """Every path of words below a top-level command that leads to a command."""
    app: App = importlib.import_module(f"ropewalk.cli.{entry.module}").app
    if app.default_command:
        yield (entry.name,)
    for name in app:
        if not name.startswith("-"):
            yield (entry.name, name)


def _section(words: tuple[str, ...]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main([*words, "--help"])
    text = re.sub(r"[ \t]+$", "", out.getvalue(), flags=re.MULTILINE)
    text = text.partition("\nEverywhere:")[0] + "\n" + "Examples:" + text.partition("Examples:")[2]
    return f"### ropewalk {' '.join(words)}\n\n```text\n{text.strip()}\n```\n"


if __name__ == "__main__":
    print(reference(), end="")
