"""What policies may reach, what tools answer, what a host writes down."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import canonical_bytes, decode_own
from ropewalk.interface.episode import EpisodeRecord, Message, Step, ToolCall, ToolResult
from ropewalk.reward.verdict import Verdict, VerdictStatus
from ropewalk.rollout.begin import begin_run
from ropewalk.rollout.episodes import tools
from ropewalk.rollout.episodes.clean import clean_call, clean_plain, storable
from ropewalk.rollout.episodes.context import AgentContext, SearchContext
from ropewalk.rollout.episodes.materials import Materials
from ropewalk.rollout.episodes.play import Attempt, Played
from ropewalk.rollout.episodes.shelf import Shelf
from ropewalk.rollout.judging import _storable
from ropewalk.rollout.metering import Meter
from ropewalk.rollout.plan import Plan, PoliciesPlan, PolicyName, RunPlan, SearchSettings
from ropewalk.rollout.policies.contract import ContextKind, PolicyEnd
from ropewalk.sandbox.contract import SandboxGoneError, SandboxSpec
from ropewalk.sandbox.files import DiskFullError
from tests.unit.rollout.worlds import (
    FIXED,
    Durable,
    MemoryBlobs,
    MemoryJudge,
    MemorySandbox,
    MemorySandboxes,
    Result,
    no_fault,
    unavailable,
)


class Acting:
    """A policy made of a function."""

    name = "acting"

    def __init__(self, act: Any, context: ContextKind = ContextKind.AGENT) -> None:
        self.act = act
        self.context = context

    async def run(self, context: Any) -> PolicyEnd | None:
        end: PolicyEnd | None = await self.act(context)
        return end

    async def close(self) -> None:
        pass


async def play(folder: Path, policy: Any, *, run: RunPlan | None = None, forks: int = 3, answer: Any = None,
               fault: Any = no_fault) -> Played:  # fmt: skip
    folder.mkdir(exist_ok=True)
    durable = Durable(folder)
    world, journal = durable.world(), durable.journal()
    plan = Plan(
        run=run or RunPlan(policies=(PolicyName.NOOP,), group=1),
        policy=PoliciesPlan(search=SearchSettings(forks_max=forks)),
    )
    task = durable.task()
    row = journal.episodes(begin_run(world, journal, plan, [task]))[0]
    sandboxes: Any = world.sandboxes
    sandboxes.answer = answer
    ready = await (await sandboxes.create(SandboxSpec(tenant="tests", image="0" * 64))).snapshot()
    running = set(sandboxes.running)
    sandboxes.fault = fault
    attempt = Attempt(
        world, plan, task, row, snapshot=ready.id, policy=policy, materials=Materials(world),
        shelf=Shelf(sandboxes, journal), on_step=lambda step: None, meter=Meter(world.clock),
    )  # fmt: skip
    try:
        return await attempt.play()
    finally:
        assert set(sandboxes.running) == running


def reachable(value: Any) -> Iterator[Any]:
    """Everything that attributes, closures, containers and bound methods lead to."""
    pending, seen = [value], set()
    while pending:
        each = pending.pop()
        plain = isinstance(each, ModuleType | str | bytes | int | float | type(None))
        if id(each) in seen or plain or type(each).__module__.startswith("sqlalchemy"):
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, dict):
            pending += [*each, *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            pending += each
        elif isinstance(each, FunctionType):
            pending += [cell.cell_contents for cell in each.__closure__ or () if cell != type(cell)()]
        elif isinstance(each, MethodType):
            pending += [each.__self__, each.__func__]
        elif not isinstance(each, type):
            for kind in type(each).__mro__:
                slots = kind.__dict__.get("__slots__", ())
                pending += [
                    getattr(each, s) for s in ([slots] if isinstance(slots, str) else slots) if hasattr(each, s)
                ]
            pending.append(getattr(each, "__dict__", {}))


async def test_nothing_that_an_agent_holds_leads_to_a_sandbox_or_a_grader(tmp_path: Path) -> None:
    forbidden = (MemorySandbox, MemorySandboxes, MemoryJudge, Shelf, Materials, Attempt)
    found: list[Any] = []
    seen: list[int] = []

    async def look(context: Any) -> None:
        await context.shell("true")
        found.extend(each for each in reachable(context) if isinstance(each, forbidden))
        seen.append(sum(1 for _ in reachable(context)))
        assert not [name for name in dir(context) if "fork" in name or "snapshot" in name or "grade" in name]

    assert (await play(tmp_path, Acting(look))).trouble is None
    assert not found and seen[0] > 5


async def test_the_walk_would_find_a_sandbox(tmp_path: Path) -> None:
    """The test above can fail: a search's context does lead to the sandboxes."""
    found: list[Any] = []

    async def look(context: Any) -> None:
        found.append(next(each for each in reachable(context) if isinstance(each, MemorySandboxes)))

    assert (await play(tmp_path, Acting(look, ContextKind.SEARCH))).trouble is None
    assert found


