"""From a problem to an admitted task: layers, visible tests, grader, controls, leak scan."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final

import anyio

from ropewalk.core.records import canonical_bytes, digest
from ropewalk.interface.task import FileSet, Task, TaskKind, TaskLimits, TaskOrigin
from ropewalk.reward.build import GraderBuild, GraderDraft, build_values_grader
from ropewalk.reward.grader import Grader
from ropewalk.reward.spec import GraderLimits
from ropewalk.tasks.bench import Bench, limit_s, settled_limit_s, settled_s, wall_s
from ropewalk.tasks.bodies import BodyKeys, functions, without_parameters
from ropewalk.tasks.fingerprints import take_fingerprints
from ropewalk.tasks.killers import hanging_test, passing, selection
from ropewalk.tasks.leaks import Scanner, scan_text
from ropewalk.tasks.prompts import mutant_prompt, release_prompt
from ropewalk.tasks.pytest_settings import options
from ropewalk.tasks.records import Reason, Rejection, TaskRecord
from ropewalk.tasks.surgery import remove_tests, without_bodies
from ropewalk.tasks.tree import SourceTree
from ropewalk.tasks.worlds import (
    TEST_COMMAND,
    WORKDIR,
    editable_globs,
    source_files,
)

VISIBLE_TESTS_MAX: Final = 60
VISIBLE_TESTS_S: Final = 3.0
"""Time of all visible tests on right source, so that a policy can run them at every step."""
REGRESSIONS_MAX: Final = 3
"""Tests that pass before and after, held out beside the killers, so that breaking them costs the reward."""
ORACLE_REPEATS: Final = 1
"""By then the held-out tests failed three times on the older source and passed five times on the newer one: when
killers were looked for and confirmed, and when the grader was recorded and tried."""
_REFUSALS: Final = {
    "no_voting_killer": Reason.NOT_GRADABLE, "low_entropy": Reason.LOW_ENTROPY, "flaky": Reason.UNSTABLE,
    "not_parsable": Reason.NOT_GRADABLE, "not_collected": Reason.NOT_GRADABLE,
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """What a task is made of, before anything vouches for it.

    Attributes:
        name: of the unit, for people.
        tree: the release whose source the task holds.
        after_tree: the release that the tests come from.
        before, after: editable files as they are and as they should become.
        tests: all test files.
        visible_killers, held_out: test ids; the latter empty where `fresh` judges.
        hidden: tests that are neither seen nor judge: other units' killers, hanging ones.
        both: tests that pass before and after, the most telling first.
        seconds: test → time on right source.
        fresh: test file that the oracle made (path → content), and its test ids.
        notes: from the release's own notes.
        data_class: the most restricted of its sources'.
    """

    kind: TaskKind
    name: str
    level: str
    tree: SourceTree
    after_tree: SourceTree
    before: Mapping[str, bytes]
    after: Mapping[str, bytes]
    tests: Mapping[str, bytes]
    visible_killers: tuple[str, ...]
    held_out: tuple[str, ...]
    origin: TaskOrigin
    data_class: str
    hidden: tuple[str, ...] = ()
    both: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    fresh: Mapping[str, bytes] = field(default_factory=dict)
    fresh_tests: tuple[str, ...] = ()
    notes: str = ""

    @cached_property
    def bodies(self) -> BodyKeys:
        """Tells which tests share a body."""
        return BodyKeys({path: text for path, text in self.tests.items() if path.endswith(".py")})

    @property
    def title(self) -> str:
        """The task's name for people."""
        origin = self.origin
        if self.kind is TaskKind.MUTANT:
            return f"{origin.distribution} {origin.version_before} {self.name}"
        return f"{origin.distribution} {origin.version_before}→{origin.version_after} {self.name}"


