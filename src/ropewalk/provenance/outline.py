"""A log in outline: what a verification keeps of every entry, about a hundred bytes instead of ten thousand.

The leaf hash is kept whole, so that an entry that is read again is known to be the one that was hashed. Of what an
entry links only the first 64 bits of each digest are kept: enough to choose which entries to read, and those are
then read and compared in whole. Two digests that begin alike choose an entry too many, never one too few.
"""

from __future__ import annotations

import base64
import re
from array import array
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ropewalk.core.errors import CallerError
from ropewalk.core.merkle import HASH_BYTES, CompactRange, leaf_hash, root
from ropewalk.provenance.files import TILE_WIDTH
from ropewalk.provenance.intoto import PREDICATE_TYPE
from ropewalk.provenance.statement import Activity


class _Envelope(msgspec.Struct):
    payload: str


class _Digest(msgspec.Struct):
    sha256: str


class _Descriptor(msgspec.Struct):
    digest: _Digest


class _Facts(msgspec.Struct):
    run: Any = None


class _Predicate(msgspec.Struct):
    inputs: tuple[_Descriptor, ...]
    facts: _Facts


class _Statement(msgspec.Struct):
    subject: tuple[_Descriptor, ...]
    predicateType: str
    predicate: _Predicate


_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_TILE_BYTES: Final = TILE_WIDTH * HASH_BYTES
_REWARD: Final = PREDICATE_TYPE.format(activity=Activity.REWARD.value)
# Not strict: of any statement that the strict readers accept they say the same, and only such statements count.
_ENVELOPES: Final = msgspec.json.Decoder(_Envelope)
_STATEMENTS: Final = msgspec.json.Decoder(_Statement)


class Outline:
    """Of the first entries of a log, in order."""

    def __init__(self) -> None:
        self.leaves = bytearray()
        """The leaf hashes, 32 bytes each."""
        self.tiles: list[bytes] = []
        """The hash over each 256 of them, as far as they are full."""
        self.rewards: dict[str, list[int]] = {}
        """By run, the entries with its rewards."""
        self._links = array("Q")
        self._subjects_end = array("Q")
        self._inputs_end = array("Q")

    def __len__(self) -> int:
        """How many entries it has."""
        return len(self._inputs_end)

    def add(self, entry: bytes) -> None:
        """The next entry, whatever it is.

        Raises:
            CallerError: it is no statement; it was added all the same, without any links.
        """
        self.leaves += leaf_hash(entry)
        if len(self.leaves) % _TILE_BYTES == 0:
            self.tiles.append(root(_split(self.leaves[-_TILE_BYTES:])))
        subjects: list[int] = []
        inputs: list[int] = []
        try:
            statement = _STATEMENTS.decode(base64.b64decode(_ENVELOPES.decode(entry).payload))
            subjects = [_short(each.digest.sha256) for each in statement.subject]
            inputs = [_short(each.digest.sha256) for each in statement.predicate.inputs]
            if statement.predicateType == _REWARD and isinstance(run := statement.predicate.facts.run, str):
                self.rewards.setdefault(run, []).append(len(self))
        except (msgspec.DecodeError, ValueError, OverflowError) as error:
            subjects, inputs = [], []
            raise CallerError(f"No statement: {error}.") from error
        finally:
            self._links.extend(subjects)
            self._subjects_end.append(len(self._links))
            self._links.extend(inputs)
            self._inputs_end.append(len(self._links))

    def leaf(self, index: int) -> bytes:
        """The leaf hash of one entry."""
        return bytes(self.leaves[index * HASH_BYTES : (index + 1) * HASH_BYTES])

    def root(self, size: int) -> bytes:
        """The root over the first `size` entries."""
        return self.edge(size).root()

    def edge(self, size: int) -> CompactRange:
        """The right edge of the tree over the first `size` entries."""
        full = size // TILE_WIDTH
        edge = CompactRange()
        for tile in self.tiles[:full]:
            edge.append(tile)
        edge = CompactRange(full * TILE_WIDTH, edge.hashes)
        for leaf in _split(self.leaves[full * _TILE_BYTES : size * HASH_BYTES]):
            edge.append(leaf)
        return edge

    def ancestors(self, digests: Iterable[str]) -> list[int]:
        """The entries that led to these things, those that made them included, in log order; perhaps some more.

        What was stated again of an input after its last use here led to nothing here, and is left out.
        """
        needed = {_short(digest) for digest in digests if _SHA256.fullmatch(digest)}
        made: set[int] = set()
        found: set[int] = set()
        known = -1
        # Makers stand before users, so one pass backwards finds them all; where some do not, another one does.
        while len(needed) != known:
            known = len(needed)
            sought = needed - made
            end = len(self._links)
            for index in range(len(self) - 1, -1, -1):
                start = self._inputs_end[index - 1] if index else 0
                middle = self._subjects_end[index]
                if index not in found and not sought.isdisjoint(self._links[start:middle]):
                    found.add(index)
                    made.update(self._links[start:middle])
                    sought.update(self._links[middle:end])
                end = start
            needed |= sought
        return sorted(found)


def _short(sha256: str) -> int:
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256[:80]!r} is no sha256")
    return int(sha256[:16], 16)


def _split(leaves: bytearray) -> list[bytes]:
    return [bytes(leaves[at : at + HASH_BYTES]) for at in range(0, len(leaves), HASH_BYTES)]