async def test_steps_are_counted_and_end(tmp_path: Path) -> None:
    outputs: list[str] = []

    async def act(context: AgentContext) -> None:
        outputs.extend([(await context.shell("x")).output for _ in range(4)])
        assert context.steps_left == 0

    played = await play(tmp_path, Acting(act), run=RunPlan(policies=(PolicyName.NOOP,), steps=2))
    assert len(played.record.steps) == 2 and outputs[2:] == ["error: no steps left."] * 2


async def test_a_policy_that_never_stops_is_ended_by_time(tmp_path: Path) -> None:
    async def act(context: AgentContext) -> None:
        while True:
            await context.shell("x")

    run = RunPlan(policies=(PolicyName.NOOP,), steps=1, episode_timeout_s=0.2)
    record = (await play(tmp_path, Acting(act), run=run)).record
    assert record.termination is Termination.TIMEOUT and record.truncated and record.bundle


async def test_a_hanging_command_is_ended_with_the_episode(tmp_path: Path) -> None:
    async def act(context: AgentContext) -> None:
        await context.shell("hang")

    run = RunPlan(policies=(PolicyName.NOOP,), steps=1, episode_timeout_s=0.2)
    assert (await play(tmp_path, Acting(act), run=run)).record.termination is Termination.TIMEOUT


async def test_a_crashing_policy_is_not_scored(tmp_path: Path) -> None:
    async def act(context: AgentContext) -> None:
        raise ValueError("oops")

    played = await play(tmp_path, Acting(act))
    assert played.trouble is not None and played.trouble.cause == "policy_crashed" and not played.trouble.retriable
    assert played.record.termination.ours and played.record.truncated and played.record.bundle is None


@pytest.mark.parametrize("told_by", ["sandbox", "fork", "policy"])
async def test_a_timeout_is_truncated_whoever_tells_of_it(tmp_path: Path, told_by: str) -> None:
    async def act(context: Any) -> PolicyEnd | None:
        if told_by == "policy":
            return PolicyEnd(termination=Termination.TIMEOUT)
        if told_by == "fork":
            async with context.fork():
                raise SandboxGoneError("silent", termination=Termination.TIMEOUT)
        await context.shell("x")
        return None

    def fault(sandbox: str, operation: str) -> None:
        if told_by == "sandbox" and operation == "exec":
            raise SandboxGoneError("silent", termination=Termination.TIMEOUT)

    kind = ContextKind.SEARCH if told_by == "fork" else ContextKind.AGENT
    record = (await play(tmp_path, Acting(act, kind), fault=fault)).record
    assert record.termination is Termination.TIMEOUT and record.truncated


OURS = {
    "snapshot gone": (CallerError("no such snapshot"), "snapshot_lost", False),
    "too many files": (OSError(errno.EMFILE, "too many"), "unavailable", True),
    "disk full": (OSError(errno.ENOSPC, "full"), "unavailable", True),
}


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("kind", [ContextKind.AGENT, ContextKind.SEARCH])
async def test_a_fork_that_our_side_fails_is_no_crash_of_the_policy(
    tmp_path: Path, name: str, kind: ContextKind
) -> None:
    error, cause, retriable = OURS[name]
    forks = 0

    def fault(sandbox: str, operation: str) -> None:
        nonlocal forks
        forks += operation == "fork"
        if operation == "fork" and (kind is ContextKind.AGENT or forks == 2):
            raise error

    async def search(context: Any) -> None:
        async with context.fork():
            pass

    played = await play(tmp_path, Acting(search, kind), fault=fault)
    assert played.trouble is not None and (played.trouble.cause, played.trouble.retriable) == (cause, retriable)
    assert played.record.termination.ours


