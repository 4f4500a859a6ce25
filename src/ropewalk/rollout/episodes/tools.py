"""The tools that an agent has: shell, read, edit. Their arguments, their limits, and how they run in a sandbox.

The sandbox is the boundary, so paths are not confined further. A mistake in a call is a result that teaches, never
an exception: the policy sees what was wrong and what would be right.
"""

from __future__ import annotations

import posixpath
from typing import Annotated, Any

import anyio.to_thread
import msgspec

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record
from ropewalk.interface.episode import ToolCall, ToolResult
from ropewalk.rollout.ports import EpisodeSandbox
from ropewalk.sandbox.files import DiskFullError

UNPARSABLE = "unparsable"
"""The one argument of a call whose arguments were no JSON object: what was there instead."""

Timeout = Annotated[float, msgspec.Meta(gt=0, le=limits.TOOL_SHELL_TIMEOUT_S_MAX)]
Line = Annotated[int, msgspec.Meta(ge=1)]


class ShellArguments(Record):
    """Of `shell`."""

    command: str
    timeout_s: Timeout = limits.TOOL_SHELL_TIMEOUT_S


class ReadArguments(Record):
    """Of `read`."""

    path: str
    start_line: Line = 1
    lines: Line = limits.TOOL_READ_LINES_MAX


class EditArguments(Record):
    """Of `edit`."""

    path: str
    old: str
    new: str


_ARGUMENTS: dict[str, type[Record]] = {"shell": ShellArguments, "read": ReadArguments, "edit": EditArguments}


def tool_definitions() -> list[dict[str, Any]]:
    """The tools as JSON Schema functions, in the form that chat completion endpoints take."""
    text = {"type": "string"}
    return [
        _function(
            "shell",
            f"Run a command with /bin/sh in the working directory. Each call is a new shell. Output past "
            f"{limits.TOOL_OUTPUT_CHARS_MAX} characters loses its middle.",
            {
                "command": text,
                "timeout_s": {"type": "number", "exclusiveMinimum": 0, "maximum": limits.TOOL_SHELL_TIMEOUT_S_MAX},
            },
            ["command"],
        ),
        _function(
            "read",
            f"Show lines of a text file, numbered. At most {limits.TOOL_READ_LINES_MAX} lines.",
            {
                "path": text,
                "start_line": {"type": "integer", "minimum": 1},
                "lines": {"type": "integer", "minimum": 1},
            },
            ["path"],
        ),
        _function(
            "edit",
            "Replace the one place in a file where the text `old` stands by `new`. "
            "An empty `old` creates the file; it must not exist yet.",
            {"path": text, "old": text, "new": text},
            ["path", "old", "new"],
        ),
    ]


