"""What was acknowledged survives `kill -9` at any instant, with one writer and with several."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ropewalk.core.merkle import leaf_hash, root
from ropewalk.provenance.graph import LineageIndex
from ropewalk.provenance.log import Log
from ropewalk.provenance.recorder import LogRecorder
from ropewalk.provenance.verify import Anchors, verify_run
from ropewalk.security.drivers.file import FileKeys
from ropewalk.store.database import Database
from tests.unit.provenance.world import graded, link, roots

APPENDER = """
import sys
from pathlib import Path
from ropewalk.provenance.log import Log
from ropewalk.security.drivers.file import FileKeys
state, name, size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
log, number = Log(state / "log", FileKeys(state / "keys")), 0
print("ready", flush=True)
while True:
    batch = [f"{name} {number + i} ".encode() + b"x" * size for i in range(3)]
    with log.writing() as writer:
        writer.append(batch)
    print(number, flush=True)
    number += 3
"""

RECORDER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.unit.provenance.world import World, graded
world, first = World(Path(sys.argv[1])), int(sys.argv[2])
print("ready", flush=True)
for number in range(first, first + 10_000):
    world.recorder.record(graded(number))
    print(number, flush=True)
"""


def started(*arguments: str) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", *arguments], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def killed(child: subprocess.Popen[str], after_s: float) -> list[int]:
    """Lets it run for a while, ends it as nothing can defend against, and returns what it had acknowledged."""
    assert child.stdout is not None
    with child:
        acknowledged = [int(child.stdout.readline())]
        time.sleep(after_s)
        child.kill()
        return acknowledged + [int(line) for line in child.stdout.read().splitlines()]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    FileKeys(tmp_path / "state" / "keys").create()
    return tmp_path / "state"


def test_one_writer_killed_again_and_again(state: Path) -> None:
    chance = random.Random(7)
    acknowledged: set[str] = set()
    for turn in range(8):
        child = started(APPENDER, str(state), f"turn{turn}", str(chance.choice([10, 5_000, 60_000])))
        for number in killed(child, chance.uniform(0.0, 0.05)):
            acknowledged |= {f"turn{turn} {number + i}" for i in range(3)}
        log = Log(state / "log", FileKeys(state / "keys"))
        entries = list(log.entries())
        assert root(list(map(leaf_hash, entries))) == log.checkpoint().root
        found = [b" ".join(entry.split(b" ")[:2]).decode() for entry in entries]
        assert acknowledged <= set(found)
        assert len(set(found)) == len(found)


def test_several_writers_some_killed(state: Path) -> None:
    children = [started(APPENDER, str(state), f"writer{n}", "3000") for n in range(3)]
    acknowledged: set[str] = set()
    for name, child in enumerate(children):
        for number in killed(child, 0.05):
            acknowledged |= {f"writer{name} {number + i}" for i in range(3)}
    log = Log(state / "log", FileKeys(state / "keys"))
    with log.writing() as writer:
        writer.append([b"after all"])
    entries = list(log.entries())
    assert root(list(map(leaf_hash, entries))) == log.checkpoint().root
    assert acknowledged <= {b" ".join(entry.split(b" ")[:2]).decode() for entry in entries}


def test_a_recorder_killed_and_started_again(tmp_path: Path) -> None:
    project = Path(__file__).parents[2]
    (tmp_path / "state").mkdir(mode=0o700)
    keys = FileKeys(tmp_path / "state" / "keys")
    keys.create()
    log = Log(tmp_path / "state" / "log", keys)
    database = Database.open(tmp_path / "state" / "ropewalk.db")
    index = LineageIndex(database, log)
    recorder = LogRecorder(log, index)
    recorder.record(roots())
    last = 0
    for turn in range(3):
        child = started(RECORDER, str(tmp_path), str(last), str(project))
        last = max(killed(child, 0.02 * turn))
        for number in range(last + 1):
            assert link(f"reward:{number}").sha256 == index.find(f"reward:{number}")
        recorder.record(graded(last))  # what is repeated after a crash is not recorded twice
    result = verify_run(log.files.folder, anchors=Anchors(), own=keys.trust_root())
    assert result.findings == ()
    assert result.rewards in (last + 1, last + 2)
    assert log.checkpoint().size == 4 + 3 * result.rewards
    database.close()