async def test_a_machine_without_room_is_no_crash_of_the_policy_and_a_missing_file_is(tmp_path: Path) -> None:
    for number, error, cause in [(1, OSError(errno.EMFILE, "x"), "unavailable"),
                                 (2, FileNotFoundError(errno.ENOENT, "x"), "policy_crashed")]:  # fmt: skip

        async def act(context: Any, error: OSError = error) -> None:
            raise error

        played = await play(tmp_path / str(number), Acting(act))
        assert played.trouble is not None and played.trouble.cause == cause


async def test_a_crash_of_ours_is_not_called_the_policys(tmp_path: Path) -> None:
    async def act(context: AgentContext) -> None:
        await context.shell("x")

    def answer(*_: Any) -> Result:
        raise KeyError("ours")

    played = await play(tmp_path, Acting(act), answer=answer)
    assert played.trouble is not None and played.trouble.cause == "internal_error"


ERRORS = {"refused": CallerError("not like this"), "no room": unavailable(), "disk full": DiskFullError("full")}
CANDIDATE_MADE = [("exec", "refused"), ("read", "refused"), ("list", "refused"), ("snapshot", "refused"),
                  ("snapshot", "no room"), ("snapshot", "disk full")]  # fmt: skip


@pytest.mark.parametrize(("operation", "error"), CANDIDATE_MADE)
async def test_what_a_candidate_makes_impossible_does_not_make_its_episode_unscored(
    tmp_path: Path, operation: str, error: str
) -> None:
    def fault(sandbox: str, wanted: str) -> None:
        if wanted == operation:
            raise ERRORS[error]

    async def act(context: AgentContext) -> None:
        await context.shell("write pkg/code.py broken")
        await context.act([ToolCall(name="read", arguments={"path": "pkg/code.py"})])
        await context.act([ToolCall(name="edit", arguments={"path": "pkg/code.py", "old": "broken", "new": "x"})])

    run = RunPlan(policies=(PolicyName.NOOP,), keep_failed=True)
    played = await play(tmp_path, Acting(act), run=run, fault=fault)
    assert played.trouble is None and played.bundle is not None and len(played.record.steps) >= 1
    assert not played.record.termination.ours
    if operation == "snapshot":
        assert [step.snapshot for step in played.record.steps] == [None] * 3


async def test_a_record_never_grows_past_what_can_be_read_again(tmp_path: Path) -> None:
    async def act(context: AgentContext) -> None:
        for _ in range(12):
            await context.act([ToolCall(name="shell", arguments={"command": "x" * (2 << 20)})])

    played = await play(tmp_path, Acting(act), run=RunPlan(policies=(PolicyName.NOOP,), steps=12))
    assert played.trouble is None and len(played.record.steps) == 12
    assert len(canonical_bytes(played.record)) < limits.JSON_BYTES_MAX
    assert played.record.steps[0].calls[0].arguments and not played.record.steps[-1].calls[0].arguments


async def test_changed_files_are_written_down_by_step(tmp_path: Path) -> None:
    async def act(context: AgentContext) -> None:
        await context.shell("write pkg/code.py one")
        await context.read("pkg/code.py")
        await context.shell("write notes.txt not declared")
        await context.edit("pkg/new.py", "", "two")

    steps = (await play(tmp_path, Acting(act))).record.steps
    assert [sorted(step.files_changed) for step in steps] == [["pkg/code.py"], [], [], ["pkg/new.py"]]


