"""A model with tools, in the usual loop: it calls tools until it says that it is done."""

from __future__ import annotations

import json
from typing import ClassVar

from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.outcomes import Termination
from ropewalk.interface.episode import Message
from ropewalk.rollout.chat import chat_answer, chat_message
from ropewalk.rollout.episodes.context import AgentContext, TaskView
from ropewalk.rollout.plan import OpenAISettings
from ropewalk.rollout.policies.contract import ContextKind, PolicyEnd
from ropewalk.rollout.policies.model.client import ChatClient, ContextFullError
from ropewalk.rollout.policies.model.spending import tokens_in

SYSTEM = (
    "You repair a Python package. You work in a sandbox through tools. Find the cause of the failing tests and "
    "mend it in the source; tests that you cannot see decide whether it is right, so mend the cause and not the "
    "symptom. Changes outside of the files you may hand in are lost. When you are done, answer without calling a tool."
)
GO_ON = "Your answer was cut off. Call a tool, or say briefly that you are done."


class OpenAIPolicy:
    """Plays episodes with one model."""

    context: ClassVar[ContextKind] = ContextKind.AGENT

    def __init__(
        self, settings: OpenAISettings, *, key: str = "", client: ChatClient | None = None, clock: Clock | None = None
    ) -> None:
        """`key`: the secret itself; it is not kept here."""
        self._settings = settings
        self._client = client or ChatClient(settings, key=key)
        self._clock = clock or SystemClock()

    @property
    def name(self) -> str:
        settings = self._settings
        return (
            f"openai({settings.model}{f', temperature={settings.temperature:g}' if settings.temperature_sent else ''})"
        )

    async def close(self) -> None:
        """Closes connections."""
        await self._client.close()

    def spent(self, tokens_prompt: float, tokens_completion: float) -> None:
        """Counts what earlier parts of the run used towards its cost cap."""
        self._client.spent(tokens_prompt, tokens_completion)

    async def run(self, context: AgentContext) -> PolicyEnd | None:
        """One episode's conversation.

        Raises:
            PolicyFailedError: the endpoint failed for good, or the run's cost cap is reached.
        """
        new = [Message(role="system", content=SYSTEM), Message(role="user", content=first_words(context.task))]
        conversation = [chat_message(message) for message in new]
        tokens_left, tools = self._settings.token_budget, context.tools
        while True:
            if context.steps_left < 1:
                return _stop("all steps are used up")
            room = tokens_left - tokens_in(len(json.dumps([conversation, tools])))
            if room < 1:
                budget = self._settings.token_budget
                return _stop(f"of the episode's {budget} tokens {max(tokens_left, 0)} are left, less than it says next")
            started_s = self._clock.monotonic_s()
            try:
                completion, prompt, answered = await self._client.complete(
                    conversation,
                    tools,
                    tokens_max=min(self._settings.completion_tokens_max, room),
                    seed=context.seed,
                    tokens=context.tokens_unrecorded,
                )
            except ContextFullError:
                return _stop("the conversation is longer than the model can read")
            model_s = self._clock.monotonic_s() - started_s
            tokens_left -= prompt + answered
            said = Message(role="assistant", content=completion.content, tool_calls=completion.calls)
            results = await context.act(
                completion.calls,
                messages=[*new, said],
                tokens={"prompt": prompt, "completion": answered},
                time_s={"model": model_s},
            )
            for name, count in (("prompt", prompt), ("completion", answered)):
                context.tokens_unrecorded[name] -= count
            conversation.append(chat_message(said))
            conversation += map(chat_answer, completion.calls, results)
            new = []
            if completion.calls:
                continue
            if completion.finish_reason != "length":
                return None
            new = [Message(role="user", content=GO_ON)]
            conversation.append(chat_message(new[0]))


def first_words(task: TaskView) -> str:
    """What a model is told of its task."""
    where = f"The source lies in {task.workdir}, which is the working directory."
    if " ".join(task.test_command) not in task.prompt:  # a prompt of somebody's own, which does not say what fails
        listed = "\n".join(f"- {test}" for test in task.visible_killers)
        command = " ".join([*task.test_command, *task.visible_killers])
        where += f" These tests fail and must pass:\n{listed}\n\nRun them with: {command}"
    return f"{task.prompt.rstrip()}\n\n{where}\nYou may change files that match: {', '.join(task.editable)}"


def _stop(detail: str) -> PolicyEnd:
    return PolicyEnd(termination=Termination.POLICY_STOP, truncated=True, detail=detail)
