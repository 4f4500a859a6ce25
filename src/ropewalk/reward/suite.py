"""Runs tests in a sandbox and brings back, test by test, what happened."""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import Any, Final

import anyio.to_thread

from ropewalk.core import limits
from ropewalk.core.outcomes import Termination
from ropewalk.core.records import Record, to_plain
from ropewalk.reward.ports import CommandResult, GradingSandbox

PROBE_DIR: Final = "/tmp/ropewalk-probe"
"""Where the probe lies in a sandbox."""
_HERE = Path(__file__).parent / "values"
_KEY_CHARACTERS_MAX = 1_000


class SuitePlan(Record):
    """Which tests to run, and how."""

    workdir: str = "/work"
    """Absolute; pytest's root directory."""
    files: tuple[str, ...]
    """Test files or folders to collect, relative to `workdir`."""
    tests: tuple[str, ...] = ()
    """Node ids or keys to run, in collection order; empty: all that are collected."""
    import_paths: tuple[str, ...] = (".",)
    """Folders, relative to `workdir`, searched after the standard library and before site-packages."""
    plugins: tuple[str, ...] = ()
    """Pytest plugins by module name; none loads by itself."""
    ini: dict[str, str] = {}
    """Pytest options (`python_files`, …). The project's own configuration files are not read."""
    timeout_s: float = 60.0
    """Wall time."""
    cpu_s: float = 60.0
    """CPU time of the process that runs the tests."""
    output_bytes_max: int = 8 * limits.MIB
    hash_seed: int = 0
    reach: tuple[str, ...] = ()
    """Folders, relative to `workdir`: note which of their functions each test calls. Slow; empty: off."""
    look: bool = False
    """Tell which values are within reach of the code under test (`values/look.py`). Slow; trusted runs only."""
    shipped: tuple[str, ...] = ()
    """With `look`: files of the tests, relative to `workdir`. All else there is the source."""
    collect_only: bool = False
    node_ids: bool = True
    """Report node ids and failure texts. Off when grading: a parametrised id can spell out an expected value."""


class Emission(Record):
    """One value handed out by a test."""

    point: str
    """The assertion: `TestA.test_b:3`."""
    occurrence: int
    """How many times this test came by this point, from 0."""
    value: Any
    """Encoded (`ropewalk.reward.values.codec`)."""
    expected: Any = None
    """Encoded expected side; recording runs only."""
    tolerance: tuple[Any, ...] = ()
    """Encoded; recording runs only."""
    call: int = -1
    """The last call of the source before it (`Made`); -1 where that is not known."""


class Made(Record):
    """What functions of the source were given, held and gave back, by the calls from outside that they served."""

    values: tuple[Any, ...] = ()
    """Encoded; below they are named by their place here."""
    calls: tuple[tuple[int, int], ...] = ()
    """Call, value; call 0 is none, but a library's doing for a test."""
    rows: tuple[tuple[int, int, int], ...] = ()
    """Row, value, call: what one variable was time after time, or what one function gave back, in order."""


class TestOutcome(Record):
    """One test."""

    __test__ = False

    key: str
    """Node id without parameters, and `#n` where the test has parameters: the n-th of them in collection order."""
    node_id: str = ""
    outcome: str
    """`passed`, `failed`, `skipped`, `xfailed`, `xpassed`, `error`; `started` if it never ended, `collected`."""
    seconds: float = 0.0
    emissions: tuple[Emission, ...] = ()
    reached: tuple[str, ...] = ()
    """`path:line:qualified name` of functions called, with the first line of each (decorators included)."""
    message: str = ""
    """Why it failed, one line."""


