"""Asks a chat completions endpoint: bounded, with retries, within a budget. The key goes into one header, and
nowhere else: no log, no record, no message, also where the endpoint repeats it."""

from __future__ import annotations

import email.utils
import json
import logging
import random
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime
from typing import Any

import anyio
import httpx2
import msgspec

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.records import to_plain
from ropewalk.machinery import certificates
from ropewalk.machinery.redaction import STRETCH, without
from ropewalk.rollout.plan import OpenAISettings
from ropewalk.rollout.policies.contract import PolicyFailedError
from ropewalk.rollout.policies.model.completions import Completion, GarbageError, parse_completion
from ropewalk.rollout.policies.model.spending import Spending, Try, tokens_in

BACKOFF_S = 0.5
BACKOFF_S_MAX = 30.0
RETRY_AFTER_S_MAX = 120.0
DEAD_AFTER = 3
"""Requests in a row that failed with all their retries, or that the endpoint would not let in: it is taken for dead,
and the run stops before it makes an unscored episode of all that is left. One that never answered anything is dead at
once, and so is one that refuses a request before it ever gave a completion: most likely it would refuse them all."""
_AGAIN = {408, 409, 425, 429}
_NOT_LET_IN = {401, 403, 404}
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_KEY = "[key]"
_SHOWN_CHARS = 500
_LOOKED_AT_BYTES = 64 * 1024
_FULL = ("context_length_exceeded", "maximum context length", "context window")

log = logging.getLogger(__name__)


class ContextFullError(CallerError):
    """The conversation is longer than the model can read."""


