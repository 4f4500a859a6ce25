"""Where things lie under one state directory. The only module that knows these names.

blobs/      content-addressed bytes          layers/     content-addressed directory trees
images/     image records                    sandboxes/  one folder per sandbox; gone when it is
lake/       raw zone and commits             log/        transparency log
keys/       file keystore                    snapshots/  snapshot records
runs/       one folder per run               tasks/      admitted tasks, baselines, progress of builds
ropewalk.db journal, lineage index, catalogue
tenants.json  which range of user ids is whose
"""

from __future__ import annotations

import os
from pathlib import Path

from ropewalk.core.errors import UnavailableError


def default_state_dir() -> Path:
    """`$ROPEWALK_STATE`, else `$XDG_STATE_HOME/ropewalk`, else `~/.local/state/ropewalk`."""
    if explicit := os.environ.get("ROPEWALK_STATE"):
        return Path(explicit)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "ropewalk"


class Layout:
    """Paths under `root`, which is created with mode 0700: layers may hold another user's setuid files."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def ensure(self) -> Layout:
        """Makes the folders.

        Raises:
            UnavailableError: the place is read-only, full or another user's.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (self.blobs, self.layers, self.images, self.sandboxes, self.snapshots,
                           self.lake, self.log, self.keys, self.runs, self.tasks):  # fmt: skip
                folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise UnavailableError(
                f"The state directory {self.root} cannot be used: {error.strerror or error}.",
                next_step="set ROPEWALK_STATE to a folder you may write to.",
            ) from error
        return self

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def layers(self) -> Path:
        return self.root / "layers"

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def sandboxes(self) -> Path:
        return self.root / "sandboxes"

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def tasks(self) -> Path:
        return self.root / "tasks"

    @property
    def tenants(self) -> Path:
        return self.root / "tenants.json"

    @property
    def database(self) -> Path:
        return self.root / "ropewalk.db"

    @property
    def stores(self) -> frozenset[Path]:
        """All that stays when nothing runs; `sandboxes` is no such place."""
        database = (self.database.with_name(self.database.name + suffix) for suffix in ("", "-wal", "-shm", "-journal"))
        return frozenset(
            (self.blobs, self.layers, self.images, self.snapshots, self.lake, self.log, self.keys, self.runs,
             self.tasks, self.tenants, self.tenants.with_suffix(".lock"), *database)
        )  # fmt: skip
