"""The default image, gathered from this machine: interpreter, pytest, shell, small programs and their libraries.

Nothing of the host's site-packages enters but pytest and what it requires, each file checked against the hash that
its package recorded. Times are fixed, so that bytecode stays valid wherever the layer is unpacked.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement

from ropewalk.core.errors import IntegrityError, UnavailableError
from ropewalk.core.records import digest

_VERSION = 2
"""Of this recipe: a change makes new images."""
_PACKAGE = "pytest"
_TIME_S = 1_577_836_800
_HOST_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
_PROGRAMS = """
sh bash dash [ awk mawk base32 base64 basename bunzip2 bzip2 cat chgrp chmod chown cksum cmp comm cp csplit cut date dd
df diff diff3 dir dirname du echo egrep env expand expr factor false fgrep file find fmt fold free git grep gunzip gzip
head hostname id install join kill less link ln logname ls md5sum mkdir mkfifo mktemp more mv nice nl nohup nproc numfmt
od paste patch pgrep pkill pidof printenv printf ps pwd readlink realpath rev rm rmdir sdiff sed seq setsid sha1sum
sha256sum sha512sum shred shuf sleep sort split stat stdbuf stty sum sync tac tail tar tee test timeout touch tr true
truncate tsort tty uname unexpand uniq unlink unxz uptime vdir wc which whoami xargs xz yes zcat zgrep
"""
_STDLIB_WITHOUT = {
    "test", "tests", "idlelib", "idle_test", "tkinter", "turtledemo", "turtle.py", "ensurepip", "lib2to3",
    "site-packages", "dist-packages", "__pycache__", "sitecustomize.py",
}  # fmt: skip
_MODULES_WITHOUT = ("_test", "xxlimited", "_xxtest", "_ctypes_test", "_tkinter", "config-")
_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "profile": "export PS1='\\w $ '\n",
}
_BESIDE_STDLIB = re.compile(r"/usr/local/lib/python\d+\.\d+/")
_PYTEST_SCRIPT = "#!/usr/local/bin/python3\nimport sys\n\nfrom pytest import console_main\n\nsys.exit(console_main())\n"


@cache
def key() -> str:
    """Changes when another image would come out. As this process found it at first: looking through what is installed
    takes as long as starting a sandbox."""
    return digest({
        "recipe": _VERSION, "python": sys.version, "executable": str(_interpreter()),
        "packages": {name: dist.version for name, dist in _closure(_PACKAGE).items()},
    })  # fmt: skip


def build(root: Path, tell: Callable[[str], None]) -> None:
    """Fills an empty folder.

    Raises:
        UnavailableError: this interpreter cannot be copied (no dynamic loader, no standard library on disk).
        IntegrityError: an installed file is not what its package says.
    """
    tell("copying the standard library")
    _skeleton(root)
    python = _copy_interpreter(root)
    tell("copying programs")
    _copy_programs(root)
    tell("copying pytest")
    _copy_packages(root)
    tell("copying libraries")
    _copy_libraries(root)
    tell("compiling")
    _settle(root)
    _compile(root, python)
    _settle(root)


def _skeleton(root: Path) -> None:
    for name in ("etc", "home/user", "work", "proc", "sys", "dev", "run", "var", "opt", "usr/bin", "usr/sbin",
                 "usr/lib", "usr/lib64", "usr/share", "usr/local/bin", "usr/local/lib", "usr/local/sbin"):  # fmt: skip
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "root").mkdir(mode=0o700)
    for name in ("tmp", "var/tmp"):
        (root / name).mkdir()
        (root / name).chmod(0o1777)
    for name, text in _ETC.items():
        (root / "etc" / name).write_text(text)


def _interpreter() -> Path:
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _copy_interpreter(root: Path) -> Path:
    source = _interpreter()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    stdlib = Path(sysconfig.get_path("stdlib"))
    if not (stdlib / "os.py").is_file():
        raise UnavailableError(f"The standard library is not on disk at {stdlib}.", next_step="use a plain CPython.")
    _copy_file(source, root / "usr/local/bin" / version)
    for name in ("python3", "python"):
        (root / "usr/local/bin" / name).symlink_to(version)
    target = root / "usr/local/lib" / version
    for path in _members(stdlib):
        _copy_file(path, target / path.relative_to(stdlib))
    dynamic = sysconfig.get_config_var("DESTSHARED")
    if dynamic and Path(dynamic).parent != stdlib:
        for path in _members(Path(dynamic)):
            _copy_file(path, target / "lib-dynload" / path.name)
    return source


def _members(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        name = path.name
        if name in _STDLIB_WITHOUT or name.startswith(_MODULES_WITHOUT):
            continue
        if path.is_symlink() and folder not in path.resolve().parents:
            continue
        if path.is_dir():
            yield from _members(path)
        elif path.suffix in (".py", ".so", ".txt", ".json", ".css", ".html"):
            yield path


def _copy_programs(root: Path) -> None:
    for name in _PROGRAMS.split():
        if found := shutil.which(name, path=_HOST_PATH):
            _copy_file(Path(found).resolve(), root / "usr/bin" / name)


def _copy_packages(root: Path) -> None:
    site = root / _site_packages().lstrip("/")
    for name, dist in _closure(_PACKAGE).items():
        for file in dist.files or ():
            if ".." in file.parts or "__pycache__" in file.parts or file.is_absolute():
                continue
            source = Path(str(file.locate()))
            data = source.read_bytes()
            if file.hash is not None:
                found = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, data).digest()).rstrip(b"=").decode()
                if found != file.hash.value:
                    raise IntegrityError(
                        f"{source} of {name} {dist.version} was changed after it was installed.",
                        next_step=f"reinstall it: pip install --force-reinstall {name}=={dist.version}",
                    )
            elif file.name != "RECORD" and file.parent.suffix != ".dist-info":
                continue  # nobody vouches for it
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    script = root / "usr/local/bin/pytest"
    script.write_text(_PYTEST_SCRIPT)
    script.chmod(0o755)


def _closure(name: str) -> dict[str, importlib.metadata.Distribution]:
    """A distribution and what it requires, by name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = [name]
    while wanted:
        current = wanted.pop()
        if current in found:
            continue
        try:
            found[current] = importlib.metadata.distribution(current)
        except importlib.metadata.PackageNotFoundError as error:
            raise UnavailableError(f"{current} is not installed.", next_step=f"pip install {current}") from error
        for text in found[current].requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                wanted.append(requirement.name.lower())
    return dict(sorted(found.items()))


def _site_packages() -> str:
    """Where this interpreter would look for packages if it lay in /usr/local; distributions change that."""
    code = "import site; print('\\n'.join(site.getsitepackages(['/usr/local'])))"
    command = [str(_interpreter()), "-I", "-S", "-c", code]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return site_folder(answer.stdout.split())


def site_folder(searched: Sequence[str]) -> str:
    """The one beside the standard library, of the folders that an interpreter in /usr/local searches, in order.

    Debian's Python (scheme `posix_local`) first names one for the administrator, `/usr/local/local/lib/…`, since it
    expects to lie in /usr.
    """
    return next((path for path in searched if _BESIDE_STDLIB.match(path)), searched[0])


def _copy_libraries(root: Path) -> None:
    """The dynamic loader and every library that a copied program or module asks for.

    The host's own loader is asked (`--list`), as ldd does: it knows its cache and search paths.
    """
    loader = _loader(_interpreter())
    home = Path(loader).resolve().parent
    _copy_file(Path(loader).resolve(), root / loader.lstrip("/"))
    search = ":".join(filter(None, (sysconfig.get_config_var("LIBDIR"), str(home))))
    sources: dict[str, Path] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.is_symlink() or not _is_elf(path) or str(path).endswith(loader):
                continue
            answer = subprocess.run([loader, "--list", str(path)], capture_output=True, text=True, check=False,
                                    env={"LD_LIBRARY_PATH": search})  # fmt: skip
            if "not found" in answer.stdout + answer.stderr and ".so" in name:
                path.unlink()  # a module that would not load here either
                continue
            for line in answer.stdout.splitlines():
                soname, arrow, place = line.strip().partition(" => ")
                if arrow and place.startswith("/"):
                    sources.setdefault(soname, Path(place.rpartition(" (")[0]))
    for extra in ("libgcc_s.so.1",):  # loaded by the C library when a thread is cancelled
        if (home / extra).exists():
            sources.setdefault(extra, home / extra)
    standard = _library_folder(root, home)
    for soname, source in sources.items():
        _copy_file(source.resolve(), standard / soname)


def _library_folder(root: Path, home: Path) -> Path:
    """A folder that the loader searches by itself: its own, or the distribution's multiarch one."""
    text = str(home)
    return root / (text.lstrip("/") if text.startswith("/usr/") else f"usr/{text.lstrip('/')}")


def _loader(program: Path) -> str:
    """The dynamic loader that an ELF program names (PT_INTERP, type 3; ELF-64, little-endian)."""
    data = program.read_bytes()
    if data[:6] == b"\x7fELF\x02\x01":
        offset, size, count = (int.from_bytes(data[at : at + n], "little") for at, n in ((32, 8), (54, 2), (56, 2)))
        for at in range(offset, offset + size * count, size):
            if int.from_bytes(data[at : at + 4], "little") == 3:
                start = int.from_bytes(data[at + 8 : at + 16], "little")
                length = int.from_bytes(data[at + 32 : at + 40], "little")
                return data[start : start + length].rstrip(b"\0").decode()
    raise UnavailableError(f"{program} names no dynamic loader.", next_step="use a dynamically linked CPython.")


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.stat().st_mode & stat.S_IXUSR or target.suffix == ".so" else 0o644)


def _settle(root: Path) -> None:
    for folder, names, members in os.walk(root, topdown=False):
        for name in (*members, *names):
            os.utime(Path(folder, name), (_TIME_S, _TIME_S), follow_symlinks=False)
    os.utime(root, (_TIME_S, _TIME_S))


def _compile(root: Path, python: Path) -> None:
    """Bytecode for everything, with paths as they are inside. In processes of its own, one per core."""
    command = [
        str(python),
        *["-I", "-m", "compileall", "-q", "-j", "0", "-p", "/", "-s"],
        str(root),
        str(root / "usr/local/lib"),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode and "SyntaxError" not in answer.stdout:
        raise UnavailableError(f"The image's bytecode could not be made: {(answer.stdout + answer.stderr)[-500:]}")
