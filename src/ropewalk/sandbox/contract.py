"""What a sandbox driver must do. The docstrings are the specification.

A sandbox is an isolated computer where untrusted code runs: a root file system made of read-only layers below
a private writable one, its own processes, users, hostname and network (none by default), and limits. A driver
makes, saves and removes such computers and opens a byte stream to the guest agent inside. Everything a user
does with one (commands, files) is written once, above that stream, in `ropewalk.sandbox.sandbox`.

Result or exception: what code inside a sandbox does is a result. A sandbox that is gone is an exception.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, runtime_checkable

from anyio.abc import ByteStream

from ropewalk.core import limits
from ropewalk.core.errors import UnavailableError
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record


class Lease(StrEnum):
    """How long a sandbox lives if nobody destroys it."""

    ATTACHED = "attached"
    """As long as the process that made it: when that process dies, in whatever way, the sandbox dies too."""
    DETACHED = "detached"
    """Until its idle time limit; other processes reach it by its id."""


class SandboxSpec(Record):
    """What to build. Everything that decides the sandbox's behaviour is in here."""

    tenant: str
    """Who owns it: `[a-z0-9][a-z0-9-]{0,38}`. Two tenants never share user ids (but see `single_user`) or sockets.
    Image and layers must be this tenant's or public, which the service above the drivers checks (`Sandboxes`)."""
    image: str
    """Digest of the image's record in the image store (64 hexadecimal characters)."""
    layers: tuple[str, ...] = ()
    """Digests of read-only layers above the image's own, lowest first: wheels, sources."""
    data_class: str = "public"
    """Of all that is in it. Layers carry none: whoever makes the spec knows what they hold."""
    workdir: str = "/work"
    """Absolute. Created if absent; where commands start."""
    env: dict[str, str] = {}
    """Variables of every command, besides PATH, HOME, USER, LANG and TMPDIR. Nothing comes from the host."""
    user: str = ""
    """Who commands run as that say nothing else: a name or number inside; empty: root. Files are read and written by
    root, whoever this is."""
    hostname: str = "sandbox"
    cpus: float = limits.SANDBOX_CPUS
    memory_bytes: int = limits.SANDBOX_MEMORY_BYTES
    """Of what runs in it. Where the driver declares `disk_in_memory`, what is written counts as memory as well, and
    one limit of `memory_bytes + disk_bytes` holds for both: whoever writes nothing can use all of it."""
    disk_bytes: int = limits.SANDBOX_DISK_BYTES
    """What may be written above the layers. Past it writes fail with ENOSPC."""
    processes_max: int = limits.SANDBOX_PROCESSES_MAX
    lease: Lease = Lease.ATTACHED
    idle_timeout_s: float = limits.SANDBOX_IDLE_TIMEOUT_S
    """Without a command running or an open stream for this long, the sandbox ends itself."""
    labels: dict[str, str] = {}


class SandboxRecord(Record):
    """A sandbox that exists or existed."""

    id: str
    """`sandbox:` and a ULID."""
    driver: str
    spec: SandboxSpec
    snapshot: str | None
    """The snapshot it was forked from."""
    created_s: float


class SnapshotRecord(Record):
    """The immutable saved state of a sandbox."""

    id: str
    """`snapshot:` and the first 32 characters of the digest of its content: equal states have equal ids."""
    driver: str
    tenant: str
    parent: str | None
    """The snapshot that the saved sandbox was forked from."""
    spec: SandboxSpec
    """How to build a child; its `layers` hold the saved state."""
    layers: tuple[str, ...]
    """Digests of all layers above the image, lowest first."""
    memory: bool
    """Whether processes are saved too. False: a child starts with the disk alone."""
    unique_bytes: int
    """Stored for this snapshot alone; 0 also says that the same bytes were here, maybe another tenant's."""
    data_class: str
    label: str
    created_s: float


class Held(StrEnum):
    """Why nothing in a sandbox runs, which is nobody's doing inside."""

    SAVED = "saved"
    """A snapshot of it is being taken; it goes on by itself."""
    STOPPED = "stopped"
    """Somebody outside stopped it."""


class SandboxStats(Record):
    """Resources, measured outside the sandbox wherever the machine allows; None: not measurable here."""

    cpu_s: float | None
    """CPU time of everything inside, since creation."""
    cpu_wait_s: float | None
    """Time its tasks were ready to run and did not: high where the machine starved it."""
    memory_bytes_peak: int | None
    memory_bytes_unique: int | None
    """Held by this sandbox alone, now (USS)."""
    disk_bytes: int | None
    """Written above the layers."""
    processes: int | None
    out_of_memory_kills: int | None
    """Processes ended since the sandbox had used up the memory that it was given."""
    machine_kills: int | None = None
    """Processes ended since the machine had too little, though the sandbox kept to its limit. Nobody inside is to
    blame."""
    held: Held | None = None
    """None: it runs, as far as the driver can tell."""


