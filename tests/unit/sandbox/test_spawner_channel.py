"""The driver's end of the spawner's answers."""

from __future__ import annotations

import json
import socket

import anyio

from ropewalk.sandbox.drivers.process.client import Channel, Message


async def test_several_may_wait_for_one_sandbox() -> None:
    """A sandbox that is destroyed while it is made has two who wait: each hears of its end."""
    ours, spawner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(ours)
    heard: list[Message | None] = []

    async def wait() -> None:
        heard.append(await channel.next())

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        spawner.send(json.dumps({"event": "ended", "status": 9}).encode())
        spawner.close()
    assert sorted(heard, key=str) == [None, None, {"event": "ended", "status": 9}]
    assert channel.ended == {"event": "ended", "status": 9}
    channel.close()


async def test_closing_wakes_whoever_waits() -> None:
    ours, spawner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(ours)
    heard: list[Message | None] = []

    async def wait() -> None:
        heard.append(await channel.next())

    with anyio.fail_after(5), spawner:
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            channel.close()
    assert heard == [None, None]
