"""The main job without a network, end to end, and every command that looks at what it left."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.benchmarks import census
from ropewalk.core.errors import UnavailableError
from ropewalk.sandbox.drivers.process import cgroups
from ropewalk.sandbox.drivers.process.driver import ProcessDriver
from ropewalk.sandbox.drivers.process.plan import group_parents
from ropewalk.sandbox.sandbox import Sandbox, Snapshot
from ropewalk.store.layout import Layout
from tests.integration import sample_packages
from tests.integration.command_line import ropewalk, ropewalk_process, started
from tests.integration.demo_state import DemoState, demo_state
from tests.integration.processes import below

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


@pytest.fixture
def demo(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> DemoState:
    driver = ProcessDriver(Layout(tmp_path / "probe").ensure())
    probe = driver.probe()
    driver.close()
    if not probe.usable:
        pytest.skip(f"no process sandboxes here: {'; '.join(probe.problems)}")
    return demo_state(tmp_path_factory)


@pytest.fixture
def alone(demo: DemoState) -> Iterator[DemoState]:
    """The demo's state while no other worker makes sandboxes in it."""
    with demo.alone():
        yield demo


def pids(runner: int) -> set[str]:
    """What runs below a runner, as a census names it."""
    named = set()
    for each in {runner, *below(runner)}:
        with contextlib.suppress(OSError):
            named.add(f"{each}@{Path(f'/proc/{each}/stat').read_text().rsplit(')', 1)[1].split()[19]}")
    return named


def spaces(runner: int) -> set[str]:
    """The namespaces that it has and we have not."""
    found, own = set(), {str(link.readlink()) for link in Path("/proc/self/ns").iterdir()}
    for each in {runner, *below(runner)}:
        with contextlib.suppress(OSError):
            found.update(str(link.readlink()) for link in Path(f"/proc/{each}/ns").iterdir())
    return found - own


def test_it_ends_with_signed_rewards_that_outsiders_can_check(demo: DemoState) -> None:
    assert demo.code == 0
    assert demo.printed["verification"]["status"] == "ok"
    summary = demo.printed["summary"]
    assert summary["state"] == "complete"
    rates = {row["policy"]: row["passes"]["rate"] for row in summary["policies"]}
    assert rates["noop"] == 0.0 and rates["oracle"] == 1.0
    assert all(line["reward"] for line in summary["episodes"])
    assert demo("verify", demo.run, "--anchor", demo.anchor).code == 0
    assert demo("verify", demo.run).code == 4


def copy_if_there(source: str, target: str) -> None:
    """A file; a database's journal may go when whoever else uses it is through."""
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        assert source.endswith(("-wal", "-shm", "-journal")), source


def test_a_copy_without_keys_can_be_verified_elsewhere(demo: DemoState, tmp_path: Path) -> None:
    """The private keys stay where they are: the pinned public ones say who signed."""
    copy = tmp_path / "copy"
    ignored = shutil.ignore_patterns("keys", "sandboxes")
    shutil.copytree(demo.state, copy, symlinks=True, ignore=ignored, copy_function=copy_if_there)
    found = ropewalk("verify", demo.run, "--anchor", demo.anchor, state=copy)
    assert (found.code, found.out.split()[0]) == (0, "ok"), found.err
    alone = ropewalk("verify", demo.run, state=copy)
    assert alone.code == 2 and "--anchor DIR" in alone.err and "keys init" not in alone.err
    entry = next(path for path in sorted((copy / "log").rglob("*")) if path.is_file() and "entries" in path.parts)
    entry.chmod(0o600)
    entry.write_bytes(entry.read_bytes().replace(b"e", b"f", 1))
    assert ropewalk("verify", demo.run, "--anchor", demo.anchor, state=copy).code == 5


def test_the_report_needs_nothing_and_shows_every_reward(demo: DemoState) -> None:
    html = demo.report
    assert "ok: " in html
    assert not re.search(r"<(script|link|img|iframe)|\b(src|href)=|url\(|@import", html)
    for line in demo.printed["summary"]["episodes"]:
        assert line["reward"] in html
    assert html.count("wordkit-1.0.0.tar.gz") >= len(demo.printed["summary"]["episodes"])