class _Again(Exception):
    """This try failed in a way that another one may mend."""

    def __init__(self, cause: str, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail
        self.retry_after_s = retry_after_s


class ChatClient:
    """One endpoint and model, for all episodes of a run."""

    def __init__(
        self,
        settings: OpenAISettings,
        *,
        key: str = "",
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        chance: random.Random | None = None,
    ) -> None:
        """`key`: the secret itself; empty: none is sent.

        Raises:
            CallerError: the URL is none, or the key cannot stand in a header.
        """
        if not key.isprintable() or not key.isascii():
            raise CallerError("The endpoint's key has characters that no header can carry.")
        self._settings = settings
        self._url = _checked(settings.base_url)
        self._sleep = sleep
        self._chance = chance or random.Random()
        self._slots = anyio.CapacityLimiter(settings.concurrency)
        self._failed_in_row = 0
        self._answered = False
        """Whether anything ever came back from it."""
        self._completed = False
        """Whether it ever gave a completion, to this run."""
        self._spending = Spending(settings)
        self._key = key
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(settings.request_timeout_s),
            limits=httpx2.Limits(max_connections=settings.concurrency),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            # A proxy out of the environment would be told what only the checked endpoint may be; a .netrc, whatever
            # it says. Certificates out of the environment decide nothing about where the prompts go.
            trust_env=False,
            verify=certificates.shared(httpx2.create_ssl_context),
        )

    def spent(self, tokens_prompt: float, tokens_completion: float) -> None:
        """Counts tokens of earlier parts of the run towards the cost. Who answered those takes the requests of this."""
        self._completed = self._completed or tokens_completion > 0
        self._spending.add(tokens_prompt, tokens_completion)

    async def close(self) -> None:
        """Closes connections."""
        await self._http.aclose()

    async def complete(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], *, tokens_max: int, seed: int,
        tokens: MutableMapping[str, int] | None = None,
    ) -> tuple[Completion, int, int]:  # fmt: skip
        """An answer, with its prompt and completion tokens (estimated from lengths where the endpoint is silent).

        Args:
            messages: the conversation.
            tools: their definitions.
            tokens_max: of the answer.
            seed: for the endpoint's sampling.
            tokens: all that it took is added to `prompt` and `completion`: also tries that gave no answer, and also
                where this raises or is cancelled.

        Raises:
            ContextFullError: the conversation does not fit the model.
            PolicyFailedError: `endpoint_unreachable`, `endpoint_overloaded` or `endpoint_garbage` after all retries;
                `endpoint_refused`: the request is refused, and would be again; `cost_cap`.
        """
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": messages,
            "tools": tools,
            str(self._settings.answer_limit): tokens_max,
            "seed": seed % 2**31,
        }
        if self._settings.temperature_sent:
            body["temperature"] = self._settings.temperature
        data = json.dumps(body).encode()
        async with self._slots:
            completion, taken = await self._with_retries(data, tokens_max, {} if tokens is None else tokens)
        return completion, taken.prompt, taken.completion

    async def _with_retries(
        self, data: bytes, tokens_max: int, tokens: MutableMapping[str, int]
    ) -> tuple[Completion, Try]:
        tries = self._settings.attempts_max
        for attempt in range(1, tries + 1):
            try:
                async with self._spending.trying(
                    prompt=tokens_in(len(data)), completion_max=tokens_max, tokens=tokens
                ) as one:
                    completion = await self._once(data, one)
                self._failed_in_row = 0
                self._completed = True
                return completion, one
            except _Again as again:
                log.info("chat completion failed (%s), try %d of %d: %s", again.cause, attempt, tries, again.detail)
                if attempt == tries:
                    raise PolicyFailedError(
                        f"{self._url} gave no completion in {tries} tries: {again.detail}.",
                        cause=again.cause,
                        retriable=False,
                        for_all=self._is_dead(alive=self._answered),
                        next_step="check base_url and that the model server runs.",
                    ) from again
                await self._sleep(self._pause_s(attempt, again.retry_after_s))
        raise AssertionError("unreachable")

    async def _once(self, data: bytes, one: Try) -> Completion:
        headers = {"Content-Type": "application/json"}
        try:
            # The client's own time limit starts anew with every byte; this one does not.
            with anyio.fail_after(self._settings.request_timeout_s):
                async with self._http.stream("POST", self._url, content=data, headers=headers) as response:
                    self._answered = True
                    if response.status_code != 200:
                        one.settle(0, 0)
                    body = await _bounded(response)
        except TimeoutError:
            raise _Again("endpoint_unreachable", f"no answer within {self._settings.request_timeout_s:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            if isinstance(error, _NEVER_SENT):
                one.settle(0, 0)
            why = self._shown(f"{type(error).__name__}: {error}")
            raise _Again("endpoint_unreachable", why) from error
        status = response.status_code
        if status == 200:
            try:
                completion = parse_completion(body)
            except GarbageError as error:
                one.settle(one.prompt, min(tokens_in(len(body)), one.completion))
                why = self._shown(f"the answer is no chat completion: {error}")
                raise _Again("endpoint_garbage", why) from error
            _settle(one, completion)
            return self._without_key(completion)
        detail = f"HTTP {status}: {self._shown(body[:_LOOKED_AT_BYTES].decode(errors='replace'))}"
        if status in _AGAIN or status >= 500:
            retry_after_s = _retry_after_s(response.headers.get("retry-after", ""))
            raise _Again("endpoint_overloaded", detail, retry_after_s)
        if status in (400, 413, 422) and any(sign in detail.lower() for sign in _FULL):
            raise ContextFullError(detail)
        raise PolicyFailedError(
            f"{self._url} refuses the request: {detail}.",
            cause="endpoint_refused",
            retriable=False,
            for_all=(status in _NOT_LET_IN or not self._completed) and self._is_dead(alive=self._completed),
            next_step="check the model's name, the key's reference and base_url; where it takes no max_tokens or "
            "temperature, policy.openai.answer_limit and policy.openai.temperature_sent.",
        )

    def _is_dead(self, *, alive: bool) -> bool:
        """Counts a failure; whether there were too many in a row, or it never showed that it is `alive`."""
        self._failed_in_row += 1
        return self._failed_in_row >= DEAD_AFTER or not alive

    def _pause_s(self, attempt: int, retry_after_s: float | None) -> float:
        backoff_s = min(BACKOFF_S * 2.0 ** (attempt - 1), BACKOFF_S_MAX) * self._chance.uniform(0.5, 1.0)
        return max(backoff_s, min(retry_after_s or 0.0, RETRY_AFTER_S_MAX))

    def _shown(self, text: str) -> str:
        """Cut last: what a cut leaves of the key would not be known for it any more."""
        return without(text, self._key, instead=_KEY)[:_SHOWN_CHARS]

    def _without_key(self, completion: Completion) -> Completion:
        """A key shorter than STRETCH could be a word of the answer, and stays in it."""
        if len(self._key) < STRETCH:
            return completion
        return msgspec.convert(_replaced(to_plain(completion), self._key), Completion)


def _checked(base_url: str) -> str:
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL as error:
        raise CallerError(f"base_url is no URL: {error}.") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise CallerError(f"base_url is no http URL: {base_url[:200]!r}.", next_step="give http://HOST:PORT/v1.")
    if url.userinfo:
        raise CallerError("base_url holds a password.", next_step="give the key by reference, in policy.openai.key.")
    return f"{base_url.rstrip('/')}/chat/completions"


def _replaced(value: Any, key: str) -> Any:
    if isinstance(value, str):
        return without(value, key, instead=_KEY)
    if isinstance(value, dict):
        return {without(name, key, instead=_KEY): _replaced(item, key) for name, item in value.items()}
    return [_replaced(item, key) for item in value] if isinstance(value, list | tuple) else value


async def _bounded(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > limits.ENDPOINT_ANSWER_BYTES_MAX:
            raise _Again("endpoint_garbage", f"the answer is larger than {limits.ENDPOINT_ANSWER_BYTES_MAX} bytes")
    return bytes(body)


def _settle(one: Try, completion: Completion) -> None:
    answered = completion.tokens_completion
    if answered is None:
        answered = tokens_in(len(completion.content) + sum(len(str(call.arguments)) for call in completion.calls))
    one.settle(one.prompt if completion.tokens_prompt is None else completion.tokens_prompt, answered)


def _retry_after_s(value: str) -> float | None:
    """Seconds out of a Retry-After header (RFC 9110, 10.2.3); a date counts from now."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            when: datetime = email.utils.parsedate_to_datetime(value)
            seconds = (when - datetime.now(when.tzinfo)).total_seconds()
        except (ValueError, TypeError, IndexError):
            return None
    return seconds if 0 <= seconds < 1e6 else None
