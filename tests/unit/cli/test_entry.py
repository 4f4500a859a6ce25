"""Exit codes, error blocks and what the command line does not load."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.cli import entry
from ropewalk.cli.commands import entries, top_help
from ropewalk.core.errors import CallerError, DeniedError, IntegrityError, RopewalkError, UnavailableError
from ropewalk.lake import index_url
from ropewalk.sandbox.oci.credentials import Credentials
from ropewalk.security.references import resolve_secret


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def dispatch(words: list[str], *, log: bool) -> int:
        raise error

    monkeypatch.setattr(entry, "_dispatch", dispatch)
    monkeypatch.delenv("ROPEWALK_DEBUG", raising=False)


@pytest.mark.parametrize("debug", ["", "1"])
def test_no_secret_that_was_looked_up_is_in_an_error(
    debug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret, login, index = (f"{name}-password-of-this-test-{debug}" for name in ("looked", "login", "index"))
    monkeypatch.setenv("A_SECRET", secret)
    resolve_secret("env:A_SECRET")
    monkeypatch.setenv("A_LOGIN", f"somebody:{login}")
    Credentials({"here:1": "env:A_LOGIN"}).login("here:1")
    index_url(f"https://me:{index.replace('-', '%2d')}@index.example/simple")
    basic = base64.b64encode(f"me:{login}".encode()).decode()
    fail_with(monkeypatch, CallerError(f"a {secret} {login[:-3]}", next_step=f"{basic} {index.replace('-', '%2D')}"))
    monkeypatch.setenv("ROPEWALK_DEBUG", debug)
    assert entry.main(["x"]) == 2
    said = capsys.readouterr().err
    assert said.count("[redacted]") == (8 if debug else 4) and "password" not in said and basic[-16:] not in said


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CallerError("a", next_step="b"), 2),
        (IntegrityError("a", next_step="b"), 5),
        (DeniedError("a", rule="some rule", next_step="b"), 6),
        (UnavailableError("a", next_step="b"), 7),
        (ExceptionGroup("g", [ValueError("v"), ExceptionGroup("h", [CallerError("a", next_step="b")])]), 2),
        (ExceptionGroup("g", [CallerError("x"), IntegrityError("a", next_step="b")]), 5),
    ],
)
def test_every_error_is_one_block_and_its_code(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, error)
    assert entry.main(["x"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "error: a" and err.splitlines()[-1] == " next: b"
    assert "Traceback" not in err
    assert ("rule: some rule" in err) == isinstance(error, DeniedError)


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(monkeypatch, CallerError("a"))
    monkeypatch.setenv("ROPEWALK_DEBUG", "1")
    assert entry.main(["x"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(monkeypatch, KeyboardInterrupt("ropewalk run --resume run:1"))
    assert entry.main(["x"]) == 130
    assert "--resume run:1" in capsys.readouterr().err


def test_system_errors_and_defects(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(monkeypatch, OSError(28, "No space left on device", "/x"))
    assert entry.main(["x"]) == 7
    assert "No space left on device (/x)" in capsys.readouterr().err
    fail_with(monkeypatch, ValueError("odd"))
    assert entry.main(["x"]) == 1
    assert "ROPEWALK_DEBUG=1" in capsys.readouterr().err


def test_unknown_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["sandbx"]) == 2
    assert "ropewalk sandbox" in capsys.readouterr().err
    assert entry.main(["zzzzzz"]) == 2
    assert entry.main(["keys", "ls", "--jsn"]) == 2
    err = capsys.readouterr().err
    assert "--json" in err and "ropewalk keys ls --help" in err
    assert entry.main(["keys", "lst"]) == 2


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["-h"], ["help"]):
        assert entry.main(words) == 0
        assert capsys.readouterr().out.strip() == top_help()
    assert entry.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ropewalk ")
    assert all(each.name in top_help() for each in entries())
    assert max(map(len, top_help().splitlines())) <= 110


def test_the_start_loads_nothing_heavy() -> None:
    """Import sets, not seconds: what `--help` loads decides how long it takes."""
    program = (
        "import sys; from ropewalk.cli import main; code = main(['--help']);"
        "print(code, *sorted(name.split('.')[0] for name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    code, *loaded = done.stderr.split()
    assert code == "0"
    heavy = {
        "sqlalchemy",
        "cryptography",
        "httpx2",
        "httpx",
        "cyclopts",
        "rich",
        "msgspec",
        "anyio",
        "asyncio",
        "pytest",
    }
    assert not heavy & set(loaded)


def test_help_of_a_command_does_not_load_the_layers() -> None:
    program = (
        "import sys; from ropewalk.cli import main; code = main(['sandbox', 'create', '--help']);"
        "print(code, *sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    code, *loaded = done.stderr.split()
    assert code == "0" and "--memory-mib" in done.stdout
    assert not {"sqlalchemy", "cryptography", "httpx2", "ropewalk.app", "ropewalk.rollout"} & set(loaded)


@pytest.mark.parametrize(
    ("words", "beside"),
    [(["run", "ls"], {"sqlalchemy"}), (["sandbox", "ls"], set()), (["sandbox", "kill", "--all"], set())],
)
def test_commands_load_what_they_need(words: list[str], beside: set[str], tmp_path: Path) -> None:
    """Import sets, not seconds: a list of runs needs neither keys nor lake, and a sandbox no journal either."""
    program = (
        f"import sys; from ropewalk.cli import main; code = main([*{words}, '--state', {str(tmp_path / 's')!r}]);"
        "print(code, *sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    code, *loaded = done.stderr.split()
    assert code == "0"
    heavy = {"sqlalchemy", "cryptography", "httpx2", "ropewalk.app.custody", "ropewalk.lake", "ropewalk.tasks"}
    assert heavy & set(loaded) == beside


def test_the_memory_limit_says_what_else_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["sandbox", "create", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "up to --memory-mib and --disk-mib together" in said


def test_errors_have_codes_of_their_own() -> None:
    codes = [branch.exit_code for branch in RopewalkError.__subclasses__()]
    assert sorted(codes) == [2, 5, 6, 7]


@pytest.mark.parametrize(
    "words",
    [
        ["--state", "STATE", "task", "ls", "--json"],
        ["--state=STATE", "--profile", "embedded", "task", "ls", "--json"],
        ["task", "--state", "STATE", "ls", "--json"],
    ],
)
def test_options_of_every_command_may_stand_before_its_name(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "own"
    assert entry.main([word.replace("STATE", str(state)) for word in words]) == 0
    assert json.loads(capsys.readouterr().out) == [] and state.is_dir()


def test_options_before_the_name_never_end_in_somebody_elses_command() -> None:
    moved = entry._behind(["--state", "S", "sandbox", "exec", "ID", "--", "ls", "--state"])
    assert moved == ["sandbox", "exec", "--state", "S", "ID", "--", "ls", "--state"]
    moved = entry._behind(["--state", "S", "run", "--source", "x"])
    assert moved == ["run", "--state", "S", "--source", "x"], "no option loses its value"
    assert entry._behind(["--state", "S"]) == [] and entry._behind(["--state"]) == []