async def test_no_more_contents_are_stored_than_a_bundle_may_hold(tmp_path: Path) -> None:
    """What an episode leaves stays on the disk for good: step after step of new files may not fill it."""
    sizes: list[int] = []

    def answer(sandbox: MemorySandbox, command: Any, options: Any) -> Result:
        for number in range(300 if command == "many" else 3):
            data = f"{len(sizes)} {number}".encode() * (1 if command == "many" else 100_000)
            sandbox.files[f"/work/pkg/{number}.py"] = data
        sizes.append(len(sandbox.files))
        return Result()

    async def act(context: AgentContext) -> None:
        for _ in range(3):
            await context.shell("many")
        for _ in range(12):
            await context.shell("large")

    run = RunPlan(policies=(PolicyName.NOOP,), steps=20)
    before = MemoryBlobs.put
    stored: dict[str, int] = {}

    def put(self: MemoryBlobs, data: bytes) -> str:
        digest = before(self, data)
        if b" " in data[:4] and data[:1].isdigit():
            stored[digest] = len(data)
        return digest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryBlobs, "put", put)
        steps = (await play(tmp_path, Acting(act), run=run, answer=answer)).record.steps
    assert 0 < len(steps[0].files_changed) <= limits.BUNDLE_FILES_MAX
    noted = [digest for step in steps for digest in step.files_changed.values()]
    assert len(noted) <= limits.BUNDLE_FILES_MAX and sum(stored.values()) <= limits.BUNDLE_BYTES_MAX
    assert set(noted) <= set(stored), "a record names what is not stored"


async def test_a_crowded_folder_hides_itself_from_the_record_alone(tmp_path: Path) -> None:
    def answer(sandbox: MemorySandbox, command: Any, options: Any) -> Result:
        sandbox.files.update({f"/work/pkg/{number}.py": b"" for number in range(limits.WORK_ENTRIES_MAX + 1)})
        return Result()

    async def act(context: AgentContext) -> None:
        await context.shell("crowd")

    played = await play(tmp_path, Acting(act), answer=answer)
    assert played.trouble is None and played.bundle is not None and played.bundle.refused == "unreadable"
    assert played.record.steps[0].files_changed == {}


async def test_what_cannot_be_recorded_is_made_fit(tmp_path: Path) -> None:
    """Lone surrogates, NaN and huge integers have no canonical form: they must not cost the episode its record."""
    arguments = {"command": "echo \ud800", "nan": float("nan"), "huge": 10**30, "deep": [[[{}]]]}

    async def act(context: AgentContext) -> None:
        await context.act([ToolCall(name="shell\udfff", arguments=arguments)])
        await context.shell("say \ud800")

    played = await play(tmp_path, Acting(act), answer=lambda *_: Result(stdout="bad \udcff"))
    assert played.trouble is None and played.record.content.startswith("trajectory:")
    assert played.record.steps[0].calls[0].arguments["nan"] == "nan"
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    assert "nested too deeply" in str(clean_plain(deep))


async def test_what_a_policy_says_of_itself_is_made_fit_too(tmp_path: Path) -> None:
    async def act(context: AgentContext) -> PolicyEnd:
        await context.act(
            [], messages=[Message(role="\udcff", content="\ud800", tool_call_id="\udfff")], tokens={"\ud800": 10**30}
        )
        return PolicyEnd(detail="why \ud800")

    policy = Acting(act)
    policy.name = "acting(model=\udcff)"
    played = await play(tmp_path, policy)
    record = decode_own(canonical_bytes(played.record), EpisodeRecord)
    assert (record.policy, record.detail, record.steps[0].tokens) == ("acting(model=?)", "why ?", {"?": 2**53 - 1})
    assert record.steps[0].messages[0] == Message(role="?", content="?", tool_call_id="?")


RECORD = EpisodeRecord(
    id="e", run="r", task="t", policy="p", group="g", index=0, seed=0, snapshot="s", steps=(Step(index=1),),
    termination=Termination.FINISHED, truncated=False, started_s=0.5, ended_s=1.0,
)  # fmt: skip


@given(
    st.text(st.characters(), max_size=8), st.floats(), st.integers(),
    st.dictionaries(st.text(st.sampled_from("a\ud800\udfff"), max_size=3), st.text("b\udcff", max_size=3)),
)  # fmt: skip
def test_any_record_can_be_stored(text: str, number: float, count: int, files: dict[str, str]) -> None:
    step = Step(
        index=count, messages=(Message(role=text, content=text),), files_changed=files, tokens={text: count},
        calls=(clean_call(ToolCall(name=text, arguments={text: [text, number, count, None, True, files]})),),
        results=(ToolResult(output=text, exit_code=count),), time_s={text: number},
    )  # fmt: skip
    said = msgspec.structs.replace(RECORD, detail=text, usage={text: number})
    for record in (msgspec.structs.replace(RECORD, steps=(step,)), said):
        kept = storable(record)
        read = decode_own(canonical_bytes(kept), EpisodeRecord)
        assert read == kept and canonical_bytes(read) == canonical_bytes(kept), "what is signed is what was stored"
        assert (kept.id, len(kept.steps)) == (record.id, len(record.steps))
    assert storable(RECORD) is RECORD


