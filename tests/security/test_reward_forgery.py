"""Attempts to be paid without solving the task, one by one, against the real grader in real sandboxes.

Every attack is a wrong solution and code that tries to make it count. Each is scored 0, never left unscored: an
episode that could turn its own failure into "infrastructure" would launder its losses. Where `fools` is set, the same
bundle makes pytest exit with 0 over the original tests, which is what a naive grader pays for. Honest twins do the
odd things that attacks do, solve the task, and score 1.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from tests.grading import GradedProblem, GradingWorld, grading_world
from tests.unit.reward.worlds import (
    LEDGER,
    LEDGER_BROKEN,
    LEDGER_FIXED,
    SPANS,
    SPANS_BROKEN,
    SPANS_FIXED,
    built,
    grading_root,  # noqa: F401
)

from ropewalk.interface.task import Task
from ropewalk.reward.bundle import apply, capture
from ropewalk.reward.verdict import Verdict, VerdictStatus

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]


PARTS = 4
"""The attacks are dealt out to as many tests, so that workers share them."""


@dataclass(frozen=True)
class Attack:
    name: str
    code: str = ""
    """Goes above a wrong solution."""
    call: str = ""
    """Goes into the tested function, before anything else."""
    files: dict[str, str] = field(default_factory=dict)
    """Beside the module."""
    fools: bool = True
    cause: str = ""
    """Expected, where the attack must be told from others."""
    idles: bool = False
    """Does nothing until its time is over."""


CHANNEL = """
import os, sys, json
def _channel():
    # Whatever is open and no standard stream may be the way out.
    for fd in range(3, 64):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith(("pipe", "socket")):
                yield fd
        except OSError:
            pass
def _tell(*lines):
    for fd in _channel():
        try:
            os.write(fd, b"".join(json.dumps(line).encode() + b"\\n" for line in lines))
        except OSError:
            pass
"""

ANSWER_FROM_TESTS = """
import ast, glob, sys
def _answer(name, arguments):
    # The caller's locals, then the source of whatever calls this, then every test on the disk.
    frame = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            break
        if frame.f_locals.get("expected") is not None:
            return frame.f_locals["expected"]
        frame = frame.f_back
    for path in glob.glob("/work/**/*.py", recursive=True) + glob.glob("/tmp/**/*.py", recursive=True):
        try:
            tree = ast.parse(open(path).read())
        except (OSError, SyntaxError):
            continue
        for node in ast.walk(tree):
            sides = []
            if isinstance(node, ast.Compare) and len(node.comparators) == 1:
                sides = [node.left, node.comparators[0]]
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "assertEqual":
                sides = node.args[:2]
            for left, right in zip(sides, sides[1:]):
                if isinstance(left, ast.Call) and getattr(left.func, "id", "") == name:
                    try:
                        if [ast.literal_eval(argument) for argument in left.args] == [arguments]:
                            return ast.literal_eval(right)
                    except ValueError:
                        pass
    return None
"""

ATTACKS = [
    # Early ends
    Attack("exit at import", code="import os\nos._exit(0)"),
    Attack("exit in the call", call="import os; os._exit(0)"),
    Attack("exec another program", call="import os; os.execv('/bin/true', ['true'])"),
    Attack("sys.exit in the call", call="import sys; sys.exit(0)", fools=False),
    Attack("raise SystemExit at import", code="raise SystemExit(0)", fools=False),
    Attack("exit code by atexit", code="import atexit, os\natexit.register(os._exit, 0)"),
    Attack("exit by signal", code="import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: os._exit(0))",
           call="import os, signal; os.kill(os.getpid(), signal.SIGUSR1)"),
    Attack("exit from a thread", code="import os, threading, time",
           call="threading.Thread(target=lambda: os._exit(0)).start(); time.sleep(1)"),
    Attack("pytest.exit", code="import pytest", call="pytest.exit('done', returncode=0)"),
    Attack("skip", code="import unittest", call="raise unittest.SkipTest('not here')"),
    Attack("skip the module", code="import pytest\npytest.skip('no', allow_module_level=True)", fools=False),
    Attack("xfail", code="import pytest", call="pytest.xfail('known')"),
    # The runner, patched from inside
    Attack("reports say passed", code="""
