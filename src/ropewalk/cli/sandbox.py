"""`ropewalk sandbox`: computers to use by hand. They are detached: they live until killed or idle for too long."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from anyio import CancelScope
from cyclopts import Parameter

from ropewalk.cli.apps import HERE, Place, command, noun
from ropewalk.cli.exit_codes import EXIT_TIMEOUT
from ropewalk.cli.opening import PREFIX_MIN, beginning, machines, named
from ropewalk.cli.output import print_json, print_table, say
from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.limits import MIB

if TYPE_CHECKING:
    from ropewalk.app.machines import Machines
    from ropewalk.sandbox.contract import SandboxRecord
    from ropewalk.sandbox.images import ImageRecord
    from ropewalk.sandbox.process import ExecResult
    from ropewalk.sandbox.sandbox import Sandbox

_ID = f"(?:sandbox:)?[0-9A-HJKMNP-TV-Z]{{{PREFIX_MIN},26}}"
"""As people type it in front of a path; a local one with such a beginning is written with ./ before it."""
_RELATIVE = re.compile(f"^{_ID}:(?!/)")
_INSIDE = re.compile(f"^({_ID}):(/.*)$", re.DOTALL)
app = noun("sandbox", "Create, use, snapshot, fork and end sandboxes.")


@command(
    app,
    "create",
    examples=[
        "ropewalk sandbox create",
        "ropewalk sandbox create ./rootfs.tar --memory-mib 256 --idle-timeout-s 3600",
        "ropewalk sandbox create --user nobody --env MODE=fast --label job=17",
    ],
)
async def create(
    image: str = "default",
    *,
    memory_mib: int | None = None,
    disk_mib: int | None = None,
    cpus: float | None = None,
    processes_max: int | None = None,
    env: Annotated[list[str] | None, Parameter(name="--env")] = None,
    user: str | None = None,
    workdir: str | None = None,
    label: Annotated[list[str] | None, Parameter(name="--label")] = None,
    idle_timeout_s: float = limits.SANDBOX_IDLE_TIMEOUT_S,
    data_class: str | None = None,
    id: str | None = None,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Starts a sandbox and prints its id.

    Args:
        image: default, a name or digest from `ropewalk image ls`, a root directory or an archive.
        memory_mib: Memory of what runs in it, beside what it writes. Where files are held in memory (`ropewalk doctor`
            says so), one limit holds for both: a process can use up to --memory-mib and --disk-mib together, so give
            both to bound it. Default: the profile's.
        disk_mib: How much it may write. Default: the profile's.
        cpus: CPU limit. Default: the profile's.
        processes_max: How many processes may run in it at once.
        env: Variable of every command as NAME=VALUE; may be repeated.
        user: Name or number inside, of commands that say no other. Default: the image's, mostly root.
        workdir: Absolute path where commands start; made if absent. Default: the image's.
        label: What people tell it by, as NAME=VALUE, which `sandbox ls` shows; may be repeated.
        idle_timeout_s: Ends itself after so long without a command.
        data_class: Of what it will hold: public, internal or restricted. Default: that of the image; never less.
        id: Its id (a ULID). Repeated with the same one the command starts nothing and prints it again. Default: a new
            one.
        json: Print JSON.
    """
    from ropewalk.app.machines import on_disk
    from ropewalk.sandbox.contract import Lease

    path = on_disk(image)
    async with machines(place) as here:
        record = await _imported(here, path, data_class) if path else image
        spec = await here.spec(
            record, memory_mib=memory_mib, disk_mib=disk_mib, cpus=cpus, processes_max=processes_max,
            env=variables(env or []), user=user, workdir=workdir, labels=variables(label or [], what="label"),
            idle_timeout_s=idle_timeout_s, data_class=data_class, lease=Lease.DETACHED,
        )  # fmt: skip
        sandbox = await here.sandboxes.create(spec, id=named(id, "sandbox") if id else None)
        print_json(sandbox.record) if json else print(sandbox.id)
    return 0


