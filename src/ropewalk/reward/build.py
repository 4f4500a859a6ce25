"""Builds a `values` grader out of held-out tests, a reference source and a broken one."""

from __future__ import annotations

from collections.abc import Mapping

from ropewalk.core.records import Record
from ropewalk.reward.box import Boxes
from ropewalk.reward.spec import GraderLimits, GraderSpec
from ropewalk.store.contract import Blobs


class GraderDraft(Record):
    """What a grader is built from."""

    name: str
    version: str = "1.0.0"
    tenant: str
    image: str
    layers: tuple[str, ...]
    """Layers of the broken source, without any tests."""
    workdir: str = "/work"
    editable: tuple[str, ...]
    oracle: str
    """Digest of the `FileSet` that turns the broken source into the reference."""
    tests: tuple[str, ...]
    """Held-out node ids (pytest's, relative to `workdir`)."""
    import_paths: tuple[str, ...] = (".",)
    plugins: tuple[str, ...] = ()
    ini: dict[str, str] = {}
    limits: GraderLimits


class GraderBuild(Record):
    """A grader, or why there is none."""

    spec: GraderSpec | None
    digest: str = ""
    """Of the spec in the blob store."""
    refused: str = ""
    """Typed: `no_voting_killer`, `low_entropy`, `flaky`, `reference_fails`, `broken_hangs`, `not_collected`,
    `not_parsable`, `shipped_differs`."""
    detail: str = ""
    tests: tuple[str, ...] = ()
    """Held-out node ids that the grader requires."""
    killers: tuple[str, ...] = ()
    """Those of them that a voting point tells apart on the broken source."""
    points: int = 0
    """Values that vote."""
    killer_points: int = 0
    guess_bits: float = 0.0


async def build_values_grader(
    boxes: Boxes,
    blobs: Blobs,
    draft: GraderDraft,
    *,
    test_files: Mapping[str, bytes],
    visible_files: Mapping[str, bytes],
) -> GraderBuild:
    """Instruments, records on the reference and on the broken source, and stores the grader.

    Args:
        boxes: Makes the trusted sandboxes.
        blobs: Takes the spec, the shipped tests and the expected record.
        draft: What to build.
        test_files: Path relative to the workdir → content: the test modules of the held-out tests and every file
            they need (`conftest.py`, data).
        visible_files: What the policy may see besides the source, above all the visible tests. A value spelled out
            there is no secret and counts no bits.

    Raises:
        CallerError: the draft makes no sense.
        SandboxGoneError, UnavailableError: our side failed; try again.
    """
    raise NotImplementedError