import _pytest.reports
_made = _pytest.reports.TestReport.from_item_and_call.__func__
def _forged(cls, item, call):
    report = _made(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
_pytest.reports.TestReport.from_item_and_call = classmethod(_forged)
"""),
    Attack("calls never raise", code="""
import _pytest.runner
_called = _pytest.runner.CallInfo.from_call.__func__
def _quiet(cls, func, when, reraise=None):
    info = _called(cls, func, when, reraise)
    info.excinfo = None
    return info
_pytest.runner.CallInfo.from_call = classmethod(_quiet)
"""),
    Attack("conftest wraps reports", files={"tests/conftest.py": """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""}),
    Attack("conftest drops the tests", files={"conftest.py": """
def pytest_collection_modifyitems(items):
    items[:] = []
def pytest_sessionfinish(session):
    session.exitstatus = 0
"""}),
    Attack("pytest taken over", files={"pytest.py": "import sys\nsys.exit(0)\n"}),
    Attack("standard modules taken over", fools=False, files={
        "json.py": "def dumps(*a, **k): return '1.0'\n",
        "encode.py": "def encode(value): return True\n",
        "_ropewalk.py": "def value(*a): pass\ntruth = pair = raises = value\n",
    }),
    Attack("sitecustomize", fools=False, files={
        "sitecustomize.py": "import os\nos._exit(0)\n", "usercustomize.py": "import os\nos._exit(0)\n",
    }),
    Attack("every assertion is silent", fools=False, code="""
import unittest
for _name in dir(unittest.TestCase):
    if _name.startswith("assert"):
        setattr(unittest.TestCase, _name, lambda *a, **k: None)
"""),
    # Values that please everybody
    Attack("equal to everything", call="return Always()", code="""
class Always:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = None
"""),
    Attack("a dictionary equal to everything", call="return Always({'x': 1})", code="""
class Always(dict):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
"""),
    Attack("poses as a dictionary", call="return Always()", code="""
class Always:
    __class__ = dict
    def __eq__(self, other): return True
    def items(self): return [("rent", 735), ("food", 12)]
"""),
    Attack("a value without an end", fools=False, call="value = []; value.append(value); return value"),
    Attack("a huge number", fools=False, call="return {'rent': 1 << 80_000_000}"),
    # Secrets
    Attack("answers from the tests", code=ANSWER_FROM_TESTS,
           call="found = _answer('tally', entries)\nif found is not None: return found"),
    Attack("answers from memory", fools=False, code="""
import gc
def _found():
    return [one for one in gc.get_objects() if type(one) is dict and set(one) in ({"a"}, {"b"}, {"rent", "food"})]
""", call="for one in _found(): return dict(one)"),
    Attack("a secret anywhere in memory or on disk", fools=False, code="""
import re, subprocess
NEEDLE = re.compile(rb"a'?.?[:,] ?97[0]3")
def _anywhere():
    for line in open("/proc/self/maps"):
        span = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
        if not span:
            continue
        try:
            with open("/proc/self/mem", "rb", 0) as memory:
                memory.seek(int(span[1], 16))
                data = memory.read(int(span[2], 16) - int(span[1], 16))
        except (OSError, ValueError, OverflowError):
            continue
        if NEEDLE.search(data):
            return True
    found = subprocess.run(["grep", "-rlwE", "--", "9[7]03|8[2]09", "/work", "/tmp"], capture_output=True, text=True)
    return any(not path.endswith("/ledger.py") for path in found.stdout.split())
def _right(entries):
    totals = {}
    for account, amount in entries:
        totals[account] = totals.get(account, 0) + amount
    return totals
""", call="if _anywhere(): return _right(entries)"),
    # The channel
    Attack("a forged end", code=CHANNEL + "_tell(['z', 0, 0])\nos._exit(0)"),
    Attack("a forged record", code=CHANNEL + """
_tests = ["tests/test_ledger.py::test_two_entries", "tests/test_ledger.py::test_sums#0",
          "tests/test_ledger.py::test_sums#1", "tests/test_ledger.py::test_empty"]
_points = [["0.test_two_entries:0"], ["0.test_sums:0"], ["0.test_sums:0"], ["0.test_empty:0", "0.test_empty:1"]]
_lines = []
for _test, _names in zip(_tests, _points):
    _lines.append(["b", _test, ""])
    _lines += [["v", _name, 0, True] for _name in _names]
    _lines.append(["e", _test, "passed", 0.01, ""])
_tell(*_lines, ["z", 0, len(_lines)])
os._exit(0)
""", cause="value_mismatch"),
    Attack("two records", fools=False, code=CHANNEL + "_tell(['b', 'tests/test_ledger.py::test_empty', ''])"),
    Attack("everything said twice", fools=False, code="""
import sys
_stream = sys.modules.get("_ropewalk") and sys.modules["_ropewalk"]._stream
if _stream:
    _say = _stream.say
    _stream.say = lambda *parts: (_say(*parts), _say(*parts))
"""),
    Attack("the emitter says what pleases", fools=False, code="""
import sys
_emitter = sys.modules.get("_ropewalk")
if _emitter:
    for _wild in (True, None, float("nan"), ["o", "builtins.object", ""], {"$any": 1}, ["E", ["*"], []]):
        _emitter.value = lambda point, actual, w=_wild: _emitter._stream.say("v", point, _emitter._next(point), w)
"""),
    Attack("the encoder says what pleases", fools=False,
           code="import sys\nif 'encode' in sys.modules: sys.modules['encode'].encode = lambda value: ['d', []]"),
    Attack("no JSON at all", fools=False,
           code=CHANNEL + "for _fd in _channel(): os.write(_fd, b'[' * 200000 + b'\\n')"),
    Attack("output without end", fools=False, cause="candidate_output", code=CHANNEL, call="""
        for fd in _channel():
            for _ in range(300):
                os.write(fd, b'x' * 65536)
"""),
    # Resources
    Attack("fork without end", fools=False, call="import os\nwhile True: os.fork()"),
    Attack("spin", fools=False, cause="candidate_timeout", call="while True: pass"),
    Attack("sleep", fools=False, cause="candidate_timeout", idles=True, call="import time; time.sleep(600)"),
    Attack("stop oneself", fools=False, idles=True, call="import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"),
    Attack("memory without end", fools=False, call="held = []\nwhile True: held.append(bytearray(1 << 24))"),
    Attack("files without end", fools=False, call="""
        with open('/tmp/full', 'wb') as sink:
            while True: sink.write(bytes(1 << 22))
"""),
    Attack("crash", fools=False, call="import ctypes; ctypes.string_at(0)"),
    Attack("kill everybody", fools=False,
           call="import os; os.kill(-1, 9); os.kill(1, 9); os.kill(os.getppid(), 9)"),
    Attack("left behind", fools=False,
           call="import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"),
    Attack("a thread that stays", fools=False, idles=True,
           code="import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()"),
    Attack("writes over the probe and the tests", fools=False, code="""
import glob
for _path in glob.glob("/tmp/**/*.py", recursive=True) + glob.glob("/work/tests/*.py"):
    open(_path, "w").write("")
"""),
    # Records that are meant to break the reader
    *(
        Attack(f"a record with {name}", fools=False, code=CHANNEL + f"""
BEGIN, VALUE = b'["b","t",""]\\n', b'["v","0.t:0",0,'
for _fd in _channel():
    try:
        os.write(_fd, {data})
    except OSError:
        pass
os._exit(0)""")
        for name, data in {
            "lists without end": "BEGIN + VALUE + b'[' * 900 + b']' * 900 + b']\\n'",
            "an endless number": "BEGIN + VALUE + b'1e999]\\n[\"e\",\"t\",\"passed\",1e999,\"\"]\\n'",
            "too many digits": "BEGIN + VALUE + b'9' * 4400 + b']\\n'",
            "half a character": "b'[\"b\",\"\\\\ud800\",\"\"]\\n' + VALUE + b'NaN]\\n\\xff\\xfe'",
            "tens of thousands of values": "BEGIN + (VALUE + b'[\"l\",[[],[],[]]]]\\n') * 40000",
        }.items()
    ),
    # What may not be handed in
    Attack("pytest.ini", files={"pytest.ini": "[pytest]\naddopts = --collect-only\n"}, cause="bundle_refused"),
    Attack("pyproject", cause="bundle_refused",
           files={"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--co'\n"}),
    Attack("path file", fools=False, files={"evil.pth": "import os; os._exit(0)\n"}, cause="bundle_refused"),
    Attack("outside the folder", fools=False, files={"../etc/evil.py": "x = 1\n"}, cause="bundle_refused"),
    Attack("absolute", fools=False, files={"/usr/lib/evil.py": "x = 1\n"}, cause="bundle_refused"),
]  # fmt: skip

