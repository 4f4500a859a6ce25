"""Keys, lake, trace, taint and verify on the command line: what they print and how they exit."""

from __future__ import annotations

import hashlib
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.app.building import Sources
from ropewalk.app.custody import Custody
from ropewalk.rollout.plan_file import plan_from_settings
from ropewalk.security.trust import load_trust_root
from tests.integration import sample_packages
from tests.integration.command_line import ropewalk

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def ingest(state: Path, tmp_path: Path) -> str:
    done = ropewalk("lake", "ingest", sample_packages.archive(tmp_path / "packages", "1.0.0"), "--json", state=state)
    assert done.code == 0, done.err
    return str(done.json[0]["records"][0]["sha256"])


def test_from_a_source_to_its_trace_and_taint(state: Path, tmp_path: Path) -> None:
    sha256 = ingest(state, tmp_path)
    listed = ropewalk("lake", "ls", "--json", state=state).json
    assert [each["record"]["sha256"] for each in listed] == [sha256]
    assert listed[0]["record"]["licence"]["expression"] == "MIT"
    commit = ropewalk("lake", "log", "--json", state=state).json[0]["id"]
    traced = ropewalk("trace", commit, "--json", state=state)
    assert traced.code == 0 and traced.json["complete"]
    assert traced.json["sources"][0]["sha256"] == sha256
    text = ropewalk("trace", commit, state=state).out
    assert "wordkit-1.0.0.tar.gz" in text and "licence MIT" in text and "no_human_data" in text
    assert f"ropewalk lake cp raw:{sha256[:32]} ." in text
    tainted = ropewalk("provenance", "taint", f"raw:{sha256[:32]}", "--json", state=state)
    assert tainted.code == 3
    assert [node["name"] for node in tainted.json["nodes"]] == [commit]
    assert ropewalk("provenance", "taint", commit, state=state).code == 0


def test_another_licence_than_the_stated_one_is_said_on_purpose_and_told(state: Path, tmp_path: Path) -> None:
    words = ("lake", "ingest", sample_packages.archive(tmp_path / "packages", "1.0.0"))
    sha256 = ropewalk(*words, "--json", state=state).json[0]["records"][0]["sha256"]
    refused = ropewalk(*words, "--licence", "GPL-3.0-only", state=state)
    assert refused.code == 6 and "MIT" in refused.err and "--override-licence" in refused.err
    assert ropewalk(*words, "--override-licence", state=state).code == 2
    assert ropewalk(*words, "--licence", "GPL-3.0-only", "--override-licence", state=state).code == 0
    assert "GPL-3.0-only" in ropewalk(*words, state=state).out, "the next ingest says what holds"
    traced = ropewalk("trace", f"raw:{sha256[:32]}", state=state).out
    assert "licence GPL-3.0-only (given" in traced and "it entered before as MIT" in traced


def test_a_raw_file_is_copied_out_as_it_came_in(state: Path, tmp_path: Path) -> None:
    sha256 = ingest(state, tmp_path)
    folder = tmp_path / "out"
    folder.mkdir()
    assert ropewalk("lake", "cp", f"raw:{sha256[:32]}", folder, state=state).code == 0
    (copy,) = folder.iterdir()
    assert copy.name == "wordkit-1.0.0.tar.gz" and hashlib.sha256(copy.read_bytes()).hexdigest() == sha256
    again = ropewalk("lake", "cp", sha256, folder, state=state)
    assert again.code == 2 and "is there already" in again.err
    assert ropewalk("lake", "cp", "raw:" + "0" * 32, folder / "x", state=state).code == 2
    secret = sample_packages.archive(tmp_path / "packages", "1.1.0")
    made = ropewalk("lake", "ingest", secret, "--data-class", "restricted", "--json", state=state).json[0]["records"][0]
    kept = ropewalk("lake", "cp", made["sha256"], folder / "secret", state=state)
    assert kept.code == 6 and not (folder / "secret").exists()


