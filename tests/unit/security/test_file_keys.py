"""The file keystore: permissions, passphrases by reference, rotation, revocation."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from ropewalk.core.errors import CallerError, DeniedError, IntegrityError, UnavailableError
from ropewalk.machinery import drivers
from ropewalk.security.drivers import DRIVERS
from ropewalk.security.drivers.file import FileKeys
from ropewalk.security.signatures import Verifier, sign_envelope, verify_envelope
from ropewalk.security.trust import TrustRoot, export_trust_root, load_trust_root, parse_trust_root


def made(folder: Path, **options: str) -> FileKeys:
    keys = FileKeys(folder, **options)
    keys.create()
    return keys


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nothing_is_readable_by_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keys = made(tmp_path / "keys")
    finally:
        os.umask(before)
    files = [path for path in keys.folder.rglob("*") if path.is_file()]
    folders = [path for path in (keys.folder, *keys.folder.rglob("*")) if path.is_dir()]
    assert {mode(path) for path in files} == {0o600}
    assert {mode(path) for path in folders} == {0o700}
    assert sum(path.suffix == ".pem" for path in files) == 2


@pytest.mark.parametrize("which", ["folder", "keys.json", "pair", "ed25519.pem", "ml-dsa-65.pem"])
@pytest.mark.parametrize("bits", [0o640, 0o604, 0o660])
def test_wider_permissions_are_refused_with_the_cure(tmp_path: Path, which: str, bits: int) -> None:
    keys = made(tmp_path / "keys")
    pair = next(path for path in keys.folder.iterdir() if path.is_dir())
    path = {"folder": keys.folder, "pair": pair, "keys.json": keys.folder / "keys.json"}.get(which, pair / which)
    path.chmod(bits | 0o100 if path.is_dir() else bits)
    with pytest.raises(DeniedError, match=f"chmod {'700' if path.is_dir() else '600'} ") as caught:
        FileKeys(tmp_path / "keys").active()
    assert caught.value.rule == "private_files"


def test_a_link_instead_of_a_key_is_refused(tmp_path: Path) -> None:
    keys = made(tmp_path / "keys")
    pem = next(keys.folder.rglob("ed25519.pem"))
    pem.rename(tmp_path / "elsewhere.pem")
    pem.symlink_to(tmp_path / "elsewhere.pem")
    with pytest.raises(CallerError, match="not a plain file"):
        FileKeys(tmp_path / "keys").active()


def test_keys_are_encrypted_by_a_passphrase_that_is_only_referred_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "passphrase"
    secret.write_text("correct horse\n")
    secret.chmod(0o600)
    keys = made(tmp_path / "keys", passphrase=f"file:{secret}")
    pems = list(keys.folder.rglob("*.pem"))
    assert all("BEGIN ENCRYPTED PRIVATE KEY" in path.read_text() for path in pems)
    assert all(b"correct horse" not in path.read_bytes() for path in keys.folder.rglob("*") if path.is_file())
    FileKeys(tmp_path / "keys").active()  # the stored reference is enough
    secret.write_text("wrong")
    with pytest.raises(IntegrityError, match="does not open"):
        FileKeys(tmp_path / "keys").active()
    secret.chmod(0o644)
    with pytest.raises(DeniedError):
        FileKeys(tmp_path / "keys").active()
    monkeypatch.setenv("KEYS_TEST_PASSPHRASE", "from the environment")
    made(tmp_path / "other", passphrase="env:KEYS_TEST_PASSPHRASE").active()
    monkeypatch.delenv("KEYS_TEST_PASSPHRASE")
    with pytest.raises(CallerError, match="env:KEYS_TEST_PASSPHRASE is empty or not set"):
        FileKeys(tmp_path / "other").active()


def test_a_passphrase_itself_is_refused_and_not_repeated(tmp_path: Path) -> None:
    for value in ("hunter2", "file:", "https://x", ""):
        with pytest.raises(CallerError) as caught:
            FileKeys(tmp_path / "keys", passphrase=value)
        assert "hunter2" not in str(caught.value)


def test_a_passphrase_that_would_not_count_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for encrypted keys never goes on with plain ones that were there before."""
    monkeypatch.setenv("KEYS_TEST_PASSPHRASE", "correct horse")
    plain = made(tmp_path / "keys").active().pair
    wanted = FileKeys(tmp_path / "keys", passphrase="env:KEYS_TEST_PASSPHRASE")
    with pytest.raises(CallerError, match="rotate --passphrase env:KEYS_TEST_PASSPHRASE"):
        wanted.create()
    assert FileKeys(tmp_path / "keys").create() == plain, "nothing changed"
    sealed = wanted.rotate(at_index=3)
    assert wanted.create() == sealed
    assert wanted.encrypted_by() == {plain.id: None, sealed.id: "env:KEYS_TEST_PASSPHRASE"}


@pytest.mark.parametrize("again", [None, "env:KEYS_TEST_OTHER"])
def test_a_rotation_never_takes_the_encryption_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str | None
) -> None:
    monkeypatch.setenv("KEYS_TEST_PASSPHRASE", "correct horse")
    monkeypatch.setenv("KEYS_TEST_OTHER", "battery staple")
    made(tmp_path / "keys", passphrase="env:KEYS_TEST_PASSPHRASE")
    keys = FileKeys(tmp_path / "keys", passphrase=again)
    pair = keys.rotate(at_index=1)
    assert keys.encrypted_by()[pair.id] == (again or "env:KEYS_TEST_PASSPHRASE")
    pems = list(keys.folder.rglob("*.pem"))
    assert len(pems) == 4 and all("BEGIN ENCRYPTED PRIVATE KEY" in path.read_text() for path in pems)


