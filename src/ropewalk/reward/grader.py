"""The judge: a fresh sandbox, the bundle, tests without expected values, and a comparison outside."""

from __future__ import annotations

from ropewalk.core.clock import Clock
from ropewalk.core.records import Record
from ropewalk.interface.task import Task
from ropewalk.reward.box import Boxes
from ropewalk.reward.bundle import Bundle
from ropewalk.reward.verdict import Verdict
from ropewalk.store.contract import Blobs


class Controls(Record):
    """Whether a task's grader tells right from wrong."""

    admitted: bool
    reason: str
    """`ok`, `noop_passes`, `oracle_fails`, `infra_error`."""
    verdicts: tuple[Verdict, ...]
    """The no-op's, then the oracle's."""


class Grader:
    """Grades bundles. Stateless between gradings; safe to use from many tasks at once."""

    def __init__(self, boxes: Boxes, blobs: Blobs, *, tenant: str, clock: Clock | None = None) -> None:
        self._boxes = boxes
        self._blobs = blobs
        self._tenant = tenant
        self._clock = clock

    async def grade(self, task: Task, *, episode: str, bundle: Bundle | None, nonce: str = "") -> Verdict:
        """The verdict on one bundle.

        Args:
            task: The task that the episode worked on.
            episode: Its id.
            bundle: What it handed in; None where it ended without one (scored 0, `no_bundle`).
            nonce: 32 hexadecimal characters; drawn here if empty.

        Raises:
            CallerError: the bundle is another task's.
            IntegrityError: the spec, hidden or expected data do not match their digests.
        """
        raise NotImplementedError

    async def admit_controls(self, task: Task, *, repeats: int = 3) -> Controls:
        """No-op must score 0 and the oracle 1, `repeats` times."""
        raise NotImplementedError