def test_the_terminal_says_where_time_memory_and_money_went(demo: DemoState) -> None:
    text = demo("report", demo.run, "--set", "capex_usd=20000").out
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert re.search(r"sandbox \d+\.\d s", lines["Time"]) and "prepare" in lines["Time"]
    assert re.search(r"\d+\.\d sandbox-seconds, \d+\.\d CPU-seconds", lines["Used"])
    assert "peak" in lines["Memory"] or "not measurable" in lines["Memory"]
    assert "per sandbox-hour" in lines["Cost"] and lines["Cost"] not in demo("report", demo.run).out


def test_a_reward_is_traced_to_its_sources_and_their_licence(demo: DemoState) -> None:
    reward = demo("reward", "ls", demo.run, "--json").json[0]["id"]
    traced = demo("trace", reward, "--json").json
    assert traced["complete"]
    facts = [source["made_by"][0]["facts"] for source in traced["sources"]]
    assert sorted(each["name"] for each in facts) == ["wordkit-1.0.0.tar.gz", "wordkit-1.1.0.tar.gz"]
    assert {each["licence"]["expression"] for each in facts} == {"MIT"}
    text = demo("trace", reward.removeprefix("reward:")).out
    for kind in ("verdict:", "episode:", "snapshot:", "task:", "commit:", "raw:"):
        assert kind in text
    assert demo("trace", reward[:-4]).out == text, "the beginning of an id is enough"
    name = demo.printed["summary"]["rows"][0]["task_name"]
    assert name in demo("reward", "ls", demo.run).out and name in demo("episode", "ls", demo.run[:-4]).out
    newest = demo("episode", "ls")
    assert newest.code == 0 and "episode:" in newest.out, "of the newest run, which may be another test's"
    raw = traced["sources"][0]["name"]
    tainted = demo("provenance", "taint", raw, "--kind", "reward", "--json")
    assert tainted.code == 3 and reward in [node["name"] for node in tainted.json["nodes"]]


@pytest.mark.parametrize(
    "words",
    [("diagnose",), ("cost",), ("catalogue", "ls"), ("reward", "ls"), ("run", "ls"), ("task", "ls"), ("report",),
     ("image", "ls"), ("sandbox", "ls"), ("keys", "ls"), ("lake", "ls"), ("doctor", "--offline")],
    ids=" ".join,
)  # fmt: skip
def test_what_looks_speaks_to_people_and_to_scripts(words: tuple[str, ...], demo: DemoState) -> None:
    plain, parsed = demo(*words), demo(*words, "--json")
    assert plain.code == parsed.code == 0, plain.err
    assert plain.out.strip() and parsed.json is not None


def test_an_episode_can_be_read_replayed_and_entered(alone: DemoState) -> None:
    oracle = alone.episode("oracle")["id"]
    shown = alone("episode", "show", oracle)
    assert "answer" in shown.out and "changed src/wordkit/__init__.py" in shown.out
    assert "reward  1: all_matched" in shown.out and "judged  0 of " in shown.out
    unpaid = alone("episode", "show", alone.episode("noop")["id"]).out
    assert "reward  0: " in unpaid
    diff = alone("episode", "diff", oracle).out
    assert "+    return [text[i : i + size] for i in range(0, len(text), size)]" in diff or "% 26" in diff
    assert alone("episode", "diff", oracle, "--step", "0").out.strip() == "Nothing was changed."
    assert alone("episode", "diff", oracle, "--step", "9").code == 2
    again = alone("episode", "replay", oracle, "--json")
    assert again.code == 0 and again.json["same"]
    script = "grep -c alphabet /work/src/wordkit/__init__.py; ls /work/tests; exit 7\n"
    inside = ropewalk_process("episode", "attach", oracle, "--step", "1", state=alone.state, stdin=script)
    assert inside.code == 7, inside.err
    assert "test_wordkit.py" in inside.out and "after step 1 of 1" in inside.err


def test_the_package_is_importable_from_everywhere_and_knows_its_version(alone: DemoState) -> None:
    noop = alone.episode("noop")["id"]
    program = "import importlib.metadata, wordkit; print(wordkit.__file__, importlib.metadata.version('wordkit'))"
    asked = f"cd / && python3 -c {shlex.quote(program)}"
    done = ropewalk_process("episode", "attach", noop, "sh", "-c", asked, state=alone.state)
    assert done.out == "/work/src/wordkit/__init__.py 1.0.0\n", done.err


