"""Admitted tasks by id: one small file each, whole or not there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ropewalk.core.errors import CallerError
from ropewalk.core.records import canonical_bytes, decode_own
from ropewalk.machinery.files import replace_whole
from ropewalk.store.layout import Layout
from ropewalk.tasks.records import TaskRecord

_HEX: Final = re.compile(r"[0-9a-f]{4,32}")


class TaskStore:
    """All tasks that were admitted in one state directory."""

    def __init__(self, layout: Layout) -> None:
        self._folder = layout.tasks / "admitted"

    def add(self, records: Iterable[TaskRecord]) -> None:
        """Keeps tasks, durably. Idempotent."""
        for record in records:
            path = self._folder / f"{record.id.partition(':')[2]}.json"
            if not path.exists():
                replace_whole(path, canonical_bytes(record), parents=True)

    def records(self) -> tuple[TaskRecord, ...]:
        """All of them, by name."""
        found = [decode_own(path.read_bytes(), TaskRecord, what=path.name) for path in self._folder.glob("*.json")]
        return tuple(sorted(found, key=lambda record: (record.task.name, record.id)))

    def get(self, id: str) -> TaskRecord:
        """The task of an id, or of the beginning of one.

        Raises:
            CallerError: there is none, or several begin so.
        """
        prefix = id.removeprefix("task:")
        paths = list(self._folder.glob(f"{prefix}*.json")) if _HEX.fullmatch(prefix) else []
        if len(paths) != 1:
            raise CallerError(f"{len(paths) or 'No'} tasks are called {id!r}.", next_step="see `ropewalk task ls`.")
        return decode_own(paths[0].read_bytes(), TaskRecord, what=paths[0].name)
