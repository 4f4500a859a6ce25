"""The agent's program as it is installed, and other builds of the same sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent_builds import PROJECT, built

from ropewalk.core.errors import UnavailableError
from ropewalk.sandbox.agent import program

SUITES = ("test_agent.py", "test_agent_streams.py", "test_identity.py")


def elf(machine: int) -> bytes:
    return b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little")


def test_it_is_static_and_for_this_machine() -> None:
    data = program().read_bytes()
    assert b"/lib/ld-" not in data and b"/lib64/ld-" not in data


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read"), (elf(183), "no program for x86_64"), (b"#!/bin/sh", "no program")]
)
def test_a_missing_or_foreign_one_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, words: str
) -> None:
    path = tmp_path / "agent"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("ROPEWALK_AGENT", str(path))
    with pytest.raises(UnavailableError, match=words) as raised:
        program("x86_64")
    assert "make setup" in (raised.value.next_step or "")


def test_an_architecture_without_one_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="riscv64"):
        program("riscv64")


def test_equal_sources_give_equal_bytes(tmp_path: Path) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip("no musl-gcc to compile the agent again")
    shutil.copytree(PROJECT / "agent", tmp_path / "elsewhere", ignore=shutil.ignore_patterns("build"))
    sources = sorted(str(path.relative_to(tmp_path / "elsewhere")) for path in (tmp_path / "elsewhere/src").glob("*.c"))
    for name in ("one", "two"):
        command = ["musl-gcc", "@flags", "-o", str(tmp_path / name), *sources]
        subprocess.run(command, cwd=tmp_path / "elsewhere" if name == "one" else PROJECT / "agent", check=True)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_suites_pass_with_every_check_of_the_compiler() -> None:
    """Addresses, undefined behaviour and, where an agent ends by itself, leaks."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0"]
    command += [str(Path(__file__).with_name(name)) for name in SUITES]
    env = {**os.environ, "ROPEWALK_AGENT": str(built("agent-sanitized")), "ROPEWALK_ALLOWED_SKIPS": ""}
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT, env=env)
    assert answer.returncode == 0, answer.stdout[-6000:]


def test_it_runs_on_arm64(tmp_path: Path) -> None:
    if shutil.which("qemu-aarch64-static") is None:
        pytest.skip("no qemu-aarch64-static to run the agent for arm64")
    installed = Path(program().parent, "agent-aarch64")
    if not installed.is_file():
        pytest.skip("no agent for arm64 was built: make -C agent aarch64")
    answer = subprocess.run(["qemu-aarch64-static", installed, "version"], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("ropewalk agent, protocol 1")