def test_an_unpaid_state_was_kept_as_it_was(alone: DemoState) -> None:
    noop = alone.episode("noop")["id"]
    done = ropewalk_process("episode", "attach", noop, "--", "cat", "/var/tmp/visible-tests.txt", state=alone.state)
    assert done.code == 0 and "test_wordkit.py" in done.out


def test_exports_hold_every_reward(demo: DemoState, tmp_path: Path) -> None:
    rewards = {line["reward"] for line in demo.printed["summary"]["episodes"]}
    lines = [json.loads(line) for line in demo("export", demo.run).out.splitlines()]
    assert {line["reward_id"] for line in lines} == rewards
    assert demo("export", demo.run, "--format", "atif", "--out", tmp_path / "atif").code == 0
    assert len(list((tmp_path / "atif").glob("*.json"))) == len(rewards)
    assert demo("export", demo.run, "--out", tmp_path / "x.jsonl", "--json").json["episodes"] == len(rewards)


def test_a_task_is_shown_without_its_answer(demo: DemoState) -> None:
    tasks = demo("task", "ls", "--json").json
    assert tasks and all(task["guess_bits"] >= 10 for task in tasks)
    shown = demo("task", "show", tasks[0]["id"][:12]).out
    assert "held out:" in shown and "may be handed in: src/wordkit/*.py" in shown
    assert "% 26" not in shown and "len(text), size" not in shown


def test_an_interrupted_run_says_how_to_go_on_and_does(alone: DemoState, tmp_path: Path) -> None:
    task = alone("task", "ls", "--json").json[0]["id"]
    plan = tmp_path / "plan.toml"
    plan.write_text(f'[tasks]\nids = ["{task}"]\n\n[run]\npolicies = ["noop", "oracle"]\ngroup = 4\nconcurrency = 1\n')
    layout, before = Layout(alone.state), census.take(Layout(alone.state))
    with started("run", plan, state=alone.state) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "Run 1 task " in line:
                break
        ours: set[str] = set()
        while not any(line.startswith("processes: ") for line in ours):  # until a sandbox runs
            process.send_signal(signal.SIGCONT)
            while len(below(process.pid)) < 3:  # the spawner, and two processes for a sandbox
                assert process.poll() is None
            process.send_signal(signal.SIGSTOP)  # or it may be through before everything is counted
            named = pids(process.pid) | spaces(process.pid)
            ours = {line for line in census.take(layout).left_since(before) if line.split()[1] in named}
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    left = set(census.take(layout).left_since(before))
    assert not [line for line in left if line in ours or str(alone.state) in line], "nothing is left of it"
    assert list(cgroups.children(group_parents(layout))) == []
    resume = re.search(r"ropewalk run --resume (run:\w+)", err)
    assert resume and "Traceback" not in err
    row = next(row for row in alone("run", "ls", "--json").json if row["run"] == resume[1])
    assert row["state"] == "open"
    assert f"--resume {resume[1]}" in alone("report", resume[1]).out, "a report says that the run is not through"
    exported = alone("export", resume[1])
    assert f"{resume[1]} is open" in exported.err and "open" not in exported.out
    assert alone("sandbox", "ls", "--json").json == []
    done = alone("run", "--resume", resume[1], "--json")
    assert done.code == 0, done.err
    values = [line["value"] for line in done.json["summary"]["episodes"]]
    assert values == [0.0] * 4 + [1.0] * 4
    assert alone("verify", resume[1]).code == 4


def test_a_killed_run_leaves_nothing_and_goes_on(alone: DemoState) -> None:
    task = alone("task", "ls", "--json").json[0]["id"]
    words = ("run", "--task", task, "--policies", "oracle", "--group", "4", "--concurrency", "1")
    before = {row["run"] for row in alone("run", "ls", "--json").json}
    with started(*words, state=alone.state) as process:
        deadline = time.monotonic() + 120
        while not (fresh := {row["run"] for row in alone("run", "ls", "--json").json} - before):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.2)
        process.kill()
        process.communicate()
    run = fresh.pop()
    done = alone("run", "--resume", run, "--json")
    assert done.code == 0, done.err
    assert [line["value"] for line in done.json["summary"]["episodes"]] == [1.0] * 4
    assert alone("sandbox", "ls", "--json").json == []