def test_verify_needs_anchors_to_say_ok_and_sees_tampering(state: Path, tmp_path: Path) -> None:
    sha256 = ingest(state, tmp_path)
    anchor = tmp_path / "anchor"
    anchor.mkdir()
    bare = ropewalk("verify", "--json", state=state)
    assert bare.code == 4 and bare.json["status"] == "unanchored"
    for words in (("verify",), ("report",)):
        empty = ropewalk(*words, "--anchor", anchor, state=state)
        assert empty.code == 2 and "ropewalk-trust-root.json" in empty.err and "ropewalk-checkpoint" in empty.err
        assert f"ropewalk provenance anchor {anchor}" in empty.err
    assert ropewalk("keys", "export", anchor / "ropewalk-trust-root.json", state=state).code == 0
    assert ropewalk("provenance", "checkpoint", anchor / "ropewalk-checkpoint", state=state).code == 0
    good = ropewalk("verify", "--anchor", anchor, "--json", state=state)
    assert good.code == 0 and good.json["status"] == "ok" and good.json["blobs"] >= 1
    blob = next(path for path in (state / "blobs").rglob("*") if sha256[2:] in path.name or path.name == sha256)
    blob.chmod(0o600)
    data = bytearray(blob.read_bytes())
    data[100] ^= 1
    blob.write_bytes(data)
    bad = ropewalk("verify", "--anchor", anchor, state=state)
    assert bad.code == 5 and "blob_damaged" in bad.out


def test_one_command_writes_what_verify_reads(state: Path, tmp_path: Path) -> None:
    anchor, other = tmp_path / "usb" / "anchor", tmp_path / "other"
    assert "Nothing was ever recorded" in ropewalk("provenance", "anchor", anchor, state=state).err
    assert not anchor.exists()
    ingest(state, tmp_path)
    written = ropewalk("provenance", "anchor", anchor, state=state)
    assert written.code == 0 and f"ropewalk verify --anchor {anchor}" in written.out
    assert ropewalk("verify", "--anchor", anchor, state=state).code == 0
    more = sample_packages.archive(tmp_path / "packages", "1.1.0")
    assert ropewalk("lake", "ingest", more, state=state).code == 0
    assert ropewalk("verify", "--anchor", anchor, state=state).code == 4, "the log has grown since"
    assert ropewalk("provenance", "anchor", anchor, "--json", state=state).json["checkpoint"]
    assert ropewalk("verify", "--anchor", anchor, state=state).code == 0
    before = {path: path.read_bytes() for path in anchor.iterdir()}
    assert ropewalk("lake", "ingest", more, state=other).code == 0
    assert ropewalk("provenance", "anchor", anchor, state=other).code == 5, "it vouches for another log"
    assert {path: path.read_bytes() for path in anchor.iterdir()} == before
    assert ropewalk("provenance", "anchor", state / "anchor", state=state).code == 2


def test_an_index_that_says_something_else_is_made_anew(state: Path, tmp_path: Path) -> None:
    ingest(state, tmp_path)
    with sqlite3.connect(state / "ropewalk.db") as database:
        assert database.execute("DELETE FROM lineage_edge").rowcount
    database.close()
    commit = ropewalk("lake", "log", "--json", state=state).json[0]["id"]
    broken = ropewalk("trace", commit, state=state)
    assert broken.code == 5 and "ropewalk provenance index" in broken.err
    made = ropewalk("provenance", "index", "--json", state=state)
    assert made.code == 0 and made.json["statements"] >= 2
    mended = ropewalk("trace", commit, "--json", state=state)
    assert mended.code == 0 and mended.json["complete"]
    assert ropewalk("provenance", "index", state=tmp_path / "empty").code == 0


def test_a_rolled_back_log_is_seen(state: Path, tmp_path: Path) -> None:
    ingest(state, tmp_path)
    anchor = tmp_path / "anchor"
    anchor.mkdir()
    (tmp_path / "old").mkdir()
    old = {path: path.read_bytes() for path in (state / "log").rglob("*") if path.is_file()}
    other = sample_packages.archive(tmp_path / "packages", "1.1.0")
    assert ropewalk("lake", "ingest", other, state=state).code == 0
    ropewalk("keys", "export", anchor / "ropewalk-trust-root.json", state=state)
    ropewalk("provenance", "checkpoint", anchor / "ropewalk-checkpoint", state=state)
    for path in (state / "log").rglob("*"):
        if path.is_file():
            path.unlink()
    for path, data in old.items():
        path.write_bytes(data)
    found = ropewalk("verify", "--anchor", anchor, "--json", state=state)
    assert found.code == 5
    assert "rolled_back" in {finding["code"] for finding in found.json["findings"]}


