"""Which declared files an episode changed: digests by path, compared step by step."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

import anyio.to_thread

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.records import digest_bytes
from ropewalk.interface.task import Task
from ropewalk.reward.globs import matches_any
from ropewalk.rollout.ports import EpisodeSandbox
from ropewalk.store.contract import Blobs

GONE = ""
"""Stands for a deleted file where a digest would be."""
_Seen = tuple[str, int]
"""Digest and size in bytes."""


def read_files(blobs: Blobs, files: Mapping[str, str]) -> dict[str, bytes]:
    """Contents by path, for digests by path."""
    return {path: blobs.get(digest, bytes_max=limits.FILE_BYTES_MAX) for path, digest in files.items()}


class FileWatch:
    """The declared files as they were last seen.

    New contents are stored for good, so there is only so much of them: in one look no more than a bundle may hold,
    and in all looks of an episode together no more either. What is past that is not noted.
    """

    def __init__(self, task: Task, blobs: Blobs, before: Mapping[str, str]) -> None:
        """`before`: digests by path relative to the workdir, as the episode begins."""
        self._task = task
        self._blobs = blobs
        self.current = dict(before)
        self._files_left = limits.BUNDLE_FILES_MAX
        self._bytes_left = limits.BUNDLE_BYTES_MAX

    async def look(self, sandbox: EpisodeSandbox) -> dict[str, str]:
        """What changed since the last look; new contents are stored as blobs.

        A candidate that makes its files unreadable or too many to list hides them from the record, and gains nothing:
        the bundle is refused for the same reason.
        """
        try:
            return await self._look(sandbox)
        except CallerError:
            return {}

    async def _look(self, sandbox: EpisodeSandbox) -> dict[str, str]:
        seen = await self._list(sandbox)
        changed, bytes_total = self._within_bounds(seen)
        changes = {path: GONE for path in self.current if path not in seen}
        if changed:
            workdir = self._task.workdir
            paths = [posixpath.join(workdir, path) for path in changed]
            contents = await sandbox.read_many(paths, bytes_max=bytes_total)
            data = [contents[posixpath.join(workdir, path)] for path in changed]
            digests = await anyio.to_thread.run_sync(self._blobs.put_many, data)
            changes.update(zip(changed, digests, strict=True))
            self._files_left -= len(changed)
            self._bytes_left -= bytes_total
        self._note(changes)
        return changes

    def _within_bounds(self, seen: Mapping[str, _Seen]) -> tuple[list[str], int]:
        """Those changed paths whose contents there is room for, in order, and their bytes."""
        chosen: list[str] = []
        bytes_total = 0
        for path, (digest, size) in sorted(seen.items()):
            fits = len(chosen) < self._files_left and bytes_total + size <= self._bytes_left
            if fits and self.current.get(path) != digest:
                chosen.append(path)
                bytes_total += size
        return chosen, bytes_total

    async def put(self, files: Mapping[str, bytes | None]) -> dict[str, str]:
        """Notes files that trusted code wrote, without looking; returns what that changed."""
        kept = {path: data for path, data in files.items() if data is not None}
        await anyio.to_thread.run_sync(self._blobs.put_many, list(kept.values()))
        new = {path: digest_bytes(data) for path, data in kept.items()}
        changes = {path: digest for path, digest in new.items() if self.current.get(path) != digest}
        changes.update({path: GONE for path, data in files.items() if data is None and path in self.current})
        self._note(changes)
        return changes

    def _note(self, changes: Mapping[str, str]) -> None:
        for path, digest in changes.items():
            if digest == GONE:
                self.current.pop(path, None)
            else:
                self.current[path] = digest

    async def _list(self, sandbox: EpisodeSandbox) -> dict[str, _Seen]:
        workdir = self._task.workdir
        seen = {}
        entries = await sandbox.list(
            workdir,
            recursive=True,
            digests=True,
            entries_max=limits.WORK_ENTRIES_MAX,
            bytes_max=limits.WORK_LISTING_BYTES_MAX,
        )
        for entry in entries:
            path = posixpath.relpath(entry.path, workdir) if entry.path.startswith("/") else entry.path
            # Links and files past the size limit are the bundle's business: it refuses them, with its reason.
            fits = entry.kind == "file" and entry.size <= limits.BUNDLE_FILE_BYTES_MAX and entry.sha256
            if fits and path.isprintable() and matches_any(path, self._task.editable):
                seen[path] = (entry.sha256 or "", entry.size)
        return seen
