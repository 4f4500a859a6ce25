"""One small demo on a package of our own, made once for all tests and workers of a session."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ropewalk.store.layout import Layout
from tests.integration import sample_packages
from tests.integration.command_line import Outcome, ropewalk
from tests.shared_image import lend_default_image


class DemoState(NamedTuple):
    """Where it is and what it printed."""

    state: Path
    anchor: Path
    code: int
    printed: dict[str, Any]

    def __call__(self, *words: str | Path, **env: str) -> Outcome:
        """One command line on this state."""
        return ropewalk(*words, state=self.state, **env)

    @property
    def run(self) -> str:
        """The demo's run."""
        return str(self.printed["run"])

    @property
    def report(self) -> str:
        """The HTML report as the demo wrote it."""
        return (self.anchor.parent / "report.html").read_text()

    @contextlib.contextmanager
    def alone(self) -> Iterator[DemoState]:
        """It, while no other worker makes sandboxes in it."""
        with (self.anchor.parent / "alone").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self

    def episode(self, policy: str) -> dict[str, Any]:
        """The first episode of a policy, as `episode ls` shows it."""
        rows = self("episode", "ls", self.run, "--json").json
        return next(row for row in rows if row["policy"] == policy)


def demo_state(factory: pytest.TempPathFactory) -> DemoState:
    """The state in a folder that all workers know; whoever comes first makes it."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ropewalk-demo"
    shared.mkdir(parents=True, exist_ok=True)
    kept = shared / "printed.json"
    state, anchor = shared / "home" / "state", shared / "anchor"
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            sources = [
                word
                for version in ("1.0.0", "1.1.0")
                for word in ("--source", sample_packages.archive(shared, version))
            ]
            lend_default_image(Layout(state))
            few = ("--build", "2", "--tasks", "1", "--group", "2", "--steps", "6")
            done = ropewalk("demo", *sources, *few, "--anchor", anchor, "--json", state=state)
            assert done.out, done.err
            printed = json.loads(done.out)
            # `report` writes it anew, and other tests ask for that.
            shutil.copy(printed["report"], shared / "report.html")
            kept.write_text(json.dumps({"code": done.code, "printed": printed}))
        found = json.loads(kept.read_text())
    return DemoState(state, anchor, found["code"], found["printed"])
