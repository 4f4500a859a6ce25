"""Keys in files: a folder of mode 0700, files of mode 0600, PKCS #8 PEM, encrypted where a passphrase is given.

    keys.json            which pairs exist, which is active, what each may sign; passphrase *references*
    <pair id>/ed25519.pem, <pair id>/ml-dsa-65.pem
    lock                 taken by whoever changes keys.json

An encrypted file's PKCS #8 password is not the passphrase itself but scrypt of it (n = 2**15, r = 8, p = 1, the
salt is in keys.json) in hexadecimal, because PKCS #8 alone would stretch it by 2,048 rounds of PBKDF2 only.
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from ropewalk.core.clock import Clock, SystemClock
from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.records import Record, canonical_bytes, decode_own
from ropewalk.machinery.files import locked, replace_whole, sync_folder
from ropewalk.security.contract import PairSignature, Signer
from ropewalk.security.private_files import check_private, read_private
from ropewalk.security.references import check_reference, resolve_secret
from ropewalk.security.trust import ALGORITHMS, Algorithm, PublicPair, Revocation, TrustRoot, parse_trust_root

PrivateKey = Ed25519PrivateKey | MLDSA65PrivateKey
_BYTES_MAX = 1024 * 1024


class StoredPair(Record):
    """A pair as keys.json knows it."""

    pair: PublicPair
    passphrase: str | None
    """A reference; None: the files are not encrypted."""
    salt: str
    """For scrypt, in hexadecimal."""


class KeysFile(Record):
    """The content of keys.json."""

    format: Literal["ropewalk-keys/1"] = "ropewalk-keys/1"
    active: str
    pairs: tuple[StoredPair, ...]


class FileSigner:
    """A pair whose private keys are in this process's memory."""

    def __init__(self, pair: PublicPair, ed25519: Ed25519PrivateKey, ml_dsa_65: MLDSA65PrivateKey) -> None:
        self._pair, self._ed25519, self._ml_dsa_65 = pair, ed25519, ml_dsa_65

    @property
    def pair(self) -> PublicPair:
        """Its public half."""
        return self._pair

    def sign(self, message: bytes) -> PairSignature:
        """Both signatures; ML-DSA's is hedged, so that equal messages give different bytes."""
        return PairSignature(ed25519=self._ed25519.sign(message), ml_dsa_65=self._ml_dsa_65.sign(message))

    def secret(self, purpose: str) -> bytes:
        """HKDF-SHA-256 (RFC 5869) of the Ed25519 seed; that key's own use of it is another hash."""
        derive = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"ropewalk/secret/v1/" + purpose.encode())
        return derive.derive(self._ed25519.private_bytes_raw())


