"""Builds the guest agent where the package is built: `agent/src/*.c` → `src/ropewalk/sandbox/agent/agent-MACHINE`.

With `musl-gcc` where it is and the machine is this one, else with Zig (from PyPI, asked for only then). What was built
out of the same sources is used again, so that an editable install is quick. `ROPEWALK_AGENT_MACHINE=aarch64` builds
the wheel of another architecture.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "agent"
PLACE = ROOT / "src" / "ropewalk" / "sandbox" / "agent"
MACHINES = ("x86_64", "aarch64")
ZIG = "ziglang>=0.14,<1"


class AgentBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Named in pyproject.toml."""

    def dependencies(self) -> list[str]:
        """Zig, where nothing lighter does."""
        machine = wanted_machine()
        return [ZIG] if self.target_name != "sdist" and not is_built(machine) and musl_gcc(machine) is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before files are gathered."""
        if self.target_name == "sdist":
            return
        machine = wanted_machine()
        if machine not in MACHINES or platform.system() != "Linux":
            self.app.display_warning(f"There is no guest agent for {platform.system()} on {machine}.")
            return
        build(machine)
        if version != "editable":
            program = placed(machine).relative_to(ROOT)
            build_data["force_include"][str(ROOT / program)] = str(Path(*program.parts[1:]))
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-manylinux2014_{machine}"


def wanted_machine() -> str:
    """Of the wheel."""
    return os.environ.get("ROPEWALK_AGENT_MACHINE") or platform.machine()


def placed(machine: str) -> Path:
    """Where the package looks for it."""
    return PLACE / f"agent-{machine}"


def musl_gcc(machine: str) -> str | None:
    """A compiler that is there already; it knows its own machine only."""
    return shutil.which("musl-gcc") if machine == platform.machine() else None


def digest() -> str:
    """Of all that decides what is built."""
    state = hashlib.sha256()
    for path in sorted([*SOURCES.glob("src/*.[ch]"), SOURCES / "flags"]):
        state.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return state.hexdigest()


def is_built(machine: str) -> bool:
    """Whether the last build was of these sources."""
    note = SOURCES / "build" / f"{machine}.digest"
    return placed(machine).is_file() and note.is_file() and note.read_text() == digest()


def build(machine: str) -> None:
    """Compiles, or does nothing where nothing changed."""
    if is_built(machine):
        return
    compiler = musl_gcc(machine)
    if compiler:
        command = [compiler]
    elif importlib.util.find_spec("ziglang"):
        command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl"]
    else:
        raise SystemExit(
            "The guest agent cannot be built: there is neither musl-gcc nor Zig.\n"
            f"Next: apt install musl-tools (Debian, Ubuntu), or pip install '{ZIG}'."
        )
    folder = SOURCES / "build"
    folder.mkdir(exist_ok=True)
    fresh = folder / f"agent-{machine}"
    sources = [str(path.relative_to(SOURCES)) for path in sorted(SOURCES.glob("src/*.c"))]
    subprocess.run([*command, "@flags", "-o", str(fresh), *sources], cwd=SOURCES, check=True)
    fresh.chmod(0o755)
    fresh.replace(placed(machine))
    (folder / f"{machine}.digest").write_text(digest())


if __name__ == "__main__":
    build(wanted_machine())
    print(placed(wanted_machine()))