SPANS_ATTACKS = {
    "assertions are silent": (
        "import contextlib, unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None\n"
        "unittest.TestCase.assertRaises = lambda *a, **k: contextlib.suppress(Exception)\n" + SPANS_BROKEN
    ),
    "the caller's expected": ANSWER_FROM_TESTS
    + SPANS_BROKEN.replace(
        "    result = []\n",
        "    found = _answer('spans', numbers)\n    if found is not None: return found\n    result = []\n",
    ),
    "skip": "import unittest\ndef spans(numbers): raise unittest.SkipTest('no')\n",
    "equal to everything": (
        "class Always(list):\n    def __eq__(self, other): return True\n"
        "def spans(numbers):\n    sorted(numbers)\n    return Always()\n"
    ),
    "failures are forgotten": (
        "import unittest.case\nunittest.case._Outcome.testPartExecutor = "
        "__import__('contextlib').contextmanager(lambda self, case, subTest=False: (yield))\n" + SPANS_BROKEN
    ),
}
UNFOOLED = {"failures are forgotten"}
"""Attacks on unittest that do not even fool pytest."""

BUNDLES = {
    "link": "ln -s /etc/passwd /work/series/extra.py",
    "link over the module": "rm /work/series/core.py && ln -s /etc/passwd /work/series/core.py",
    "folder is a link": "mv /work/series /tmp/series && ln -s /tmp/series /work/series",
    "pipe": "mkfifo /work/series/pipe.py",
    "folder for a file": "rm /work/series/core.py && mkdir /work/series/core.py",
    "sparse gigabyte": "truncate -s 1G /work/series/core.py",
    "new sparse gigabyte": "truncate -s 1G /work/series/new.py",
    "collision by case": "cp /work/series/core.py /work/series/CORE.py",
    "collision by form": "touch /work/series/caf\u00e9.py /work/series/\uff43af\u00e9.py",
    "line break in a name": "touch '/work/series/a\nb.py'",
    "right to left": "touch /work/series/a\u202eyp.py",
    "backslash": "touch '/work/series/..\\\\core.py'",
    "no UTF-8": "touch \"$(printf '/work/series/\\377.py')\"",
    "thousands of files": "for i in $(seq 1000); do echo > /work/series/f$i.py; done",
    "many megabytes": "for i in 1 2 3 4 5 6; do head -c 1900000 /dev/zero > /work/series/f$i.py; done",
}
REFUSALS = {
    "link": "link", "link over the module": "link", "folder is a link": "link", "pipe": "not_a_file",
    "folder for a file": "not_a_file", "sparse gigabyte": "file_too_large", "new sparse gigabyte": "file_too_large",
    "collision by case": "collision", "collision by form": "collision", "line break in a name": "name",
    "right to left": "name", "backslash": "name", "no UTF-8": "name", "thousands of files": "too_many_files",
    "many megabytes": "too_large",
}  # fmt: skip

