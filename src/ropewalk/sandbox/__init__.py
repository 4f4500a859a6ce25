"""The sandbox contract, images, snapshots and forks, guest agent protocol."""

from ropewalk.sandbox.contract import (
    Lease,
    SandboxDriver,
    SandboxGoneError,
    SandboxRecord,
    SandboxSpec,
    SandboxStats,
    SnapshotRecord,
)
from ropewalk.sandbox.files import DiskFullError, FileEntry, FileError
from ropewalk.sandbox.process import ExecResult, Output, Process, TerminalSize
from ropewalk.sandbox.sandbox import Sandbox, Snapshot
from ropewalk.sandbox.sandboxes import Sandboxes

__all__ = [
    "DiskFullError",
    "ExecResult",
    "FileEntry",
    "FileError",
    "Lease",
    "Output",
    "Process",
    "Sandbox",
    "SandboxDriver",
    "SandboxGoneError",
    "SandboxRecord",
    "SandboxSpec",
    "SandboxStats",
    "Sandboxes",
    "Snapshot",
    "SnapshotRecord",
    "TerminalSize",
]
