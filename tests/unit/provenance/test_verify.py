"""Verification: what is ok, what is only unanchored, what fails, and that every finding names its statement."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from tests.unit.provenance.world import MemoryBlobs, World, draft, graded, link, roots

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.provenance.checkpoint import Checkpoint, sign_checkpoint, verify_checkpoint
from ropewalk.provenance.intoto import from_payload
from ropewalk.provenance.log import revoke_keys, rotate_keys
from ropewalk.provenance.receipts import make_receipt, unanchored, verify_receipt
from ropewalk.provenance.statement import Activity, Link, StatementDraft
from ropewalk.provenance.verification import Verification, VerificationStatus
from ropewalk.provenance.verify import Anchors, verify_run
from ropewalk.security.signatures import Verifier, open_envelope
from ropewalk.security.trust import export_trust_root, load_trust_root


def codes(result: Verification) -> set[str]:
    return {finding.code for finding in result.findings}


def test_a_whole_history_is_ok(world: World) -> None:
    result = world.fill().verify()
    assert (result.status, result.findings, result.unanchored_because) == (VerificationStatus.OK, (), ())
    assert (result.statements, result.rewards, result.log_size, result.anchored_size) == (13, 3, 13, 13)
    assert result.raise_if_failed() is result
    assert result.plain()["status"] == "ok"


def test_without_something_outside_it_is_never_ok(world: World) -> None:
    world.fill()
    trust, checkpoint = world.anchors
    own = world.keys.trust_root()
    for anchors in (Anchors(), Anchors(trust_root=trust), Anchors(checkpoint=checkpoint)):
        result = verify_run(world.state / "log", anchors=anchors, own=own)
        assert result.status is VerificationStatus.UNANCHORED
        assert result.unanchored_because
    with pytest.raises(CallerError, match="no keys"):
        verify_run(world.state / "log", anchors=Anchors())


def test_anchors_inside_the_state_directory_do_not_anchor(world: World) -> None:
    world.fill()
    for name in ("trust.json", "checkpoint"):
        shutil.copy(world.outside / name, world.state / name)
    inside = Anchors(world.state / "trust.json", world.state / "checkpoint")
    for anchors in (
        inside,
        inside._replace(trust_root=world.anchors.trust_root),
        world.anchors._replace(checkpoint=inside.checkpoint),
    ):
        assert world.verify(anchors=anchors).status is VerificationStatus.UNANCHORED


def test_statements_newer_than_the_checkpoint_are_unanchored(world: World) -> None:
    world.fill()
    world.recorder.record(graded(9))
    assert world.verify("reward:1").ok
    result = world.verify("reward:9")
    assert result.status is VerificationStatus.UNANCHORED
    assert "3 of the statements are newer" in result.unanchored_because[0]
    assert world.anchor().verify("reward:9").ok


def test_an_empty_checkpoint_vouches_for_nothing(world: World) -> None:
    with world.log.writing():
        pass
    world.anchor()
    world.recorder.record(roots())
    assert world.verify().status is VerificationStatus.UNANCHORED


def test_a_rollback_of_the_whole_state_is_seen(world: World, tmp_path: Path) -> None:
    world.fill(1)
    world.database.close()
    shutil.copytree(world.state, tmp_path / "copy")
    world.recorder.record(graded(5))
    world.anchor()
    shutil.rmtree(world.state)
    shutil.copytree(tmp_path / "copy", world.state)
    result = world.verify()
    assert codes(result) == {"rolled_back"}
    assert "had 10 entries and has 7 now" in result.findings[0].message
    with pytest.raises(IntegrityError, match="had 10 entries"):
        result.raise_if_failed()


@pytest.mark.parametrize("more", [0, 2])
def test_a_forked_history_is_seen(world: World, tmp_path: Path, more: int) -> None:
    world.recorder.record(roots())
    world.database.close()
    shutil.copytree(world.state, tmp_path / "copy")
    world.recorder.record(graded(0))
    world.anchor()
    shutil.rmtree(world.state)
    shutil.copytree(tmp_path / "copy", world.state)
    rewritten = World(tmp_path)
    for number in range(1, 2 + more):
        rewritten.recorder.record(graded(number))
    result = world.verify()
    assert codes(result) == {"forked"}
    rewritten.database.close()


def test_another_log_is_seen(world: World, tmp_path: Path) -> None:
    world.fill(1)
    (tmp_path / "other").mkdir()
    other = World(tmp_path / "other")
    other.fill(1)
    shutil.rmtree(world.state / "log")
    shutil.copytree(other.state / "log", world.state / "log")
    assert codes(world.verify()) >= {"checkpoint_invalid"}, "signed by other keys"
    shutil.copy(other.outside / "trust.json", world.outside / "trust.json")
    assert codes(world.verify()) == {"outside_invalid"}
    other.database.close()


def test_same_keys_but_another_log(world: World) -> None:
    world.fill(1)
    shutil.rmtree(world.state / "log")
    (world.state / "ropewalk.db").unlink()
    world.database.close()
    anew = World(world.folder)
    anew.recorder.record((*roots(), *graded(0)))
    assert codes(world.verify()) == {"other_log"}
    anew.database.close()


def test_a_lost_log_is_seen(world: World) -> None:
    world.fill()
    shutil.rmtree(world.state / "log")
    assert codes(world.verify()) == {"log_unreadable", "rolled_back"}


def test_rotated_keys_stay_good_and_new_ones_must_be_pinned(world: World) -> None:
    world.fill(1)
    rotate_keys(world.log)
    world.recorder.record(graded(5))
    result = world.verify()
    assert codes(result) == {"checkpoint_invalid", "signature_unknown_key"}, "the new keys are not pinned yet"
    assert [finding.index for finding in result.findings[1:]] == [7, 8, 9]
    assert world.anchor().verify().ok


def test_statements_of_a_revoked_key_are_named(world: World) -> None:
    world.fill(2)
    revoke_keys(world.log, world.keys.active().pair.id, reason="stolen", from_index=7)
    world.recorder.record(graded(5))
    result = world.anchor().verify()
    assert codes(result) == {"signature_revoked"}
    assert [finding.index for finding in result.findings] == [7, 8, 9]
    assert [finding.name for finding in result.findings] == ["episode:1", "verdict:1", "reward:1"]
    digests = [from_payload(open_envelope(world.log.entry(i))[1]).digest for i in (7, 8, 9)]
    assert [finding.statement for finding in result.findings] == digests
    assert world.verify("reward:0", "reward:5").ok


def test_a_revocation_counts_also_where_it_is_not_pinned(world: World) -> None:
    """The pinned keys are older than the revocation, and the checkpoint was signed before it."""
    world.fill(2)
    stale = load_trust_root(world.outside / "trust.json")
    revoke_keys(world.log, world.keys.active().pair.id, reason="stolen", from_index=7)
    world.anchor()
    both = load_trust_root(world.outside / "trust.json")
    without = type(both)(pairs=(stale.pairs[0], both.pairs[1]))
    export_trust_root(without, world.outside / "trust.json")
    assert world.verify().ok
    result = verify_run(world.state / "log", anchors=world.anchors, own=world.keys.trust_root())
    assert codes(result) == {"signature_revoked"}


def test_stolen_old_keys_cannot_sign_after_a_rotation(world: World) -> None:
    world.fill(1)
    stolen = world.keys.active()
    rotate_keys(world.log)
    world.keys.active = lambda: stolen  # type: ignore[method-assign]
    world.recorder.record(graded(5))
    del world.keys.active  # type: ignore[attr-defined]
    export_trust_root(world.keys.trust_root(), world.outside / "trust.json")
    result = world.verify()
    assert codes(result) == {"checkpoint_invalid", "signature_outside_validity"}
    assert [finding.index for finding in result.findings[1:]] == [7, 8, 9]


def test_rewards_must_reach_a_raw_file(world: World) -> None:
    world.recorder.record(graded(0))
    world.anchor()
    result = world.verify()
    assert codes(result) == {"chain_incomplete"}
    messages = [finding.message for finding in result.findings]
    assert any("does not reach any raw file" in message for message in messages)
    assert any("task:1" in message for message in messages)


def test_another_run_s_gaps_are_not_ours(world: World) -> None:
    world.fill(1)
    world.recorder.record((draft(Activity.REWARD, "reward:lone"),))
    world.anchor()
    assert world.verify("reward:0").ok
    assert codes(world.verify()) == {"chain_incomplete"}


def test_what_was_never_recorded_is_named(world: World) -> None:
    result = world.fill().verify("reward:0", "reward:77")
    assert codes(result) == {"not_recorded"}
    assert link("reward:77").sha256 in result.findings[0].message


def test_stored_bytes_are_compared_with_their_digests(world: World) -> None:
    raw = b"a source archive"
    digest = hashlib.sha256(raw).hexdigest()
    first = StatementDraft(
        activity=Activity.INGEST, subjects=(Link(name="raw:x", sha256=digest),), started_s=0, ended_s=0
    )
    world.recorder.record((first,))
    world.anchor()

    class Damaged(MemoryBlobs):
        def get(self, digest: str, *, bytes_max: int) -> bytes:
            raise IntegrityError(f"{digest} is damaged")

    assert world.verify(blobs=MemoryBlobs(raw)).blobs == 1
    assert world.verify(blobs=MemoryBlobs(raw)).ok
    assert codes(world.verify(blobs=MemoryBlobs())) == {"blob_missing"}
    result = world.verify(blobs=Damaged(raw))
    assert codes(result) == {"blob_damaged"}
    assert result.findings[0].name == "raw:x"


def test_what_a_crash_left_is_a_note_and_not_a_finding(world: World) -> None:
    world.fill()
    with world.log.files.bundle(0).open("ab") as file:
        file.write(b"\1\2half an entry")
    result = world.verify()
    assert result.ok
    assert "unacknowledged" in result.notes[0]


def test_anchors_that_are_none(world: World) -> None:
    world.fill()
    with pytest.raises(CallerError, match="cannot be read"):
        world.verify(anchors=world.anchors._replace(checkpoint=world.outside / "absent"))
    with pytest.raises(CallerError, match="cannot be read"):
        world.verify(anchors=world.anchors._replace(trust_root=world.outside / "absent"))
    (world.outside / "checkpoint").write_text("nonsense")
    assert codes(world.verify()) == {"outside_invalid"}


def test_receipts_need_no_log(world: World) -> None:
    world.fill()
    receipt = make_receipt(world.log, 6)
    shutil.rmtree(world.state)
    shown = verify_receipt(receipt, Verifier(load_trust_root(world.outside / "trust.json")))
    assert shown.statement.subjects == (link("reward:0"),)
    assert (shown.log_index, shown.checkpoint.size) == (6, 13)


def test_a_receipt_is_anchored_by_the_checkpoint_that_it_was_made_for(world: World, tmp_path: Path) -> None:
    world.fill()
    outside = world.outside / "checkpoint"
    before = make_receipt(world.log, 6)
    world.recorder.record(graded(7))
    later = make_receipt(world.log, 6)
    verifier = Verifier(world.keys.trust_root())
    kept = verify_checkpoint(outside.read_bytes(), verifier)[0]

    def reason(receipt: bytes, checkpoint: Checkpoint | None = kept) -> str:
        return unanchored(verify_receipt(receipt, verifier), checkpoint)

    assert reason(before) == reason(make_receipt(world.log, 6, outside=outside)) == ""
    assert "no outside checkpoint" in reason(before, None)
    assert "13 entries and the receipt's of 16" in reason(later)
    with pytest.raises(IntegrityError, match="commits to"):
        reason(before, kept._replace(root=bytes(32)))
    with pytest.raises(IntegrityError, match=r"of ropewalk\.dev/log/0"):
        reason(before, kept._replace(origin=f"ropewalk.dev/log/{'0' * 32}"))
    with pytest.raises(CallerError, match="vouches for 13 entries"):
        make_receipt(world.log, 14, outside=outside)
    for other in (kept._replace(root=bytes(32)), kept._replace(size=99)):
        file = tmp_path / "forged"
        file.write_bytes(sign_checkpoint(other, world.keys.active()))
        with pytest.raises(IntegrityError, match="does not continue"):
            make_receipt(world.log, 6, outside=file)
