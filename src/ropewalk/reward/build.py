"""Builds a `values` grader out of held-out tests, a reference source and a broken one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import anyio.to_thread
import msgspec

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record, canonical_bytes
from ropewalk.core.syntax import compile_module
from ropewalk.interface.task import FileSet
from ropewalk.reward.bundle import write_files
from ropewalk.reward.ports import GradingSandbox, GradingSandboxes
from ropewalk.reward.secrecy import Asked, weigh, with_calls, within_reach
from ropewalk.reward.spec import GraderLimits, GraderSpec
from ropewalk.reward.suite import Emission, SuitePlan, SuiteRecord, SuiteRunner, TestOutcome, probe_files
from ropewalk.reward.values.assertions import Kind
from ropewalk.reward.values.codec import is_plain, same
from ropewalk.reward.values.expected import (
    ExpectedRecord,
    ExpectedTest,
    ExpectedValue,
    differing,
    matches,
    record_matches,
    tolerance_of,
)
from ropewalk.reward.values.instrument import Instrumented, instrument
from ropewalk.reward.values.lenient import lenient
from ropewalk.reward.values.literals import seen_in_files
from ropewalk.reward.values.visible import Visible
from ropewalk.reward.values.watched import watched
from ropewalk.sandbox.contract import SandboxSpec
from ropewalk.store.contract import Blobs
from ropewalk.store.records import read_record

RECORDINGS: Final = 2
"""Runs of the recording form on the reference; the shipped form runs there once more. Each has another hash seed, and
what differs between them does not vote."""
_ROUNDS_MAX = 4
_LOOK_SLOWER = 10.0
"""How much more time a run may take in which everything is looked at."""
_LOOK_BYTES_MAX = 32 * limits.MIB
"""What it may tell: as much as `values/look.py` and `values/followed.py` allow themselves."""


class GraderDraft(Record):
    """What a grader is built from."""

    name: str
    version: str = "1.0.0"
    tenant: str
    image: str
    data_class: str = "public"
    layers: tuple[str, ...]
    """Layers of the broken source, without any tests."""
    workdir: str = "/work"
    editable: tuple[str, ...]
    oracle: str
    """Digest of the `FileSet` that turns the broken source into the reference."""
    tests: tuple[str, ...]
    """Held-out node ids (pytest's, relative to `workdir`)."""
    import_paths: tuple[str, ...] = (".",)
    plugins: tuple[str, ...] = ()
    ini: dict[str, str] = {}
    limits: GraderLimits


class GraderBuild(Record):
    """A grader, or why there is none."""

    spec: GraderSpec | None
    digest: str = ""
    """Of the spec in the blob store."""
    refused: str = ""
    """Typed: `no_voting_killer`, `low_entropy`, `flaky`, `reference_fails`, `broken_hangs`, `not_collected`,
    `not_parsable`, `shipped_differs`."""
    detail: str = ""
    tests: tuple[str, ...] = ()
    """Held-out node ids that the grader requires."""
    killers: tuple[str, ...] = ()
    """Those of them that a voting point tells apart on the broken source."""
    points: int = 0
    """Values that vote."""
    killer_points: int = 0
    guess_bits: float = 0.0


class _Refused(Exception):
    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


async def build_values_grader(
    sandboxes: GradingSandboxes,
    blobs: Blobs,
    draft: GraderDraft,
    *,
    test_files: Mapping[str, bytes],
    visible_files: Mapping[str, bytes],
) -> GraderBuild:
    """Instruments, records on the reference and on the broken source, and stores the grader.

    Args:
        sandboxes: Makes the trusted sandboxes.
        blobs: Takes the spec, the shipped tests and the expected record.
        draft: What to build.
        test_files: Path relative to the workdir → content: the test modules of the held-out tests and every file
            they need (`conftest.py`, data).
        visible_files: What the policy may see besides the source, above all the visible tests. A value spelled out
            there is no secret and counts no bits.

    Raises:
        CallerError: the oracle is not in the blob store.
        SandboxGoneError, UnavailableError: our side failed; try again.
    """
    build = _Build(sandboxes, blobs, draft, test_files)
    try:
        return await build.run(visible_files)
    except _Refused as refusal:
        return GraderBuild(spec=None, refused=refusal.reason, detail=refusal.detail[:500])


class _Build:
    def __init__(
        self, sandboxes: GradingSandboxes, blobs: Blobs, draft: GraderDraft, test_files: Mapping[str, bytes]
    ) -> None:
        self._sandboxes = sandboxes
        self._blobs = blobs
        self._draft = draft
        self._files = dict(test_files)
        self._runner = SuiteRunner()
        self._modules: dict[str, Instrumented] = {}
        self._kinds: dict[str, Kind] = {}

    async def run(self, visible_files: Mapping[str, bytes]) -> GraderBuild:
        """All of it.

        Raises:
            _Refused: no grader comes out of this.
        """
        if not self._draft.tests:
            raise _Refused("not_collected", "no held-out tests")
        async with AsyncExitStack() as stack:
            reference, broken = await self._create(stack), await self._create(stack)
            oracle = await anyio.to_thread.run_sync(read_record, self._blobs, self._draft.oracle, FileSet)
            await write_files(reference, self._blobs, oracle.files, workdir=self._draft.workdir)
            for path in oracle.deleted:
                await reference.remove(f"{self._draft.workdir}/{path}")
            recordings = await self._record(reference)
            expected = await self._check_shipped(reference, self._expected(recordings))
            keys = tuple(test.key for test in expected.tests)
            lying = await self._lying(broken)
            killers, values = await self._kill(broken, expected, keys)
            files = [*visible_files.items(), *self._test_files(shipped=True).items(), *lying.items()]
            in_files = await anyio.to_thread.run_sync(seen_in_files, files)
            await self._weigh(values, in_files)
            seen = await self._look(broken, keys)
        visible = in_files | await anyio.to_thread.run_sync(within_reach, seen)
        bits = await self._weigh(with_calls(values, seen), visible)
        names = {test.key: test.node_id for test in recordings[0].tests}
        return await self._store(expected, bits, [names[key] for key in killers], names, len(values))

    async def _weigh(self, values: list[Asked], visible: Visible) -> float:
        """What a forger must guess, in bits.

        Raises:
            _Refused: too little.
        """
        bits, why = await anyio.to_thread.run_sync(weigh, values, visible, self._computable())
        if why:
            raise _Refused("low_entropy", why)
        return bits

    def _computable(self) -> frozenset[str]:
        return frozenset().union(*(module.computable for module in self._modules.values()))

    async def _create(self, stack: AsyncExitStack) -> GradingSandbox:
        draft = self._draft
        box = await self._sandboxes.create(
            SandboxSpec(
                tenant=draft.tenant,
                data_class=draft.data_class,
                image=draft.image,
                layers=draft.layers,
                workdir=draft.workdir,
                memory_bytes=draft.limits.memory_bytes,
                labels={"purpose": "grader-build"},
            )
        )
        stack.push_async_callback(box.close)
        return box

    def _instrument(self, excluded: frozenset[str]) -> None:
        required = {test.split("::")[0] for test in self._draft.tests}
        only = frozenset(test.split("::")[-1].split("[")[0] for test in self._draft.tests)
        self._modules, self._kinds = {}, {}
        for number, path in enumerate(sorted(self._files)):
            if not path.endswith(".py"):
                continue
            try:
                module = instrument(self._files[path].decode(), prefix=f"{number}.", excluded=excluded, only=only)
            except (CallerError, UnicodeDecodeError) as error:
                if path in required:
                    raise _Refused("not_parsable", f"{path}: {error}") from error
                continue
            if module.changed:
                self._modules[path] = module
                self._kinds |= module.kinds

    def _plan(self, tests: tuple[str, ...], *, seed: int, node_ids: bool) -> SuitePlan:
        return suite_plan(self._draft, tests=tests, hash_seed=seed, node_ids=node_ids)

    async def _install(self, box: GradingSandbox, *, shipped: bool) -> None:
        await self._write(box, self._test_files(shipped=shipped))

    async def _write(self, box: GradingSandbox, files: Mapping[str, bytes]) -> None:
        await box.write_many({f"{self._draft.workdir}/{path}": content for path, content in files.items()})

    def _test_files(self, *, shipped: bool) -> dict[str, bytes]:
        files = dict(self._files)
        for path, module in self._modules.items():
            files[path] = (module.shipped if shipped else module.recording).encode()
        return files

    async def _record(self, box: GradingSandbox) -> list[SuiteRecord]:
        """Runs on the reference. Points that cannot be compared outside are left as they were, and it starts anew."""
        excluded: frozenset[str] = frozenset()
        for _ in range(_ROUNDS_MAX):
            await anyio.to_thread.run_sync(self._instrument, excluded)
            await self._install(box, shipped=False)
            first = await self._run_reference(box, seed=0)
            demoted = self._not_comparable(first)
            if not demoted:
                more = [await self._run_reference(box, seed=seed) for seed in range(1, RECORDINGS)]
                return [first, *more]
            excluded |= demoted
        raise _Refused("reference_fails", "assertions go on failing on the reference")

    async def _run_reference(self, box: GradingSandbox, *, seed: int) -> SuiteRecord:
        record = await self._runner.run(box, self._plan(self._draft.tests, seed=seed, node_ids=True))
        if not record.complete:
            raise _Refused("reference_fails", f"{record.termination}: {record.problem}")
        found = {test.node_id: test for test in record.tests}
        missing = [name for name in self._draft.tests if name not in found]
        if missing:
            raise _Refused("not_collected", f"{missing[0]} and {len(missing) - 1} more. {record.problem}")
        for test in record.tests:
            if test.outcome != "passed":
                raise _Refused("reference_fails", f"{test.node_id} {test.outcome}: {test.message}")
        return record

    def _not_comparable(self, record: SuiteRecord) -> frozenset[str]:
        demoted = set()
        for test in record.tests:
            for emission in test.emissions:
                kind = self._kinds[emission.point]
                if kind == Kind.TRUTH:
                    if emission.value is not True:
                        raise _Refused("reference_fails", f"{test.node_id}: an assertion does not hold")
                elif not self._comparable(kind, emission):
                    demoted.add(emission.point)
        return frozenset(demoted)

    def _comparable(self, kind: Kind, emission: Emission) -> bool:
        if kind == Kind.CLOSE and not tolerance_of(emission):
            return False
        if kind != Kind.RAISES and not (is_plain(emission.expected) and is_plain(emission.value)):
            return False
        return matches(self._value(emission), emission.value)

    def _value(self, emission: Emission) -> ExpectedValue:
        kind = self._kinds[emission.point]
        return ExpectedValue(
            point=emission.point,
            occurrence=emission.occurrence,
            kind=kind,
            value=json.dumps(emission.expected),
            tolerance=tolerance_of(emission) if kind == Kind.CLOSE else (),
        )

    def _expected(self, recordings: list[SuiteRecord]) -> ExpectedRecord:
        tests = []
        for runs in zip(*(record.tests for record in recordings), strict=True):
            if len({run.key for run in runs}) > 1 or not _same_sequence(runs):
                raise _Refused("flaky", f"{runs[0].node_id} does not do the same twice")
            values = []
            for emissions in zip(*(run.emissions for run in runs), strict=True):
                value = self._value(emissions[0])
                steady = all(
                    same_text(emission.expected, emissions[0].expected) and matches(value, emission.value)
                    for emission in emissions
                )
                values.append(value if steady else _without_vote(value))
            tests.append(ExpectedTest(key=runs[0].key, values=tuple(values)))
        return ExpectedRecord(tests=tuple(tests))

    async def _check_shipped(self, box: GradingSandbox, expected: ExpectedRecord) -> ExpectedRecord:
        """Runs what is shipped on the reference; values that are not what was recorded lose their vote."""
        keys = tuple(test.key for test in expected.tests)
        await self._install(box, shipped=True)
        record = await self._runner.run(box, self._plan(keys, seed=RECORDINGS, node_ids=False))
        outcomes = dict(zip(keys, record.tests, strict=False))
        expected = ExpectedRecord(tests=tuple(_steady(test, outcomes.get(test.key)) for test in expected.tests))
        wrong = [
            test.key
            for test in expected.tests
            if test.key not in outcomes or not record_matches(test, outcomes[test.key])
        ]
        if wrong and record.complete and all(test.outcome == "passed" for test in record.tests):
            raise _Refused("flaky", f"{wrong[0]} does not do the same twice")
        if wrong or not record.complete or len(record.tests) != len(keys):
            raise _Refused("shipped_differs", f"{wrong[:1]} {record.problem}")
        return expected

    async def _kill(
        self, box: GradingSandbox, expected: ExpectedRecord, keys: tuple[str, ...]
    ) -> tuple[list[str], list[Asked]]:
        """Tests that tell the broken source from the reference, and the values that do.

        The tests go on after exceptions, so that each value is asked for and those that the broken source gets right
        do not count.
        """
        await self._write(box, {**self._test_files(shipped=True), **self._going_on()})
        record = await self._runner.run(box, self._plan(keys, seed=0, node_ids=True))
        outcomes = {test.key: test for test in record.tests}
        telling = {test.key: differing(test, outcomes.get(test.key)) for test in expected.tests}
        killers = [key for key in keys if telling[key]]
        if not killers:
            raise _Refused("no_voting_killer", "no value that votes differs on the broken source")
        return killers, [Asked(key, value) for key in killers for value in telling[key]]

    async def _look(self, box: GradingSandbox, keys: tuple[str, ...]) -> SuiteRecord:
        """What lies within reach while the broken source is asked: not the reference, where results of right code lie
        about everywhere. What looking itself makes wrong decides nothing else."""
        files = {**self._test_files(shipped=True), **self._going_on()}
        shown = {path: _shown(path, text) for path, text in files.items()}
        await self._write(box, {path: text or files[path] for path, text in shown.items()})
        plan = self._plan(keys, seed=0, node_ids=True)
        more = {"timeout_s": plan.timeout_s * _LOOK_SLOWER, "cpu_s": plan.cpu_s * _LOOK_SLOWER}
        plan = msgspec.structs.replace(
            plan, look=True, shipped=tuple(sorted(filter(shown.get, shown))), output_bytes_max=_LOOK_BYTES_MAX, **more
        )
        record = await self._runner.run(box, plan)
        if tuple(test.key for test in record.tests if test.outcome != "started") != keys or record.problem:
            return msgspec.structs.replace(
                record, unopened=(*record.unopened, f"a run of which {record.problem or 'tests are missing'}")
            )
        return record

    def _going_on(self) -> dict[str, bytes]:
        return {path: lenient(module.shipped).encode() for path, module in self._modules.items()}

    async def _lying(self, box: GradingSandbox) -> Mapping[str, bytes]:
        """The files below the workdir, as whoever is tested and the policy find them."""
        entries = await box.list(self._draft.workdir, recursive=True)
        paths = [entry.path for entry in entries if entry.kind == "file"]
        return await box.read_many(paths) if paths else {}

    async def _store(
        self, expected: ExpectedRecord, bits: float, killers: list[str], names: dict[str, str], killer_points: int
    ) -> GraderBuild:
        draft = self._draft

        def put() -> tuple[GraderSpec, str]:
            shipped = {path: self._blobs.put(data) for path, data in self._test_files(shipped=True).items()}
            probe = {name: self._blobs.put(data) for name, data in probe_files().items()}
            spec = GraderSpec(
                name=draft.name,
                version=draft.version,
                image=draft.image,
                layers=draft.layers,
                workdir=draft.workdir,
                editable=draft.editable,
                import_paths=draft.import_paths,
                plugins=draft.plugins,
                ini=draft.ini,
                hidden=self._blobs.put(canonical_bytes(FileSet(files=shipped))),
                probe=self._blobs.put(canonical_bytes(FileSet(files=probe))),
                expected=self._blobs.put(canonical_bytes(expected)),
                tests=tuple(test.key for test in expected.tests),
                guess_bits=round(bits, 1),
                limits=draft.limits,
            )
            return spec, self._blobs.put(canonical_bytes(spec))

        spec, digest = await anyio.to_thread.run_sync(put)
        return GraderBuild(
            spec=spec,
            digest=digest,
            tests=tuple(names[key] for key in spec.tests),
            killers=tuple(killers),
            points=sum(value.votes for test in expected.tests for value in test.values),
            killer_points=killer_points,
            guess_bits=bits,
        )


def suite_plan(
    spec: GraderDraft | GraderSpec, *, tests: tuple[str, ...], hash_seed: int = 0, node_ids: bool = False
) -> SuitePlan:
    """How a grader runs its tests."""
    return SuitePlan(
        workdir=spec.workdir,
        files=tuple(sorted({test.split("::")[0] for test in tests})),
        tests=tests,
        import_paths=spec.import_paths,
        plugins=spec.plugins,
        ini=spec.ini,
        timeout_s=spec.limits.wall_s,
        cpu_s=spec.limits.cpu_s,
        output_bytes_max=spec.limits.output_bytes_max,
        hash_seed=hash_seed,
        node_ids=node_ids,
    )


def _shown(path: str, text: bytes) -> bytes:
    """A file of the tests with every value shown that it computes; empty where this Python cannot parse it.

    Another may, and what is run of it then counts as the source's.

    Raises:
        _Refused: it is run, and cannot be written down anew.
    """
    if not path.endswith(".py"):
        return text
    try:
        shown = watched(text.decode())
        compile_module(shown, path)
    except RecursionError as error:
        raise _Refused("low_entropy", f"{path} nests too deeply to see what it computes") from error
    except (SyntaxError, UnicodeDecodeError):
        return b""
    return shown.encode()


def same_text(left: Any, right: Any) -> bool:
    """Whether two trusted encoded values are equal, or are the same list of exception types."""
    return bool(left == right) or same(left, right)


def _same_sequence(runs: tuple[TestOutcome, ...]) -> bool:
    return len({tuple((emission.point, emission.occurrence) for emission in run.emissions) for run in runs}) == 1


def _steady(test: ExpectedTest, outcome: TestOutcome | None) -> ExpectedTest:
    wrong = set(differing(test, outcome))
    return ExpectedTest(
        key=test.key, values=tuple(_without_vote(value) if value in wrong else value for value in test.values)
    )


def _without_vote(value: ExpectedValue) -> ExpectedValue:
    return ExpectedValue(point=value.point, occurrence=value.occurrence, kind=value.kind, votes=False)