def test_keys_rotate_and_revoke(state: Path) -> None:
    assert "No keys yet" in ropewalk("keys", "ls", state=state).out
    first = ropewalk("keys", "init", "--json", state=state).json["pair"]
    assert ropewalk("keys", "init", "--json", state=state).json["pair"] == first
    second = ropewalk("keys", "rotate", "--json", state=state).json["pair"]
    assert second != first
    revoked = ropewalk("keys", "revoke", first, "--reason", "lost", "--from-index", "0", "--json", state=state)
    assert revoked.json == {"pair": first, "revoked_from_index": 0}
    pairs = ropewalk("keys", "ls", "--json", state=state).json
    assert [each["pair"] for each in pairs] == [first, second]
    assert ropewalk("keys", "revoke", first, state=state).code == 2
    assert ropewalk("keys", "revoke", "keypair:none", "--reason", "x", state=state).code == 2
    assert '"ropewalk-trust-root/1"' in ropewalk("keys", "export", state=state).out


def test_a_passphrase_is_a_reference_and_is_asked_for(state: Path) -> None:
    assert ropewalk("keys", "init", "--passphrase", "hunter2", state=state).code == 2
    made = ropewalk("keys", "init", "--passphrase", "env:SECRET", "--json", state=state, SECRET="correct horse")
    assert made.code == 0
    assert "correct horse" not in "".join(path.read_text() for path in (state / "keys").rglob("*.json"))
    assert ropewalk("keys", "rotate", state=state).code == 2, "the passphrase behind the reference is not there"
    rotated = ropewalk("keys", "rotate", "--json", state=state, SECRET="correct horse")
    assert rotated.json["encrypted_by"] == "env:SECRET"


def test_keys_that_were_there_before_are_not_encrypted_silently(state: Path) -> None:
    plain = ropewalk("keys", "init", "--json", state=state).json
    assert plain["encrypted_by"] is None
    refused = ropewalk("keys", "init", "--passphrase", "env:SECRET", state=state, SECRET="correct horse")
    assert refused.code == 2 and "ropewalk keys rotate --passphrase env:SECRET" in refused.err
    done = ropewalk("keys", "rotate", "--passphrase", "env:SECRET", state=state, SECRET="correct horse")
    assert done.code == 0 and "encrypted by env:SECRET" in done.out
    listed = ropewalk("keys", "ls", "--json", state=state).json
    assert [each["encrypted_by"] for each in listed] == [None, "env:SECRET"]
    assert "env:SECRET" in ropewalk("keys", "ls", state=state).out
    assert ropewalk("keys", "init", "--passphrase", "env:SECRET", state=state, SECRET="correct horse").code == 0


