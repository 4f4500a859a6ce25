"""Merkle trees as transparency logs use them: tree hash, proofs, their verification, and appending.

RFC 9162 section 2.1 (unchanged from RFC 6962): a leaf is sha256(0x00 || entry), a node sha256(0x01 || left ||
right), an empty tree sha256(""). Subtrees follow draft-ietf-plants-merkle-tree-certs, section 4.

Stored trees are read through a `Nodes` function: `nodes(level, index)` is the hash of the perfect subtree over
the leaves [index << level, (index + 1) << level). Nothing here reads or writes anything itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ropewalk.core.errors import CallerError, IntegrityError

HASH_BYTES: Final = 32
EMPTY_ROOT: Final = hashlib.sha256(b"").digest()

Nodes = Callable[[int, int], bytes]


def leaf_hash(entry: bytes) -> bytes:
    """The hash of one entry, 32 bytes."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node, 32 bytes."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """The tree hash over leaf hashes, computed level by level; an odd last node moves up as it is."""
    if not leaves:
        return EMPTY_ROOT
    level = list(leaves)
    while len(level) > 1:
        parents = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            parents.append(level[-1])
        level = parents
    return level[0]


class CompactRange:
    """The right edge of a growing tree: the hash of each perfect subtree, one per set bit of the size.

    Appending and the root cost O(log size); the memory too.
    """

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        """An existing tree's edge: hashes from the largest perfect subtree to the smallest.

        Raises:
            CallerError: their number does not fit the size.
        """
        if size < 0 or len(hashes) != size.bit_count():
            raise CallerError(f"A tree of {size} leaves has {max(size, 0).bit_count()} edge hashes, not {len(hashes)}.")
        self.size = size
        self._hashes = list(hashes)

    @classmethod
    def read(cls, size: int, nodes: Nodes) -> CompactRange:
        """The edge of a stored tree."""
        return cls(size, [nodes(level, index) for level, index in perfect_nodes(0, size)])

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """Of the perfect subtrees, from the largest to the smallest."""
        return tuple(self._hashes)

    def copy(self) -> CompactRange:
        """An independent one of the same size."""
        return CompactRange(self.size, self._hashes)

    def append(self, leaf: bytes) -> None:
        """Adds one leaf hash."""
        carried, size = leaf, self.size
        while size & 1:
            carried = node_hash(self._hashes.pop(), carried)
            size >>= 1
        self._hashes.append(carried)
        self.size += 1

    def root(self) -> bytes:
        """The tree hash of the current size."""
        if not self._hashes:
            return EMPTY_ROOT
        result = self._hashes[-1]
        for left in reversed(self._hashes[:-1]):
            result = node_hash(left, result)
        return result


