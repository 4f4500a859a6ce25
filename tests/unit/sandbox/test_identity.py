"""A forked guest becomes a machine of its own, and proves it, or is refused."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
import pytest

from ropewalk.core.errors import IntegrityError
from ropewalk.core.outcomes import Termination
from ropewalk.sandbox.agent import program
from ropewalk.sandbox.connection import Connection
from ropewalk.sandbox.contract import SandboxGoneError, SandboxStats
from ropewalk.sandbox.identity import GuestIdentity, IdentityReceipt, check, configure, identify, quiesce
from ropewalk.sandbox.protocol import ProtocolError
from ropewalk.sandbox.silence import Silence
from ropewalk.testing.unsandboxed import NAMESPACE, namespaces_work

OWN = GuestIdentity(hostname="child-1", machine_id="0123456789abcdef0123456789abcdef", token="secret")
GOOD = IdentityReceipt(
    hostname="child-1", machine_id=OWN.machine_id, boot_id="b1", random="11" * 16, time_ns=1, interfaces=(),
    steps={"entropy": "mixed", "hostname": "done"},
    proof="",
)  # fmt: skip
BARE = msgspec.structs.replace(OWN, token="")


class Owner:
    async def explain(self, reason: str) -> SandboxGoneError:
        return SandboxGoneError(reason)

    async def silence(self, answered: Callable[[], Awaitable[object]]) -> Silence | None:
        return Silence(Termination.INFRASTRUCTURE, "a test")

    async def give_up(
        self, reason: str, *, termination: Termination, silence: SandboxStats | None = None
    ) -> SandboxGoneError:
        return SandboxGoneError(reason, termination=termination)


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[Connection]:
    """In namespaces of its own, with an /etc of its own: whatever it changes is not this machine's."""
    if not namespaces_work():
        pytest.skip("this machine allows no process namespaces")
    (tmp_path / "etc").mkdir()
    path = tmp_path / "a.sock"
    inside = 'mount --bind "$0/etc" /etc && exec "$1" "$2"'
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)
        config = {"listen_fd": listener.fileno(), "workdir": str(tmp_path), "env": {"MARK": "before"}}
        line = [*NAMESPACE, "--uts", "--net", "sh", "-c", inside, str(tmp_path), str(program()), json.dumps(config)]
        process = await asyncio.to_thread(subprocess.Popen, line, pass_fds=[listener.fileno()])
    connection = await Connection.open(await anyio.connect_unix(path), Owner())
    yield connection
    await connection.close()
    process.kill()
    await asyncio.to_thread(process.wait)


async def test_it_becomes_what_it_is_told_and_proves_it(guest: Connection, tmp_path: Path) -> None:
    identity = msgspec.structs.replace(OWN, interfaces=("lo - 127.0.0.1/8 -", "nothing - - -"))
    receipts = [await identify(guest, identity, seed=b"s" * 32, time_ns=None) for _ in range(2)]
    for receipt in receipts:
        check(receipt, identity, steps=("entropy", "hostname", "machine_id", "token"))
        assert "lo - 127.0.0.1/8" in receipt.interfaces
        assert receipt.boot_id and receipt.time_ns
    assert receipts[0].random != receipts[1].random
    assert (tmp_path / "etc" / "machine-id").read_text() == OWN.machine_id + "\n"
    assert socket.gethostname() != OWN.hostname


async def test_what_is_not_allowed_is_said_and_refused(guest: Connection) -> None:
    """A boot id is the driver's to give where the kernel is shared."""
    identity = msgspec.structs.replace(OWN, boot_id="1b4e28ba-2fa1-11d2-883f-0016d3cca427")
    receipt = await identify(guest, identity, seed=b"", time_ns=None)
    assert receipt.steps["boot_id"] == "refused:EPERM"
    with pytest.raises(IntegrityError, match="boot_id"):
        check(receipt, identity)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hostname": "parent"}, "hostname"),
        ({"machine_id": ""}, "machine_id"),
        ({"random": ""}, "random"),
        ({"random": "22" * 16}, "random"),
        ({"steps": {"hostname": "done"}}, "entropy"),
        ({"steps": {"entropy": "refused:EPERM", "hostname": "done"}}, "refused"),
        ({"steps": {"entropy": "done", "hostname": "mixed"}}, "mixed"),
    ],
)
def test_a_receipt_that_proves_less_is_refused(changes: dict[str, object], words: str) -> None:
    parent = msgspec.structs.replace(GOOD, hostname="parent", machine_id="m", boot_id="b0", random="22" * 16)
    assert check(GOOD, BARE, others=[parent], steps=("entropy", "hostname")) is GOOD
    with pytest.raises(IntegrityError, match=words):
        check(msgspec.structs.replace(GOOD, **changes), BARE, others=[parent], steps=("entropy", "hostname"))


def test_a_token_must_be_proved_over_the_fresh_bytes() -> None:
    with pytest.raises(IntegrityError, match="token"):
        check(msgspec.structs.replace(GOOD, proof="00" * 32), OWN)


def test_two_children_with_one_name_are_one_machine() -> None:
    sibling = msgspec.structs.replace(GOOD, random="33" * 16)
    with pytest.raises(IntegrityError, match="another's"):
        check(GOOD, BARE, others=[sibling])


async def test_it_can_be_configured_again_and_quiesced(guest: Connection) -> None:
    await configure(guest, '{"env": {"MARK": "after"}}')
    with pytest.raises(ProtocolError, match="JSON"):
        await configure(guest, "{")
    assert await quiesce(guest) == 1