class Refused(Exception):
    """A problem that does not become a task; caught by `Assembly.admit`."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Assembly:
    """Makes tasks and admits them."""

    def __init__(self, bench: Bench, grader: Grader, scanner: Scanner, *, seed: int) -> None:
        self._bench = bench
        self._grader = grader
        self._scanner = scanner
        self._seed = seed

    async def admit(self, problem: Problem) -> TaskRecord | Rejection:
        """The task with what its admission showed, or why there is none.

        Raises:
            SandboxGoneError, UnavailableError: our side failed.
        """
        started_s = self._bench.clock.now_s()
        try:
            return await self._admit(problem, started_s)
        except Refused as refused:
            return Rejection(name=problem.title, reason=refused.reason, detail=refused.detail[:500])

    async def build_grader(
        self, problem: Problem, source: str, *, held_out: Sequence[str], visible: Mapping[str, bytes]
    ) -> GraderBuild:
        """A grader of these tests (and of the fresh ones) for a problem whose source lies in layer `source`."""
        draft = GraderDraft(
            name=problem.title, tenant=self._bench.world.tenant, data_class=problem.data_class,
            image=self._bench.world.image, layers=(*self._bench.world.wheels, source), workdir=WORKDIR,
            editable=self._globs(problem),
            oracle=self._keep_oracle(problem), tests=(*held_out, *problem.fresh_tests),
            import_paths=self._bench.world.import_paths(problem.tree), plugins=self._bench.world.plugins,
            ini=options(self._bench.world.settings),
            limits=self._grader_limits(problem, held_out),
        )  # fmt: skip
        used = _needed(problem, held_out)
        async with self._bench.slot():
            build = await self._build(draft, {**_pruned(used, held_out), **problem.fresh}, visible)
            if build.refused in ("reference_fails", "not_collected", "not_parsable"):
                build = await self._build(draft, {**used, **problem.fresh}, visible)
        return build

    async def _build(self, draft: GraderDraft, files: dict[str, bytes], visible: Mapping[str, bytes]) -> GraderBuild:
        return await build_values_grader(
            self._bench.sandboxes, self._bench.blobs, draft, test_files=files, visible_files=visible
        )

    async def _admit(self, problem: Problem, started_s: float) -> TaskRecord:
        regressions = self._regressions(problem)
        judging = (*problem.held_out, *regressions)
        keys = problem.bodies
        seen = {keys.key(test) for test in problem.visible_killers}
        secret = {keys.key(test) for test in judging}
        shown = without_bodies(problem.tests, secret | ({keys.key(test) for test in problem.hidden} - seen))
        source = await self._bench.layer(source_files(problem.tree, problem.before))
        right = await self._bench.layer(source_files(problem.tree, problem.after))
        tests = await self._bench.layer(self._bench.world.files_of_tests(shown, problem.tree))
        layers, prompt = (*self._bench.world.wheels, source, tests), _prompt(problem)
        await anyio.to_thread.run_sync(self._scan, problem, layers, prompt, secret)
        told = {"NOTES": problem.notes.encode()}
        build = await self.build_grader(problem, source, held_out=judging, visible={**shown, **told})
        if build.refused == "reference_fails" and problem.fresh_tests:
            problem = await self._with_sound_cases(problem, right)
            build = await self.build_grader(problem, source, held_out=judging, visible={**shown, **told})
        if build.spec is None:
            raise Refused(_REFUSALS.get(build.refused, Reason.GRADER), f"{build.refused}: {build.detail}")
        visible = await self._visible_tests(problem, source, right, shown, set(judging))
        task = self._task(problem, layers, prompt, visible, build)
        controls = await self._controls(task)
        return TaskRecord(
            task=task, unit=problem.name, level=problem.level, held_out=build.tests, points=build.points,
            killers_held_out=len(build.killers), guess_bits=build.guess_bits, fresh_cases=len(problem.fresh_tests),
            verdicts=controls, scanned=(*self._bench.world.image_layers, *task.layers), started_s=started_s,
            ended_s=self._bench.clock.now_s(),
        )  # fmt: skip

    async def _with_sound_cases(self, problem: Problem, right: str) -> Problem:
        """The problem without the fresh cases that fail on the right source as the grader runs it.

        A case is made by asking the source; what the answer depends on besides (cases that ran before, what pytest
        changes) may be another in the suite.
        """
        plan = selection(tuple(problem.fresh), problem.fresh_tests, limit_s(len(problem.fresh_tests) + 1.0))
        tests = {**problem.tests, **problem.fresh}
        sound = passing(await self._bench.run(problem.tree, right, tests, plan, data_class=problem.data_class))
        kept = tuple(test for test in problem.fresh_tests if test in sound)
        wrong = [test.rpartition("::")[2] for test in problem.fresh_tests if test not in sound]
        fresh = {path: remove_tests(text.decode(), wrong).encode() for path, text in problem.fresh.items()}
        return replace(problem, fresh=fresh if kept else {}, fresh_tests=kept)

    def _regressions(self, problem: Problem) -> tuple[str, ...]:
        """Held-out tests that pass before and after, with bodies that no visible test has, chosen by seed."""
        bodies = problem.bodies
        taken = {bodies.key(test) for test in (*problem.visible_killers, *problem.held_out, *problem.hidden)}
        by_body: dict[str, list[str]] = {}
        modules = {test.partition("::")[0] for test in problem.visible_killers}
        for test in problem.both:
            if test.partition("::")[0] in modules and bodies.key(test) not in taken:
                by_body.setdefault(bodies.key(test), []).append(test)
        single = sorted(tests[0] for tests in by_body.values() if len(tests) == 1)
        random.Random(f"{self._seed}:{digest(single)}").shuffle(single)
        spare = max(0, len(single) - 1)
        return tuple(sorted(single[: min(REGRESSIONS_MAX, spare)]))

    async def _visible_tests(
        self, problem: Problem, source: str, right: str, shown: Mapping[str, bytes], judging: set[str]
    ) -> tuple[str, ...]:
        """Tests that the policy may run, after both sources showed that they behave as they must."""
        bodies = problem.bodies
        gone = {bodies.key(test) for test in (*judging, *problem.hidden)}
        chosen = list(problem.visible_killers)
        total = sum(settled_s(problem.seconds.get(test, 0.1)) for test in chosen)
        for test in problem.both:
            total += settled_s(problem.seconds.get(test, 0.1))
            if len(chosen) >= VISIBLE_TESTS_MAX or total > VISIBLE_TESTS_S:
                break
            if test not in judging and bodies.key(test) not in gone:
                chosen.append(test)
        plan = selection((), chosen, limit_s(total + 1.0))
        wrong = await self._bench.run(problem.tree, source, shown, plan, data_class=problem.data_class)
        fixed = await self._bench.run(problem.tree, right, shown, plan, data_class=problem.data_class)
        before, after = passing(wrong), passing(fixed)
        if hanging_test(wrong) is not None:
            raise Refused(Reason.HANGS, f"{hanging_test(wrong)} hangs before the fix")
        lost = [test for test in problem.visible_killers if test in before or test not in after]
        if lost:
            raise Refused(Reason.UNSTABLE, f"{lost[0]} does not fail before and pass after in the visible files")
        others = [test for test in chosen if test in before and test in after]
        return tuple(sorted({*problem.visible_killers, *others}))

    def _task(
        self, problem: Problem, layers: tuple[str, ...], prompt: str, visible: tuple[str, ...], build: GraderBuild
    ) -> Task:
        seconds = sum(problem.seconds.get(test, 0.1) for test in visible)
        return Task(
            name=problem.title, kind=problem.kind, prompt=prompt, image=self._bench.world.image, layers=layers,
            workdir=WORKDIR, visible_tests=visible,
            visible_killers=tuple(sorted(problem.visible_killers)), test_command=TEST_COMMAND,
            editable=self._globs(problem), source=self._keep(problem.before), grader=build.digest,
            oracle=self._keep_oracle(problem), origin=problem.origin, data_class=problem.data_class,
            limits=TaskLimits(test_timeout_s=settled_limit_s(seconds)),
        )  # fmt: skip

    def _scan(self, problem: Problem, layers: tuple[str, ...], prompt: str, bodies: set[str]) -> None:
        """Before anything is run for it: most of what an admission costs would be in vain."""
        secrets = take_fingerprints(
            problem.tree, before=problem.before, after=problem.after, tests=problem.tests, held_out=bodies
        )
        leaks = self._scanner.scan(secrets, image=self._bench.world.image_layers, layers=layers, workdir=WORKDIR)
        leaks += scan_text(prompt, secrets)
        if leaks:
            found = "; ".join(f"{leak.kind} at {leak.path} ({leak.detail})" for leak in leaks[:3])
            raise Refused(Reason.LEAK, f"{len(leaks)} found: {found}")

    async def _controls(self, task: Task) -> tuple[str, ...]:
        async with self._bench.slot():
            controls = await self._grader.admit_controls(task, repeats=ORACLE_REPEATS)
        if not controls.admitted:
            reasons = {"noop_passes": Reason.NOOP_PASSES, "oracle_fails": Reason.ORACLE_FAILS}
            causes = ", ".join(dict.fromkeys(verdict.cause for verdict in controls.verdicts))
            raise Refused(reasons.get(controls.reason, Reason.INFRASTRUCTURE), f"{controls.reason}: {causes}")
        return tuple(digest(verdict) for verdict in controls.verdicts)

    def _globs(self, problem: Problem) -> tuple[str, ...]:
        return editable_globs(problem.tree, problem.after_tree)

    def _grader_limits(self, problem: Problem, tests: Sequence[str]) -> GraderLimits:
        seconds = settled_limit_s(sum(problem.seconds.get(test, 0.1) for test in tests))
        return GraderLimits(cpu_s=seconds, wall_s=wall_s(seconds))

    def _keep(self, files: Mapping[str, bytes], deleted: Sequence[str] = ()) -> str:
        stored = {path: self._bench.blobs.put(content) for path, content in sorted(files.items())}
        return self._bench.blobs.put(canonical_bytes(FileSet(files=stored, deleted=tuple(sorted(deleted)))))

    def _keep_oracle(self, problem: Problem) -> str:
        changed = {path: text for path, text in problem.after.items() if problem.before.get(path) != text}
        return self._keep(changed, [path for path in problem.before if path not in problem.after])


def _prompt(problem: Problem) -> str:
    origin = problem.origin
    if problem.kind is TaskKind.MUTANT:
        return mutant_prompt(
            distribution=origin.distribution, version=origin.version_before, killers=problem.visible_killers,
            command=TEST_COMMAND,
        )  # fmt: skip
    return release_prompt(
        distribution=origin.distribution, before=origin.version_before, notes=problem.notes,
        killers=problem.visible_killers, command=TEST_COMMAND,
    )  # fmt: skip


def _needed(problem: Problem, judging: Sequence[str]) -> dict[str, bytes]:
    """Test files without modules that the judging tests have nothing to do with."""
    tests = problem.tests
    modules = {test.partition("::")[0] for test in judging}
    texts = [tests[path] for path in modules if path in tests]
    helpers = {path: text for path, text in tests.items() if not problem.after_tree.is_test_module(path)}
    texts += [text for path, text in helpers.items() if path.endswith(".py")]

    def is_used(path: str) -> bool:
        stem = PurePosixPath(path).stem.encode()
        return path in modules or any(stem in text for text in texts)

    return {path: text for path, text in tests.items() if path in helpers or is_used(path)}


def _pruned(tests: Mapping[str, bytes], judging: Sequence[str]) -> dict[str, bytes]:
    """Test files whose judged modules hold no other tests, which makes every run of them faster."""
    names = {without_parameters(test).rpartition("::")[2] for test in judging}
    modules = {test.partition("::")[0] for test in judging}
    left = dict(tests)
    for path in modules & tests.keys():
        others = [
            name for name in functions(tests[path])
            if (last := name.rpartition(".")[2]).startswith("test") and last not in names
        ]  # fmt: skip
        left[path] = remove_tests(tests[path].decode("utf-8", "replace"), others).encode()
    return left