def test_somebody_attests_and_is_named(state: Path, tmp_path: Path) -> None:
    """Who vouches comes from the command, the plan or the profile, in this order; where nobody does, nothing enters."""
    profile = tmp_path / "office.toml"
    profile.write_text('tenant = "local"\n')
    first, second, third = (sample_packages.archive(tmp_path / "packages", f"1.{n}.0") for n in range(3))
    for words in (("lake", "ingest", first), ("run", "--source", first), ("task", "build", "--source", first)):
        refused = ropewalk(*words, "--profile", profile, state=state)
        assert refused.code == 6 and "rule: no_human_data" in refused.err and "--attested-by" in refused.err
    assert ropewalk("lake", "ingest", first, "--attested-by", " ", state=state).code == 6
    assert ropewalk("lake", "ls", "--json", state=state).json == []
    profile.write_text('tenant = "local"\n[lake]\nattested_by = "data office"\n')
    done = ropewalk("lake", "ingest", first, "--profile", profile, state=state)
    assert done.code == 0 and "no human data in 1 file, says data office" in done.out
    more = ("--profile", profile, "--attested-by", "legal")
    assert "says legal" in ropewalk("lake", "ingest", second, *more, state=state).out
    assert "says operator of this installation" in ropewalk("lake", "ingest", third, state=state).out
    who = {each["record"]["name"]: each["record"]["attestation"]["who"]
           for each in ropewalk("lake", "ls", "--json", state=state).json}  # fmt: skip
    assert [who[name] for name in sorted(who)] == ["data office", "legal", "operator of this installation"]
    with Custody.open(str(profile), state=state) as kept:
        source = str(sample_packages.archive(tmp_path / "packages", "1.3.0"))
        plan = plan_from_settings({"source.uris": [source], "source.attested_by": "the plan"})
        Sources(kept).ingest(plan.source, lambda uri, result: None)
        assert {record.attestation.who for record in kept.lake.records(tenant="local")} >= {"the plan"}


def test_the_air_gapped_profile_names_the_rule(state: Path) -> None:
    refused = ropewalk("lake", "ingest", "pypi:toolz==1.0.0", "--profile", "air-gapped", state=state)
    assert refused.code == 6 and "rule: profile air-gapped: network.sources" in refused.err
    plan = ("--source", "pypi:toolz", "--policies", "noop")
    assert ropewalk("run", *plan, "--profile", "air-gapped", state=state).code == 6
    model = ("--base-url", "https://api.example.com/v1", "--model", "m", "--policies", "openai")
    task = ("--task", "task:" + "0" * 32)
    refused = ropewalk("run", *task, *model, state=state, ROPEWALK_PROFILE="air-gapped")
    assert refused.code == 6 and "network.endpoints" in refused.err


def test_no_network_is_unavailable_and_says_what_else_works(state: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        index = f"http://127.0.0.1:{taken.getsockname()[1]}/simple"
        done = ropewalk("lake", "ingest", "pypi:toolz==1.0.0", state=state, PIP_INDEX_URL=index, UV_INDEX_URL=index)
    assert done.code == 7, done.err
    assert done.err.count("error:") == 1 and "next:" in done.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("trace", "reward:01JDY"), 2, "Nothing was ever recorded"),
        (("verify",), 2, "Nothing was ever recorded"),
        (("verify", "episode:01JDY"), 2, "not the id of a run"),
        (("report",), 2, "There is no run"),
        (("run",), 2, "Nothing to run"),
        (("run", "missing.toml"), 2, "missing.toml"),
        (("run", "rm"), 2, "No run was named"),
        (("run", "rm", "run:01JDY0000000000000000000AA"), 2, "There is no"),
        (("run", "--task", "task:0000", "--set", "run.grup=3"), 2, "did you mean 'group'"),
        (("run", "--task", "task:0000", "--set", "nonsense"), 2, "is no setting"),
        (("run", "--resume", "run:01JDY0000000000000000000AA"), 2, "run ls"),
        (("run", "--task", "task:0000", "--policies", "openai"), 2, "give --base-url and --model"),
        (("run", "--task", "task:0000", "--policies", "noop,oracel"), 2, "did you mean 'oracle'?"),
        (("run", "--task", "task:0000", "--policies", "xyz"), 2, "There are: noop, oracle, search, openai."),
        (("run", "--task", "task:0000", "--set", "run.policies=noop"), 2, 'write policies = ["noop"].'),
        (("trace", "run:01JDY0000000000000000000AA"), 2, "reward ls run:01JDY0000000000000000000AA"),
        (("sandbox", "exec", "nope", "true"), 2, "ropewalk sandbox ls"),
        (("lake", "ingest"), 2, "No source"),
        (("lake", "ingest", "/nonexistent"), 2, "is no source"),
        (("episode", "show", "episode:01JDY0000000000000000000AA"), 2, "There is no"),
        (("task", "show", "task:0123"), 2, "task ls"),
        (("doctor", "--profile", "nowhere"), 2, "There is no profile"),
        (("image", "import", "/nonexistent"), 2, "There is no directory or file"),
    ],
)
def test_mistakes_get_one_block_and_exit_with_2(
    words: tuple[str, ...], code: int, said: str, state: Path, tmp_path: Path
) -> None:
    done = ropewalk(*words, state=state)
    assert done.code == code, done.err
    assert said in done.err
    assert done.err.count("error:") == 1 and done.out == ""