def perfect_nodes(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Splits [start, end) into perfect subtrees (level, index), from left to right.

    `start` must be a multiple of the smallest power of two that is not below the length, as in every tree's own
    subtrees.
    """
    while start < end:
        level = (end - start).bit_length() - 1
        yield level, start >> level
        start += 1 << level


def inclusion_proof(index: int, size: int, nodes: Nodes) -> tuple[bytes, ...]:
    """The audit path of a leaf, nearest sibling first (RFC 9162 2.1.3.1).

    Raises:
        CallerError: the tree has no such leaf.
    """
    if not 0 <= index < size:
        raise CallerError(f"A tree of {size} leaves has no leaf {index}.")
    return tuple(_path(index, 0, size, nodes))


def consistency_proof(size1: int, size2: int, nodes: Nodes) -> tuple[bytes, ...]:
    """Proof that the tree of `size1` leaves is the beginning of that of `size2` (RFC 9162 2.1.4.1).

    Raises:
        CallerError: not 0 < size1 <= size2.
    """
    if not 0 < size1 <= size2:
        raise CallerError(f"No consistency proof leads from {size1} to {size2} leaves.")
    return tuple(_subproof(size1, (0, size2), nodes, whole=True))


def verify_inclusion(index: int, size: int, leaf: bytes, proof: Sequence[bytes], root: bytes) -> None:
    """Checks that the leaf is in the tree at that index (RFC 9162 2.1.3.2).

    Raises:
        IntegrityError: the proof does not show it.
    """
    _check_lengths((leaf, root, *proof))
    if not 0 <= index < size:
        raise IntegrityError(f"Inclusion proof for leaf {index} of a tree of {size} leaves.")
    position, last, computed = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            raise IntegrityError("Inclusion proof is too long.")
        if position & 1 or position == last:
            computed = node_hash(sibling, computed)
            while position and not position & 1:
                position, last = position >> 1, last >> 1
        else:
            computed = node_hash(computed, sibling)
        position, last = position >> 1, last >> 1
    if last != 0:
        raise IntegrityError("Inclusion proof is too short.")
    if computed != root:
        raise IntegrityError("Inclusion proof leads to another root.")


def verify_consistency(size1: int, size2: int, proof: Sequence[bytes], root1: bytes, root2: bytes) -> None:
    """Checks that the tree of `size1` is the beginning of the tree of `size2` (RFC 9162 2.1.4.2).

    An empty tree is the beginning of every tree, so that a proof from it would say nothing: it is refused.

    Raises:
        IntegrityError: the proof does not show it.
    """
    if not 0 < size1 <= size2:
        raise IntegrityError(f"Consistency proof from {size1} to {size2} leaves.")
    if size1 == size2:
        if proof or root1 != root2:
            raise IntegrityError(f"Two trees of {size1} leaves have different roots, or a proof where none belongs.")
        return
    _check_lengths((root1, root2, *proof))
    last, tree_last = size1 - 1, size2 - 1
    while last & 1:
        last, tree_last = last >> 1, tree_last >> 1
    # A tree whose size is a power of two is a node of the larger one: its root begins the proof without standing there.
    hashes = list(proof) if last else [root1, *proof]
    if not hashes:
        raise IntegrityError("Consistency proof is too short.")
    old = new = hashes[0]
    for sibling in hashes[1:]:
        if tree_last == 0:
            raise IntegrityError("Consistency proof is too long.")
        if last & 1 or last == tree_last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while last and not last & 1:
                last, tree_last = last >> 1, tree_last >> 1
        else:
            new = node_hash(new, sibling)
        last, tree_last = last >> 1, tree_last >> 1
    if tree_last != 0:
        raise IntegrityError("Consistency proof is too short.")
    if (old, new) != (root1, root2):
        raise IntegrityError("Consistency proof leads to other roots.")


def _split(start: int, end: int) -> int:
    """Where the tree over [start, end), of at least two leaves, parts: its left side is the largest power of two."""
    return start + (1 << (end - start - 1).bit_length() - 1)


def _range_root(start: int, end: int, nodes: Nodes) -> bytes:
    hashes = [nodes(level, index) for level, index in perfect_nodes(start, end)]
    return CompactRange(end - start, hashes).root()


def _path(index: int, start: int, end: int, nodes: Nodes) -> list[bytes]:
    if end - start == 1:
        return []
    middle = _split(start, end)
    if index < middle:
        return [*_path(index, start, middle, nodes), _range_root(middle, end, nodes)]
    return [*_path(index, middle, end, nodes), _range_root(start, middle, nodes)]


def _subproof(end: int, tree: tuple[int, int], nodes: Nodes, *, whole: bool) -> list[bytes]:
    """SUBPROOF of RFC 9162 2.1.4.1, of the leaves of `tree` before `end`."""
    if end == tree[1]:
        return [] if whole else [_range_root(*tree, nodes)]
    middle = _split(*tree)
    left, right = (tree[0], middle), (middle, tree[1])
    if end <= middle:
        return [*_subproof(end, left, nodes, whole=whole), _range_root(*right, nodes)]
    return [*_subproof(end, right, nodes, whole=False), _range_root(*left, nodes)]


def _check_lengths(hashes: Sequence[bytes]) -> None:
    if any(len(value) != HASH_BYTES for value in hashes):
        raise IntegrityError(f"A hash of the proof is not {HASH_BYTES} bytes.")
