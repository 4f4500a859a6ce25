"""Sandboxes by hand: one detached sandbox, used through the command line as a person would."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.core.ids import new_id
from ropewalk.store.layout import Layout
from tests.integration.command_line import Outcome, ropewalk, ropewalk_process, started
from tests.shared_image import lend_default_image


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("home") / "state"
    lend_default_image(Layout(path))
    return path


@pytest.fixture(scope="module")
def sandbox(state: Path) -> Iterator[str]:
    profile = state.parent / "small.toml"
    profile.write_text('tenant = "local"\n[sandbox.defaults]\nmemory_mib = 128\ndisk_mib = 64\ncpus = 0.5\n')
    made = ropewalk("sandbox", "create", "--json", "--profile", profile, state=state)
    assert made.code == 0, made.err
    spec = made.json["spec"]
    assert (spec["memory_bytes"] >> 20, spec["disk_bytes"] >> 20, spec["cpus"]) == (128, 64, 0.5)
    yield made.json["id"]
    assert ropewalk("sandbox", "kill", "--all", state=state).code == 0


def run(state: Path, sandbox: str, *words: str) -> Outcome:
    return ropewalk("sandbox", "exec", sandbox, *words, state=state)


def test_exec_with_variables_and_a_user(state: Path, sandbox: str) -> None:
    done = run(state, sandbox, "--env", "A=1=2", "--env", "B=", "--cwd", "/tmp", "--", 'echo "$A|$B|$PWD"; exit 3')
    assert (done.code, done.out) == (3, "1=2||/tmp\n")
    assert run(state, sandbox, "--user", "65534", "id -u").out == "65534\n"
    assert run(state, sandbox, "--env", "nonsense", "true").code == 2
    assert run(state, sandbox, "--timeout-s", "0.3", "sleep 5").code == 124
    assert run(state, sandbox, "echo", "--user", "nobody").out == "--user nobody\n"
    assert run(state, sandbox, "echo", "--help", "--state", "x").out == "--help --state x\n"
    assert run(state, sandbox, "--user", "65534", "sh", "-c", "id -u", "--json").out == "65534\n"
    before = ropewalk("--state", state, "sandbox", "exec", sandbox, "echo", "-n", "x", state=state.parent / "other")
    assert (before.code, before.out) == (0, "x"), before.err
    missing = run(state, sandbox, "--", "no-such-program", "x")
    assert missing.code not in (0, 1) and "cannot be started" in missing.err


def test_output_comes_while_the_command_runs_and_input_goes_in(state: Path, sandbox: str) -> None:
    with started("sandbox", "exec", sandbox, "echo first; sleep 60", state=state) as process:
        assert process.stdout is not None and process.stdout.readline() == "first\n"
        assert process.poll() is None
    line = "x" * 70_000
    done = ropewalk_process("sandbox", "exec", sandbox, "--stdin", "wc -c; echo bad >&2", state=state, stdin=line)
    assert (done.code, done.out.strip(), done.err) == (0, "70000", "bad\n")


def test_detached_commands_go_on(state: Path, sandbox: str) -> None:
    done = run(state, sandbox, "--detach", "sleep 0.2; echo yes > /tmp/later; sleep 600")
    assert done.code == 0
    pid = done.out.strip()
    for _ in range(100):
        if run(state, sandbox, "cat /tmp/later").out == "yes\n":
            break
        time.sleep(0.05)
    assert run(state, sandbox, f"kill -0 {pid} && echo alive").out == "alive\n"
    assert run(state, sandbox, "--detach", "--stdin", "cat").code == 2


def test_what_a_sandbox_of_a_restricted_class_holds_stays_there(state: Path, tmp_path: Path) -> None:
    made = ropewalk("sandbox", "create", "--data-class", "restricted", "--json", state=state)
    assert made.code == 0 and made.json["spec"]["data_class"] == "restricted", made.err
    saved = ropewalk("sandbox", "snapshot", made.json["id"], state=state).out.strip()
    child = ropewalk("sandbox", "fork", saved, state=state).out.strip()
    for sandbox in (made.json["id"], child):
        assert ropewalk("sandbox", "cp", __file__, f"{sandbox}:/work/a.py", state=state).code == 0
        for inside in ("/work/a.py", "/work"):
            denied = ropewalk("sandbox", "cp", f"{sandbox}:{inside}", tmp_path, state=state)
            assert denied.code == 6 and "restricted" in denied.err
        assert not list(tmp_path.iterdir())
        assert ropewalk("sandbox", "kill", sandbox, state=state).code == 0
    assert ropewalk("snapshot", "rm", saved, state=state).code == 0
    assert ropewalk("sandbox", "create", "--data-class", "secret", state=state).code in (2, 6)


def test_folders_are_copied_both_ways(state: Path, sandbox: str, tmp_path: Path) -> None:
    there = tmp_path / "tree"
    (there / "a" / "b").mkdir(parents=True)
    (there / "empty").mkdir()
    (there / "a" / "b" / "x.txt").write_text("x")
    (there / "run.sh").write_text("echo hi")
    (there / "run.sh").chmod(0o755)
    (there / "link").symlink_to("/etc/passwd")
    assert ropewalk("sandbox", "cp", there, f"{sandbox}:/work/tree", state=state).code == 0
    listed = run(state, sandbox, "cd /work/tree && find . | sort && ./run.sh").out.split()
    assert listed == [".", "./a", "./a/b", "./a/b/x.txt", "./empty", "./run.sh", "hi"]
    run(state, sandbox, "ln -s /etc/passwd /work/tree/a/out; chmod 4777 /work/tree/run.sh")
    back = tmp_path / "back"
    assert ropewalk("sandbox", "cp", f"{sandbox}:/work/tree", back, state=state).code == 0
    found = sorted(path.relative_to(back).as_posix() for path in back.rglob("*"))
    assert found == ["a", "a/b", "a/b/x.txt", "empty", "run.sh"]
    assert (back / "run.sh").stat().st_mode & 0o7777 == 0o777
    assert ropewalk("sandbox", "cp", tmp_path / "nowhere", f"{sandbox}:/work/x", state=state).code == 2


def test_snapshots_are_listed_and_removed(state: Path, sandbox: str) -> None:
    run(state, sandbox, "echo kept > /work/kept")
    saved = ropewalk("sandbox", "snapshot", sandbox, "--label", "mine", state=state).out.strip()
    (row,) = ropewalk("snapshot", "ls", "--json", state=state).json
    assert (row["snapshot"]["id"], row["snapshot"]["label"], row["needed_by"]) == (saved, "mine", [])
    assert saved in ropewalk("snapshot", "ls", state=state).out
    assert ropewalk("snapshot", "rm", saved, state=state).code == 0
    assert ropewalk("snapshot", "ls", "--json", state=state).json == []
    assert ropewalk("snapshot", "rm", saved, state=state).code == 2
    assert ropewalk("snapshot", "rm", state=state).code == 2


def test_creates_that_are_repeated_under_one_id_make_one_sandbox(state: Path, sandbox: str) -> None:
    saved = ropewalk("sandbox", "snapshot", sandbox, state=state).out.strip()
    id, other = new_id("sandbox"), new_id("sandbox")
    create = ("sandbox", "create", "--memory-mib", "256", "--idle-timeout-s", "400", "--id")
    fork = ("sandbox", "fork", saved, "--idle-timeout-s", "500", "--id")
    try:
        for _ in range(2):
            assert ropewalk(*create, id, state=state).out.strip() == id
            assert ropewalk(*fork, other.partition(":")[2], state=state).out.strip() == other
        limits = {
            row["id"]: row["spec"]["idle_timeout_s"] for row in ropewalk("sandbox", "ls", "--json", state=state).json
        }
        assert limits[id] == 400 and limits[other] == 500 and len(limits) == 3
        clash = ropewalk("sandbox", "create", "--id", id, "--memory-mib", "300", state=state)
        assert clash.code == 2 and "is another sandbox already" in clash.err
        assert ropewalk(*fork, other, "--count", "2", state=state).code == 2
        assert ropewalk(*create, "nonsense", state=state).code == 2
    finally:
        assert ropewalk("sandbox", "kill", id, other, state=state).code == 0


def test_a_sandbox_is_given_variables_a_user_a_folder_and_labels(state: Path, sandbox: str, tmp_path: Path) -> None:
    words = ("--env", "A=1=2", "--env", "B=", "--user", "65534", "--workdir", "/there/here", "--processes-max", "9")
    made = ropewalk("sandbox", "create", *words, "--label", "job=17", "--label", "by=me", "--json", state=state)
    assert made.code == 0, made.err
    id, spec = made.json["id"], made.json["spec"]
    assert (spec["processes_max"], spec["labels"]) == (9, {"job": "17", "by": "me"})
    assert run(state, id, 'echo "$A|$B|$PWD|$(id -u)"').out == "1=2||/there/here|65534\n"
    listed = ropewalk("sandbox", "ls", state=state).out
    assert "labels" in listed and "by=me job=17" in listed
    for wrong in (("--env", "nonsense"), ("--label", "nonsense"), ("--label", "=x"), ("--env", ""), ("--workdir", "x")):
        assert ropewalk("sandbox", "create", *wrong, state=state).code == 2, wrong
    beginning = next(id[: 8 + n] for n in range(4, 27) if not sandbox.startswith(id[: 8 + n]))
    (tmp_path / "a").write_text("a")
    assert ropewalk("sandbox", "cp", tmp_path / "a", f"{beginning}:/there/a", state=state).code == 0
    copied = ropewalk("sandbox", "cp", f"{beginning[8:]}:/there/a", tmp_path / "b", "--json", state=state)
    assert (copied.json["sandbox"], (tmp_path / "b").read_text()) == (id, "a")
    relative = ropewalk("sandbox", "cp", f"{beginning[8:]}:there/a", tmp_path / "b", state=state)
    assert relative.code == 2 and "begins with /" in relative.err
    assert ropewalk("sandbox", "kill", "0000ZZZZ", state=state).code == 2
    assert ropewalk("sandbox", "kill", beginning, state=state).out == f"ended {id}\n"
    assert ropewalk("sandbox", "kill", id, state=state).out == f"{id} was not there any more\n"


def test_images_that_are_in_use_stay(state: Path, sandbox: str, tmp_path: Path) -> None:
    image = next(row["digest"] for row in ropewalk("image", "ls", "--json", state=state).json)
    refused = ropewalk("image", "rm", image[:16], state=state)
    assert refused.code == 6 and "image_needed" in refused.err
    (tmp_path / "root" / "bin").mkdir(parents=True)
    (tmp_path / "root" / "bin" / "sh").write_text("")
    made = ropewalk("image", "import", tmp_path / "root", "--label", "tiny", "--json", state=state).json
    assert ropewalk("image", "rm", "tiny", state=state).code == 0
    assert [row["digest"] for row in ropewalk("image", "ls", "--json", state=state).json] == [image]
    assert not list((state / "layers").rglob(f"*{made['image']['layers'][0]}*"))
    assert ropewalk("image", "rm", "tiny", state=state).code == 2
    assert json.loads(run(state, sandbox, "echo 1").out) == 1


def test_data_that_may_not_meet_a_driver_or_a_class_that_nobody_knows(state: Path) -> None:
    refused = ropewalk("lake", "ingest", ".", "--data-class", "secret", state=state)
    assert refused.code == 2 and "one of public, internal, restricted" in refused.err