def test_refusals_say_why_and_what_is_next(tmp_path: Path) -> None:
    keys = made(tmp_path / "keys")
    old = keys.active().pair
    with pytest.raises(CallerError, match="rotate first"):
        keys.revoke(old.id, reason="stolen", from_index=4)
    keys.rotate(at_index=10)
    with pytest.raises(CallerError, match="signs from entry 10"):
        keys.rotate(at_index=9)
    with pytest.raises(CallerError, match=f"one of {old.id}"):
        keys.revoke("keypair:" + "0" * 32, reason="x", from_index=0)
    for reason, first in (("stolen", 4), ("stolen earlier", 2)):
        revoked = keys.revoke(old.id, reason=reason, from_index=first).revoked
        assert revoked is not None and revoked.from_index == first
    with pytest.raises(CallerError, match="already revoked from entry 2"):
        keys.revoke(old.id, reason="never mind", from_index=8)


def test_a_read_only_or_missing_place_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError):
        FileKeys(tmp_path / "file" / "keys").create()
    with pytest.raises(CallerError, match="keys init"):
        FileKeys(tmp_path / "absent").active()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    keys = made(tmp_path / "keys")
    pem = next(keys.folder.rglob("ml-dsa-65.pem"))
    whole = pem.read_bytes()
    pem.write_bytes(whole[:60])
    with pytest.raises(IntegrityError, match=r"ml-dsa-65\.pem does not open"):
        FileKeys(keys.folder).active()
    foreign = made(tmp_path / "foreign")
    pem.write_bytes(next(foreign.folder.rglob("ml-dsa-65.pem")).read_bytes())
    with pytest.raises(IntegrityError, match="do not belong to"):
        FileKeys(keys.folder).active()
    (keys.folder / "keys.json").write_text("{}")
    with pytest.raises(IntegrityError, match="Stored record is damaged"):
        FileKeys(keys.folder).trust_root()


def test_export_and_import_of_the_public_half(tmp_path: Path) -> None:
    keys = made(tmp_path / "keys")
    envelope = sign_envelope(b"{}", keys.active())
    export_trust_root(keys.trust_root(), tmp_path / "trust.json")
    text = (tmp_path / "trust.json").read_text()
    assert "PRIVATE" not in text
    root = load_trust_root(tmp_path / "trust.json")
    assert root == keys.trust_root()
    assert root.digest == keys.trust_root().digest
    assert verify_envelope(envelope, Verifier(root), index=0).payload == b"{}"
    with pytest.raises(CallerError, match="keys export"):
        load_trust_root(tmp_path / "absent.json")


def test_a_trust_root_is_read_strictly(tmp_path: Path) -> None:
    text = made(tmp_path / "keys").trust_root().to_bytes().decode()
    pair = text.partition('"pairs":[')[2].rpartition("]")[0]
    bad = [
        text.replace('"format"', '"fromat"'),
        text.replace("root/1", "root/2"),
        text.replace('"pairs":[', '"pairs":[' + pair + ","),
        '{"format":"ropewalk-trust-root/1","pairs":[]}',
        text.replace('"from_index":0', '"from_index":-1'),
        text.replace('"from_index":0', '"from_index":5').replace('"until_index":null', '"until_index":4'),
        text.replace('"ml_dsa_65":"MII', '"ml_dsa_65":"AII'),
        text.replace('"ed25519":"', '"ed25519":" '),
        text[:-20],
    ]
    for changed in bad:
        assert changed != text
        with pytest.raises(CallerError):
            parse_trust_root(changed.encode())
    swapped = made(tmp_path / "keys").trust_root().pairs[0]
    for name in ("ed25519", "ml_dsa_65"):
        other = "ml_dsa_65" if name == "ed25519" else "ed25519"
        with pytest.raises(CallerError, match="another kind"):
            parse_trust_root(text.replace(getattr(swapped, name), getattr(swapped, other)).encode())


def test_the_driver_table_names_what_exists() -> None:
    assert drivers.load("keys", DRIVERS, "file") is FileKeys


def test_a_restricted_root_never_trusts_more(tmp_path: Path) -> None:
    keys = made(tmp_path / "keys")
    pinned = keys.trust_root()
    keys.rotate(at_index=7)
    keys.revoke(pinned.pairs[0].id, reason="stolen", from_index=3)
    both = pinned.restricted_by(keys.trust_root())
    assert [pair.id for pair in both.pairs] == [pinned.pairs[0].id]
    revoked = both.pairs[0].revoked
    assert both.pairs[0].until_index == 7 and revoked is not None and revoked.from_index == 3
    assert keys.trust_root().restricted_by(pinned) == keys.trust_root()
    later = [msgspec.structs.replace(pair, from_index=9) for pair in pinned.pairs]
    assert pinned.restricted_by(TrustRoot(pairs=tuple(later))).pairs[0].from_index == 9
