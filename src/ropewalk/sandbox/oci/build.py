"""Builds an image from a Dockerfile by buildah(1), without a daemon: `--isolation chroot`, everything in one folder.

What a Dockerfile runs is kept in by a chroot and, started as root, by process and mount namespaces; that is no sandbox.
Build what you would run on this machine yourself.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ropewalk.core import limits
from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.sandbox import privilege

_NAME: Final = "localhost/ropewalk-build:latest"
_FROM: Final = re.compile(r"^\s*FROM\s+(?:--platform=\S+\s+)?([^\s$]+)", re.IGNORECASE | re.MULTILINE)
_LINES_KEPT: Final = 12
_DOCKERFILE_BYTES_MAX: Final = 1 << 20
_POLICIES: Final = (Path("/etc/containers/policy.json"), Path("~/.config/containers/policy.json"))
_POLICY: Final = '{"default": [{"type": "insecureAcceptAnything"}]}'


def base_names(dockerfile: Path) -> tuple[str, ...]:
    """What the Dockerfile's stages begin with, as far as it is spelt out there.

    Raises:
        CallerError: it cannot be read.
    """
    try:
        with dockerfile.open(encoding="utf-8") as file:
            text = file.read(_DOCKERFILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise CallerError(f"{dockerfile} cannot be read: {error}.", next_step="name it with --file.") from error
    return tuple(dict.fromkeys(name for name in _FROM.findall(text) if name.lower() != "scratch"))


class Builder:
    """One build, in a folder that goes with it."""

    def __init__(
        self, folder: Path, *, offline: bool, stop: threading.Event, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        """
        Args:
            folder: for all of buildah's files.
            offline: nothing is fetched, and what is run has no network.

        Raises:
            UnavailableError: there is no buildah.
        """
        program = shutil.which("buildah")
        if program is None:
            raise UnavailableError(
                "Building an image from a Dockerfile needs buildah, which is not installed.",
                next_step="apt install buildah (Debian, Ubuntu), or import an archive that was built elsewhere.",
            )
        self._folder = folder
        self._offline = offline
        self._stop = stop
        self._tell = tell
        self._program = [program, "--root", f"{folder}/root", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]

    def lend(self, archive: Path) -> None:
        """Makes an image known to the build under its name, out of a docker-archive."""
        self._run(["pull", *self._policy(), f"docker-archive:{archive}"], "Lending a local image to the build failed")

    def build(
        self, context: Path, dockerfile: Path, *, arguments: Mapping[str, str], target: str = ""
    ) -> Path:  # fmt: skip
        """Builds, and returns an OCI layout of the result.

        Raises:
            CallerError: the build failed; the message ends with its last lines.
            UnavailableError: it took longer than limits.IMAGE_BUILD_TIMEOUT_S, or was stopped.
        """
        command = ["bud", "--isolation", "chroot", *self._policy(), "--file", str(dockerfile), "--tag", _NAME,
                   *(part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")),
                   *(("--target", target) if target else ()), *(("--pull-never",) if self._offline else ()),
                   str(context)]  # fmt: skip
        self._run(command, "The build failed")
        out = self._folder / "out"
        self._run(["push", *self._policy(), "--disable-compression", _NAME, f"oci:{out}:built"], "The build failed")
        return out

    def _policy(self) -> Sequence[str]:
        """buildah refuses to work without one; the machine's own holds where there is one."""
        if any(path.expanduser().exists() for path in _POLICIES):
            return ()
        own = self._folder / "policy.json"
        own.write_text(_POLICY, encoding="ascii")
        return ("--signature-policy", str(own))

    def _run(self, arguments: Sequence[str], failed: str) -> None:
        (self._folder / "tmp").mkdir(exist_ok=True)
        # Whatever ends us ends all of it: the namespace's first process goes, and the rest with it.
        around: tuple[str, ...] = ()
        if privilege.is_root():
            net = ("--net",) if self._offline else ()
            around = ("unshare", "--mount", "--pid", *net, "--fork", "--kill-child=SIGKILL", "--mount-proc")
        elif self._offline:
            around = ("unshare", "--user", "--map-current-user", "--net")
        environment = {**os.environ, "TMPDIR": str(self._folder / "tmp"), "BUILDAH_ISOLATION": "chroot"}
        lines: deque[str] = deque(maxlen=_LINES_KEPT)
        process = subprocess.Popen(
            [*around, *self._program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", env=environment, process_group=0,
        )  # fmt: skip
        reader = threading.Thread(target=self._follow, args=(process, lines), daemon=True)
        reader.start()
        deadline_s = time.monotonic() + limits.IMAGE_BUILD_TIMEOUT_S
        try:
            while process.poll() is None:
                if self._stop.wait(0.05):
                    raise UnavailableError("The build was stopped.", retry_after_s=0.0)
                if time.monotonic() > deadline_s:
                    raise UnavailableError(f"The build took more than {limits.IMAGE_BUILD_TIMEOUT_S:.0f} s.")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            reader.join(5)
            if process.stdout is not None:
                process.stdout.close()
        if process.returncode:
            told = "\n".join(line[-1000:] for line in lines)
            raise CallerError(
                f"{failed} (buildah exited with {process.returncode}):\n{told}",
                next_step="mend what its last lines say"
                + ("; the profile allows no network, so base images must be here." if self._offline else "."),
            )

    def _follow(self, process: subprocess.Popen[str], lines: deque[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip():
                lines.append(line.rstrip("\n"))
                self._tell(line.strip()[:200])