def test_an_unknown_key_in_a_plan_is_named_with_its_line(state: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[source]\nuris = ["."]\n\n[run]\ngruop = 4\n')
    done = ropewalk("run", plan, state=state)
    assert done.code == 2
    assert "line 5" in done.err and "'gruop'" in done.err and "'group'" in done.err


def test_a_state_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = ropewalk("lake", "ls", state=blocked / "state")
    assert done.code == 7 and "ROPEWALK_STATE" in done.err


def test_a_receipt_is_checked_without_any_state(state: Path, tmp_path: Path) -> None:
    ingest(state, tmp_path)
    commit = ropewalk("lake", "log", "--json", state=state).json[0]["id"]
    root, file, outside = tmp_path / "trust-root.json", tmp_path / "receipt.json", tmp_path / "outside"
    assert ropewalk("keys", "export", root, state=state).code == 0
    assert ropewalk("provenance", "anchor", outside, state=state).code == 0
    with Custody.open(state=state) as kept:
        file.write_bytes(kept.receipt(commit))
    nowhere = tmp_path / "nowhere"
    alone = ropewalk("verify", file, "--keys", root, "--json", state=nowhere)
    assert (
        alone.code == 4 and alone.json["status"] == "unanchored" and "no outside" in alone.json["unanchored_because"][0]
    )
    assert ropewalk("verify", file, "--keys", root, state=nowhere).out.startswith("unanchored")
    good = ropewalk("verify", file, "--anchor", outside, "--json", state=nowhere)
    assert good.code == 0 and good.json["status"] == "ok" and good.json["unanchored_because"] == []
    assert good.json["statement"]["subjects"][0]["name"] == commit
    assert "ok" in ropewalk("verify", file, "--anchor", outside, state=nowhere).out and not nowhere.exists()
    bad = tmp_path / "bad"
    bad.write_text("bad")
    assert ropewalk("verify", file, "--keys", root, "--checkpoint", bad, state=nowhere).code == 5
    assert ropewalk("verify", file, state=nowhere).code == 2
    assert ropewalk("reward", "receipt", "reward:01JDY0000000000000000000AA", state=state).code == 2
    file.write_bytes(file.read_bytes().replace(b'"index":1', b'"index":0'))
    assert ropewalk("verify", file, "--keys", root, state=nowhere).code == 5


def test_commits_are_compared_and_read_again(state: Path, tmp_path: Path) -> None:
    assert ropewalk("lake", "verify", state=state).code == 2
    first = ingest(state, tmp_path)
    other = sample_packages.archive(tmp_path / "packages", "1.1.0")
    assert ropewalk("lake", "ingest", other, "--data-class", "internal", state=state).code == 0
    newest, oldest = (each["id"] for each in ropewalk("lake", "log", "--json", state=state).json)
    (change,) = ropewalk("lake", "diff", oldest, "--json", state=state).json
    assert change["before"] is None and change["after"] != first
    assert ropewalk("lake", "diff", oldest, newest, state=state).out.count("wordkit-1.1.0") == 1
    records = ropewalk("lake", "ls", "--json", state=state).json
    assert sorted(each["record"]["data_class"] for each in records) == ["internal", "public"]
    whole = ropewalk("lake", "verify", "--json", state=state).json
    assert (whole["commit"], whole["files"]) == (newest, 2)
    blob = next(path for path in (state / "blobs").rglob("*") if path.name == first)
    blob.chmod(0o600)
    blob.write_bytes(b"something else")
    assert ropewalk("lake", "verify", state=state).code == 5


@pytest.mark.parametrize(
    "more", [("--seed", "1"), ("--keep-failed",), ("--set", "run.group=2"), ("--wheelhouse", "."), ("--model", "m")]
)
def test_a_resumed_run_takes_no_other_settings(state: Path, more: tuple[str, ...]) -> None:
    done = ropewalk("run", "--resume", "run:01JDY0000000000000000000AA", *more, state=state)
    assert done.code == 2 and "its settings stay" in done.err


def test_command_lines_that_nobody_can_read_are_mistakes(state: Path, tmp_path: Path) -> None:
    assert ropewalk("trace", "\udcff", state=state).code == 2
    plan = tmp_path / "plan.toml"
    plan.write_text("[run]\nseed = " + "9" * 5000)
    done = ropewalk("run", plan, state=state)
    assert done.code == 2 and "cannot be read" in done.err
    assert ropewalk("run", "--task", "task:0000", "--set", f"run.seed={'9' * 5000}", state=state).code == 2
    line = [sys.executable, "-m", "ropewalk", "run", "ls", "--state", str(state)]
    closed = subprocess.run(["/bin/sh", "-c", '"$@" >&-', "sh", *line], capture_output=True, text=True, check=False)
    assert closed.returncode == 0 and not closed.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--source", "./nosuch"), "'./nosuch' is no source: it does not exist"),
        (("task", "build", "--source", "./nosuch"), "it does not exist"),
        (("run", "--source", ".", "--licence", "mine, all mine"), "is not an SPDX licence expression"),
        (("run", "--source", ".", "--requirements", "nosuch.txt"), "nosuch.txt cannot be read"),
        (("run", "--source", "catalogue:nosuch"), "There is no pinned catalogue"),
        (("run", "--source", ".", "--policies", "openai", "--base-url", "http://127.0.0.1:9/v1", "--model", "m",
          "--key", "env:NOPE"), "policy.openai.key (--key): env:NOPE is empty or not set."),
        (("run", "--source", ".", "--report", "."), "is no file"),
        (("run", "--source", ".", "--tasks", "0"), "error: --tasks: give a whole number, at least 1."),
        (("run", "--source", ".", "--policies", "noop,serch"), "error: --policies: there is no 'serch'."),
        (("demo", "--source", ".", "--build", "0"), "error: --build: give a whole number, at least 1."),
        (("run", "--source", ".", "--set", "group=2"), "did you mean run.group=2?"),
        (("run", "plan.toml", "extra"), "Nothing takes 'extra'."),
        (("run", "."), "--source ."),
        (("run", "lss"), "a plan is a TOML file"),
        (("run", "--source", "toolz"), "pypi:toolz"),
        (("sandbox", "cp", "a", "01JDY0000000000000000000AA:rel.py"), "a path inside begins with /"),
        (("run", "--source", "./nosuch", "--task", "task:00"), "give the one or the other"),
        (("demo", "--source", ".", "--report", "."), "is no file"),
        (("run", "--source", ".", "--set", "price.set.utilization=0.3"), "no price is called 'utilization'"),
    ],
)  # fmt: skip
def test_what_is_wrong_at_sight_is_said_before_anything_begins(state: Path, words: tuple[str, ...], said: str) -> None:
    done = ropewalk(*words, state=state)
    assert done.code == 2 and said in done.err
    assert "Ingest" not in done.err and "Image" not in done.err and done.err.count("error:") == 1
    assert ropewalk("lake", "ls", "--json", state=state).json == [], "nothing came in"
    assert ropewalk("run", "ls", "--json", state=state).json == [], "nothing was begun"


def test_what_was_written_is_told_to_scripts(state: Path, tmp_path: Path) -> None:
    sha256 = ingest(state, tmp_path)
    exported = ropewalk("keys", "export", tmp_path / "root.json", "--json", state=state).json
    assert exported["sha256"] == load_trust_root(tmp_path / "root.json").digest and len(exported["pairs"]) == 1
    copied = ropewalk("lake", "cp", sha256, tmp_path / "copy", "--json", state=state).json
    assert copied["path"] == str(tmp_path / "copy") and copied["record"]["sha256"] == sha256
