"""A disk that is full in the middle of a run: the run ends as unavailable, and goes on once there is room."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.integration.demo_state import demo_state
from tests.integration.small_disks import run_on_own_disk

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow, pytest.mark.root]

FULL = """
origin, task = arguments
subprocess.run(["cp", "-a", origin + "/.", str(place)], check=True)
place.chmod(0o700)
os.environ["ROPEWALK_STATE"] = str(place)
before = {row["run"] for row in json.loads(ropewalk("run", "ls", "--json").stdout)}

line = [sys.executable, "-m", "ropewalk", "run", "--task", task, "--policies", "noop,oracle", "--group", "4",
        "--concurrency", "1", "--json"]
streams = [os.memfd_create("out"), os.memfd_create("err")]
process = subprocess.Popen(line, stdout=streams[0], stderr=streams[1], stdin=subprocess.DEVNULL)
def ended(within_s):
    try:
        return process.wait(within_s) is not None
    except subprocess.TimeoutExpired:
        return False
signed = []
while not signed and not ended(0.05):  # until the first reward is there
    begun = {row["run"] for row in json.loads(ropewalk("run", "ls", "--json").stdout)} - before
    signed = [each for run in begun for each in json.loads(ropewalk("reward", "ls", run, "--json").stdout)]
assert signed and not ended(0), list(map(said, streams))
run = begun.pop()
ballast = os.open(place / "ballast", os.O_WRONLY | os.O_CREAT, 0o600)
block, written = b"x" * (1 << 16), 0
while not ended(0):  # and it stays full, whatever is freed meanwhile
    try:
        written += os.write(ballast, block)
    except OSError:
        block = block[: max(1, len(block) // 2)]
        if len(block) == 1:
            ended(0.02)
            block = b"x" * 4096
first = [process.returncode, *map(said, streams)]
os.close(ballast)
(place / "ballast").unlink()
rows = json.loads(ropewalk("reward", "ls", run, "--json").stdout)
resumed = ropewalk("run", "--resume", run, "--json")
verified = ropewalk("verify", run, "--json")
left = json.loads(ropewalk("sandbox", "ls", "--json").stdout)
print(json.dumps([first, rows, [resumed.returncode, resumed.stdout, resumed.stderr], verified.stdout, left]))
"""


def test_a_run_whose_disk_fills_up_loses_nothing(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    demo = demo_state(tmp_path_factory)
    task = demo("task", "ls", "--json").json[0]["id"]
    with demo.alone():
        printed = run_on_own_disk(tmp_path / "small", FULL, demo.state, task, options="size=400m")
    (code, _, error), before, (again, out, resumed), verified, left = json.loads(printed)
    assert code == 7, (code, error)
    assert error.count("error:") == 1 and re.search("no space left|disk is full", error, re.IGNORECASE), error
    assert again == 0, resumed
    episodes = json.loads(out)["summary"]["episodes"]
    assert [line["value"] for line in episodes] == [0.0] * 4 + [1.0] * 4
    kept = {line["reward"] for line in episodes}
    assert {row["id"] for row in before} <= kept, "what was acknowledged is still there"
    found = json.loads(verified)
    assert found["findings"] == [] and found["rewards"] == 8
    assert left == []
