"""The policy `openai` against a real HTTP server on loopback that replays completions, also malformed ones."""

from __future__ import annotations

import base64
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.outcomes import Termination
from ropewalk.rollout.atif import export_atif
from ropewalk.rollout.begin import begin_run
from ropewalk.rollout.episodes.context import AgentContext
from ropewalk.rollout.export import export_jsonl
from ropewalk.rollout.plan import AnswerLimit, OpenAISettings, Plan, PoliciesPlan, PolicyName, RunPlan
from ropewalk.rollout.policies.contract import PolicyFailedError
from ropewalk.rollout.policies.model.client import DEAD_AFTER, ChatClient
from ropewalk.rollout.policies.model.policy import OpenAIPolicy, first_words
from ropewalk.rollout.run import RunLoop
from ropewalk.tasks.prompts import mutant_prompt
from tests.unit.rollout.test_contexts import play
from tests.unit.rollout.worlds import FIXED, Durable

KEY = "sk-a-secret-of-the-test"
Reply = bytes | Callable[[SocketStream], Awaitable[None]]


def http(body: Any, status: int = 200, *headers: str) -> bytes:
    """A whole response."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} X", "Content-Type: application/json", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def says(content: str | None, *calls: tuple[str, Any], finish: str = "", usage: Any = None) -> bytes:
    """A completion with tool calls; arguments that are no text are sent as JSON."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{n}",
                "type": "function",
                "function": {"name": name, "arguments": a if isinstance(a, str) else json.dumps(a)},
            }
            for n, (name, a) in enumerate(calls)
        ]
    reason = finish or ("tool_calls" if calls else "stop")
    plain = {
        "choices": [{"message": message, "finish_reason": reason}],
        "usage": usage or {"prompt_tokens": 100, "completion_tokens": 10},
    }
    return http(plain)


DONE = says("Done.")


class Server:
    """Gives its replies in order, the last one again and again; remembers what was asked."""

    def __init__(self, port: int, replies: list[Reply]) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"
        self.replies = replies
        self.requests: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.busy = self.busy_most = 0

    async def handle(self, stream: SocketStream) -> None:
        async with stream:
            data = b""
            try:
                while True:
                    while b"\r\n\r\n" not in data:
                        data += await stream.receive()
                    head, _, data = data.partition(b"\r\n\r\n")
                    length = next(
                        int(line.split(b":")[1])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length")
                    )
                    while len(data) < length:
                        data += await stream.receive()
                    body, data = data[:length], data[length:]
                    self.heads.append(head.decode())
                    self.requests.append(json.loads(body))
                    reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                    self.busy += 1
                    self.busy_most = max(self.busy, self.busy_most)
                    try:
                        if isinstance(reply, bytes):
                            await anyio.sleep(0.01)
                            await stream.send(reply)
                        else:
                            await reply(stream)
                            return
                    finally:
                        self.busy -= 1
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass


@asynccontextmanager
async def serving(*replies: Reply) -> AsyncIterator[Server]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    server = Server(port, list(replies))
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, server.handle)
        yield server
        group.cancel_scope.cancel()


def settings(url: str, **fields: Any) -> OpenAISettings:
    return OpenAISettings(**{"base_url": url, "model": "m", "request_timeout_s": 5.0, **fields})


class Pauses(list[float]):
    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


async def run_with(server: Server, folder: Path, answer: Any = None, steps: int = 8, **fields: Any) -> Any:
    """One episode in the in-memory world; gives what came of it and the pauses between retries."""
    pauses = Pauses()
    chosen = settings(server.url, **fields)
    policy = OpenAIPolicy(chosen, client=ChatClient(chosen, key=KEY, sleep=pauses))
    try:
        run = RunPlan(policies=(PolicyName.NOOP,), steps=steps)
        return await play(folder, policy, run=run, answer=answer), pauses
    finally:
        await policy.close()


