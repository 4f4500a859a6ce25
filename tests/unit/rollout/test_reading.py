"""Summary, diagnosis and exports of runs in the in-memory world."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from ropewalk.cli.run_view import state_line
from ropewalk.core.outcomes import Termination
from ropewalk.interface.episode import EpisodeRecord, Message, Step, ToolCall, ToolResult
from ropewalk.rollout.atif import SCHEMA_VERSION, export_atif
from ropewalk.rollout.begin import begin_run
from ropewalk.rollout.diagnose import findings_of
from ropewalk.rollout.episodes.context import AgentContext
from ropewalk.rollout.export import export_jsonl
from ropewalk.rollout.findings import Finding, FindingKind, Severity
from ropewalk.rollout.journal import RunJournal
from ropewalk.rollout.loaded import LoadedEpisode, whole_record
from ropewalk.rollout.outline import visible_tests_passed
from ropewalk.rollout.plan import OpenAISettings, Plan, PoliciesPlan, PolicyName, RunPlan
from ropewalk.rollout.policies.contract import ContextKind, PolicyEnd, PolicyFailedError
from ropewalk.rollout.policies.fixed import NoopPolicy, OraclePolicy
from ropewalk.rollout.run import RunLoop
from ropewalk.rollout.summarise import summary_of
from tests.unit.rollout.worlds import FIXED, Durable


class Talker:
    """Talks like a model; pays off for even indices only."""

    context: ClassVar[ContextKind] = ContextKind.AGENT
    name = "openai(m, temperature=1)"

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.count = 0

    async def run(self, context: AgentContext) -> PolicyEnd | None:
        self.count += 1
        if self.mode == "unreachable":
            raise PolicyFailedError("nobody there", cause="endpoint_unreachable", retriable=False)
        if self.mode == "idle":
            return PolicyEnd(termination=Termination.POLICY_STOP, truncated=True)
        paid = self.mode == "all" or (self.mode == "mixed" and self.count % 2 == 0)
        text = FIXED.decode() if paid else "no"
        call = ToolCall(name="shell", arguments={"command": f"write pkg/code.py {text}"}, id="call_1")
        said = Message(role="assistant", content="I see.", tool_calls=(call,))
        begin = (Message(role="system", content="You mend."), Message(role="user", content="Mend it."))
        await context.act([call], messages=[*begin, said], tokens={"prompt": 100, "completion": 7})
        await context.act(
            [ToolCall(name="shell", arguments={"command": "pytest -q"})],
            messages=[Message(role="assistant", content="Done.")],
        )
        return None

    async def close(self) -> None:
        pass


async def played(folder: Path, mode: str, *, tasks: int = 2, group: int = 4) -> tuple[Durable, RunJournal, str]:
    durable = Durable(folder)
    journal = durable.journal()
    settings = OpenAISettings(
        base_url="http://127.0.0.1:1/v1", model="m", price_usd_per_million_prompt=2.0,
        price_usd_per_million_completion=10.0,
    )  # fmt: skip
    plan = Plan(
        run=RunPlan(policies=(PolicyName.NOOP, PolicyName.ORACLE, PolicyName.OPENAI), group=group, concurrency=1),
        policy=PoliciesPlan(openai=settings),
    )
    run = begin_run(durable.world(), journal, plan, [durable.task(f"double {n}") for n in range(tasks)])
    policies: dict[str, Any] = {"noop": NoopPolicy(), "oracle": OraclePolicy(), "openai": Talker(mode)}
    await RunLoop(durable.world(), journal, run, policies=policies).work()
    return durable, journal, run


def kinds(findings: tuple[Finding, ...]) -> dict[FindingKind, Severity]:
    return {finding.kind: finding.severity for finding in findings}


async def test_summary(tmp_path: Path) -> None:
    durable, _, run = await played(tmp_path, "mixed")
    summary = summary_of(durable.loaded(run), cost={"usd_sandbox_h": 0.02})
    assert summary.state == "complete" and len(summary.rows) == 6 and len(summary.episodes) == 24
    by_policy = {row.policy: row for row in summary.policies}
    assert (by_policy["openai"].passes.passed, by_policy["openai"].passes.n) == (4, 8)
    assert by_policy["oracle"].passes.rate == 1.0 and by_policy["noop"].passes.rate == 0.0
    low, high = by_policy["openai"].passes.low, by_policy["openai"].passes.high
    assert (round(low, 3), round(high, 3)) == (0.215, 0.785)  # Wilson, 4 of 8
    row = next(row for row in summary.rows if row.policy == "openai")
    assert row.advantage and row.steps_mean == 2 and row.causes == {"value_mismatch": 2, "all_matched": 2}
    assert summary.usage["tokens_prompt"] == 800 and summary.usage["forks"] == 0
    assert summary.usage["model_usd"] == pytest.approx((800 * 2 + 56 * 10) / 1e6)
    assert summary.usage["memory_bytes_peak"] == 1000 and summary.usage["memory_bytes_mean"] == 1000, "the peak"
    assert summary.time_s["grading"] == pytest.approx(24 * 0.2)
    assert summary.time_s["signing"] > 0 and summary.time_s["prepare"] > 0
    assert {call.call for call in summary.catalogue} == {"keep"}
    assert summary.cost == {"usd_sandbox_h": 0.02}


async def test_the_catalogue_counts_what_other_runs_of_the_state_found(tmp_path: Path) -> None:
    durable, journal, first = await played(tmp_path, "all", tasks=1)
    assert [call.call for call in summary_of(durable.loaded(first)).catalogue] == ["watch"], "4 of 4 says too little"
    seen = []
    for name, temperature, tasks in (("second", 1.0, 1), ("other", 1.0, 2), ("warmer", 0.5, 1)):
        plan = Plan(
            run=RunPlan(policies=(PolicyName.OPENAI,), group=4, concurrency=1),
            policy=PoliciesPlan(openai=OpenAISettings(base_url="http://h/v1", model="m", temperature=temperature)),
        )
        chosen = [durable.task("double 0" if name != "other" else f"else {n}") for n in range(tasks)]
        run = begin_run(durable.world(), journal, plan, chosen)
        talker = Talker("all")
        talker.name = f"openai({temperature})" if name == "warmer" else talker.name
        await RunLoop(durable.world(), journal, run, policies={"openai": talker}).work()
        seen.append(summary_of(durable.loaded(run)).catalogue)
    assert seen[0][0].call == "saturated" and "8 of 8" in seen[0][0].reason and f"(with {first})" in seen[0][0].reason
    assert {call.call for call in seen[1]} == {"watch"} and "with" not in seen[1][0].reason, "another task"
    assert "8 of 8" in seen[2][0].reason, "another policy's counts are its own, and the surest of them decides"
    assert "12 of 12" not in seen[2][0].reason
    assert summary_of(durable.loaded(first)).catalogue[0].call == "saturated", "also in retrospect"


async def test_the_parts_of_a_missing_reward_are_counted_and_not_named(tmp_path: Path) -> None:
    durable, _, run = await played(tmp_path, "idle", tasks=2)
    loaded = durable.loaded(run)
    outcomes = [{"secret_a": False, "secret_b": True}, {"secret_a": False, "secret_b": False}]
    chosen = next(iter(loaded.tasks))

    def graded(place: int, result: LoadedEpisode) -> LoadedEpisode:
        found = outcomes[place % 4 == 3] if result.row.task == chosen else outcomes[1]
        assert result.verdict is not None
        return msgspec.structs.replace(result, verdict=msgspec.structs.replace(result.verdict, outcomes=found))

    episodes = tuple(graded(place, result) for place, result in enumerate(loaded.episodes))
    (finding,) = [f for f in findings_of(msgspec.structs.replace(loaded, episodes=episodes)) if f.kind == "held_out"]
    assert finding.title == (
        "Held-out tests that fail in most unpaid verdicts: 1 of 2 on double 0 (4 verdicts), "
        "2 of 2 on double 1 (4 verdicts)."
    )
    assert finding.numbers[chosen] == 0.5 and "secret" not in str(finding)
    assert not [f for f in findings_of(loaded) if f.kind == "held_out"], "nothing to tell without outcomes"


async def test_a_healthy_run(tmp_path: Path) -> None:
    durable, _, run = await played(tmp_path, "mixed")
    findings = findings_of(durable.loaded(run))
    overfitted = {FindingKind.OVERFITTED: Severity.WARNING}  # the fake tests pass whatever the file holds
    assert {kind: s for kind, s in kinds(findings).items() if s is not Severity.NOTE} == overfitted


async def test_a_run_of_controls_alone_is_not_called_fine(tmp_path: Path) -> None:
    durable, _, run = await played(tmp_path, "mixed", tasks=1, group=1)
    loaded = durable.loaded(run)
    controls = tuple(result for result in loaded.episodes if result.row.policy == "noop")
    first = findings_of(msgspec.structs.replace(loaded, episodes=controls))[0]
    assert first.kind is FindingKind.NOTHING_PAID and "Only controls were played (noop)" in first.title
    assert "export" not in first.next_step


async def test_one_unpaid_episode_is_not_called_fine(tmp_path: Path) -> None:
    durable, _, run = await played(tmp_path, "none", tasks=1, group=1)
    loaded = durable.loaded(run)
    results = tuple(msgspec.structs.replace(result, visible_passed=False) for result in loaded.episodes)
    first = findings_of(msgspec.structs.replace(loaded, episodes=results))[0]
    assert first.kind is FindingKind.NOTHING_PAID and "Not one of 1 scored episodes was paid" in first.title


async def test_a_run_that_is_not_through_says_so_first(tmp_path: Path) -> None:
    durable, _, run = await played(tmp_path, "mixed", tasks=1)
    loaded = durable.loaded(run)
    assert FindingKind.OPEN not in kinds(findings_of(loaded))
    episodes = tuple(
        msgspec.structs.replace(result, reward=None) if place < 3 else result
        for place, result in enumerate(loaded.episodes)
    )
    broken_off = msgspec.structs.replace(
        loaded, row=msgspec.structs.replace(loaded.row, state="open"), episodes=episodes
    )
    (finding,) = [each for each in findings_of(broken_off) if each.kind is FindingKind.OPEN]
    assert "3 of 12 episodes have no reward yet" in finding.title and f"--resume {run}" in finding.next_step
    line = state_line(summary_of(broken_off))
    assert "open: 9 of 12 rewards are signed" in line and f"ropewalk run --resume {run}" in line
    assert state_line(summary_of(loaded)) == f"Run      {run}  (complete)"


async def test_a_flat_reward_is_explained(tmp_path: Path) -> None:
    durable, _, run = await played(tmp_path, "none")
    findings = findings_of(durable.loaded(run))
    found = kinds(findings)
    assert found[FindingKind.NO_ADVANTAGE] is Severity.WARNING and findings[0].kind is FindingKind.NO_ADVANTAGE
    assert "error" not in {str(severity) for severity in Severity}, "a finding is no error of the command"
    assert "run.steps" in findings[0].next_step and "harder" not in findings[0].next_step
    cause = next(each for each in findings if each.kind is FindingKind.CAUSE)
    assert "(noop and oracle left out)" in cause.title and f"episode diff {cause.subjects[0]}" in cause.next_step
    assert "2 of 2 groups" in findings[0].title and findings[0].next_step
    assert {FindingKind.CAUSE, FindingKind.TOO_HARD, FindingKind.OVERFITTED} <= set(found)
    over = next(each for each in findings if each.kind is FindingKind.OVERFITTED)
    rows = {result.row.id: result.row for result in durable.loaded(run).episodes}
    mine, right = (rows[id] for id in re.findall(r"`ropewalk episode diff (episode:\w+)`", over.next_step))
    assert (mine.policy, right.policy) == ("openai", "oracle") and mine.task == right.task, "the fix stands beside it"
    loaded = durable.loaded(run)
    alone = tuple(result for result in loaded.episodes if result.row.policy != "oracle")
    over = next(f for f in findings_of(msgspec.structs.replace(loaded, episodes=alone)) if f.kind == "overfitted")
    assert f"ropewalk run --task {mine.task} --policies oracle" in over.next_step


async def test_all_paid_is_flat_too(tmp_path: Path) -> None:
    durable, _, run = await played(tmp_path, "all")
    findings = findings_of(durable.loaded(run))
    assert {FindingKind.NO_ADVANTAGE, FindingKind.TOO_EASY} <= set(kinds(findings))
    assert "harder" in findings[0].next_step and "run.steps" not in findings[0].next_step


async def test_an_unreachable_endpoint_is_no_zero(tmp_path: Path) -> None:
    durable, journal, run = await played(tmp_path, "unreachable")
    findings = findings_of(durable.loaded(run))
    found = kinds(findings)
    assert {FindingKind.UNSCORED, FindingKind.GROUP_REFUSED, FindingKind.INFRASTRUCTURE} <= set(found)
    assert FindingKind.NO_ADVANTAGE not in found and FindingKind.TOO_HARD not in found
    lines = [json.loads(line) for line in export_jsonl(durable.loaded(run), blobs_of(durable))]
    lost = [line for line in lines if line["policy"].startswith("openai")]
    assert all(line["reward"] is None and not line["mask"]["loss"] and line["mask"]["unscored"] for line in lost)
    assert {line["cause"] for line in lost} == {"endpoint_unreachable"}
    assert all(line["truncated"] and line["mask"]["truncated"] and not line["terminated"] for line in lost)
    refused = next(each for each in findings if each.kind is FindingKind.GROUP_REFUSED)
    (whose,) = (each for each in findings if each.kind is FindingKind.INFRASTRUCTURE)
    assert whose.title.startswith("The endpoint failed 8 of 8 attempts"), "none came through, and controls ask nobody"
    assert "new run" in refused.next_step and "--resume" not in refused.next_step, "a resume would find nothing to do"
    assert all(failure.attempt == 1 for failure in journal.failures(run)), "it cannot be mended by trying again"


async def test_idle_and_truncated_episodes(tmp_path: Path) -> None:
    durable, _, run = await played(tmp_path, "idle")
    findings = findings_of(durable.loaded(run))
    assert {FindingKind.NEVER_CHANGED, FindingKind.TRUNCATED} <= set(kinds(findings))
    cause = next(each for each in findings if each.kind is FindingKind.CAUSE)
    assert f"episode show {cause.subjects[0]}" in cause.next_step, "there is nothing to diff"
    assert FindingKind.SLOW_STAGE not in kinds(findings), "it took no time"


async def test_a_run_that_can_go_on_says_that_its_endpoint_stays(tmp_path: Path) -> None:
    durable, _, run = await played(tmp_path, "unreachable", tasks=1, group=2)
    loaded = durable.loaded(run)
    unplayed = tuple(
        msgspec.structs.replace(each, reward=None) if each.row.policy == "openai" else each for each in loaded.episodes
    )
    findings = findings_of(msgspec.structs.replace(loaded, episodes=unplayed))
    refused = next(each for each in findings if each.kind is FindingKind.GROUP_REFUSED)
    assert f"--resume {run}" in refused.next_step and "--task" in refused.next_step


def blobs_of(durable: Durable) -> Any:
    return durable.blobs


async def test_a_loaded_run_holds_no_words(tmp_path: Path) -> None:
    durable, _, run = await played(tmp_path, "mixed", tasks=1)
    loaded = durable.loaded(run)
    whole = [whole_record(blobs_of(durable), result.row) for result in loaded.episodes]
    held = [result.record for result in loaded.episodes]
    for one, other in zip(held, whole, strict=True):
        assert one is not None and other is not None
        assert [step.files_changed for step in one.steps] == [step.files_changed for step in other.steps]
        assert (one.usage, one.time_s, one.bundle, one.termination) == (
            other.usage, other.time_s, other.bundle, other.termination,
        )  # fmt: skip
    said = {message.content for record in whole if record for step in record.steps for message in step.messages}
    assert "You mend." in said
    assert not any(text in repr(loaded.episodes) for text in (*said, "pytest -q"))


async def test_jsonl(tmp_path: Path) -> None:
    durable, _, run = await played(tmp_path, "mixed", tasks=1)
    lines = [json.loads(line) for line in export_jsonl(durable.loaded(run), blobs_of(durable))]
    assert len(lines) == 12 and {line["format"] for line in lines} == {"ropewalk.trajectories/1"}
    talk = next(line for line in lines if line["policy"].startswith("openai") and line["reward"] == 1.0)
    roles = [message["role"] for message in talk["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert talk["messages"][2]["tool_calls"][0]["id"] == talk["messages"][3]["tool_call_id"] == "call_1"
    assert talk["mask"] == {
        "unscored": False, "infrastructure": False, "truncated": False, "group_incomplete": False, "loss": True,
    }  # fmt: skip
    assert talk["steps"][0]["files_changed"] and talk["steps"][0]["tokens"] == {"completion": 7, "prompt": 100}


async def test_exports_count_held_out_tests_and_never_name_them(tmp_path: Path) -> None:
    durable, _, run = await played(tmp_path, "mixed", tasks=1)
    loaded = durable.loaded(run)
    named = tuple(
        msgspec.structs.replace(
            each, verdict=msgspec.structs.replace(each.verdict, outcomes={"secret_a": False, "secret_b": True})
        )
        for each in loaded.episodes
        if each.verdict
    )
    loaded = msgspec.structs.replace(loaded, episodes=named)
    lines = [json.loads(line) for line in export_jsonl(loaded, blobs_of(durable))]
    assert {(line["verdict"]["held_out"], line["verdict"]["held_out_failed"]) for line in lines} == {(2, 1)}
    assert "secret_" not in json.dumps([lines, *export_atif(loaded, blobs_of(durable))])


STEP_FIELDS = {
    "step_id", "timestamp", "source", "model_name", "reasoning_effort", "message", "reasoning_content", "tool_calls",
    "observation", "metrics", "is_copied_context", "llm_call_count", "extra",
}  # fmt: skip
AGENT_ONLY = {"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"}


async def test_atif(tmp_path: Path) -> None:
    """The rules that harbor's models check, written out: harbor itself needs a newer Python than ours may be."""
    durable, _, run = await played(tmp_path, "mixed", tasks=1)
    documents = list(export_atif(durable.loaded(run), blobs_of(durable)))
    assert len(documents) == 12
    for document in documents:
        assert document["schema_version"] == SCHEMA_VERSION == "ATIF-v1.8"
        assert set(document) <= {
            "schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "final_metrics", "extra",
        }  # fmt: skip
        assert set(document["agent"]) <= {"name", "version", "model_name", "tool_definitions", "extra"}
        assert document["steps"], "a trajectory has at least one step"
        assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
        for step in document["steps"]:
            assert set(step) <= STEP_FIELDS and step["source"] in ("system", "user", "agent")
            assert isinstance(step["message"], str)
            if step["source"] != "agent":
                assert not AGENT_ONLY & set(step)
            if step.get("llm_call_count") == 0:
                assert "metrics" not in step
            ids = {call["tool_call_id"] for call in step.get("tool_calls", [])}
            for observed in step.get("observation", {}).get("results", []):
                assert observed["source_call_id"] in ids
                assert set(observed) <= {"source_call_id", "content", "extra"}
        json.dumps(document, allow_nan=False)
    talk = next(document for document in documents if document["agent"]["name"] == "ropewalk/openai")
    assert talk["final_metrics"]["total_prompt_tokens"] == 100 and talk["agent"]["model_name"] == "m"


def test_visible_tests_passed_needs_a_run_after_the_last_change() -> None:
    def record(*steps: Step) -> EpisodeRecord:
        return EpisodeRecord(
            id="episode:1", run="run:1", task="t", policy="openai", group="g", index=0, seed=0, snapshot="s",
            steps=steps, termination=Termination.FINISHED, truncated=False, started_s=0.0, ended_s=1.0,
        )  # fmt: skip

    def step(index: int, command: str, code: int, **changed: str) -> Step:
        call = ToolCall(name="shell", arguments={"command": command})
        return Step(index=index, calls=(call,), results=(ToolResult(output="", exit_code=code),), files_changed=changed)

    edit, passing, failing = step(1, "sed", 0, a="1" * 64), step(2, "pytest", 0), step(2, "pytest", 1)
    assert visible_tests_passed(record(edit, passing))
    assert not visible_tests_passed(record(edit, failing))
    assert not visible_tests_passed(record(step(1, "pytest", 0), step(2, "sed", 0, a="1" * 64)))
    assert not visible_tests_passed(record(passing))