class SuiteRecord(Record):
    """What came back from one run."""

    tests: tuple[TestOutcome, ...]
    complete: bool
    """The end record came, once and last, and every line before it was well formed."""
    seen: tuple[Any, ...] = ()
    """Encoded values within reach of the code under test, where the plan asks for them."""
    made: Made = Made()
    """What calls of the source made, where the plan asks for it."""
    unopened: tuple[str, ...] = ()
    """What is within reach as well, and could not be looked into."""
    problem: str = ""
    """Why it is not complete, or what pytest could not collect."""
    exit_code: int | None
    signal: int | None
    termination: Termination
    truncated: bool
    """More output than the plan allows."""
    duration_s: float
    cpu_s: float

    @property
    def passed(self) -> tuple[str, ...]:
        """Node ids (keys where there are none) of tests that passed."""
        return tuple(test.node_id or test.key for test in self.tests if test.outcome == "passed")


class SuiteRunner:
    """Runs suites with the trusted probe; holds no state of its own."""

    async def run(
        self, sandbox: GradingSandbox, plan: SuitePlan, *, probe: dict[str, bytes] | None = None
    ) -> SuiteRecord:
        """Puts the probe into the sandbox and runs the tests.

        Whatever the code inside does is in the record, also that it died, hung or lied.

        Args:
            sandbox: The sandbox; it holds the source and the tests.
            plan: What to run.
            probe: File name → content of the probe, where another than this version's is wanted.

        Raises:
            SandboxGoneError: the sandbox died.
        """
        files = probe_files(look=plan.look) if probe is None else probe
        await sandbox.write_many({f"{PROBE_DIR}/{name}": data for name, data in files.items()})
        result = await sandbox.exec(
            ["python3", "-P", "-s", "-B", f"{PROBE_DIR}/probe.py"],
            cwd=plan.workdir,
            env={
                "PYTHONHASHSEED": str(plan.hash_seed),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            },
            stdin=json.dumps(_for_probe(plan)).encode(),
            timeout_s=plan.timeout_s,
            output_bytes_max=plan.output_bytes_max,
        )
        return await anyio.to_thread.run_sync(lambda: read_record(result, node_ids=plan.node_ids))


def probe_files(*, look: bool = False) -> dict[str, bytes]:
    """The probe of this version: file name → content; with what `SuitePlan.look` needs or without it."""
    files = {
        "probe.py": (_HERE / "probe.py").read_bytes(),
        "encode.py": (_HERE / "encode.py").read_bytes(),
        "quick.py": (_HERE / "quick.py").read_bytes(),
        "suite.ini": b"[pytest]\n",
    }
    if look:
        files["ropewalk_look.py"] = (_HERE / "look.py").read_bytes()
        files["followed.py"] = (_HERE / "followed.py").read_bytes()
        files["opened.py"] = (_HERE / "opened.py").read_bytes()
    return files


def _for_probe(plan: SuitePlan) -> dict[str, Any]:
    absolute = {
        name: [posixpath.normpath(posixpath.join(plan.workdir, path)) for path in getattr(plan, name)]
        for name in ("files", "import_paths", "reach")
    }
    return {**to_plain(plan), **absolute, "ini_file": f"{PROBE_DIR}/suite.ini"}


def read_record(result: CommandResult, *, node_ids: bool = True) -> SuiteRecord:
    """The record in a command's standard output, which is untrusted: what is malformed makes it incomplete.

    Without `node_ids`, as when grading, it holds no free text, and a line that does is malformed.
    """
    reader = _Reader(node_ids=node_ids)
    problem = ""
    for number, line in enumerate(result.stdout.split("\n"), start=1):
        if not line:
            continue
        try:
            reader.take(line)
        except (ValueError, RecursionError):
            problem = f"line {number} of the record is malformed"
            break
    if not problem and result.truncated:
        problem = "more output than allowed"
    if not problem and not reader.ended:
        problem = "the record stops early"
    return SuiteRecord(
        tests=tuple(reader.tests),
        complete=not problem,
        seen=tuple(reader.seen),
        made=Made(values=tuple(reader.made), calls=tuple(reader.calls), rows=tuple(reader.rows)),
        unopened=tuple(reader.unopened),
        problem=problem or "; ".join(reader.problems)[:500],
        exit_code=result.exit_code,
        signal=result.signal,
        termination=result.termination,
        truncated=result.truncated,
        duration_s=result.duration_s,
        cpu_s=result.cpu_s,
    )