async def test_a_model_mends_a_file(tmp_path: Path) -> None:
    replies = [
        says("I look.", ("read", {"path": "pkg/code.py"})),
        says(None, ("edit", {"path": "pkg/code.py", "old": "x + 2", "new": "x * 2"}), ("shell", {"command": "pytest"})),
        DONE,
    ]
    async with serving(*replies) as server:
        played, _ = await run_with(server, tmp_path)
    record = played.record
    assert record.termination is Termination.FINISHED and not record.truncated and len(record.steps) == 3
    assert played.bundle is not None and list(played.bundle.files) == ["pkg/code.py"]
    assert record.usage["tokens_prompt"] == 300 and record.usage["tokens_completion"] == 30
    assert record.steps[0].time_s["model"] > 0
    first, second, third = server.requests
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert "test_code.py::test_a" in first["messages"][1]["content"]
    assert {tool["function"]["name"] for tool in first["tools"]} == {"shell", "read", "edit"}
    assert first["max_tokens"] == 2048 and first["model"] == "m" and 0 <= first["seed"] < 2**31
    assert second["messages"][-1]["role"] == "tool" and "return x + 2" in second["messages"][-1]["content"]
    assert [m["tool_call_id"] for m in third["messages"][-2:]] == ["call_0", "call_1"]
    assert all("authorization: bearer " + KEY in head.lower() for head in server.heads)


async def test_what_is_exported_is_what_the_endpoint_was_sent(tmp_path: Path) -> None:
    replies = [
        says("Schön.", ("shell", {"command": "fail"}), ("edit", {"path": "pkg/code.py", "old": "né", "new": "ö"})),
        says("I was", finish="length"),
        says(None, ("shell", '{"command": '), ("read", [1]), ("shell", {"command": f"write pkg/code.py {FIXED!r}"})),
        DONE,
    ]  # fmt: skip
    durable = Durable(tmp_path)
    journal = durable.journal()
    async with serving(*replies) as server:
        chosen = settings(server.url)
        plan = Plan(run=RunPlan(policies=(PolicyName.OPENAI,), group=1), policy=PoliciesPlan(openai=chosen))
        run = begin_run(durable.world(), journal, plan, [durable.task()])
        policy = OpenAIPolicy(chosen)
        await RunLoop(durable.world(), journal, run, policies={"openai": policy}).work()
        await policy.close()
    (line,) = [json.loads(line) for line in export_jsonl(durable.loaded(run), durable.blobs)]  # type: ignore[arg-type]
    *sent, last = line["messages"]
    assert sent == server.requests[-1]["messages"] and last == {"role": "assistant", "content": "Done."}
    answers = [message["content"] for message in sent if message["role"] == "tool"]
    assert len(answers) == 5 and answers[0] == "ran fail\n\n[exit code 1]"
    (document,) = export_atif(durable.loaded(run), durable.blobs)  # type: ignore[arg-type]
    observed = [step["observation"]["results"] for step in document["steps"] if "observation" in step]
    assert [result["content"] for results in observed for result in results] == answers


def test_a_model_is_told_once_what_fails_and_how_to_run_it() -> None:
    command, killers = ("python3", "-m", "pytest", "-q"), ("tests/test_a.py::test_x", "tests/test_a.py::test_y")
    built = mutant_prompt(distribution="toy", version="1.0", killers=killers, command=command)
    for prompt in (built, "Mend double()."):
        task: Any = SimpleNamespace(
            prompt=prompt, test_command=command, visible_killers=killers, workdir="/work", editable=("src/*.py",)
        )
        said = first_words(task)
        assert said.count(killers[1]) == (1 if prompt == built else 2) and said.count(" ".join(command)) == 1
        assert said.startswith(prompt.rstrip()) and "/work" in said and "src/*.py" in said
        assert ("must pass:" in said) == (prompt != built)


async def test_the_key_is_in_no_record_and_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    echo = http({"error": {"message": f"bad key {KEY}"}}, 401)
    async with serving(says(None, ("shell", {"command": "true"})), echo) as server:
        played, _ = await run_with(server, tmp_path)
    assert played.trouble.cause == "endpoint_refused" and not played.trouble.retriable
    assert "[key]" in played.trouble.detail and "401" in played.trouble.detail
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for place in (played.trouble.detail, played.record.detail, caplog.text, repr(played), stored.decode("latin1")):
        assert KEY not in place
    with pytest.raises(CallerError, match="no header") as caught:
        ChatClient(settings("http://h/v1"), key="two\nlines-of-secret")
    assert "secret" not in str(caught.value)


