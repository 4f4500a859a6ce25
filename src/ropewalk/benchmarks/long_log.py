"""How long `verify RUN` and a list of rewards take, and how much memory, where the log holds 100,000 statements.

The run that is asked for is one of thousands in the log, signed as every run is. The statements of the other runs bear
copied signatures: nobody checks them when one run is verified, and signing 100,000 of them anew would take a minute.
Each question is asked in a process of its own, whose peak of resident memory is the measurement.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from anyio.to_thread import run_sync

from ropewalk.benchmarks.promises import Measurement, measured
from ropewalk.provenance.intoto import to_payload
from ropewalk.provenance.log import Log
from ropewalk.provenance.statement import Activity, Link, StatementDraft
from ropewalk.security.drivers.file import FileKeys
from ropewalk.security.signatures import sign_envelope

ENTRIES: Final = 100_000
EPISODES: Final = 24
"""Of the run that is asked for, and of every other run."""
RUN: Final = "run:asked-for"
_BATCH: Final = 2_000

_VERIFY: Final = """
from ropewalk.provenance.verify import Anchors, verify_run
subjects = lambda read: [statement.subjects[0].sha256 for statement in SignedRewards(log, read).of_run(run)]
found = verify_run(log.files.folder, anchors=Anchors(), own=keys.trust_root(), subjects=subjects)
assert not found.findings and episodes == found.rewards, found
"""
_LIST: Final = "assert len(SignedRewards(log).of_run(run)) == episodes"
_PROCESS: Final = """
import json, resource, sys, time
from pathlib import Path
from ropewalk.provenance.log import Log
from ropewalk.provenance.rewards import SignedRewards
from ropewalk.security.drivers.file import FileKeys
folder, run, episodes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
keys = FileKeys(folder / "keys")
log = Log(folder / "log", keys)
started_s = time.perf_counter()
%s
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([time.perf_counter() - started_s, usage.ru_maxrss / 1000, usage.ru_utime + usage.ru_stime]))
"""


def fill(folder: Path, entries: int) -> None:
    """Writes keys and a log of about that many statements: many runs, and the one that is asked for in the middle."""
    keys = FileKeys(folder / "keys")
    keys.create()
    log = Log(folder / "log", keys)
    signer = keys.active()
    copied = json.loads(sign_envelope(to_payload(_roots("run:copied")[0]), signer))
    others = max(1, (entries // (3 * EPISODES + 2)) - 1)
    waiting: list[bytes] = []
    for number in range(others + 1):
        run = RUN if number == others // 2 else f"run:{number}"
        payloads = [to_payload(draft) for draft in (*_roots(run), *_episodes(run))]
        if run == RUN:
            waiting += [sign_envelope(payload, signer) for payload in payloads]
        else:
            waiting += [_with_payload(copied, payload) for payload in payloads]
        if len(waiting) >= _BATCH or number == others:
            with log.writing() as writer:
                writer.append(waiting)
            waiting.clear()


def ask(folder: Path, question: str) -> tuple[float, float, float]:
    """Asks in a process of its own; seconds, peak megabytes, CPU-seconds."""
    line = [sys.executable, "-c", _PROCESS % question, str(folder), RUN, str(EPISODES)]
    out = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    seconds, megabytes, cpu_s = json.loads(out)
    return seconds, megabytes, cpu_s


async def measure(progress: Callable[[str], None]) -> list[Measurement]:
    """`provenance.verify_long_log`, `provenance.verify_long_log_memory` and `provenance.rewards_long_log`."""

    def rounds() -> list[Measurement]:
        with tempfile.TemporaryDirectory(prefix="ropewalk-long-log-") as name:
            folder = Path(name)
            progress(f"writing a log of {ENTRIES:,} statements")
            fill(folder, ENTRIES)
            progress("listing one run's rewards, as the first process that reads this log")
            first_s = ask(folder, _LIST)[0]
            progress("again, and verifying the run")
            again_s = min(ask(folder, _LIST)[0] for _ in range(3))
            seconds, megabytes, cpu_s = ask(folder, _VERIFY)
        return [
            measured("provenance.verify_long_log", seconds, note=f"{cpu_s:.1f} s of CPU"),
            measured("provenance.verify_long_log_memory", megabytes),
            measured("provenance.rewards_long_log", again_s, note=f"{first_s:.1f} s for the first process"),
        ]

    return await run_sync(rounds)


def _with_payload(envelope: dict[str, object], payload: bytes) -> bytes:
    changed = {**envelope, "payload": base64.b64encode(payload).decode()}
    return json.dumps(changed, separators=(",", ":")).encode()


def _link(name: str) -> Link:
    return Link(name=name, sha256=hashlib.sha256(name.encode()).hexdigest())


def _draft(activity: Activity, subject: str, *inputs: str, run: str, **facts: object) -> StatementDraft:
    return StatementDraft(
        activity=activity,
        subjects=(_link(subject),),
        inputs=tuple(map(_link, inputs)),
        predicate={"run": run, "detail": "-" * 800, **facts},
        started_s=1_700_000_000.0,
        ended_s=1_700_000_001.0,
    )


def _roots(run: str) -> list[StatementDraft]:
    return [
        _draft(Activity.INGEST, f"raw:{run}", run=run),
        _draft(Activity.ADMIT, f"task:{run}", f"raw:{run}", run=run),
    ]


def _episodes(run: str) -> Iterator[StatementDraft]:
    for number in range(EPISODES):
        episode, verdict = f"episode:{run}-{number}", f"verdict:{run}-{number}"
        yield _draft(Activity.EPISODE, episode, f"task:{run}", run=run)
        yield _draft(Activity.VERDICT, verdict, episode, run=run)
        yield _draft(Activity.REWARD, f"reward:{run}-{number}", verdict, episode, run=run, value=1.0)
