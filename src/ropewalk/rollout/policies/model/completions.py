"""Reads chat completions strictly: what comes from an endpoint is outside data, and may be anything.

Format: https://platform.openai.com/docs/api-reference/chat, as far as other servers keep to it.
"""

from __future__ import annotations

import json
from typing import Any

from ropewalk.core import limits
from ropewalk.core.records import Record
from ropewalk.interface.episode import ToolCall
from ropewalk.rollout.episodes.clean import clean_plain, clean_text
from ropewalk.rollout.episodes.tools import UNPARSABLE

CONTENT_CHARS_MAX = 200_000
TOKENS_MAX = 100_000_000


class GarbageError(ValueError):
    """The answer is no chat completion. Stays within this package."""


class Completion(Record):
    """One answer of a model."""

    content: str
    calls: tuple[ToolCall, ...]
    finish_reason: str
    tokens_prompt: int | None
    """None: the endpoint did not say."""
    tokens_completion: int | None


def parse_completion(data: bytes) -> Completion:
    """A completion out of a response's body.

    Raises:
        GarbageError: not JSON, or not of this shape. The message says where.
    """
    try:
        plain = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise GarbageError(f"not JSON: {error}"[:200]) from error
    choices = _get(plain, "choices", list)
    if not choices:
        raise GarbageError("no choices")
    message = _get(choices[0], "message", dict)
    usage = plain.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    reason = choices[0].get("finish_reason")
    return Completion(
        content=_content(message.get("content")),
        calls=_calls(message.get("tool_calls")),
        finish_reason=reason if isinstance(reason, str) else "",
        tokens_prompt=_tokens(usage.get("prompt_tokens")),
        tokens_completion=_tokens(usage.get("completion_tokens")),
    )


def _get(plain: Any, key: str, kind: type) -> Any:
    value = plain.get(key) if isinstance(plain, dict) else None
    if not isinstance(value, kind):
        raise GarbageError(f"{key!r} is missing or no {kind.__name__}")
    return value


def _content(value: Any) -> str:
    if isinstance(value, list):  # parts, of which text is what we asked for
        value = "".join(part.get("text", "") for part in value if isinstance(part, dict) and _is_text(part))
    if value is None:
        return ""
    if not isinstance(value, str):
        raise GarbageError("the message's content is no text")
    if len(value) > CONTENT_CHARS_MAX:
        raise GarbageError(f"the message has {len(value)} characters")
    return clean_text(value)


def _is_text(part: dict[str, Any]) -> bool:
    return isinstance(part.get("text"), str)


def _calls(value: Any) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise GarbageError("'tool_calls' is no list")
    calls: list[ToolCall] = []
    for item in value[: limits.TOOL_CALLS_MAX]:
        function = _get(item, "function", dict)
        name = _get(function, "name", str)
        id = item.get("id")
        taken = {call.id for call in calls}
        if not isinstance(id, str) or not id or id in taken:
            id = f"call_{len(calls) + 1}"
        calls.append(ToolCall(name=clean_text(name[:100]), arguments=_arguments(function), id=clean_text(id[:200])))
    return tuple(calls)


def _arguments(function: dict[str, Any]) -> dict[str, Any]:
    """The call's arguments. A model's mistake in them is its own affair: the tool's result will tell it."""
    raw = function.get("arguments")
    if isinstance(raw, str):
        try:
            parsed = json.loads(raw, parse_constant=_refuse) if raw.strip() else {}
        except (ValueError, RecursionError):
            return {UNPARSABLE: clean_text(raw[:2000])}
    else:
        parsed = raw
    if not isinstance(parsed, dict):
        return {UNPARSABLE: clean_text(str(parsed)[:2000])}
    cleaned: dict[str, Any] = clean_plain(parsed)
    return cleaned


def _tokens(value: Any) -> int | None:
    plausible = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= TOKENS_MAX
    return value if plausible else None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