@given(st.text(max_size=20), st.sampled_from(list(VerdictStatus)))
def test_a_verdict_with_any_words_is_stored(text: str, status: VerdictStatus) -> None:
    verdict = Verdict(
        episode="e", task="t", grader="g", bundle=None, status=status, cause="c", detail=text + "\ud800", nonce="n",
        score=1.0 if status is VerdictStatus.SCORED else None,
    )  # fmt: skip
    kept = _storable(verdict)
    assert decode_own(canonical_bytes(kept), Verdict) == kept
    assert kept == msgspec.structs.replace(verdict, detail=""), "the score and the cause stay"
    plain = msgspec.structs.replace(verdict, detail="in words")
    assert _storable(plain) is plain


async def test_a_search_forks_within_its_budget(tmp_path: Path) -> None:
    async def search(context: SearchContext) -> None:
        async with context.fork() as fork:
            await fork.write({"pkg/code.py": b"in the fork alone"})
        await context.step(ToolCall(name="try_edit"), tools.ToolResult(output="kept"), keep={"pkg/code.py": FIXED})
        async with context.fork() as fork:
            assert (await fork.exec(["x"], timeout_s=1.0)).exit_code == 0
        async with context.fork():
            pass
        assert context.forks_left == 0
        with pytest.raises(CallerError, match="budget of 3 forks"):
            async with context.fork():
                pass

    played = await play(tmp_path, Acting(search, ContextKind.SEARCH))
    assert played.trouble is None and played.record.usage["forks"] == 3
    assert played.bundle is not None and list(played.bundle.files) == ["pkg/code.py"]


