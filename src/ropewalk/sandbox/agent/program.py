"""Where the guest agent's program is."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

from ropewalk.core.errors import UnavailableError

PLACE: Final = "/.ropewalk/agent"
"""Of its folder, in the sandbox."""
NAME: Final = "agent"
"""In that folder."""
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""Architectures it is built for, with their numbers in ELF headers (elf(5), e_machine)."""
_HEADER_BYTES: Final = 20
_NEXT: Final = "install a wheel of ropewalk for this machine, or build it: make setup"


def program(machine: str = "") -> Path:
    """A static executable for an architecture, this machine's by default.

    `ROPEWALK_AGENT` names another file: a build with a sanitizer in it, say.

    Raises:
        UnavailableError: this installation has none for it, or what is there is another architecture's.
    """
    machine = machine or platform.machine()
    named = os.environ.get("ROPEWALK_AGENT")
    path = Path(named) if named else Path(__file__).with_name(f"agent-{machine}")
    if machine not in _MACHINES:
        raise UnavailableError(f"There is no guest agent for {machine}, only for {', '.join(_MACHINES)}.")
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise UnavailableError(f"The guest agent {path} cannot be read: {error.strerror}.", next_step=_NEXT) from error
    if header[:4] != b"\x7fELF" or int.from_bytes(header[18:20], "little") != _MACHINES[machine]:
        raise UnavailableError(f"The guest agent {path} is no program for {machine}.", next_step=_NEXT)
    return path
