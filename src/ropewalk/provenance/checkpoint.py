"""Checkpoints: a log's origin, size and root as a signed note that can be kept anywhere.

    ropewalk.dev/log/3f…            origin
    1234                            number of entries
    CsUYapGGPo4dkMgIAUqom/Xajj7…    root, base64
                                    (empty line)
    — ropewalk.dev/log/3f… base64(key id || Ed25519 signature)
    — ropewalk.dev/log/3f… base64(key id || ML-DSA-65 signature)

https://github.com/C2SP/C2SP/blob/main/signed-note.md and tlog-checkpoint.md. ML-DSA-65 has no type byte there; we
use 0xff and an identifier, as the note's specification provides.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from pathlib import Path
from typing import Final, NamedTuple

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.merkle import HASH_BYTES
from ropewalk.security.contract import Signer
from ropewalk.security.signatures import SignatureError, Verifier
from ropewalk.security.trust import ALGORITHMS, Algorithm, PublicPair

CHECKPOINT_BYTES_MAX: Final = 16 * 1024
ORIGIN_PREFIX: Final = "ropewalk.dev/log/"
_ORIGIN: Final = re.compile(r"ropewalk\.dev/log/[0-9a-f]{32}")
_TYPES: Final[dict[Algorithm, bytes]] = {"ed25519": b"\x01", "ml-dsa-65": b"\xffropewalk.dev/ml-dsa-65"}


class Checkpoint(NamedTuple):
    """A log at one size."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> bytes:
        """The signed bytes."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n".encode()


def sign_checkpoint(checkpoint: Checkpoint, signer: Signer) -> bytes:
    """The checkpoint as a note with both signatures."""
    signed = signer.sign(checkpoint.text)
    values: dict[Algorithm, bytes] = {"ed25519": signed.ed25519, "ml-dsa-65": signed.ml_dsa_65}
    lines = [_line(checkpoint.origin, _key_id(checkpoint.origin, signer.pair, a) + values[a]) for a in ALGORITHMS]
    return checkpoint.text + b"\n" + b"".join(lines)


def parse_checkpoint(data: bytes) -> tuple[Checkpoint, tuple[bytes, ...]]:
    """A checkpoint and its signatures (4 bytes of key id, then the signature), **without** checking them.

    Raises:
        IntegrityError: not such a note, or not in its one form.
    """
    try:
        if len(data) > CHECKPOINT_BYTES_MAX:
            raise ValueError("too large")
        origin, size, root64, empty, *rest = data.decode("utf-8").split("\n")
        if empty or len(rest) != len(ALGORITHMS) + 1 or not _ORIGIN.fullmatch(origin):
            raise ValueError("not three lines, an empty one and two signatures")
        checkpoint = Checkpoint(origin, int(size), base64.b64decode(root64, validate=True))
        signatures = tuple(base64.b64decode(line.removeprefix(f"— {origin} "), validate=True) for line in rest[:-1])
        if len(checkpoint.root) != HASH_BYTES or not 0 <= checkpoint.size < 1 << 62:
            raise ValueError("impossible size or root")
        if checkpoint.text + b"\n" + b"".join(_line(origin, value) for value in signatures) != data:
            raise ValueError("not in canonical form")
    except (ValueError, binascii.Error) as error:
        raise IntegrityError(f"No log checkpoint: {error}.") from error
    return checkpoint, signatures


def verify_checkpoint(data: bytes, verifier: Verifier) -> tuple[Checkpoint, PublicPair]:
    """A checkpoint that both keys of one trusted pair signed, and that pair.

    Raises:
        IntegrityError: it is not; a `SignatureError` where a signature is why.
    """
    checkpoint, signatures = parse_checkpoint(data)
    for pair in verifier.root.pairs:
        if all(s[:4] == _key_id(checkpoint.origin, pair, a) for s, a in zip(signatures, ALGORITHMS, strict=True)):
            keyids = pair.keyids
            named = tuple((keyids[a], s[4:]) for s, a in zip(signatures, ALGORITHMS, strict=True))
            verifier.verify_pair(named, checkpoint.text)
            _check_validity(checkpoint, pair)
            return checkpoint, pair
    raise SignatureError(
        "No trusted key pair signed the log's checkpoint.",
        cause="unknown_key",
        next_step="pin the current keys (`ropewalk keys export`) if they were rotated since.",
    )


def read_checkpoint(path: Path) -> bytes:
    """A checkpoint file's bytes.

    Raises:
        CallerError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(CHECKPOINT_BYTES_MAX + 1)
    except OSError as error:
        raise CallerError(f"The checkpoint {path} cannot be read: {error.strerror or error}.") from error


def _check_validity(checkpoint: Checkpoint, pair: PublicPair) -> None:
    # A checkpoint of size n speaks of the entries before n, so a pair that ends at n may still sign it.
    if pair.revoked and checkpoint.size > pair.revoked.from_index:
        raise SignatureError(
            f"The log's checkpoint is signed by {pair.id}, revoked from entry {pair.revoked.from_index} on.",
            cause="revoked",
            next_step="sign the log with the active keys (any new statement does), and export a new checkpoint.",
        )
    if checkpoint.size < pair.from_index or (pair.until_index is not None and checkpoint.size > pair.until_index):
        raise SignatureError(
            f"The key pair {pair.id} may not sign a checkpoint of {checkpoint.size} entries.", cause="outside_validity"
        )


def _key_id(origin: str, pair: PublicPair, algorithm: Algorithm) -> bytes:
    key = pair.public_key(algorithm).public_bytes_raw()
    return hashlib.sha256(origin.encode() + b"\n" + _TYPES[algorithm] + key).digest()[:4]


def _line(origin: str, signature: bytes) -> bytes:
    return f"— {origin} {base64.b64encode(signature).decode()}\n".encode()
