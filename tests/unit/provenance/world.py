"""A state directory with a short history in it: one raw file, one task, some graded episodes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ropewalk.core.errors import CallerError
from ropewalk.provenance.graph import LineageIndex
from ropewalk.provenance.log import Log
from ropewalk.provenance.recorder import LogRecorder
from ropewalk.provenance.statement import Activity, Link, StatementDraft
from ropewalk.provenance.verification import Verification
from ropewalk.provenance.verify import Anchors, BlobSource, verify_run
from ropewalk.security.drivers.file import FileKeys
from ropewalk.security.trust import export_trust_root
from ropewalk.store.database import Database


def link(name: str) -> Link:
    """A thing whose digest follows from its name."""
    return Link(name=name, sha256=hashlib.sha256(name.encode()).hexdigest())


def draft(activity: Activity, subject: str, *inputs: str, **facts: Any) -> StatementDraft:
    """A statement that made one thing."""
    return StatementDraft(
        activity=activity,
        subjects=(link(subject),),
        inputs=tuple(map(link, inputs)),
        predicate=facts,
        started_s=1_700_000_000.25,
        ended_s=1_700_000_001.5,
    )


def roots() -> tuple[StatementDraft, ...]:
    """From a raw file to a snapshot."""
    return (
        draft(Activity.INGEST, "raw:rope-1.0.tar.gz", licence="MIT", human_data=False),
        draft(Activity.COMMIT, "commit:1", "raw:rope-1.0.tar.gz"),
        draft(Activity.ADMIT, "task:1", "commit:1", "raw:rope-1.0.tar.gz", "grader:1"),
        draft(Activity.SNAPSHOT, "snapshot:1", "task:1"),
    )


def graded(number: int) -> tuple[StatementDraft, ...]:
    """From an episode to its reward."""
    episode = f"episode:{number}"
    return (
        draft(Activity.EPISODE, episode, "task:1", "snapshot:1", policy="search"),
        draft(Activity.VERDICT, f"verdict:{number}", episode, "task:1", score=1.0),
        draft(Activity.REWARD, f"reward:{number}", f"verdict:{number}", episode, value=1.0),
    )


class MemoryBlobs:
    """A `BlobSource`."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = {hashlib.sha256(data).hexdigest(): data for data in contents}

    def exists(self, digest: str) -> bool:
        return digest in self.contents

    def get(self, digest: str, *, bytes_max: int) -> bytes:
        if len(self.contents[digest]) > bytes_max:
            raise CallerError("too large")
        return self.contents[digest]


class World:
    """State in `folder/state`, what is kept elsewhere in `folder/outside`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state, self.outside = folder / "state", folder / "outside"
        self.state.mkdir(mode=0o700, exist_ok=True)
        self.outside.mkdir(exist_ok=True)
        self.keys = FileKeys(self.state / "keys")
        self.keys.create()
        self.log = Log(self.state / "log", self.keys)
        self.database = Database.open(self.state / "ropewalk.db")
        self.index = LineageIndex(self.database, self.log)
        self.recorder = LogRecorder(self.log, self.index)
        self.anchors = Anchors(self.outside / "trust.json", self.outside / "checkpoint")

    def fill(self, episodes: int = 3) -> World:
        """Records a whole history and keeps its anchors elsewhere."""
        self.recorder.record(roots())
        for number in range(episodes):
            self.recorder.record(graded(number))
        return self.anchor()

    def anchor(self) -> World:
        """Keeps the keys and the checkpoint as of now elsewhere."""
        export_trust_root(self.keys.trust_root(), self.outside / "trust.json")
        self.log.export_checkpoint(self.outside / "checkpoint")
        return self

    def verify(self, *names: str, blobs: BlobSource | None = None, anchors: Anchors | None = None) -> Verification:
        """Verifies the chains behind these things, or everything."""
        subjects = [link(name).sha256 for name in names] or None
        return verify_run(self.state / "log", anchors=anchors or self.anchors, subjects=subjects, blobs=blobs)