REPEATED = {
    "cut by us": "x" * (500 - len(KEY) + 1) + KEY,
    "cut by the endpoint": f"bad key {KEY[:-1]}",
    "its end": f"bad key …{KEY[2:]}",
    "escaped": "".join(f"\\u{ord(letter):04x}" for letter in KEY),
    "in an address": "".join(f"%{ord(letter):02x}" for letter in KEY),
    "in base64": base64.b64encode(f"Bearer {KEY}".encode()).decode(),
}


@pytest.mark.parametrize("status", [200, 400, 401, 500])
@pytest.mark.parametrize("how", REPEATED)
async def test_nor_is_a_long_part_of_it_or_another_notation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, status: int
) -> None:
    caplog.set_level(logging.DEBUG)
    told = REPEATED[how]
    body = json.loads(says(told, ("shell", {"command": told, told: [told]})).partition(b"\r\n\r\n")[2])
    echo = http(body, 200) if status == 200 else http(told.encode(), status)
    async with serving(*([echo, DONE] if status == 200 else [echo])) as server:
        try:
            shown = repr((await run_with(server, tmp_path, attempts_max=2))[0])
        except PolicyFailedError as error:  # a first request that is refused stops the run
            assert status in (400, 401)
            shown = f"{error!r} {error.message} {error.next_step}"
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()).decode("latin1")
    for place in (shown, caplog.text, stored, json.dumps(server.requests)):
        assert told[-12:] not in place and KEY[4:-4] not in place
    assert "[key]" in shown + stored


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
async def test_trouble_that_passes(tmp_path: Path, status: int) -> None:
    async with serving(http({"error": "busy"}, status), http(b"", status, "Retry-After: 7"), DONE) as server:
        played, pauses = await run_with(server, tmp_path)
    assert played.trouble is None and len(server.requests) == 3
    assert 0.25 <= pauses[0] <= 0.5 and pauses[1] == 7.0


async def test_retry_after_as_a_date_and_as_nonsense(tmp_path: Path) -> None:
    dates = ["Retry-After: Wed, 21 Oct 2015 07:28:00 GMT", "Retry-After: soon", "Retry-After: 1e9", "Retry-After: nan"]
    async with serving(*(http(b"", 429, date) for date in dates), DONE) as server:
        played, pauses = await run_with(server, tmp_path)
    assert played.trouble is None and max(pauses) <= 4.0


