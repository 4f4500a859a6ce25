"""Eight machines, one state, eight identities: create a sandbox, save it, fork it, run something in each child.

Run it with `python examples/fork_a_sandbox.py`. The first run builds the default image (some seconds).
"""

from __future__ import annotations

import asyncio

from ropewalk import Ropewalk

PROGRAM = """
import pathlib, socket, sys
state = pathlib.Path("/work/state.txt").read_text().strip()
print(f"{socket.gethostname()} starts from {state!r} and tries {sys.argv[1]}")
"""


async def main() -> None:
    async with Ropewalk.open() as rw:
        async with rw.sandbox(memory_mib=256) as sandbox:
            await sandbox.write("/work/try.py", PROGRAM)
            await sandbox.exec("echo warmed up > /work/state.txt")
            ready = await sandbox.snapshot(label="ready")  # the sandbox keeps running

        async with ready.fork(8) as children:
            results = await asyncio.gather(
                *(child.exec(["python3", "/work/try.py", str(number)]) for number, child in enumerate(children))
            )
        for result in results:
            print(result.stdout, end="")
        await rw.sandboxes.drop_snapshot(ready.id)


if __name__ == "__main__":
    asyncio.run(main())