@command(
    app,
    "exec",
    examples=[
        "ropewalk sandbox exec ID -- python3 -c 'print(6 * 7)'",
        "ropewalk sandbox exec ID --timeout-s 5 'sleep 9; echo late'",
        "ropewalk sandbox exec ID --user nobody --env MODE=fast 'id; echo $MODE'",
        "ropewalk sandbox exec ID --detach 'python3 -m http.server 8000'",
    ],
    foreign=True,
)
async def exec_(
    sandbox: str,
    *words: Annotated[str, Parameter(allow_leading_hyphen=True)],
    cwd: str | None = None,
    env: Annotated[list[str] | None, Parameter(name="--env")] = None,
    user: str | None = None,
    timeout_s: float = limits.EXEC_TIMEOUT_S,
    stdin: bool = False,
    detach: bool = False,
    json: bool = False,
    entrypoint: bool = False,
    place: Place = HERE,
) -> int:
    """Runs a command and exits with its exit code (124: timed out, 128 + n: killed by signal n).

    Args:
        sandbox: Its id.
        words: The command, and all behind its first word. One word alone goes to /bin/sh -c.
        cwd: Working directory. Default: the sandbox's.
        env: Variable of the command as NAME=VALUE; may be repeated.
        user: Name or number inside. Default: the image's, mostly root.
        timeout_s: Ends the whole process tree after so long.
        stdin: Hand on standard input, as it comes.
        detach: Print the process id and leave it running, without a time limit and without its output.
        json: Print the whole result as JSON when the command has ended, instead of its output as it comes.
        entrypoint: Run what the image starts by itself; the words are its arguments, and none mean its own.
    """
    from ropewalk.cli.streams import stream

    if not words and not entrypoint:
        raise CallerError("No command was given.", next_step="ropewalk sandbox exec ID -- COMMAND …, or --entrypoint.")
    if detach and stdin:
        raise CallerError("A detached command has no input.", next_step="give --detach or --stdin.")
    line: str | list[str] = words[0] if len(words) == 1 else list(words)
    given = variables(env or [])
    async with machines(place) as here, _found(here, sandbox) as reached:
        if entrypoint:
            line = list(here.images.get(reached.record.spec.image).command(words))
        if detach:
            process = await reached.start(line, cwd=cwd, env=given, user=user, detach=True)
            if process.pid is not None:
                print_json({"pid": process.pid}) if json else print(process.pid)
                return 0
            result = await process.wait()
        elif json:
            fed = sys.stdin.buffer.read() if stdin else b""
            result = await reached.exec(line, cwd=cwd, env=given, user=user, stdin=fed, timeout_s=timeout_s)
        else:
            result = await stream(
                reached, line, cwd=cwd, env=given, user=user, timeout_s=timeout_s, stdin=stdin
            )  # fmt: skip
    if json:
        print_json(result)
        return result_code(result)
    if result.start_error:
        say_error(f"The command cannot be started: {result.start_error}.")
    if result.truncated:
        say_error(f"Output was cut: {result.stdout_bytes} and {result.stderr_bytes} bytes in all.")
    if result.termination != "finished":
        say_error(f"The command ended by {result.termination}.")
    elif result.exit_code is None:
        say_error(f"The command was killed by signal {result.signal}.")
    return result_code(result)


@command(
    app,
    "cp",
    examples=[
        "ropewalk sandbox cp ./a.py ID:/work/a.py",
        "ropewalk sandbox cp ./src ID:/work/src",
        "ropewalk sandbox cp ID:/work/out.json .",
    ],
)
async def cp(source: str, target: str, *, json: bool = False, place: Place = HERE) -> int:
    """Copies a file, or a folder with all in it, into or out of a sandbox. Links are left out.

    Args:
        source: A path here, or ID:/path inside.
        target: Likewise; one of the two is inside.
        json: Print JSON.
    """
    from ropewalk.cli.copying import copy_in, copy_out

    ends = _Ends(_inside(source), _inside(target))
    if (ends.source is None) == (ends.target is None):
        relative = next((each for each in (source, target) if _RELATIVE.match(each)), None)
        said = f"{relative[:80]!r}: a path inside begins with /" if relative else "write it as ID:/path"
        raise CallerError("Exactly one of the two must be inside a sandbox.", next_step=f"{said}.")
    id, inside = ends.target or ends.source or ("", "")
    async with _reached(place, id) as reached:
        id = reached.id
        if ends.target:
            await copy_in(reached, Path(source), inside)
        else:
            await copy_out(reached, inside, Path(target))
    if json:
        print_json({"source": source, "target": target, "sandbox": id})
    return 0


