"""Starting a command."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import posix
import resource
import sys

from . import wire
from .wire import F_PTY, F_STDIN, Fields, StartError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .loop import Agent

TIOCSWINSZ = 0x5414
PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULT_SIGNALS = (13, 25)  # SIGPIPE and SIGXFSZ, which Python ignores

User = tuple[int, int, list[int], bytes, bytes]  # uid, gid, groups, home, name


def find_user(wanted: bytes) -> User:
    """By name or number, out of the sandbox's own /etc/passwd; a number needs no entry."""
    groups: list[int] = []
    found: User | None = None
    for line in lines_of("/etc/passwd"):
        parts = line.split(b":")
        if len(parts) >= 6 and is_id(parts[2]) and is_id(parts[3]) and wanted in (parts[0], parts[2]):
            found = (int(parts[2]), int(parts[3]), groups, parts[5] or b"/", parts[0])
            break
    if found is None and wanted in (b"0", b"root"):
        found = (0, 0, groups, b"/root", b"root")
    if found is None and is_id(wanted) and int(wanted) < 65536:
        found = (int(wanted), int(wanted), groups, b"/", wanted)
    if found is None:
        raise StartError(126, f"unknown user {wanted.decode('utf-8', 'replace')!r}")
    for line in lines_of("/etc/group"):
        parts = line.split(b":")
        if len(parts) == 4 and is_id(parts[2]) and found[4] in parts[3].split(b","):
            groups.append(int(parts[2]))
    return found


def is_id(text: bytes) -> bool:
    """Anything may stand in these files, and Python refuses to read a number of thousands of digits."""
    return text.isdigit() and len(text) <= 10 and int(text) < (1 << 32) - 1