class _Reader:
    """Follows the record's grammar: c* x* (b (v|p)* r? e)* z, with s, n, w, y, o and u anywhere."""

    def __init__(self, *, node_ids: bool) -> None:
        self._node_ids = node_ids
        self.tests: list[TestOutcome] = []
        self.problems: list[str] = []
        self.seen: list[Any] = []
        self.made: list[Any] = []
        self.calls: list[tuple[int, int]] = []
        self.rows: list[tuple[int, int, int]] = []
        self.unopened: list[str] = []
        self.ended = False
        self._lines = 0
        self._call = -1
        self._open = False
        self._emissions: list[Emission] = []
        self._reached: tuple[str, ...] = ()

    def take(self, line: str) -> None:
        """One line.

        Raises:
            ValueError: it does not belong there.
        """
        parts = json.loads(line, parse_constant=_refuse)
        if self.ended:
            raise ValueError("something follows the end")
        if not self._node_ids and not _is_wordless(parts):
            raise ValueError("free text")
        match parts:
            case ["b", str(key), str(node_id)] if not self._open and len(key) <= _KEY_CHARACTERS_MAX:
                self.tests.append(TestOutcome(key=key, node_id=node_id, outcome="started"))
                self._open, self._emissions, self._reached = True, [], ()
            case ["v", str(point), int(occurrence), value] if self._open:
                self._emissions.append(Emission(point=point, occurrence=occurrence, value=value, call=self._call))
            case ["p", str(point), int(occurrence), value, expected, *tolerance] if self._open:
                self._emissions.append(
                    Emission(
                        point=point, occurrence=occurrence, value=value, expected=expected, tolerance=tuple(tolerance)
                    )
                )
            case ["s", list(values)]:
                self.seen += values
            case ["n", list(values)]:
                self.made += values
            case ["w", list(pairs)]:
                self.calls += [(int(call), int(number)) for call, number in pairs]
            case ["y", list(items)]:
                self.rows += [(int(row), int(number), int(call)) for row, number, call in items]
            case ["o", int(call)]:
                self._call = call
            case ["u", str(what)]:
                self.unopened.append(what)
            case ["r", str(key), list(names)] if self._open and key == self.tests[-1].key:
                self._reached = tuple(str(name) for name in names)
            case ["e", str(key), str(outcome), float(seconds), str(message)] if (
                self._open and key == self.tests[-1].key
            ):
                self._close(outcome, seconds, message)
            case ["c", str(key), str(node_id)] if not self._open:
                self.tests.append(TestOutcome(key=key, node_id=node_id, outcome="collected"))
            case ["x", str(node_id), str(message)] if not self._open:
                self.problems.append(f"{node_id}: {message}" if self._node_ids else "a module was not collected")
            case ["z", int(_), int(lines)] if not self._open and lines == self._lines:
                self.ended = True
            case _:
                raise ValueError("it does not belong there")
        self._lines += 1

    def _close(self, outcome: str, seconds: float, message: str) -> None:
        begun = self.tests.pop()
        self.tests.append(
            TestOutcome(
                key=begun.key,
                node_id=begun.node_id,
                outcome=outcome,
                seconds=seconds,
                emissions=tuple(self._emissions),
                reached=self._reached,
                message=message,
            )
        )
        self._open = False


def _is_wordless(parts: Any) -> bool:
    match parts:
        case ["b" | "c", _, text] | ["e", _, _, _, text]:
            return bool(text == "")
        case ["x", text, message]:
            return bool(text == message == "")
        case ["s" | "n" | "w" | "y" | "o" | "u" | "r" | "p", *_]:
            return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