GARBAGE: dict[str, bytes] = {
    "not JSON": http(b"<html>welcome</html>"),
    "empty": http(b""),
    "a list": http([]),
    "no choices": http({"choices": []}),
    "choices of the wrong kind": http({"choices": "yes"}),
    "no message": http({"choices": [{}]}),
    "content of the wrong kind": http({"choices": [{"message": {"content": 7}}]}),
    "calls of the wrong kind": http({"choices": [{"message": {"tool_calls": {"a": 1}}}]}),
    "a call without function": http({"choices": [{"message": {"tool_calls": [{"id": "x"}]}}]}),
    "NaN": http(b'{"choices": [{"message": {"content": "a", "n": NaN}}]}'),
    "deep": http(b'{"choices": ' + b"[" * 100_000),
    "too long a text": http({"choices": [{"message": {"content": "a" * 300_000}}]}),
    "bytes": http(b"\x00\xff\xfe"),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_infrastructure_after_retries(tmp_path: Path, name: str) -> None:
    async with serving(GARBAGE[name]) as server:
        played, pauses = await run_with(server, tmp_path, attempts_max=3)
        assert len(server.requests) == 3 and len(pauses) == 2
    assert played.trouble.cause == "endpoint_garbage" and played.record.termination.ours
    assert "no chat completion" in played.trouble.detail


async def test_garbage_once_is_survived(tmp_path: Path) -> None:
    async with serving(GARBAGE["not JSON"], GARBAGE["NaN"], DONE) as server:
        played, _ = await run_with(server, tmp_path)
    assert played.trouble is None


async def test_an_answer_without_end(tmp_path: Path) -> None:
    async def endless(stream: SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
        for _ in range(2 * limits.ENDPOINT_ANSWER_BYTES_MAX // 65536):
            await stream.send(b" " * 65536)

    async with serving(endless) as server:
        played, _ = await run_with(server, tmp_path, attempts_max=1)
    assert played.trouble.cause == "endpoint_garbage" and "larger than" in played.trouble.detail


async def test_slow_answers_end_in_time(tmp_path: Path) -> None:
    async def dripping(stream: SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
        while True:  # each byte resets a plain read timeout
            await stream.send(b" ")
            await anyio.sleep(0.05)

    with anyio.fail_after(10):
        async with serving(dripping, DONE) as server:
            played, _ = await run_with(server, tmp_path, request_timeout_s=0.4)
    assert played.trouble is None and len(server.requests) == 2


async def test_dropped_connections(tmp_path: Path) -> None:
    async def drop(stream: SocketStream) -> None:
        await stream.aclose()

    async def drop_midway(stream: SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        await stream.aclose()

    async with serving(drop, drop_midway, DONE) as server:
        played, pauses = await run_with(server, tmp_path)
    assert played.trouble is None and len(pauses) == 2


async def test_an_endpoint_that_fails_again_and_again_is_taken_for_dead(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pauses = Pauses()
    client = ChatClient(settings(f"http://127.0.0.1:{port}/v1", attempts_max=4), sleep=pauses)
    with pytest.raises(PolicyFailedError) as caught:
        await client.complete([], [], tokens_max=1, seed=0)
    assert caught.value.cause == "endpoint_unreachable" and not caught.value.retriable
    assert caught.value.for_all, "it never answered: a run of one episode is to be resumed, not sealed"
    await client.close()
    async with serving(DONE) as server:
        client = ChatClient(settings(server.url, attempts_max=4), sleep=pauses)
        await client.complete([], [], tokens_max=1, seed=0)
    for number in range(1, 5):
        with pytest.raises(PolicyFailedError) as caught:
            await client.complete([], [], tokens_max=1, seed=0)
        assert caught.value.cause == "endpoint_unreachable" and not caught.value.retriable
        assert caught.value.for_all == (number >= DEAD_AFTER)
    await client.close()


async def refused(client: ChatClient) -> bool:
    """Asks; gives whether the refusal ends the run."""
    with pytest.raises(PolicyFailedError) as caught:
        await client.complete([], [], tokens_max=1, seed=0)
    assert caught.value.cause == "endpoint_refused" and not caught.value.retriable
    return caught.value.for_all


@pytest.mark.parametrize(("status", "dead"), [(401, True), (403, True), (404, True), (400, False), (422, False)])
async def test_a_request_that_is_refused_says_nothing_of_others_unless_nobody_is_let_in(
    status: int, dead: bool
) -> None:
    async with serving(DONE, *[http({}, status)] * DEAD_AFTER, DONE, http({}, status)) as server:
        client = ChatClient(settings(server.url))
        await client.complete([], [], tokens_max=1, seed=0)
        assert [await refused(client) for _ in range(DEAD_AFTER)] == [False] * (DEAD_AFTER - 1) + [dead]
        await client.complete([], [], tokens_max=1, seed=0)
        assert not await refused(client), "an answer in between starts the count anew"
        await client.close()
        client = ChatClient(settings(server.url))
        client.spent(100.0, 10.0)
        assert not await refused(client), "before the run was resumed it took such requests"
        await client.close()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_an_endpoint_that_refuses_from_the_first_request_on_ends_the_run(status: int) -> None:
    async with serving(http({}, 503), http({"error": "unsupported parameter: max_tokens"}, status)) as server:
        client = ChatClient(settings(server.url), sleep=Pauses())
        assert [await refused(client) for _ in range(2)] == [True, True]
        await client.close()


async def test_what_reasoning_models_do_not_take_can_be_left_out(tmp_path: Path) -> None:
    async with serving(DONE) as server:
        chosen = settings(server.url, answer_limit=AnswerLimit.MAX_COMPLETION_TOKENS, temperature_sent=False)
        policy = OpenAIPolicy(chosen)
        assert policy.name == "openai(m)" and OpenAIPolicy(settings(server.url)).name == "openai(m, temperature=1)"
        await play(tmp_path, policy)
        await policy.close()
    (request,) = server.requests
    assert request["max_completion_tokens"] == 2048 and not {"max_tokens", "temperature"} & set(request)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
async def test_nothing_in_the_environment_leads_elsewhere_than_to_the_checked_endpoint(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for no_proxy in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(no_proxy, raising=False)
    async with serving(DONE) as endpoint, serving(DONE) as proxy:
        monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        client = ChatClient(settings(endpoint.url))
        await client.complete([], [], tokens_max=1, seed=0)
        await client.close()
        assert (len(endpoint.requests), proxy.requests) == (1, [])
        assert "authorization" not in endpoint.heads[0].lower()


@pytest.mark.parametrize("url", ["ftp://h/v1", "nonsense", "http://", "http://user:pass@h/v1", "http://[::1"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(CallerError) as caught:
        ChatClient(settings(url))
    assert "pass@" not in str(caught.value)


async def test_mistakes_in_calls_are_told_to_the_model(tmp_path: Path) -> None:
    bad = says(
        "x",
        ("shell", "{not json"),
        ("shell", "[1, 2]"),
        ("shell", '{"command": NaN}'),
        ("fly", {}),
        ("shell", {"cmd": "ls"}),
        ("read", {"path": "pkg/code.py", "lines": 10**40}),
        ("shell", ""),
    )
    async with serving(bad, DONE) as server:
        played, _ = await run_with(server, tmp_path)
    assert played.trouble is None
    told = [message["content"] for message in server.requests[1]["messages"] if message["role"] == "tool"]
    assert len(told) == 7 and all(text.startswith("error: ") for text in told)
    assert sum("no JSON object" in text for text in told) == 3
    assert "no tool 'fly'" in told[3] and "unknown field `cmd`" in told[4] and "missing required" in told[6]
    echoed = server.requests[1]["messages"][2]["tool_calls"]
    assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in echoed)


async def test_odd_but_valid_answers(tmp_path: Path) -> None:
    call = {"id": 7, "function": {"name": "shell", "arguments": {"command": "true"}}}
    parts = [{"type": "text", "text": "so \ud800"}, {"type": "image"}, "x"]
    plain = {
        "choices": [{"message": {"content": parts, "tool_calls": [call, call]}, "finish_reason": None}],
        "usage": {"prompt_tokens": -5, "completion_tokens": True},
    }
    async with serving(http(plain), DONE) as server:
        played, _ = await run_with(server, tmp_path)
    assert played.trouble is None
    ids = [call.id for call in played.record.steps[0].calls]
    assert ids == ["call_1", "call_2"]
    assert played.record.usage["tokens_prompt"] > 100, "what the endpoint does not count is estimated"


async def test_budgets(tmp_path: Path) -> None:
    look = says("x", ("shell", {"command": "true"}), usage={"prompt_tokens": 900, "completion_tokens": 50})
    async with serving(look) as server:
        played, _ = await run_with(server, tmp_path / "tokens", token_budget=2000)
        assert played.record.termination is Termination.POLICY_STOP and played.record.truncated
        assert len(played.record.steps) == 2 and "tokens" in played.record.detail
        assert server.requests[-1]["max_tokens"] <= 2000 - 950 - size(server.requests[-1]) // 4, "within what is left"
        asked = len(server.requests)
        played, _ = await run_with(server, tmp_path / "first", token_budget=100)
        assert played.record.termination is Termination.POLICY_STOP and len(server.requests) == asked, "too long to ask"
        played, _ = await run_with(server, tmp_path / "steps", steps=2)
        assert len(played.record.steps) == 2 and played.record.truncated and "steps" in played.record.detail
        played, _ = await run_with(
            server, tmp_path / "cost", cost_usd_max=0.002, price_usd_per_million_prompt=1.0
        )  # fmt: skip
    assert played.trouble.cause == "cost_cap" and played.record.termination is Termination.EVICTED
    assert played.record.truncated, "ended from outside"
    assert len(played.record.steps) == 2, "the third prompt does not fit into what 2 x 900 tokens leave"


def size(request: dict[str, Any]) -> int:
    return len(json.dumps([request["messages"], request["tools"]]))


PRICES = {"price_usd_per_million_prompt": 1.0, "price_usd_per_million_completion": 10.0}


async def test_requests_at_once_stay_below_the_cap_together_and_none_is_refused_too_early() -> None:
    used = {"prompt_tokens": 50, "completion_tokens": 100}  # 0.00105 dollars, where 0.01 more may be asked for
    async with serving(says("x", usage=used)) as server:
        client = ChatClient(settings(server.url, concurrency=8, cost_usd_max=0.0205, **PRICES))
        causes: list[str] = []

        async def ask() -> None:
            try:
                await client.complete([], [], tokens_max=1000, seed=0)
                causes.append("")
            except PolicyFailedError as error:
                causes.append(error.cause)

        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(ask)
        await client.close()
    answered = causes.count("")
    assert answered == len(server.requests) and causes.count("cost_cap") == 30 - answered
    assert server.busy_most <= 2, "two may cost 0.02 together"
    assert 9 <= answered <= 10, "until less than the longest answer is left"


@pytest.mark.parametrize("kind", ["garbage", "silence", "cut off"])
async def test_tries_without_an_answer_count_towards_the_cap(kind: str) -> None:
    async def silent(stream: SocketStream) -> None:
        await anyio.sleep(60)

    async def cut_off(stream: SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n{")

    replies: dict[str, Reply] = {"garbage": http(b"x" * 4000), "silence": silent, "cut off": cut_off}
    async with serving(replies[kind]) as server:
        chosen = settings(server.url, cost_usd_max=0.025, attempts_max=20, request_timeout_s=0.2, **PRICES)
        client, tokens = ChatClient(chosen, sleep=Pauses()), dict[str, int]()
        with pytest.raises(PolicyFailedError) as failed:
            await client.complete([], [], tokens_max=1000, seed=0, tokens=tokens)
        await client.close()
    assert failed.value.cause == "cost_cap" and len(server.requests) == 2
    assert tokens["completion"] >= 2000 and tokens["prompt"] > 0


async def test_refusals_and_dead_endpoints_cost_nothing(tmp_path: Path) -> None:
    async with serving(http({"error": "busy"}, 503)) as server:
        client, tokens = ChatClient(settings(server.url, cost_usd_max=0.02, **PRICES), sleep=Pauses()), dict[str, int]()
        with pytest.raises(PolicyFailedError, match="no completion in 5 tries"):
            await client.complete([], [], tokens_max=1000, seed=0, tokens=tokens)
        await client.close()
    client = ChatClient(settings(server.url, cost_usd_max=0.02, **PRICES), sleep=Pauses())
    with pytest.raises(PolicyFailedError, match="no completion in 5 tries"):  # nobody listens any more
        await client.complete([], [], tokens_max=1000, seed=0, tokens=tokens)
    await client.close()
    assert not any(tokens.values())


async def test_what_failed_tries_took_is_the_episodes_too(tmp_path: Path) -> None:
    look = says("x", ("shell", {"command": "true"}))
    async with serving(look, GARBAGE["not JSON"], look, GARBAGE["not JSON"]) as server:
        played, _ = await run_with(server, tmp_path, attempts_max=2)
    assert played.trouble.cause == "endpoint_garbage" and len(played.record.steps) == 2
    assert all(step.tokens == {"prompt": 100, "completion": 10} for step in played.record.steps)
    assert played.record.usage["tokens_prompt"] > 200 and played.record.usage["tokens_completion"] > 20


async def test_an_answer_cut_off_goes_on(tmp_path: Path) -> None:
    async with serving(says("I was going to", finish="length"), DONE) as server:
        played, _ = await run_with(server, tmp_path)
    assert len(played.record.steps) == 2 and "cut off" in server.requests[1]["messages"][-1]["content"]


async def test_a_full_context_ends_the_episode_and_is_scored(tmp_path: Path) -> None:
    full = http({"error": {"code": "context_length_exceeded", "message": "too long"}}, 400)
    fix = says("x", ("shell", {"command": f"write pkg/code.py {FIXED.decode()}"}))
    async with serving(fix, full) as server:
        played, _ = await run_with(server, tmp_path)
    assert played.trouble is None and played.record.truncated and played.bundle is not None


async def test_no_more_requests_at_once_than_allowed() -> None:
    async with serving(DONE) as server:
        client = ChatClient(settings(server.url, concurrency=3))
        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(lambda: client.complete([], [], tokens_max=1, seed=0))
        await client.close()
        assert len(server.requests) == 12 and server.busy_most <= 3


def test_the_agent_context_is_all_it_gets() -> None:
    assert OpenAIPolicy.run.__annotations__["context"] == AgentContext.__name__
