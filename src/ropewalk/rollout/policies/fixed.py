"""The two controls: `noop` does nothing (and must not be paid), `oracle` writes the answer (and must be)."""

from __future__ import annotations

from typing import ClassVar

from ropewalk.interface.episode import ToolCall, ToolResult
from ropewalk.rollout.episodes.context import AgentContext, TrustedContext
from ropewalk.rollout.policies.contract import ContextKind, PolicyEnd


class NoopPolicy:
    """Hands in the task as it is."""

    context: ClassVar[ContextKind] = ContextKind.AGENT
    name = "noop"

    async def run(self, context: AgentContext) -> PolicyEnd | None:
        """Ends at once."""
        return None

    async def close(self) -> None:
        """Nothing to let go of."""


class OraclePolicy:
    """Hands in the fixed files."""

    context: ClassVar[ContextKind] = ContextKind.TRUSTED
    name = "oracle"

    async def run(self, context: TrustedContext) -> PolicyEnd | None:
        """One step that writes them all."""
        changed = {path: data for path, data in context.answer.items() if context.sources.get(path) != data}
        call = ToolCall(name="answer", arguments={"paths": sorted(changed)})
        result = ToolResult(output=f"Wrote {len(changed)} file{'' if len(changed) == 1 else 's'}.", exit_code=0)
        await context.step(call, result, keep=changed)
        return None

    async def close(self) -> None:
        """Nothing to let go of."""