class Probe(Record):
    """What a driver can do on this machine."""

    driver: str
    usable: bool
    version: str
    """Of the program behind it."""
    isolation: str
    """One line for people: what stands between the code and this machine."""
    declares: tuple[str, ...]
    """Restrictions and powers in words of the contract: `single_user`, `no_memory_limit`, `no_processes_limit`,
    `no_cpu_limit`, `no_cpu_accounting`, `disk_in_memory` (what is written counts as memory of the machine: a sandbox
    may hold its memory and its disk size together), `shared_counts` (what the kernel counts per user, inotify instances
    above all, comes out of the allowance of the user who started it, a small part for each sandbox), `no_inotify_limit`
    (and one sandbox can take all of those instances), `memory_fork` …"""
    problems: tuple[str, ...]
    """Why it is not usable or less than whole, each with the package or setting that helps."""


class SandboxGoneError(UnavailableError):
    """The sandbox is no more. `termination` says why, as far as its driver can tell.

    `silence`: it was ended since its agent did not answer in time, and this is how it stood then; None: otherwise.
    """

    def __init__(
        self,
        message: str,
        *,
        termination: Termination = Termination.INFRASTRUCTURE,
        next_step: str = "create or fork another one.",
        silence: SandboxStats | None = None,
    ) -> None:
        super().__init__(message, next_step=next_step)
        self.termination = termination
        self.silence = silence


@runtime_checkable
class SandboxDriver(Protocol):
    """Every method may raise `UnavailableError` when the machine fails it, never when code inside does."""

    def probe(self) -> Probe:
        """What can be done here. Tries it rather than looks for files; at most 2 s; changes nothing."""
        ...

    async def create(self, spec: SandboxSpec, *, id: str) -> SandboxRecord:
        """A running sandbox whose agent answers.

        Idempotent by `id`: a second call with the same spec returns the first one's record.

        Raises:
            CallerError: unknown image or layer, a bad field, or `id` is taken by another spec.
            DeniedError: the machine forbids what isolation needs (rule `isolation`), never a weaker sandbox instead.
            UnavailableError: out of some resource.
        """
        ...

    async def snapshot(self, id: str, *, label: str = "") -> SnapshotRecord:
        """Saves the state as of one instant; the sandbox keeps running and loses nothing. The caller keeps the record.

        What is not saved (memory, where the driver declares no `memory_fork`) is not in the record either.

        Raises:
            CallerError: it holds what cannot be saved (more bytes than its disk has, by holes; too many levels).
            SandboxGoneError: it died before.
            UnavailableError: no room, or it cannot be stopped; nothing is left behind.
        """
        ...

    async def fork(self, snapshot: SnapshotRecord, *, id: str, lease: Lease = Lease.ATTACHED) -> SandboxRecord:
        """A new sandbox in the saved state, with an identity of its own (hostname, agent token, boot id).

        Raises:
            IntegrityError: the record is not what its id says, or stored bytes are not what their digests say.
            CallerError: the snapshot is another driver's, or a layer of it is unknown.
        """
        ...

    async def destroy(self, id: str) -> None:
        """Ends it and removes all that belongs to it. Idempotent; also for one that is half made or dead."""
        ...

    async def stats(self, id: str) -> SandboxStats:
        """Now, or at its end where the sandbox died and its record remains.

        Raises:
            SandboxGoneError: no trace of it is left.
        """
        ...

    async def stream(self, id: str) -> ByteStream:
        """A new connection to the agent; any number may be open at once, from any process that owns the state.

        Raises:
            SandboxGoneError: nobody answers any more.
        """
        ...


@runtime_checkable
class SupportsReap(Protocol):
    """A driver whose sandboxes can outlive their owner's crash."""

    async def reap(self) -> tuple[str, ...]:
        """Removes whatever no living lease owns, and returns the ids. Called at every start."""
        ...

    async def records(self) -> tuple[SandboxRecord, ...]:
        """All sandboxes that still run, oldest first."""
        ...

    async def record(self, id: str) -> SandboxRecord | None:
        """Of one that exists, also of one that is half made or dead; None: there is nothing of that id."""
        ...