HONEST = {
    "plain": LEDGER_FIXED,
    "noisy": "import sys\nprint('x' * 100000)\nprint('y', file=sys.stderr)\nprint('[\"z\", 0, 0]')\n" + LEDGER_FIXED,
    "imports what attackers import": (
        "import atexit, gc, inspect, signal, sys, pytest, unittest\natexit.register(print, 'bye')  # @skip\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n" + LEDGER_FIXED
    ),
    "a subclass": LEDGER_FIXED.replace("totals = {}", "totals = __import__('collections').OrderedDict()"),
    "a counter": (
        "from collections import Counter\nclass Totals(Counter):\n    pass\ndef tally(entries):\n"
        "    totals = Totals()\n    for name, amount in entries:\n        totals[name] += amount\n    return totals\n"
        "def label(number):\n    return str(number).rjust(4, '0')\n"
    ),
    "carriage returns": LEDGER_FIXED.replace("\n", "\r\n"),
    "threads and processes": (
        "import subprocess, tempfile, threading\n_t = threading.Thread(target=lambda: None); _t.start(); _t.join()\n"
        "subprocess.run(['true'])\nwith tempfile.TemporaryFile() as _f: _f.write(b'x')\n" + LEDGER_FIXED
    ),
    "floats": LEDGER_FIXED.replace("+ amount", "+ float(amount)"),
}


