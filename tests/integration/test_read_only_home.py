"""A home that nothing can be written to: one clear error, or the answer where nothing has to be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration import sample_packages
from tests.integration.small_disks import run_on_own_disk

pytestmark = [pytest.mark.timeout(240), pytest.mark.root]

EMPTY = """
read_only()
found = {}
for words in (["demo", "--source", arguments[0]], ["verify"], ["run", "ls"], ["lake", "ls"], ["keys", "init"],
              ["sandbox", "create"], ["task", "ls"], ["doctor", "--offline"]):
    done = ropewalk(*words)
    found[" ".join(words[:2])] = [done.returncode, done.stderr + (done.stdout if words[0] == "doctor" else "")]
print(json.dumps(found))
"""
USED = """
assert ropewalk("lake", "ingest", arguments[0]).returncode == 0
assert ropewalk("provenance", "anchor", arguments[1]).returncode == 0
read_only()
found = {}
for words in (["demo", "--source", arguments[0]], ["lake", "ingest", arguments[2]], ["keys", "rotate"], ["run", "ls"],
              ["sandbox", "create"], ["verify", "--anchor", arguments[1]], ["keys", "init"], ["keys", "ls"],
              ["lake", "ls"], ["sandbox", "ls"]):
    done = ropewalk(*words)
    found[" ".join(words[:2])] = [done.returncode, done.stderr]
print(json.dumps(found))
"""


def test_a_read_only_home_without_a_state(tmp_path: Path) -> None:
    home = tmp_path / "home"
    source = sample_packages.archive(tmp_path / "packages", "1.0.0")
    found = json.loads(run_on_own_disk(home, EMPTY, source, HOME=str(home)))
    assert {code for code, _ in found.values()} == {7}
    for words, (_, said) in found.items():
        assert "Read-only file system" in said and "set ROPEWALK_STATE" in said, words
        assert said.count("error:") == (words != "doctor --offline"), words


def test_a_home_that_became_read_only_can_still_be_verified(tmp_path: Path) -> None:
    """A mounted copy, a disk that the kernel remounted after an error: what is there is read, nothing is written."""
    home = tmp_path / "home"
    first, second = (sample_packages.archive(tmp_path / "packages", version) for version in ("1.0.0", "1.1.0"))
    found = json.loads(run_on_own_disk(home, USED, first, tmp_path / "anchor", second, HOME=str(home)))
    readable = {"verify --anchor", "keys init", "keys ls", "lake ls", "sandbox ls"}
    assert {words for words, (code, _) in found.items() if code == 0} == readable, found
    for words in found.keys() - readable:
        code, said = found[words]
        assert code == 7 and said.count("error:") == 1, words
        assert "Read-only file system" in said and "ROPEWALK_STATE" in said, (words, said)
