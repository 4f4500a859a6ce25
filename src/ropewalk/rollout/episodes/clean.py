"""Makes what policies and sandboxes say fit for records: text that is UTF-8, numbers that canonical JSON has."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec

from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record, canonical_bytes, to_plain
from ropewalk.interface.episode import Message, ToolCall, ToolResult

R = TypeVar("R", bound=Record)

_INTEGER_MAX = 2**53 - 1
_DEPTH_MAX = 16


def clean_text(text: str) -> str:
    """The text; lone surrogates, which no UTF-8 has, become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def clean_plain(value: Any, *, depth: int = 0) -> Any:
    """The plain value; numbers without canonical form, and what lies too deep, become text."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if -_INTEGER_MAX <= value <= _INTEGER_MAX else f"{value:#x}"[:64]
    if isinstance(value, float):
        # A large whole number is written without a fraction, and would come back as an integer without canonical form.
        return value if math.isfinite(value) and abs(value) <= _INTEGER_MAX else str(value)
    if depth >= _DEPTH_MAX:
        return "[nested too deeply]"
    if isinstance(value, dict):
        return {clean_text(str(key)): clean_plain(item, depth=depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_plain(item, depth=depth + 1) for item in value]
    return clean_text(str(to_plain(value)))


def clean_call(call: ToolCall) -> ToolCall:
    """A call as it can be recorded, and is therefore run."""
    return ToolCall(name=clean_text(call.name), arguments=clean_plain(call.arguments), id=clean_text(call.id))


def clean_result(result: ToolResult) -> ToolResult:
    """A result as it can be recorded, and is therefore shown."""
    return ToolResult(output=clean_text(result.output), exit_code=result.exit_code, termination=result.termination)


def clean_message(message: Message) -> Message:
    """A message as it can be recorded."""
    return Message(
        role=clean_text(message.role),
        content=clean_text(message.content),
        tool_calls=tuple(clean_call(call) for call in message.tool_calls),
        tool_call_id=clean_text(message.tool_call_id),
    )


def storable(record: R) -> R:
    """A step or a whole record as it can be stored: a policy also names itself and what it measures."""
    try:
        canonical_bytes(record)
    except CallerError:
        return msgspec.convert(_scrubbed(to_plain(record)), type(record))
    return record


def _scrubbed(value: Any) -> Any:
    """Like `clean_plain`, and every value stays of its kind."""
    if isinstance(value, float) and not math.isfinite(value):
        return 0.0
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-_INTEGER_MAX, min(value, _INTEGER_MAX))
    if isinstance(value, dict):
        return {clean_text(key): _scrubbed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(item) for item in value]
    return clean_text(value) if isinstance(value, str) else value
