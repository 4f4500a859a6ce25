"""An episode's conversation as chat completions have it: what a model is sent while it plays, and what is exported.

Form: https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from ropewalk.interface.episode import Message, Step, ToolCall, ToolResult


def chat_message(message: Message) -> dict[str, Any]:
    """One turn."""
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                # Sorted, as a record's keys are: what is exported from it is then what was sent.
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False, sort_keys=True),
                },
            }
            for call in message.tool_calls
        ]
    return plain


def chat_answer(call: ToolCall, result: ToolResult) -> dict[str, Any]:
    """What a call is answered with."""
    return {"role": "tool", "tool_call_id": call.id, "content": shown(result)}


def shown(result: ToolResult) -> str:
    """A tool's result in words: its output, and its exit code where that is not 0."""
    return result.output if result.exit_code in (0, None) else f"{result.output}\n[exit code {result.exit_code}]"


def conversation(steps: Iterable[Step]) -> Iterator[dict[str, Any]]:
    """All messages of the steps, with the tools' answers after the calls; none for policies that do not talk."""
    for step in steps:
        yield from map(chat_message, step.messages)
        if any(message.tool_calls for message in step.messages):
            yield from map(chat_answer, step.calls, step.results)
