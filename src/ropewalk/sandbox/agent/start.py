"""The guest agent: runs commands and moves files inside a sandbox, for whoever holds its listening socket.

Started as process 1 of the sandbox, out of the folder that `source.packed` makes, visible read-only inside:
`PYTHONPATH=… python3 -s -P -S -X utf8 …/agent.pyc '{"listen_fd": 3, "idle_timeout_s": 900, …}'`. It needs nothing but
the standard library. Every sandbox waits for this start, so that it avoids the import system's work: this file
finds its siblings in one file of bytecode, and the few extension modules where they are.
"""

import gc
import marshal
import posix
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader
from _imp import extension_suffixes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

PACKAGE = "ropewalk_agent"
EXTENSIONS = {"_socket", "select", "resource", "_json", "_ctypes", "fcntl"}


class Finder:
    """Finds what the agent is made of without looking through folders; all else is left to the usual ways.

    Never by a folder of the sandbox: the tenant could replace modules of the standard library there.
    """

    def __init__(self, codes: dict[str, bytes]) -> None:
        self.codes = codes

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name in self.codes:
            return ModuleSpec(name, self)  # type: ignore[arg-type]  # all of a loader that is needed
        if name in EXTENSIONS and name not in sys.builtin_module_names:
            file = f"{sys.path[-1]}/{name}{extension_suffixes()[0]}"
            if posix.access(file, posix.R_OK):
                return ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)
        return None

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: "ModuleType") -> None:
        exec(marshal.loads(self.codes[module.__name__]), module.__dict__)


def read(path: str) -> bytes:
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return posix.read(fd, posix.fstat(fd).st_size)
    finally:
        posix.close(fd)


if __name__ == "__main__":
    gc.disable()
    codes = marshal.loads(read(__file__.rpartition("/")[0] + "/modules"))
    sys.meta_path.insert(0, Finder(codes))
    package = sys.modules[PACKAGE] = type(sys)(PACKAGE)
    package.__path__ = []
    # `from __future__ import annotations` looks its module up at run time, too: on disk, for nothing that we need.
    future = sys.modules["__future__"] = type(sys)("__future__")
    future.annotations = None  # type: ignore[attr-defined]

    for name in codes:  # what depends on others comes after them
        if name != PACKAGE + ".files":  # many sandboxes live without
            module = sys.modules[name] = type(sys)(name)
            module.__package__ = PACKAGE
            exec(marshal.loads(codes[name]), module.__dict__)
    gc.freeze()  # what is loaded by now is no garbage
    gc.enable()
    module.main(sys.argv[1])