@command(app, "snapshot", examples=["ropewalk sandbox snapshot ID --label ready"])
async def snapshot(sandbox: str, *, label: str = "", json: bool = False, place: Place = HERE) -> int:
    """Saves a sandbox's state and prints the snapshot's id. The sandbox keeps running.

    Args:
        sandbox: Its id.
        label: A name for people.
        json: Print JSON.
    """
    async with _reached(place, sandbox) as reached:
        saved = await reached.snapshot(label)
        print_json(saved.record) if json else print(saved.id)
    return 0


@command(app, "fork", examples=["ropewalk sandbox fork snapshot:0123… --count 8 --idle-timeout-s 3600"])
async def fork(
    snapshot: str,
    *,
    count: int = 1,
    label: Annotated[list[str] | None, Parameter(name="--label")] = None,
    idle_timeout_s: float = limits.SANDBOX_IDLE_TIMEOUT_S,
    id: str | None = None,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Starts sandboxes in a snapshot's state and prints their ids. Where one fails, none of them stays.

    Args:
        snapshot: Its id.
        count: How many.
        label: NAME=VALUE, shown by `ropewalk sandbox ls`; may be repeated. What the saved sandbox had does not count.
        idle_timeout_s: Each ends itself after so long without a command; what the saved sandbox had does not count.
        id: Of the one sandbox (a ULID). Repeated with the same one the command starts nothing and prints it again.
            Default: a new one.
        json: Print JSON.
    """
    from ropewalk.sandbox.contract import Lease

    if not 1 <= count <= 1000:
        raise CallerError(f"{count} forks at once: 1 to 1000 are allowed.")
    if id and count > 1:
        raise CallerError(f"One id for {count} sandboxes.", next_step="leave out --id or --count.")
    chosen = named(id, "sandbox") if id else None
    labels = variables(label or [], what="label")
    async with machines(place) as here:
        origin = named(snapshot, "snapshot", lambda text: beginning(here.sandboxes.snapshots(), text))
        saved = here.sandboxes.snapshot(origin)
        made: list[SandboxRecord] = []
        try:
            while len(made) < count:
                forked = await saved.fork_one(
                    lease=Lease.DETACHED, id=chosen, idle_timeout_s=idle_timeout_s, labels=labels
                )
                made.append(forked.record)
        except BaseException:
            # Nobody was told their ids yet, so that nobody could end them.
            with CancelScope(shield=True):
                for record in made:
                    await here.sandboxes.destroy(record.id)
            raise
        if json:
            print_json(made)
        else:
            say("\n".join(record.id for record in made))
    return 0


@command(app, "ls", examples=["ropewalk sandbox ls", "ropewalk sandbox ls --json"])
async def ls(*, json: bool = False, place: Place = HERE) -> int:
    """Lists the sandboxes that run, oldest first.

    Args:
        json: Print JSON.
    """
    from ropewalk.core.clock import utc

    async with machines(place) as here:
        records = await here.sandboxes.records()
    if json:
        print_json(list(records))
        return 0
    print_table(
        ("sandbox", "driver", "since", "lease", ">memory MiB", "forked from", "labels"),
        (
            (
                r.id,
                r.driver,
                utc(r.created_s),
                r.spec.lease,
                r.spec.memory_bytes // MIB,
                r.snapshot or "",
                " ".join(f"{name}={value}" for name, value in sorted(r.spec.labels.items())),
            )
            for r in records
        ),
        empty="No sandbox runs. Next: ropewalk sandbox create",
    )
    return 0


@command(app, "attach", examples=["ropewalk sandbox attach ID", "ropewalk sandbox attach ID python3"], foreign=True)
async def attach(
    sandbox: str, *words: Annotated[str, Parameter(allow_leading_hyphen=True)], place: Place = HERE
) -> int:
    """Opens a live shell in a sandbox. Leave it with exit or Ctrl-D; the sandbox keeps running.

    Args:
        sandbox: Its id.
        words: Another program than a shell.
    """
    from ropewalk.sandbox.attach import SHELL
    from ropewalk.sandbox.attach import attach as connect

    async with _reached(place, sandbox) as reached:
        return result_code(await connect(reached, list(words) or SHELL))


@command(app, "kill", examples=["ropewalk sandbox kill ID", "ropewalk sandbox kill --all"])
async def kill(*sandboxes: str, all: bool = False, json: bool = False, place: Place = HERE) -> int:
    """Ends sandboxes and removes everything that belonged to them.

    Args:
        sandboxes: Their ids.
        all: All that run in this state directory.
        json: Print JSON.
    """
    if not sandboxes and not all:
        raise CallerError("No sandbox was named.", next_step="give ids, or --all.")
    async with machines(place) as here:
        there = [record.id for record in await here.sandboxes.records()]
        ids = there if all else [await _id(here, each) for each in sandboxes]
        for each in ids:
            await here.sandboxes.destroy(each)
            if not json:
                say(f"ended {each}" if each in there else f"{each} was not there any more")
    if json:
        print_json({"ended": ids})
    return 0


@asynccontextmanager
async def _reached(place: Place, sandbox: str) -> AsyncIterator[Sandbox]:
    """A sandbox that runs, by its id; it goes on afterwards."""
    async with machines(place) as here, _found(here, sandbox) as reached:
        yield reached


async def _imported(here: Machines, path: Path, data_class: str | None) -> ImageRecord:
    from ropewalk.app.images import ImageWork  # and an HTTP client, which the other commands do without

    return await ImageWork(here).import_file(path, data_class=data_class)


async def _id(here: Machines, sandbox: str) -> str:
    """A sandbox's id as people type it; its beginning stands for one that runs."""
    try:
        return named(sandbox, "sandbox")
    except CallerError:
        return named(sandbox, "sandbox", partial(beginning, await here.sandboxes.records()))


@asynccontextmanager
async def _found(here: Machines, sandbox: str) -> AsyncIterator[Sandbox]:
    reached = await here.sandboxes.open(await _id(here, sandbox))
    try:
        yield reached
    finally:
        await reached.disconnect()


def variables(pairs: list[str], *, what: str = "variable") -> dict[str, str]:
    """Variables, or labels, as people type them: NAME=VALUE."""
    found = dict(pair.partition("=")[::2] for pair in pairs)
    if (wrong := next((pair for pair in pairs if pair.find("=") < 1), None)) is not None:
        raise CallerError(f"{wrong[:80]!r} is no {what}.", next_step="write it as NAME=VALUE.")
    return found


class _Ends(NamedTuple):
    source: tuple[str, str] | None
    target: tuple[str, str] | None


def _inside(place: str) -> tuple[str, str] | None:
    match = _INSIDE.match(place)
    return (match[1], match[2]) if match else None


def result_code(result: ExecResult) -> int:
    """A result as an exit code of our own, as shells and timeout(1) count."""
    if result.termination == "timeout":
        return EXIT_TIMEOUT
    if result.signal:
        return 128 + result.signal
    # Where only what the command started was killed for it, a shell has said so with a code of its own.
    return 128 + signal.SIGKILL if result.exit_code is None else result.exit_code


def say_error(text: str) -> None:
    """One line on standard error."""
    print(text, file=sys.stderr)
