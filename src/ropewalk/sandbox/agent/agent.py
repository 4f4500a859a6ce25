"""The guest agent: runs commands and moves files inside a sandbox, for whoever holds its listening socket.

Started as process 1 of the sandbox: `python3 -I -S …/agent.py '{"listen_fd": 3, "idle_timeout_s": 900, …}'`, with
this whole folder visible, read-only. It needs nothing but the standard library. This file only finds its siblings:
they come from cached bytecode, where compiling them at every start would take longer than everything else.
"""

import sys

if __name__ == "__main__":
    # Not by sys.path: a folder of the sandbox there would let the tenant replace modules of the standard library.
    package = type(sys)("ropewalk_agent")
    package.__path__ = [__file__.rpartition("/")[0] or "."]
    sys.modules["ropewalk_agent"] = package
    # `from __future__ import annotations` looks its module up at run time, too: on disk, for nothing that we need.
    future = sys.modules["__future__"] = type(sys)("__future__")
    future.annotations = None  # type: ignore[attr-defined]

    from ropewalk_agent.loop import main  # type: ignore[import-not-found]

    del sys.modules["__future__"]
    main(sys.argv[1])
