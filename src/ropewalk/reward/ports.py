"""What grading needs of a sandbox, as small Protocols.

`ropewalk.sandbox.sandbox.Sandbox` and `ropewalk.sandbox.sandboxes.Sandboxes` fit them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ropewalk.core.outcomes import Termination
from ropewalk.sandbox.contract import SandboxSpec, SandboxStats


class CommandResult(Protocol):
    """How a command in a sandbox ended."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...
    @property
    def truncated(self) -> bool: ...
    @property
    def termination(self) -> Termination: ...
    @property
    def duration_s(self) -> float: ...
    @property
    def cpu_s(self) -> float: ...


class ListedPath(Protocol):
    """One path in a sandbox, by lstat."""

    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def size(self) -> int: ...


class GradingSandbox(Protocol):
    """One sandbox."""

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = ...,
        output_bytes_max: int = ...,
    ) -> CommandResult: ...

    async def read_many(
        self, paths: Sequence[str], *, bytes_max: int = ..., follow: bool = True
    ) -> Mapping[str, bytes]: ...

    async def write_many(self, files: Mapping[str, bytes]) -> None: ...

    async def list(
        self, path: str, *, recursive: bool = False, digests: bool = False, entries_max: int = ..., bytes_max: int = ...
    ) -> Sequence[ListedPath]: ...

    async def remove(self, path: str) -> None: ...

    async def stats(self) -> SandboxStats: ...

    async def close(self) -> None: ...


class GradingSandboxes(Protocol):
    """Makes sandboxes."""

    async def create(self, spec: SandboxSpec) -> GradingSandbox: ...