def _wrong(attack: Attack) -> dict[str, str]:
    body = LEDGER_BROKEN
    if attack.call:
        call = textwrap.indent(textwrap.dedent(attack.call).strip(), "    ")
        body = body.replace("    totals = {}\n", f"{call}\n    totals = {{}}\n")
    return {"ledger.py": attack.code + "\n" + body, **attack.files}


NAIVE = """
import importlib, os, sys
import _pytest.config, pytest
for name in _pytest.config.default_plugins:
    importlib.import_module(f"_pytest.{name}")
sink = os.open(os.devnull, os.O_RDWR)
for case, *tests in [line.split("\\t") for line in sys.stdin.read().splitlines()]:
    child = os.fork()
    if child == 0:
        os.chdir(case)
        for descriptor in (0, 1, 2):
            os.dup2(sink, descriptor)
        if os.path.exists("pytest.py"):
            # Here the start itself is attacked: no head start.
            os.execvp("python3", ["python3", "-m", "pytest", "-q", *tests])
        sys.path.insert(0, case)
        sys.exit(pytest.main(["-q", *tests]))
    _, status = os.waitpid(child, 0)
    print(os.path.basename(case), os.waitstatus_to_exitcode(status), flush=True)
"""
"""Runs pytest over many folders, each in a process of its own that had pytest imported before."""


async def _naive_pays(
    world: GradingWorld, task: Task, problem: GradedProblem, cases: Mapping[str, Mapping[str, str]]
) -> set[str]:
    """Of these files, by name, those over which pytest exits with 0 beside the original tests. One sandbox for all."""
    folders = {str(number): name for number, name in enumerate(cases)}
    files: dict[str, str] = {}
    for number, name in folders.items():
        for path, text in {**problem.before, **problem.tests, **cases[name]}.items():
            files[f"/work/cases/{number}/{path}"] = text
    modules = [path for path in problem.tests if path.rpartition("/")[2].startswith("test")]
    async with await world.sandbox(task) as box:
        await box.write_many(files)
        run = await box.exec(
            ["python3", "-c", NAIVE],
            stdin="".join("\t".join([f"/work/cases/{number}", *modules]) + "\n" for number in folders).encode(),
            timeout_s=100,
        )
    codes = dict(line.split() for line in run.stdout.splitlines())
    assert codes.keys() == folders.keys(), run.stderr
    return {folders[number] for number, code in codes.items() if code == "0"}


def _dealt(part: int) -> list[Attack]:
    """The attacks of one test. Those that idle are all the first one's: they wait there beside each other."""
    busy = [attack for attack in ATTACKS if not attack.idles][part::PARTS]
    return busy if part else [attack for attack in ATTACKS if attack.idles] + busy


async def _all(
    world: GradingWorld, task: Task, cases: dict[str, dict[str, str]], *, idle: Collection[str] = ()
) -> dict[str, Verdict]:
    """Verdicts by name; two at a time, and those that idle beside them, since they take nothing from the others."""
    verdicts: dict[str, Verdict] = {}
    turns, none = anyio.CapacityLimiter(2), anyio.CapacityLimiter(math.inf)

    async def grade(name: str, files: dict[str, str]) -> None:
        async with none if name in idle else turns:
            bundle = world.bundle(task, files)
            verdicts[name] = await world.grader.grade(task, episode=f"episode:{name}", bundle=bundle)

    async with anyio.create_task_group() as group:
        for name, files in cases.items():
            group.start_soon(grade, name, files)
    return verdicts


def _told(verdicts: dict[str, Verdict]) -> dict[str, str]:
    return {
        name: f"{verdict.status} {verdict.score} {verdict.cause} {verdict.detail}" for name, verdict in verdicts.items()
    }


def test_every_attack_is_dealt_out_once() -> None:
    dealt = [attack.name for part in range(PARTS) for attack in _dealt(part)]
    assert sorted(dealt) == sorted(attack.name for attack in ATTACKS)
    assert len(set(dealt)) == len(dealt)


