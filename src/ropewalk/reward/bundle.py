"""A bundle: the declared artefacts that an episode hands to its grader, and nothing else."""

from __future__ import annotations

from ropewalk.core.records import Record, content_id
from ropewalk.interface.task import Task
from ropewalk.reward.box import Box
from ropewalk.store.contract import Blobs


class Bundle(Record):
    """Files that differ from the task's source. Stored as a blob; `digest` is its identity."""

    task: str
    """Id of the task."""
    base: str
    """Digest of the `FileSet` it is compared with (`Task.source`)."""
    files: dict[str, str] = {}
    """Path relative to the task's workdir → digest in the blob store: added or changed."""
    deleted: tuple[str, ...] = ()
    refused: str = ""
    """Why nothing was taken, typed: `link`, `not_a_file`, `name`, `collision`, `file_too_large`, `too_large`,
    `too_many_files`, `unreadable`. Then there are no files, and the grader scores 0."""
    detail: str = ""

    @property
    def id(self) -> str:
        """`bundle:` and the first 32 characters of its digest."""
        return content_id("bundle", self)


async def capture(box: Box, task: Task, blobs: Blobs) -> Bundle:
    """What the episode changed in the declared files; stores contents and the bundle's own record.

    A violation is a result, not an exception: the candidate made those files.

    Raises:
        SandboxGoneError: the sandbox died; the episode has no bundle.
    """
    raise NotImplementedError


async def apply(bundle: Bundle, box: Box, blobs: Blobs, *, workdir: str) -> None:
    """Writes and deletes a bundle's files in a sandbox that holds the source before."""
    raise NotImplementedError
