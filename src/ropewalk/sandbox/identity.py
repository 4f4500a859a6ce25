"""No driver calls this yet, since none forks memory: making a forked guest another machine than the one it was forked
from, and the receipt of it.

A fork that carries memory carries the parent's random state, names and clock, too. The host sends what the child is
to be, the agent does what it may, and answers with what the guest itself now sees. What is missing or repeated in
that answer is a reason not to hand the child out: `check` fails closed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Final

from ropewalk.core import limits
from ropewalk.core.errors import IntegrityError
from ropewalk.core.records import Record
from ropewalk.sandbox.connection import Connection, copy_of
from ropewalk.sandbox.contract import SandboxGoneError
from ropewalk.sandbox.protocol import Fields, FrameKind, Key, ProtocolError, field

RANDOM_BYTES: Final = 16
_ANSWER_BYTES_MAX: Final = 64 * limits.KIB


class GuestIdentity(Record):
    """What a guest shall be. Empty: left as it is."""

    hostname: str = ""
    machine_id: str = ""
    """Of /etc/machine-id: 32 hexadecimal digits."""
    boot_id: str = ""
    """A UUID; only where the agent is a machine's first process. Elsewhere the driver sees to it."""
    token: str = ""
    """A secret between the host and this agent, by which it proves that it is the one that was spoken to."""
    interfaces: tuple[str, ...] = ()
    """Each `NAME MAC ADDRESS/PREFIX GATEWAY`, what stays as it is as `-`."""


class IdentityReceipt(Record):
    """What the guest sees of itself, after what could be done."""

    hostname: str
    machine_id: str
    boot_id: str
    random: str
    """Fresh bytes of its kernel, hexadecimal: equal ones in two children are one random state."""
    time_ns: int
    """Its wall clock."""
    interfaces: tuple[str, ...]
    """`NAME MAC -` and `NAME - ADDRESS/PREFIX`."""
    steps: dict[str, str]
    """`done`, `mixed` (entropy: added, not credited) or `refused:` and an error's name, of each step asked for."""
    proof: str
    """SHA-256 of the token and the random bytes; empty without a token."""


class _Answer:
    """Who takes the one frame that comes back."""

    def __init__(self) -> None:
        self.payload: bytes | None = None
        self.kind = 0
        self.error: SandboxGoneError | None = None
        self.over = asyncio.Event()

    def frame(self, kind: int, payload: bytes) -> None:
        if kind not in (FrameKind.IDENTITY, FrameKind.DONE, FrameKind.ERROR) or len(payload) > _ANSWER_BYTES_MAX:
            raise ProtocolError("something else than a receipt")
        self.kind, self.payload = kind, payload
        self.over.set()

    def lost(self, error: SandboxGoneError) -> None:
        self.error = error
        self.over.set()


async def _ask(connection: Connection, kind: FrameKind, payload: bytes) -> Fields:
    answer = _Answer()
    channel = connection.request(kind, payload, answer)
    try:
        reason = f"its agent did not answer {kind.name} in time"
        if error := await connection.owed(answer.over.wait, limits.FILE_CALL_TIMEOUT_S, reason):
            raise error
    finally:
        connection.release(channel)
    if answer.error:
        raise copy_of(answer.error)
    fields = Fields(answer.payload or b"")
    if answer.kind == FrameKind.ERROR:
        raise ProtocolError(f"The agent refused {kind.name}: {fields.text(Key.MESSAGE)}.")
    return fields


async def identify(
    connection: Connection, identity: GuestIdentity, *, seed: bytes, time_ns: int | None
) -> IdentityReceipt:
    """Sends an identity, random bytes and the time (None: its clock is the host's anyway), and returns what came of
    it. `check` it before the guest is used.

    Raises:
        SandboxGoneError: the sandbox died.
        ProtocolError: the agent knows no such request.
    """
    texts = {
        Key.HOSTNAME: identity.hostname, Key.MACHINE_ID: identity.machine_id, Key.BOOT_ID: identity.boot_id,
        Key.TOKEN: identity.token,
    }  # fmt: skip
    payload = b"".join(field(key, text.encode()) for key, text in texts.items() if text)
    payload += b"".join(field(Key.INTERFACE, text.encode()) for text in identity.interfaces)
    payload += (field(Key.SEED, seed) if seed else b"") + (field(Key.TIME_NS, time_ns) if time_ns is not None else b"")
    fields = await _ask(connection, FrameKind.IDENTIFY, payload)
    pairs = (step.decode("utf-8", "replace").partition("=") for step in fields.all(Key.STEP)[:64])
    return IdentityReceipt(
        hostname=fields.text(Key.HOSTNAME), machine_id=fields.text(Key.MACHINE_ID), boot_id=fields.text(Key.BOOT_ID),
        random=fields.bytes(Key.RANDOM).hex(), time_ns=fields.number(Key.TIME_NS),
        interfaces=tuple(each.decode("utf-8", "replace") for each in fields.all(Key.INTERFACE)[:128]),
        steps={name: outcome for name, _, outcome in pairs}, proof=fields.bytes(Key.SHA256).hex(),
    )  # fmt: skip


async def quiesce(connection: Connection) -> int:
    """Has the agent let go of all connections, also of this one, for a snapshot that can hold none; how many. Their
    commands end but for detached ones."""
    return (await _ask(connection, FrameKind.QUIESCE, b"")).number(Key.COUNT)


async def configure(connection: Connection, text: str) -> None:
    """Tells an agent that was started with `configure` (or was forked) its workdir, variables and idle time, as JSON.

    Raises:
        ProtocolError: it does not take them.
    """
    await _ask(connection, FrameKind.CONFIGURE, text.encode("utf-8", "surrogateescape"))


def check(
    receipt: IdentityReceipt,
    identity: GuestIdentity,
    *,
    others: Sequence[IdentityReceipt] = (),
    steps: Sequence[str] = (),
) -> IdentityReceipt:
    """A receipt that proves what was asked for, and that this guest is none of `others` (its parent, its siblings).

    `steps` must be `done`, or for entropy at least `mixed`.

    Raises:
        IntegrityError: something is missing, refused, or the same as another's.
    """
    missing = [name for name in steps if receipt.steps.get(name) != "done"
               and not (name == "entropy" and receipt.steps.get(name) == "mixed")]  # fmt: skip
    problems = [f"{name} was {receipt.steps.get(name, 'not done')}" for name in missing]
    for name in ("hostname", "machine_id", "boot_id"):
        wanted = getattr(identity, name)
        if wanted and getattr(receipt, name) != wanted:
            problems.append(f"its {name} is {getattr(receipt, name)!r}, not {wanted!r}")
    if len(receipt.random) != 2 * RANDOM_BYTES:
        problems.append("it shows no fresh random bytes")
    proof = hashlib.sha256(identity.token.encode() + bytes.fromhex(receipt.random)).hexdigest()
    if identity.token and receipt.proof != proof:
        problems.append("it does not prove its token")
    for other in others:
        same = [name for name in ("random", "boot_id", "hostname", "machine_id")
                if getattr(receipt, name) and getattr(receipt, name) == getattr(other, name)
                and (name == "random" or getattr(identity, name))]  # fmt: skip
        problems += [f"its {name} is also another's" for name in same]
    if problems:
        raise IntegrityError(
            f"A forked guest did not become a machine of its own: {'; '.join(problems)}.",
            next_step="fork again; where it repeats, this driver cannot give a fork an identity.",
        )
    return receipt
