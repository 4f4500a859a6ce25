"""An episode: one policy, one task, from its first step to its end, as records that replay it."""

from __future__ import annotations

from typing import Any

from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record, content_id


class ToolCall(Record):
    """What the policy asked for."""

    name: str
    arguments: dict[str, Any] = {}
    id: str = ""


class ToolResult(Record):
    """What it got back."""

    output: str
    """Text, cut to the tool's limit with a marker. A model is told an exit code other than 0 after it."""
    exit_code: int | None = None
    termination: Termination = Termination.FINISHED


class Message(Record):
    """One turn of a conversation with a model; empty for policies that do not talk."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


class Step(Record):
    """One transition: an action and what it did."""

    index: int
    """From 1."""
    messages: tuple[Message, ...] = ()
    """New in this step."""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    files_changed: dict[str, str] = {}
    """Path → digest in the blob store, of declared files that differ from the step before; '' where deleted."""
    snapshot: str | None = None
    """The sandbox as it was after this step, where one was kept."""
    duration_s: float = 0.0
    time_s: dict[str, float] = {}
    """Where it went: `sandbox`, `tests`, `model`, `policy`."""
    tokens: dict[str, int] = {}
    """`prompt`, `completion`; empty without a model."""


class EpisodeRecord(Record):
    """An episode that ended."""

    id: str
    """`episode:` and a ULID, given before it began."""
    run: str
    task: str
    policy: str
    """Name and settings: `search(budget=8)`."""
    group: str
    """Episodes that started from one snapshot share it."""
    index: int
    """Within the group, from 0."""
    seed: int
    snapshot: str
    """The state it was forked from."""
    steps: tuple[Step, ...]
    termination: Termination
    truncated: bool
    """Gymnasium's sense: ended from outside: by a limit, by our side's failure, by an eviction."""
    detail: str = ""
    """For people: why it ended as it did."""
    bundle: str | None = None
    """Digest of the handed-in artefacts; None where the episode has none to grade."""
    started_s: float
    ended_s: float
    time_s: dict[str, float] = {}
    """`sandbox`, `tests`, `model`, `policy`, up to the bundle. Verdict and run know what grading and signing took."""
    usage: dict[str, float] = {}
    """`sandbox_s`, `cpu_s`, `memory_bytes_peak`, `memory_bytes_unique`, `forks`, `tokens_prompt`, …"""

    @property
    def content(self) -> str:
        """The id that statements use for its content."""
        return content_id("trajectory", self)
