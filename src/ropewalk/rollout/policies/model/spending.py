"""What a run spends on its model: every request is reserved before it is sent, and settled by what it came to."""

from __future__ import annotations

from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager

import anyio

from ropewalk.rollout.plan import OpenAISettings
from ropewalk.rollout.policies.contract import PolicyFailedError


def tokens_in(text_bytes: int) -> int:
    """An estimate from a length, for requests not yet answered and endpoints that do not count."""
    return text_bytes // 4 + 1


class Try:
    """One request on its way."""

    def __init__(self, prompt: int, completion: int) -> None:
        self.prompt = prompt
        self.completion = completion
        """As far as is known: at first the longest that it may be."""

    def settle(self, prompt: int, completion: int) -> None:
        """What it came to; (0, 0) where the endpoint did not take it."""
        self.prompt, self.completion = prompt, completion


class Spending:
    """Against the cap of one run, of requests that may be many at once."""

    def __init__(self, settings: OpenAISettings) -> None:
        self._settings = settings
        self._spent_usd = 0.0
        self._reserved_usd = 0.0
        self._trying = 0
        self._settled = anyio.Event()

    def add(self, tokens_prompt: float, tokens_completion: float) -> None:
        """Counts tokens."""
        self._spent_usd += self._settings.usd(tokens_prompt, tokens_completion)

    @asynccontextmanager
    async def trying(self, *, prompt: int, completion_max: int, tokens: MutableMapping[str, int]) -> AsyncIterator[Try]:
        """Room for one request while the block runs; what it came to is counted, and added to `tokens`.

        A block that ends without saying what its request came to (a limit ended it, the connection was lost) counts
        as the longest: nobody knows what the endpoint charges for it, and a cap must hold.

        Raises:
            PolicyFailedError: `cost_cap`: it does not fit, whatever those on their way come to.
        """
        reserved_usd = await self._reserve(prompt, completion_max)
        one = Try(prompt, completion_max)
        try:
            yield one
        finally:
            self._trying -= 1
            self._reserved_usd = self._reserved_usd - reserved_usd if self._trying else 0.0
            self.add(one.prompt, one.completion)
            for name, count in (("prompt", one.prompt), ("completion", one.completion)):
                tokens[name] = tokens.get(name, 0) + count
            self._settled.set()
            self._settled = anyio.Event()

    async def _reserve(self, prompt: int, completion: int) -> float:
        cap, wanted = self._settings.cost_usd_max, self._settings.usd(prompt, completion)
        while cap is not None and self._spent_usd + self._reserved_usd + wanted > cap:
            if not self._trying or self._spent_usd + wanted > cap:
                raise PolicyFailedError(
                    f"The run's cost cap of ${cap:g} leaves no room for another request: ${self._spent_usd:.4f} are "
                    f"spent, and it may cost ${wanted:.4f}.",
                    cause="cost_cap", retriable=False, next_step="raise policy.openai.cost_usd_max.",
                )  # fmt: skip
            await self._settled.wait()  # most answers are shorter than they might be
        self._trying += 1
        self._reserved_usd += wanted
        return wanted