def test_a_package_of_ones_own_gives_mutants(alone: DemoState, tmp_path: Path) -> None:
    source = sample_packages.directory(tmp_path, "1.1.0")
    words = ("--source", source, "--policies", "noop,oracle", "--tasks", "1", "--group", "1")
    profile = ("--profile", "air-gapped", "--attested-by", "test bench")
    done = alone("run", *words, "--report", tmp_path / "report.html", "--json", *profile)
    assert done.code == 0, done.err
    rows = done.json["summary"]["rows"]
    assert {row["kind"] for row in rows} == {"mutant"}
    assert {row["policy"]: row["passes"]["passed"] for row in rows} == {"noop": 0, "oracle": 1}
    assert (tmp_path / "report.html").exists()


def test_a_licence_can_be_given_for_what_states_none(demo: DemoState, tmp_path: Path) -> None:
    source = sample_packages.archive(tmp_path, "1.0.0")
    done = demo("demo", "--source", source, "--licence", "none that is known")
    assert done.code == 2 and "is not an SPDX licence expression" in done.err


def test_forks_of_which_one_fails_leave_none(alone: DemoState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = alone("sandbox", "create", "--memory-mib", "128", "--json").json["id"]
    saved = alone("sandbox", "snapshot", made).out.strip()
    plain, done = Snapshot.fork_one, list[str]()

    async def failing(self: Snapshot, **more: Any) -> Sandbox:
        if len(done) == 2:
            raise UnavailableError("There is no room for another one.")
        forked = await plain(self, **more)
        done.append(forked.id)
        return forked

    monkeypatch.setattr(Snapshot, "fork_one", failing)
    for more in ((), ("--json",)):
        done.clear()
        failed = alone("sandbox", "fork", saved, "--count", "3", *more)
        assert failed.code == 7 and failed.out == "" and len(done) == 2
        assert not {*done} & {row["id"] for row in alone("sandbox", "ls", "--json").json}
    assert alone("sandbox", "kill", made).code == 0


def test_sandboxes_by_hand(alone: DemoState, tmp_path: Path) -> None:
    made = alone("sandbox", "create", "--memory-mib", "128", "--json").json["id"]
    (tmp_path / "a.py").write_text("print(6 * 7)\n")
    assert alone("sandbox", "cp", tmp_path / "a.py", f"{made}:/work/").code == 0
    ran = alone("sandbox", "exec", made, "--", "python3", "/work/a.py")
    assert (ran.code, ran.out) == (0, "42\n")
    assert alone("sandbox", "exec", made, "echo oops >&2; exit 3").code == 3
    assert alone("sandbox", "exec", made, "--timeout-s", "0.3", "sleep 9").code == 124
    saved = alone("sandbox", "snapshot", made, "--label", "ready").out.strip()
    forks = alone("sandbox", "fork", saved, "--count", "2").out.split()
    assert len(set(forks)) == 2
    assert alone("sandbox", "cp", f"{forks[0]}:/work/a.py", tmp_path / "b.py").code == 0
    assert (tmp_path / "b.py").read_text() == "print(6 * 7)\n"
    listed = [row["id"] for row in alone("sandbox", "ls", "--json").json]
    assert {made, *forks} <= set(listed)
    assert alone("sandbox", "kill", made, *forks).out.split("\n")[0] == f"ended {made}"
    assert alone("sandbox", "kill", made).out == f"{made} was not there any more\n"
    assert not {made, *forks} & {row["id"] for row in alone("sandbox", "ls", "--json").json}
    one, two = alone("sandbox", "fork", saved, "--count", "2", "--json").json
    result = alone("sandbox", "exec", one["id"], "--json", "echo out; echo err >&2; exit 3")
    assert result.code == 3 and (result.json["stdout"], result.json["stderr"]) == ("out\n", "err\n")
    copied = alone("sandbox", "cp", tmp_path / "a.py", f"{one['id']}:/work/c.py", "--json").json
    assert copied["sandbox"] == one["id"]
    assert alone("sandbox", "kill", one["id"], two["id"], "--json").json == {"ended": [one["id"], two["id"]]}
    assert alone("snapshot", "rm", saved, "--json").json == {"removed": [saved]}
    gone = alone("sandbox", "exec", made, "true")
    assert gone.code == 7 and "ropewalk sandbox ls" in gone.err
    assert alone("sandbox", "cp", "a", "b").code == 2