class FileKeys:
    """See `security.contract.Keys`.

    Args:
        folder: made when the first pair is.
        passphrase: a reference (`env:NAME`, `file:PATH`) for pairs made from now on. Stored ones remember theirs.
        clock: for the times in the records.

    Raises:
        CallerError: `passphrase` is not a reference.
    """

    def __init__(self, folder: Path, *, passphrase: str | None = None, clock: Clock | None = None) -> None:
        self.folder = folder.absolute()
        self._passphrase = check_reference(passphrase) if passphrase is not None else None
        self._clock = clock or SystemClock()
        self._cache: tuple[tuple[int, ...], KeysFile] | None = None
        self._signers: dict[str, FileSigner] = {}
        self._lock = threading.RLock()

    @property
    def exists(self) -> bool:
        """Whether a pair was ever made here."""
        return (self.folder / "keys.json").exists()

    def create(self) -> PublicPair:
        """See `Keys.create`."""
        if self.exists:  # nothing has to be written, so nothing needs to be writable
            with self._lock:
                return self._protected(self._active_of(self._load())).pair
        self._prepare()
        with self._lock, locked(self.folder / "lock"):
            if self.exists:
                return self._protected(self._active_of(self._load())).pair
            made = self._make(from_index=0, passphrase=self._passphrase)
            self._save(KeysFile(active=made.pair.id, pairs=(made,)))
            return made.pair

    def active(self) -> Signer:
        """See `Keys.active`. Costs one `stat` where nothing changed."""
        with self._lock:
            return self._signer_of(self._active_of(self._load()))

    def signer(self, pair_id: str) -> Signer:
        """See `Keys.signer`. Guarded alike: by the same passphrase reference, or none."""
        with self._lock:
            state = self._load()
            reference = self._active_of(state).passphrase
            for stored in state.pairs:
                if stored.pair.id == pair_id and not stored.pair.revoked and stored.passphrase == reference:
                    return self._signer_of(stored)
        raise CallerError(f"There is no key pair {pair_id[:80]!r} to be believed.")

    def _signer_of(self, stored: StoredPair) -> FileSigner:
        pair_id = stored.pair.id
        if pair_id not in self._signers or self._signers[pair_id].pair != stored.pair:
            self._signers[pair_id] = self._open(stored)
        return self._signers[pair_id]

    def rotate(self, *, at_index: int) -> PublicPair:
        """See `Keys.rotate`."""
        self._prepare()
        with self._lock, locked(self.folder / "lock"):
            state = self._load()
            old = self._active_of(state)
            if at_index < old.pair.from_index:
                raise CallerError(f"{old.pair.id} signs from entry {old.pair.from_index} on, after entry {at_index}.")
            state = _with_pair(state, old, _changed(old.pair, until_index=at_index, revoked=old.pair.revoked))
            made = self._make(from_index=at_index, passphrase=self._passphrase or old.passphrase)
            self._save(KeysFile(active=made.pair.id, pairs=(*state.pairs, made)))
            return made.pair

    def revoke(self, pair_id: str, *, reason: str, from_index: int) -> PublicPair:
        """See `Keys.revoke`."""
        if not reason.strip() or from_index < 0:
            raise CallerError("A revocation needs a reason and the log entry that it begins with, from 0 on.")
        self._prepare()
        with self._lock, locked(self.folder / "lock"):
            state = self._load()
            stored = next((stored for stored in state.pairs if stored.pair.id == pair_id), None)
            if stored is None:
                known = ", ".join(stored.pair.id for stored in state.pairs)
                raise CallerError(f"There is no key pair {pair_id!r}.", next_step=f"one of {known}.")
            if state.active == pair_id:
                raise CallerError(f"{pair_id} is the active key pair.", next_step="rotate first.")
            if stored.pair.revoked and stored.pair.revoked.from_index < from_index:
                raise CallerError(f"{pair_id} is already revoked from entry {stored.pair.revoked.from_index} on.")
            revocation = Revocation(reason=reason.strip(), from_index=from_index, time_s=self._clock.now_s())
            revoked = _changed(stored.pair, until_index=stored.pair.until_index, revoked=revocation)
            self._save(_with_pair(state, stored, revoked))
            return revoked

    def encrypted_by(self) -> Mapping[str, str | None]:
        """See `Keys.encrypted_by`."""
        with self._lock:
            return {stored.pair.id: stored.passphrase for stored in self._load().pairs}

    def trust_root(self) -> TrustRoot:
        """See `Keys.trust_root`."""
        with self._lock:
            root = TrustRoot(pairs=tuple(stored.pair for stored in self._load().pairs))
        try:
            return parse_trust_root(root.to_bytes(), what=str(self.folder / "keys.json"))
        except CallerError as error:
            raise IntegrityError(f"The keystore is damaged. {error.message}") from error

    def _prepare(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UnavailableError(f"{self.folder} cannot be made: {error.strerror or error}.") from error
        check_private(self.folder, folder=True)

    def _protected(self, stored: StoredPair) -> StoredPair:
        if self._passphrase is not None and stored.passphrase is None:
            raise CallerError(
                f"{stored.pair.id} exists already, and its private keys in {self.folder} are not encrypted.",
                next_step=f"`ropewalk keys rotate --passphrase {self._passphrase}` makes an encrypted pair active.",
            )
        return stored

    def _make(self, *, from_index: int, passphrase: str | None) -> StoredPair:
        keys: dict[Algorithm, PrivateKey] = {
            "ed25519": Ed25519PrivateKey.generate(),
            "ml-dsa-65": MLDSA65PrivateKey.generate(),
        }
        spki = {
            algorithm: base64.b64encode(
                key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
            ).decode()
            for algorithm, key in keys.items()
        }
        stored = StoredPair(
            pair=PublicPair(
                ed25519=spki["ed25519"],
                ml_dsa_65=spki["ml-dsa-65"],
                created_s=self._clock.now_s(),
                from_index=from_index,
            ),
            passphrase=passphrase,
            salt=os.urandom(16).hex(),
        )
        password = _password(stored)
        encryption: KeySerializationEncryption = BestAvailableEncryption(password) if password else NoEncryption()
        folder = self._pair_folder(stored)
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise UnavailableError(f"{folder} cannot be made: {error.strerror or error}.") from error
        for algorithm, key in keys.items():
            pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
            replace_whole(folder / f"{algorithm}.pem", pem)
        sync_folder(self.folder)
        return stored

    def _open(self, stored: StoredPair) -> FileSigner:
        folder = self._pair_folder(stored)
        check_private(self.folder, folder=True)
        check_private(folder, folder=True)
        password = _password(stored)
        loaded: dict[Algorithm, object] = {}
        for algorithm in ALGORITHMS:
            path = folder / f"{algorithm}.pem"
            pem = read_private(path, bytes_max=_BYTES_MAX)
            try:
                loaded[algorithm] = load_pem_private_key(pem, password)
            except (ValueError, TypeError) as error:
                raise IntegrityError(
                    f"{path} does not open: {error}.",
                    next_step="check the passphrase behind the reference; else restore the file or rotate the keys.",
                ) from error
        ed25519, ml_dsa_65 = loaded["ed25519"], loaded["ml-dsa-65"]
        if (
            not isinstance(ed25519, Ed25519PrivateKey)
            or not isinstance(ml_dsa_65, MLDSA65PrivateKey)
            or ed25519.public_key() != stored.pair.public_key("ed25519")
            or ml_dsa_65.public_key() != stored.pair.public_key("ml-dsa-65")
        ):
            raise IntegrityError(f"The private keys in {folder} do not belong to {stored.pair.id}.")
        return FileSigner(stored.pair, ed25519, ml_dsa_65)

    def _load(self) -> KeysFile:
        path = self.folder / "keys.json"
        try:
            found = path.lstat()
        except FileNotFoundError:
            raise CallerError(
                f"There are no keys in {self.folder}.", next_step="make them with `ropewalk keys init`."
            ) from None
        seen = (found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode, found.st_uid)
        if self._cache is None or self._cache[0] != seen:
            check_private(self.folder, folder=True)
            state = decode_own(read_private(path, bytes_max=_BYTES_MAX), KeysFile, what=str(path))
            self._cache = (seen, state)
        return self._cache[1]

    def _save(self, state: KeysFile) -> None:
        replace_whole(self.folder / "keys.json", canonical_bytes(state) + b"\n")
        self._cache = None

    def _active_of(self, state: KeysFile) -> StoredPair:
        for stored in state.pairs:
            if stored.pair.id == state.active:
                return stored
        raise IntegrityError(f"{self.folder / 'keys.json'} names an active pair that it does not hold.")

    def _pair_folder(self, stored: StoredPair) -> Path:
        return self.folder / stored.pair.id.partition(":")[2]


def _password(stored: StoredPair) -> bytes | None:
    if stored.passphrase is None:
        return None
    stretch = Scrypt(salt=bytes.fromhex(stored.salt), length=32, n=2**15, r=8, p=1)
    return stretch.derive(resolve_secret(stored.passphrase).encode()).hex().encode()


def _changed(pair: PublicPair, *, until_index: int | None, revoked: Revocation | None) -> PublicPair:
    return PublicPair(
        ed25519=pair.ed25519,
        ml_dsa_65=pair.ml_dsa_65,
        created_s=pair.created_s,
        from_index=pair.from_index,
        until_index=until_index,
        revoked=revoked,
    )


def _with_pair(state: KeysFile, old: StoredPair, pair: PublicPair) -> KeysFile:
    changed = StoredPair(pair=pair, passphrase=old.passphrase, salt=old.salt)
    return KeysFile(active=state.active, pairs=tuple(changed if stored is old else stored for stored in state.pairs))
