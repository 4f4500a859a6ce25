"""What every key driver must keep, as tests to inherit:

    class TestMine(KeysConformance):
        @pytest.fixture
        def keys(self, tmp_path): return MyKeys(tmp_path)

Collected by pytest. Whoever can open the same keys anew, as another process would, also overrides `again`.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable

import pytest

from ropewalk.core.errors import CallerError
from ropewalk.security.contract import Keys
from ropewalk.security.signatures import Verifier
from ropewalk.security.trust import PublicPair

_ABSENT = "keypair:" + "0" * 32


def _is_signed(keys: Keys, pair: PublicPair, message: bytes) -> bool:
    """Whether what a pair's signer signs is believed by whoever has the trust root."""
    signature = keys.signer(pair.id).sign(message)
    both = (pair.keyids["ed25519"], signature.ed25519), (pair.keyids["ml-dsa-65"], signature.ml_dsa_65)
    return Verifier(keys.trust_root()).verify_pair(both, message).id == pair.id


class KeysConformance:
    """Inherit, and give a fixture `keys`: an empty keystore."""

    def again(self, keys: Keys) -> Keys:
        """The same keys, as another process opens them."""
        return keys

    def test_without_keys_everything_but_create_is_the_callers_error(self, keys: Keys) -> None:
        assert not keys.exists
        calls: list[Callable[[], object]] = [
            keys.active, keys.trust_root, keys.encrypted_by,
            lambda: keys.signer(_ABSENT), lambda: keys.rotate(at_index=1),
            lambda: keys.revoke(_ABSENT, reason="x", from_index=0),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(CallerError):
                call()
        assert not keys.exists

    def test_create_is_idempotent_and_one_pair_wins(self, keys: Keys) -> None:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda each: each.create(), [keys, *(self.again(keys) for _ in range(3))]))
        assert len({pair.id for pair in made}) == 1
        assert keys.exists and self.again(keys).exists
        assert keys.create() == self.again(keys).active().pair == made[0]
        assert (made[0].from_index, made[0].until_index, made[0].revoked) == (0, None, None)

    @pytest.mark.parametrize("message", [b"", b"x", bytes(100_000)], ids=len)
    def test_what_is_signed_the_public_half_verifies(self, keys: Keys, message: bytes) -> None:
        pair = keys.create()
        assert keys.active().pair == pair
        assert len(keys.active().sign(message).ed25519) == 64
        assert len(keys.active().sign(message).ml_dsa_65) == 3309
        assert _is_signed(keys, pair, message) and _is_signed(self.again(keys), pair, message)

    def test_a_secret_is_the_same_for_a_purpose_and_another_for_every_other(self, keys: Keys) -> None:
        keys.create()
        secrets = {purpose: keys.active().secret(purpose) for purpose in ("a", "b", "")}
        assert all(len(secret) == 32 for secret in secrets.values())
        assert len(set(secrets.values())) == 3
        assert {purpose: self.again(keys).active().secret(purpose) for purpose in secrets} == secrets
        keys.rotate(at_index=1)
        assert keys.active().secret("a") != secrets["a"]

    def test_rotation(self, keys: Keys) -> None:
        old = keys.create()
        other = self.again(keys)
        assert other.active().pair.id == old.id
        new = keys.rotate(at_index=10)
        assert other.active().pair.id == new.id != old.id
        root = keys.trust_root()
        assert [pair.id for pair in root.pairs] == [old.id, new.id]
        assert [(pair.from_index, pair.until_index) for pair in root.pairs] == [(0, 10), (10, None)]
        with pytest.raises(CallerError):
            keys.rotate(at_index=9)
        assert keys.trust_root() == other.trust_root() == root
        assert _is_signed(keys, root.pairs[0], b"of before") and _is_signed(keys, new, b"of now")
        assert set(keys.encrypted_by()) == {old.id, new.id}

    def test_revocation(self, keys: Keys) -> None:
        old = keys.create()
        with pytest.raises(CallerError):
            keys.revoke(old.id, reason="stolen", from_index=4)  # it is the active one
        keys.rotate(at_index=10)
        for reason, from_index in ((" ", 4), ("x", -1)):
            with pytest.raises(CallerError):
                keys.revoke(old.id, reason=reason, from_index=from_index)
        with pytest.raises(CallerError):
            keys.revoke(_ABSENT, reason="x", from_index=0)
        for from_index in (4, 2):
            revoked = keys.revoke(old.id, reason="stolen", from_index=from_index).revoked
            assert revoked is not None and (revoked.reason, revoked.from_index) == ("stolen", from_index)
        with pytest.raises(CallerError):
            keys.revoke(old.id, reason="never mind", from_index=8)
        stored = self.again(keys).trust_root().pairs[0]
        assert stored.revoked is not None and stored.revoked.from_index == 2

    def test_who_is_revoked_or_unknown_signs_no_more_and_is_not_forgotten(self, keys: Keys) -> None:
        old = keys.create()
        new = keys.rotate(at_index=10)
        keys.revoke(old.id, reason="stolen", from_index=4)
        for id in (old.id, _ABSENT, ""):
            with pytest.raises(CallerError):
                self.again(keys).signer(id)
        assert _is_signed(keys, new, b"x")
        assert [pair.id for pair in keys.trust_root().pairs] == [old.id, new.id]