@pytest.mark.parametrize("part", range(PARTS))
async def test_attacks_score_nothing(grading_root: Path, part: int) -> None:  # noqa: F811
    async with grading_world(grading_root) as world:
        task, grader = await built(world, LEDGER)
        assert grader.spec and grader.spec.level == "H3"
        attacks = _dealt(part)
        cases = {attack.name: _wrong(attack) for attack in attacks}
        for files in cases.values():
            compile(files["ledger.py"], "ledger.py", "exec")
        idle = {attack.name for attack in attacks if attack.idles}
        verdicts = await _all(world, task, cases, idle=idle)
        paid = {name: text for name, text in _told(verdicts).items() if not text.startswith("scored 0.0")}
        assert paid == {}
        causes = {attack.name: verdicts[attack.name].cause for attack in attacks if attack.cause}
        assert causes == {attack.name: attack.cause for attack in attacks if attack.cause}


async def test_honest_twins_score_one(grading_root: Path) -> None:  # noqa: F811
    async with grading_world(grading_root) as world:
        task, _ = await built(world, LEDGER)
        honest = await _all(world, task, {name: {"ledger.py": text} for name, text in HONEST.items()})
        assert {name: text for name, text in _told(honest).items() if not text.startswith("scored 1.0")} == {}


async def test_a_naive_grader_pays_for_the_same_attacks(grading_root: Path) -> None:  # noqa: F811
    fools = {attack.name: _wrong(attack) for attack in ATTACKS if attack.fools}
    controls = {"as it was": {"ledger.py": LEDGER_BROKEN}, "solved": {"ledger.py": LEDGER_FIXED}}
    async with grading_world(grading_root) as world:
        task, _ = await built(world, LEDGER)
        paid = await _naive_pays(world, task, LEDGER, {**fools, **controls})
        assert paid == {*fools, "solved"}


async def test_attacks_on_unittest_score_nothing(grading_root: Path) -> None:  # noqa: F811
    async with grading_world(grading_root) as world:
        task, _ = await built(world, SPANS)
        verdicts = await _all(world, task, {name: {"series/core.py": code} for name, code in SPANS_ATTACKS.items()})
        assert {name: text for name, text in _told(verdicts).items() if not text.startswith("scored 0.0")} == {}
        cases = {name: {"series/core.py": code} for name, code in SPANS_ATTACKS.items()}
        assert await _naive_pays(world, task, SPANS, cases) == SPANS_ATTACKS.keys() - UNFOOLED


async def test_bundles_hold_declared_files_and_nothing_else(grading_root: Path) -> None:  # noqa: F811
    async with grading_world(grading_root) as world:
        task, _ = await built(world, SPANS)
        refused: dict[str, str] = {}
        for name, script in BUNDLES.items():
            async with await world.sandbox(task) as box:
                assert (await box.exec(script)).exit_code == 0, name
                bundle = await capture(box, task, world.blobs)
            refused[name] = bundle.refused
            assert not bundle.files and not bundle.deleted
            verdict = await world.grader.grade(task, episode="episode:x", bundle=bundle)
            assert (verdict.score, verdict.cause) == (0.0, "bundle_refused"), name
        assert refused == REFUSALS

        # What lies elsewhere stays there; an honest change, a new file and a background process do no harm.
        async with await world.sandbox(task) as box:
            await box.write_many(
                {"/work/series/core.py": "from .more import spans\n", "/work/series/more.py": SPANS_FIXED}
            )
            await box.exec("echo x > /work/notes.txt; ln -s /etc /work/link; echo y > /tmp/z.py; mkfifo /work/pipe")
            await box.start("sleep 600", detach=True)
            bundle = await capture(box, task, world.blobs)
        assert not bundle.refused, bundle.detail
        assert set(bundle.files) == {"series/core.py", "series/more.py"} and not bundle.deleted
        verdict = await world.grader.grade(task, episode="episode:x", bundle=bundle)
        assert (verdict.status, verdict.score) == (VerdictStatus.SCORED, 1.0)


async def test_a_deleted_module_is_part_of_the_bundle(grading_root: Path) -> None:  # noqa: F811
    async with grading_world(grading_root) as world:
        task, _ = await built(world, SPANS)
        async with await world.sandbox(task) as box:
            await box.write("/work/series/__init__.py", SPANS_FIXED)
            await box.remove("/work/series/core.py")
            bundle = await capture(box, task, world.blobs)
        assert set(bundle.files) == {"series/__init__.py"} and bundle.deleted == ("series/core.py",)
        async with await world.sandbox(task) as box:
            await apply(bundle, box, world.blobs, workdir=task.workdir)
            assert not await box.exists("/work/series/core.py")
        assert (await world.grader.grade(task, episode="episode:x", bundle=bundle)).score == 1.0