def lines_of(path: str) -> list[bytes]:
    """Without those that no name or folder could come from; none where it is no readable file."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
        try:
            return [line for line in posix.read(fd, 1 << 20).split(b"\n") if b"\0" not in line]
        finally:
            posix.close(fd)
    except OSError:
        return []


def environment(agent: Agent, fields: Fields, user: User | None) -> dict[bytes, bytes]:
    """PATH, HOME, USER, LANG, TMPDIR; then the sandbox's own; then the call's."""
    home, name = (user[3], user[4]) if user else (agent.home, agent.user)
    env = {b"PATH": PATH, b"HOME": home, b"USER": name, b"LANG": b"C.UTF-8", b"TMPDIR": b"/tmp", **agent.env}
    for pair in fields.all(wire.K_ENV):
        key, equals, value = pair.partition(b"=")
        if not key or not equals or b"\0" in pair:
            raise StartError(126, f"bad variable {key.decode('utf-8', 'replace')!r}")
        env[key] = value
    return env


def candidates(program: bytes, env: dict[bytes, bytes]) -> list[bytes]:
    if b"/" in program:
        return [program]
    paths = [(folder or b".") + b"/" + program for folder in env.get(b"PATH", PATH).split(b":")]
    return [path for path in paths if posix.access(path, 0)]  # F_OK


def set_size(terminal: int, fields: Fields) -> None:
    import fcntl  # 0.3 ms that only terminals need

    rows, columns = (min(fields.number(key), 0xFFFF) for key in (wire.K_ROWS, wire.K_COLUMNS))
    fcntl.ioctl(terminal, TIOCSWINSZ, rows.to_bytes(2, sys.byteorder) + columns.to_bytes(2, sys.byteorder) + bytes(4))


def open_terminal(fields: Fields) -> tuple[int, bytes]:
    """The master's descriptor and the slave's name."""
    master, slave = posix.openpty()
    try:
        set_size(master, fields)
        return master, posix.ttyname(slave).encode()
    except OSError as error:
        posix.close(master)
        raise StartError(126, f"no terminal: {error.strerror}") from error
    finally:
        posix.close(slave)


def start(agent: Agent, fields: Fields) -> tuple[int, int, list[int], int]:
    """Pid, marker, our ends of the two outputs (-1: none) and of the input (-1: none).

    Raises:
        StartError: it cannot be started, in a way that is the caller's or the sandbox's doing.
    """
    argv = fields.all(wire.K_ARGV)
    if not argv or not argv[0] or any(b"\0" in word for word in argv):
        raise StartError(126, "no command, or one with a zero byte in it")
    flags = fields.number(wire.K_FLAGS)
    ours: list[int] = []
    theirs: list[int] = []
    stdio: list[int | bytes]
    try:
        wanted = fields.text(wire.K_USER)
        user = find_user(wanted) if wanted else None
        env = environment(agent, fields, user)
        if flags & F_PTY:
            master, name = open_terminal(fields)
            ours += [master, -1, posix.dup(master)]
            stdio = [name, 0, 0]
        else:
            stdio = [agent.null]
            for _ in range(2):
                reader, writer = posix.pipe2(posix.O_CLOEXEC)
                ours.append(reader)
                theirs.append(writer)
                stdio.append(writer)
            ours.append(-1)
            if flags & F_STDIN:
                source, ours[2] = posix.pipe2(posix.O_CLOEXEC)
                stdio[0] = source
                theirs.append(source)
        enter(fields.text(wire.K_CWD) or agent.workdir, agent.workdir)
        pid, marker = launch(agent, argv, env, stdio, user if user and user[0] != agent.uid else None)
    except BaseException as error:
        for fd in ours:
            if fd >= 0:
                posix.close(fd)
        if isinstance(error, OSError):
            raise StartError(126, f"cannot start: {error.strerror}") from error
        raise
    finally:
        posix.chdir("/")
        for fd in theirs:
            posix.close(fd)
    return pid, marker, ours[:2], ours[2]


def enter(cwd: bytes, workdir: bytes) -> None:
    try:
        if not cwd.startswith(b"/"):
            posix.chdir(workdir)
        posix.chdir(cwd)
    except OSError as error:
        raise StartError(126, f"cannot enter {cwd.decode('utf-8', 'replace')}: {error.strerror}") from error


def launch(
    agent: Agent, argv: list[bytes], env: dict[bytes, bytes], stdio: list[int | bytes], user: User | None
) -> tuple[int, int]:
    """Tries the places where the program may be. The command starts with the limits the agent was given itself."""
    program = argv[0].decode("utf-8", "replace")
    problem = StartError(127, f"{program}: not found")
    soft, hard = agent.files
    marker = agent.markers.next()
    agent.raise_oom_score(up=True)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        for path in candidates(argv[0], env):
            try:
                if user is None:
                    return spawn_as_agent(path, argv, env, stdio), marker
                return fork_as_user(path, argv, env, stdio, user), marker
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    raise StartError(126, f"{program}: no more processes are allowed in this sandbox") from error
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    problem = StartError(126, f"{program}: {error.strerror}")
                elif posix.access(path, 0):
                    problem = StartError(127, f"{program}: its interpreter is not found")
        raise problem
    finally:
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        agent.raise_oom_score(up=False)


def spawn_as_agent(path: bytes, argv: list[bytes], env: dict[bytes, bytes], stdio: list[int | bytes]) -> int:
    """A session of its own; a terminal opened by a session's leader becomes its controlling terminal."""
    actions: list[tuple[object, ...]] = []
    for target, source in enumerate(stdio):
        if isinstance(source, bytes):
            actions.append((posix.POSIX_SPAWN_OPEN, target, source, posix.O_RDWR, 0))
        else:
            actions.append((posix.POSIX_SPAWN_DUP2, source, target))
    return posix.posix_spawn(
        path, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=DEFAULT_SIGNALS
    )


def fork_as_user(path: bytes, argv: list[bytes], env: dict[bytes, bytes], stdio: list[int | bytes], user: User) -> int:
    """posix_spawn cannot change users."""
    report, tell = posix.pipe2(posix.O_CLOEXEC)
    pid = posix.fork()
    if pid == 0:
        stage = b"u"
        try:
            posix.setsid()
            for target, source in enumerate(stdio):
                if isinstance(source, bytes):
                    source = posix.open(source, posix.O_RDWR)
                    posix.fchown(source, user[0], -1)
                posix.dup2(source, target)
            posix.setgroups(user[2] or [user[1]])
            posix.setgid(user[1])
            posix.setuid(user[0])
            for number in DEFAULT_SIGNALS:
                _signal.signal(number, _signal.SIG_DFL)
            stage = b"e"
            posix.execve(path, argv, env)
        except OSError as error:
            posix.write(tell, stage + bytes((error.errno or errno.EIO,)))
        finally:
            posix._exit(127)
    posix.close(tell)
    answer = posix.read(report, 2)
    posix.close(report)
    if not answer:
        return pid
    posix.waitpid(pid, 0)
    why = OSError(answer[1], posix.strerror(answer[1]))
    if answer[:1] == b"u":
        raise StartError(126, f"cannot become user {user[4].decode('utf-8', 'replace')!r}: {why.strerror}") from why
    raise why
