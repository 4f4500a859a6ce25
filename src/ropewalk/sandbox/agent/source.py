"""The agent as it is shown to sandboxes: bytecode in few files. Host side."""

from __future__ import annotations

import importlib.util
import marshal
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

PROGRAM = "agent.pyc"
"""What to start, with `FLAGS`, and with the folder it is in as PYTHONPATH."""
FLAGS = ("-s", "-P", "-S", "-X", "utf8")
"""Not `-I`, which would ignore PYTHONPATH: whoever starts it gives it an environment without other PYTHON… in it."""
PLACE = "/.ropewalk/agent"
"""In the sandbox."""
_PACKAGE = "ropewalk_agent"
_MODULES = ("wire", "spawn", "command", "connection", "processes", "files", "loop")


def packed() -> dict[str, bytes]:
    """The files of the folder, for a Python of this one's version. Equal sources give equal bytes."""
    modules = {f"{_PACKAGE}.{name}": _dumped(_code(name)) for name in _MODULES}
    return {
        PROGRAM: _bytecode(_code("start")),
        "modules": marshal.dumps(modules, 2),  # each by itself: not all are needed at once
        "encodings/__init__.pyc": _bytecode(_code("codecs_utf8")),
    }


def unpack(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Writes the files into a folder; returns how to go on after the interpreter's name, and the environment."""
    for name, data in packed().items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return [*FLAGS, str(folder / PROGRAM)], {"PYTHONPATH": str(folder)}


def _code(name: str) -> CodeType:
    """From cached bytecode where there is some; without the paths of this machine."""
    loader = SourceFileLoader(name, str(Path(__file__).with_name(f"{name}.py")))
    code = loader.get_code(name)
    assert code is not None
    return _placed(code, f"{PLACE}/{name}.py")


def _placed(code: CodeType, filename: str) -> CodeType:
    constants = tuple(_placed(each, filename) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=filename, co_consts=constants)


def _bytecode(code: CodeType) -> bytes:
    """As in a .pyc file; flags, time and size are not looked at in one that stands alone."""
    return importlib.util.MAGIC_NUMBER + bytes(12) + _dumped(code)


def _dumped(code: CodeType) -> bytes:
    """marshal shares what has more than one reference at that moment, so that all is given one more: who else knows a
    name in this process must not show in the bytes."""
    fresh = marshal.loads(marshal.dumps(code, 2))
    held = list(_parts(fresh))
    try:
        return marshal.dumps(fresh)
    finally:
        held.clear()


def _parts(value: object) -> Iterator[object]:
    yield value
    members: tuple[object, ...] = ()
    if isinstance(value, tuple | frozenset):
        members = tuple(value)
    elif isinstance(value, CodeType):
        members = (
            value.co_consts, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars, value.co_filename,
            value.co_name, value.co_qualname, value.co_linetable, value.co_exceptiontable,
        )  # fmt: skip
    for member in members:
        yield from _parts(member)
