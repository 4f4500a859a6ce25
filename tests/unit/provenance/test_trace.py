"""Traces back to raw files, and taint forwards."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.unit.provenance.world import World, draft, graded, link, roots

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.records import to_plain
from ropewalk.provenance.answers import whole_lineage
from ropewalk.provenance.lineage import MemoryLineage
from ropewalk.provenance.log import revoke_keys
from ropewalk.provenance.statement import Activity, StatementDraft
from ropewalk.provenance.trace import Trace, taint, trace


def traced(world: World, name: str) -> Trace:
    return trace(link(name).sha256, log=world.log, lineage=world.index)


def test_the_whole_chain(world: World) -> None:
    world.fill()
    found = traced(world, "reward:1")
    assert [(node.name, node.depth) for node in found.nodes] == [
        ("reward:1", 0),
        ("verdict:1", 1),
        ("episode:1", 1),
        ("task:1", 2),
        ("snapshot:1", 2),
        ("commit:1", 3),
        ("raw:rope-1.0.tar.gz", 3),
        ("grader:1", 3),
    ]
    assert found.complete
    assert found.problems == ()
    (source,) = found.sources
    assert source.name == "raw:rope-1.0.tar.gz"
    assert source.made_by[0].facts == {"licence": "MIT", "human_data": False}
    assert source.made_by[0].signed_by == world.keys.active().pair.id
    assert found.nodes[0].inputs == (link("verdict:1").sha256, link("episode:1").sha256)
    assert json.loads(json.dumps(to_plain(found)))["nodes"][0]["made_by"][0]["activity"] == "reward"


def test_five_levels_deep_and_wide(world: World) -> None:
    level = [f"raw:{i}" for i in range(3)]
    drafts = [draft(Activity.INGEST, name, licence="MIT") for name in level]
    for depth in range(5):
        above = [f"commit:{depth}-{i}" for i in range(3)]
        drafts += [draft(Activity.COMMIT, name, *level) for name in above]
        level = above
    drafts += [draft(Activity.REWARD, "reward:top", *level)]
    world.recorder.record(tuple(drafts))
    found = traced(world, "reward:top")
    assert found.complete
    assert len(found.nodes) == 1 + 5 * 3 + 3
    assert {node.depth for node in found.sources} == {6}
    touched = taint(link("raw:1").sha256, log=world.log, lineage=world.index)
    assert len(touched.nodes) == 5 * 3 + 1
    assert [node.depth for node in touched.nodes] == sorted(node.depth for node in touched.nodes)
    assert touched.nodes[-1].name == "reward:top"


def test_incomplete_chains_say_so(world: World) -> None:
    world.recorder.record(graded(0))
    found = traced(world, "reward:0")
    assert not found.complete
    assert any("snapshot:1" in problem for problem in found.problems)
    assert "the chain reaches no raw file" in found.problems
    assert [node.name for node in found.nodes if not node.made_by] == ["task:1", "snapshot:1"]


def test_what_was_recorded_only_after_it_was_used_is_told(world: World) -> None:
    world.recorder.record(graded(0))
    world.recorder.record(roots())
    found = traced(world, "reward:0")
    assert not found.complete
    assert any("no statement says how" in problem for problem in found.problems)


def test_a_thing_used_as_another_kind_is_told(world: World) -> None:
    """in-toto matches by digest alone: a consent form's digest must not pass as a video's."""
    as_licence = link("raw:rope-1.0.tar.gz")
    world.recorder.record(roots())
    confused = draft(Activity.REWARD, "reward:x").inputs
    assert confused == ()
    statement = draft(Activity.REWARD, "reward:x")
    renamed = type(as_licence)(name="verdict:1", sha256=as_licence.sha256)
    world.recorder.record((type(statement)(
        activity=Activity.REWARD, subjects=statement.subjects, inputs=(renamed,), started_s=1.0, ended_s=1.0
    ),))  # fmt: skip
    found = traced(world, "reward:x")
    assert not found.complete
    assert any("was made as raw, and is used as verdict" in problem for problem in found.problems)


def test_unknown_things(world: World) -> None:
    world.fill()
    for ask in (trace, taint):
        with pytest.raises(CallerError, match="No statement in the log"):
            ask(link("reward:9").sha256, log=world.log, lineage=world.index)
    assert taint(link("reward:1").sha256, log=world.log, lineage=world.index).nodes == ()


def test_circles_end(world: World) -> None:
    world.recorder.record((draft(Activity.DERIVE, "layer:a", "layer:b"), draft(Activity.DERIVE, "layer:b", "layer:a")))
    assert {node.name for node in traced(world, "layer:a").nodes} == {"layer:a", "layer:b"}
    assert {n.name for n in taint(link("layer:a").sha256, log=world.log, lineage=world.index).nodes} == {"layer:b"}


def test_several_ways_to_one_thing(world: World) -> None:
    again = draft(Activity.INGEST, "raw:rope-1.0.tar.gz", licence="MIT", again=True)
    world.recorder.record((again, *roots()))
    source = traced(world, "task:1").sources[0]
    assert [statement.index for statement in source.made_by] == [0, 1]


def test_what_is_stated_after_a_use_led_to_nothing_there(world: World) -> None:
    """The same source comes in as another file, and gives the same task again: an equal digest, made twice."""
    world.fill()
    before = traced(world, "reward:1")
    other = draft(Activity.INGEST, "raw:rope-1.0.zip", licence="GPL-3.0-only")
    (task,) = (each for each in roots() if each.subjects[0].name == "task:1")
    world.recorder.record((other, msgspec.structs.replace(task, inputs=(link("raw:rope-1.0.zip"),), started_s=9.0)))
    world.recorder.record(graded(7))
    assert traced(world, "reward:1") == before, "a chain never grows"
    assert {source.name for source in traced(world, "reward:7").sources} == {"raw:rope-1.0.tar.gz", "raw:rope-1.0.zip"}
    for lineage in (world.index, whole_lineage(world.log)):
        late = taint(link("raw:rope-1.0.zip").sha256, log=world.log, lineage=lineage)
        assert {node.name for node in late.nodes if node.kind == "reward"} == {"reward:7"}
        early = taint(link("raw:rope-1.0.tar.gz").sha256, log=world.log, lineage=lineage)
        assert {"reward:1", "reward:7"} <= {node.name for node in early.nodes}
        for name in ("reward:1", "reward:7", "task:1"):
            assert lineage.ancestors(link(name).sha256) == world.index.ancestors(link(name).sha256)


def test_a_trace_does_not_believe_revoked_keys_or_the_index(world: World) -> None:
    world.fill()

    class Wrong(MemoryLineage):
        def ancestors(self, sha256: str) -> tuple[int, ...]:
            return (0, 1)

    with pytest.raises(IntegrityError, match="disagrees"):
        trace(link("reward:1").sha256, log=world.log, lineage=Wrong({}))
    revoke_keys(world.log, world.keys.active().pair.id, reason="stolen", from_index=0)
    with pytest.raises(IntegrityError, match="stolen"):
        traced(world, "reward:1")


def test_another_episode_with_equal_results_is_not_part_of_the_chain(world: World) -> None:
    def played(number: int) -> tuple[StatementDraft, ...]:
        episode, verdict, reward = graded(number)
        return (
            msgspec.structs.replace(episode, subjects=(*episode.subjects, link("bundle:same"))),
            msgspec.structs.replace(verdict, inputs=(*verdict.inputs, link("bundle:same"))),
            reward,
        )

    world.recorder.record((*roots(), *played(0), *played(1)))
    names = [node.name for node in traced(world, "reward:1").nodes]
    assert "bundle:same" in names
    assert "episode:1" in names
    assert "episode:0" not in names
    bundle = trace(link("bundle:same").sha256, log=world.log, lineage=world.index)
    assert [made.index for made in bundle.nodes[0].made_by] == [4, 7]