class TestTools:
    """Mistakes are results that teach."""

    workdir: ClassVar[str] = "/work"

    async def perform(self, name: str, answer: Any = None, **arguments: Any) -> tools.ToolResult:
        service = MemorySandboxes({})
        service.answer = answer
        sandbox = await service.create(SandboxSpec(tenant="tests", image="0" * 64))
        sandbox.files["/work/long.txt"] = "\n".join(str(n) for n in range(1000)).encode()
        sandbox.files["/work/binary"] = b"\xff\x00"
        call = ToolCall(name=name, arguments=arguments)
        return await tools.perform(call, sandbox, workdir="/work", timeout_s_max=5.0)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("name", "arguments", "message"),
        [
            ("python", {}, "no tool 'python'. The tools are: shell, read, edit"),
            ("shell", {}, "missing required field `command`"),
            ("shell", {"command": 3}, "Expected `str`, got `int`"),
            ("shell", {"command": "x", "timeout_s": -1}, "timeout_s"),
            ("shell", {"command": "x", "cmd": "y"}, "unknown field `cmd`"),
            ("shell", {"unparsable": "{"}, "no JSON object"),
            ("shell", {"command": "a\0b"}, "NUL"),
            ("read", {"path": "none.py"}, "no such file"),
            ("read", {"path": "long.txt", "start_line": 2000}, "has 1000 lines"),
            ("read", {"path": "a\0"}, "NUL"),
            ("edit", {"path": "pkg/code.py", "old": "zzz", "new": ""}, "0 times"),
            ("edit", {"path": "pkg/code.py", "old": "x", "new": "y"}, "2 times"),
            ("edit", {"path": "pkg/code.py", "old": "def", "new": "def"}, "the same text"),
            ("edit", {"path": "pkg/code.py", "old": "", "new": "y"}, "exists already"),
            ("edit", {"path": "none.py", "old": "a", "new": "y"}, "no such file"),
            ("edit", {"path": "binary", "old": "a", "new": "y"}, "UTF-8"),
        ],
    )
    async def test_mistakes(self, name: str, arguments: dict[str, Any], message: str) -> None:
        result = await self.perform(name, **arguments)
        assert result.output.startswith("error: ") and message in result.output and result.exit_code == 2

    async def test_reading(self) -> None:
        result = await self.perform("read", path="long.txt", start_line=10, lines=2)
        assert result.output == "   10  9\n   11  10\n[989 more lines]"

    @pytest.mark.parametrize("window", [1, 2, 3, 7, 100])
    @pytest.mark.parametrize("text", ["", "\n", "a", "a\n", "a\r\nb", "\n\n\n", "a\nbb\n\nccc\nd", "é\u2028é\nü\x0c\n"])
    async def test_reading_in_pieces_of_any_size(self, window: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "TOOL_READ_BYTES_MAX", window)
        service = MemorySandboxes({})
        sandbox: Any = await service.create(SandboxSpec(tenant="tests", image="0" * 64))
        sandbox.files["/work/x"] = text.encode()
        lines = text.removesuffix("\n").split("\n") if text else []
        for first in range(1, len(lines) + 2):
            for count in range(1, len(lines) + 2):
                arguments = {"path": "x", "start_line": first, "lines": count}
                call = ToolCall(name="read", arguments=arguments)
                result = await tools.perform(call, sandbox, workdir="/work", timeout_s_max=5.0)
                if first > max(len(lines), 1):
                    assert f"has {len(lines)} lines" in result.output
                    continue
                shown = [line[7:] for line in result.output.split("\n") if not line.startswith("[")]
                wanted = [line.removesuffix("\r") for line in lines[first - 1 : first - 1 + count]]
                if sum(len(line.encode()) + 1 for line in wanted) <= window:
                    assert shown == (wanted or [""])
                    rest = len(lines) - first + 1 - len(wanted)
                    assert (f"[{rest} more lines]" in result.output) == (rest > 0)

    async def test_reading_a_large_file_holds_a_part_of_it_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        service = MemorySandboxes({})
        sandbox: Any = await service.create(SandboxSpec(tenant="tests", image="0" * 64))
        sandbox.files["/work/x"] = b"\n" * (5 << 20) + b"end"
        asked: list[int] = []
        read = sandbox.read

        async def noted(path: str, *, bytes_max: int, **options: Any) -> bytes:
            asked.append(bytes_max)
            data: bytes = await read(path, bytes_max=bytes_max, **options)
            return data

        monkeypatch.setattr(sandbox, "read", noted)
        call = ToolCall(name="read", arguments={"path": "x", "start_line": (5 << 20) + 1})
        result = await tools.perform(call, sandbox, workdir="/work", timeout_s_max=5.0)
        assert result.output == f"{(5 << 20) + 1}  end" and max(asked) <= 2 << 20
        sandbox.files["/work/x"] = bytes(limits.FILE_BYTES_MAX)
        result = await tools.perform(call, sandbox, workdir="/work", timeout_s_max=5.0)
        assert "larger than" in result.output and "shell" in result.output

    async def test_editing(self) -> None:
        result = await self.perform("edit", path="pkg/code.py", old="x + 2", new="x * 2")
        assert result.output == "Changed /work/pkg/code.py at line 2." and result.exit_code == 0

    async def test_long_output_loses_its_middle(self) -> None:
        result = await self.perform("shell", lambda *_: Result(stdout="a" * 20_000, truncated=True), command="x")
        assert len(result.output) < 17_000 and "4000 characters cut" in result.output
        assert "larger than the sandbox keeps" in result.output

    @pytest.mark.parametrize(
        ("result", "message"),
        [
            (Result(exit_code=None, termination=Termination.TIMEOUT), "stopped after 5 s"),
            (Result(exit_code=None, signal=9, termination=Termination.OUT_OF_MEMORY), "ended: out_of_memory"),
            (Result(exit_code=None, signal=11), "ended by signal 11"),
        ],
    )
    async def test_ends(self, result: Result, message: str) -> None:
        answer = await self.perform("shell", lambda *_: result, command="x")
        assert message in answer.output and answer.termination is result.termination


async def test_a_search_whose_episode_is_cancelled_leaves_no_fork(tmp_path: Path) -> None:
    async def search(context: SearchContext) -> None:
        async with context.fork():
            await anyio.sleep(3600)

    run = RunPlan(policies=(PolicyName.NOOP,), episode_timeout_s=0.1)
    played = await play(tmp_path, Acting(search, ContextKind.SEARCH), run=run)
    assert played.record.termination is Termination.TIMEOUT