def _function(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


async def perform(call: ToolCall, sandbox: EpisodeSandbox, *, workdir: str, timeout_s_max: float) -> ToolResult:
    """Runs one call.

    Raises:
        SandboxGoneError: the sandbox died meanwhile.
    """
    kind = _ARGUMENTS.get(call.name)
    if kind is None:
        return _mistake(f"There is no tool {call.name!r}. The tools are: {', '.join(_ARGUMENTS)}.")
    if set(call.arguments) == {UNPARSABLE}:
        return _mistake(f"The arguments of {call.name} were no JSON object. Send the call again.")
    try:
        arguments = msgspec.convert(call.arguments, kind)
    except msgspec.ValidationError as error:
        known = ", ".join(field.name for field in msgspec.structs.fields(kind))
        return _mistake(f"Wrong arguments for {call.name}: {error}. It takes: {known}.")
    try:
        if isinstance(arguments, ShellArguments):
            return await _shell(arguments, sandbox, workdir, timeout_s_max)
        path = posixpath.join(workdir, getattr(arguments, "path"))  # noqa: B009  (both other kinds have one)
        if "\0" in path:
            return _mistake("A path cannot hold a NUL character.")
        if len(path.encode("utf-8", "surrogatepass")) > limits.TOOL_PATH_BYTES_MAX:
            return _mistake(f"A path cannot be longer than {limits.TOOL_PATH_BYTES_MAX} bytes.")
        if isinstance(arguments, ReadArguments):
            return await _read(arguments, sandbox, path)
        assert isinstance(arguments, EditArguments)
        return await _edit(arguments, sandbox, path)
    except CallerError as error:
        return _mistake(str(error))
    except DiskFullError as error:
        return ToolResult(output=f"error: {error.message}", exit_code=1, termination=Termination.DISK_FULL)


async def _shell(arguments: ShellArguments, sandbox: EpisodeSandbox, workdir: str, timeout_s_max: float) -> ToolResult:
    if "\0" in arguments.command:
        return _mistake("A command cannot hold a NUL character.")
    timeout_s = min(arguments.timeout_s, timeout_s_max)
    result = await sandbox.exec(arguments.command, cwd=workdir, timeout_s=timeout_s)
    output = result.stdout
    if result.stderr:
        output += ("" if not output or output.endswith("\n") else "\n") + result.stderr
    output = cut(output)
    if result.truncated:
        output += "\n[output was larger than the sandbox keeps; the rest is dropped]"
    if result.termination is Termination.TIMEOUT:
        output += f"\n[stopped after {timeout_s:g} s]"
    elif result.termination is not Termination.FINISHED:
        output += f"\n[ended: {result.termination}]"
    elif result.signal is not None:
        output += f"\n[ended by signal {result.signal}]"
    return ToolResult(output=output, exit_code=result.exit_code, termination=result.termination)


async def _read(arguments: ReadArguments, sandbox: EpisodeSandbox, path: str) -> ToolResult:
    window = _Window(arguments.start_line, min(arguments.lines, limits.TOOL_READ_LINES_MAX))
    for offset in range(0, limits.FILE_BYTES_MAX, limits.TOOL_READ_BYTES_MAX):
        piece = await sandbox.read(path, bytes_max=limits.TOOL_READ_BYTES_MAX, offset=offset, whole=False)
        await anyio.to_thread.run_sync(window.take, piece)
        if len(piece) < limits.TOOL_READ_BYTES_MAX:
            break
    else:
        return _mistake(f"{path} is larger than {limits.FILE_BYTES_MAX} bytes; use shell.")
    return await anyio.to_thread.run_sync(window.answer, path)


class _Window:
    """Some lines of a file that comes in pieces; of all others only the number is kept. Lines end at `\\n`."""

    def __init__(self, first: int, count: int) -> None:
        self._before = first - 1
        self._until = first - 1 + count
        self._ends = 0
        self._open = False
        self._kept = bytearray()

    def take(self, piece: bytes) -> None:
        """The next piece."""
        before = self._ends
        self._ends += piece.count(b"\n")
        start = _after(piece, self._before - before)
        end = _after(piece, self._until - before)
        self._kept += piece[start : min(end, start + limits.TOOL_READ_BYTES_MAX - len(self._kept))]
        self._open = not piece.endswith(b"\n") if piece else self._open

    def answer(self, path: str) -> ToolResult:
        """The lines with their numbers, after the last piece."""
        total = self._ends + self._open
        if self._before >= max(total, 1):
            return _mistake(f"{path} has {total} lines; line {self._before + 1} is past its end.")
        text = self._kept.decode(errors="replace").removesuffix("\n")
        lines = [line.removesuffix("\r") for line in text.split("\n")] if total else []
        numbered = "\n".join(f"{number:>5}  {line}" for number, line in enumerate(lines, self._before + 1))
        rest = total - self._before - len(lines)
        return ToolResult(output=cut(numbered) + (f"\n[{rest} more lines]" if rest > 0 else ""), exit_code=0)


def _after(data: bytes, newlines: int) -> int:
    """The position after so many newlines, or the data's end; by halves, since a list of all would be large."""
    low, high = 0, len(data)
    while low < high:
        middle = (low + high) // 2
        if data.count(b"\n", 0, middle) < newlines:
            low = middle + 1
        else:
            high = middle
    return low


async def _edit(arguments: EditArguments, sandbox: EpisodeSandbox, path: str) -> ToolResult:
    try:
        data = await sandbox.read(path, bytes_max=limits.TOOL_EDIT_BYTES_MAX)
    except CallerError:
        if arguments.old:
            raise
        data = None
    if not arguments.old:
        if data is not None:
            return _mistake(f"{path} exists already; give the text to replace as `old`.")
        if len(arguments.new.encode()) > limits.TOOL_EDIT_BYTES_MAX:
            return _mistake(f"{path} would have more than {limits.TOOL_EDIT_BYTES_MAX} bytes.")
        await sandbox.write_many({path: arguments.new.encode()})
        return ToolResult(output=f"Created {path}.", exit_code=0)
    assert data is not None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _mistake(f"{path} is not UTF-8 text; use shell.")
    found = text.count(arguments.old)
    if found != 1:
        return _mistake(
            f"`old` stands in {path} {found} times, it must be exactly once"
            + ("; give more of the lines around it." if found else "; read the file first and copy exactly.")
        )
    if arguments.old == arguments.new:
        return _mistake("`old` and `new` are the same text; nothing to change.")
    changed = text.replace(arguments.old, arguments.new).encode()
    if len(changed) > limits.TOOL_EDIT_BYTES_MAX:
        return _mistake(f"{path} would grow past {limits.TOOL_EDIT_BYTES_MAX} bytes.")
    await sandbox.write_many({path: changed})
    line = text[: text.index(arguments.old)].count("\n") + 1
    return ToolResult(output=f"Changed {path} at line {line}.", exit_code=0)


def cut(text: str, chars_max: int = limits.TOOL_OUTPUT_CHARS_MAX) -> str:
    """The text, or its two ends around a marker that says how much is missing."""
    if len(text) <= chars_max:
        return text
    half = chars_max // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters cut …]\n{text[-half:]}"


def _mistake(text: str) -> ToolResult:
    return ToolResult(output=f"error: {text}", exit_code=2)
