"""A grader's specification: everything that decides a verdict, by digest.

Mode `values`: the held-out tests are shipped without their expected values. In the grading sandbox each assertion
only evaluates the candidate's side and hands it out as plain data; the comparison happens in the supervisor, which
alone holds the expected values. Whoever controls the candidate's process can say any value, and is paid only for
the right one.
"""

from __future__ import annotations

from typing import Literal

from ropewalk.core import limits
from ropewalk.core.records import Record, digest


class GraderLimits(Record):
    """Of one grading. CPU time is the candidate's, wall time also the machine's: see the verdict's attribution."""

    cpu_s: float
    wall_s: float
    """At least four times `cpu_s`: processes that make each other wait then use up their CPU time first, and so
    cannot pass for starved."""
    memory_bytes: int = limits.SANDBOX_MEMORY_BYTES
    output_bytes_max: int = 8 * limits.MIB
    attempts_max: int = 2
    """Of gradings that fail by infrastructure before the verdict is `infra_error`."""


class GraderSpec(Record):
    """Stored as a blob; its digest is the grader's identity."""

    name: str
    version: str
    """Semantic: a patch release never changes a verdict."""
    mode: Literal["values"] = "values"
    image: str
    layers: tuple[str, ...]
    """Layers of the clean sandbox: wheels and the source before, without any tests."""
    workdir: str
    editable: tuple[str, ...]
    """Globs of what a bundle may hold; anything else in it refuses the bundle."""
    import_paths: tuple[str, ...] = (".",)
    """Folders, relative to `workdir`, that the candidate's modules are imported from."""
    plugins: tuple[str, ...] = ()
    """Pytest plugins by module name."""
    ini: dict[str, str] = {}
    """Pytest options; the project's own configuration is not read."""
    hidden: str
    """Digest of the `FileSet` of shipped tests (instrumented, without expected values)."""
    probe: str
    """Digest of the `FileSet` of the program that runs them."""
    expected: str
    """Digest of the expected record (`ExpectedRecord`); never enters a sandbox."""
    tests: tuple[str, ...]
    """Keys (`ropewalk.reward.suite.TestOutcome.key`) of held-out tests, all of which must match. Keys rather than
    node ids: the id of a parametrised test can spell out an expected value."""
    guess_bits: float
    """Entropy that a forger who knows everything but the expected values must guess; at least 10."""
    limits: GraderLimits
    level: str = "H3"

    @property
    def digest(self) -> str:
        return digest(self)
