"""Merkle trees against the vectors of transparency-dev/merkle, and against a naive definition."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.security.vectors import vectors

from ropewalk.core import merkle
from ropewalk.core.errors import CallerError, IntegrityError


def naive_root(entries: list[bytes]) -> bytes:
    """RFC 9162 2.1.1, word by word."""
    if not entries:
        return hashlib.sha256().digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\0" + entries[0]).digest()
    k = 1
    while k * 2 < len(entries):
        k *= 2
    return hashlib.sha256(b"\1" + naive_root(entries[:k]) + naive_root(entries[k:])).digest()


def nodes_of(leaves: list[bytes]) -> merkle.Nodes:
    return lambda level, index: merkle.root(leaves[index << level : (index + 1) << level])


def decoded(text: str | None) -> bytes:
    return base64.b64decode(text) if text else b""


def cases(kind: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted((vectors("rfc6962", without="the tree of RFC 6962 and a naive one") / kind).rglob("*.json")):
        yield path, json.loads(path.read_text())


@pytest.mark.parametrize(("kind", "number"), [("inclusion", 98), ("consistency", 98)])
def test_vectors(kind: str, number: int) -> None:
    seen = 0
    for path, case in cases(kind):
        proof = [decoded(text) for text in case["proof"] or []]
        try:
            if kind == "inclusion":
                leaf, root = decoded(case["leafHash"]), decoded(case["root"])
                merkle.verify_inclusion(case["leafIdx"], case["treeSize"], leaf, proof, root)
            else:
                root1, root2 = decoded(case["root1"]), decoded(case["root2"])
                merkle.verify_consistency(case["size1"], case["size2"], proof, root1, root2)
            refused = False
        except IntegrityError:
            refused = True
        assert refused == case["wantErr"], path
        seen += 1
    assert seen == number


def test_the_tree_of_rfc_6962() -> None:
    """Section 2.1.3: a tree of seven leaves, with its audit paths and consistency proofs, by the RFC's letters."""
    entries = [b"d%d" % number for number in range(7)]
    a, b, c, d, e, f, j = leaves = [hashlib.sha256(b"\0" + entry).digest() for entry in entries]

    def over(left: bytes, right: bytes) -> bytes:
        return hashlib.sha256(b"\1" + left + right).digest()

    assert leaves == [merkle.leaf_hash(entry) for entry in entries]
    g, h, i = over(a, b), over(c, d), over(e, f)
    k, l = over(g, h), over(i, j)  # noqa: E741 (the RFC's name)
    top = over(k, l)
    assert merkle.root(leaves) == top
    nodes = nodes_of(leaves)
    for index, path in {0: (b, h, l), 3: (c, g, l), 4: (f, j, k), 6: (i, k)}.items():
        assert merkle.inclusion_proof(index, 7, nodes) == path
        merkle.verify_inclusion(index, 7, leaves[index], path, top)
    for size, path in {3: (c, d, g, l), 4: (l,), 6: (i, j, k)}.items():
        assert merkle.consistency_proof(size, 7, nodes) == path
        merkle.verify_consistency(size, 7, path, merkle.root(leaves[:size]), top)


def test_consistency_from_an_empty_tree_is_refused() -> None:
    for size in (0, 1, 5):
        with pytest.raises(IntegrityError):
            merkle.verify_consistency(0, size, [], merkle.EMPTY_ROOT, merkle.EMPTY_ROOT)
    with pytest.raises(CallerError):
        merkle.consistency_proof(0, 5, nodes_of([b""] * 5))


def test_every_tree_up_to_33_leaves() -> None:
    for size in range(34):
        entries = [bytes([i]) for i in range(size)]
        leaves = [merkle.leaf_hash(entry) for entry in entries]
        nodes, root, edge = nodes_of(leaves), naive_root(entries), merkle.CompactRange()
        for leaf in leaves:
            edge.append(leaf)
        assert merkle.root(leaves) == edge.root() == merkle.CompactRange.read(size, nodes).root() == root
        for index in range(size):
            merkle.verify_inclusion(index, size, leaves[index], merkle.inclusion_proof(index, size, nodes), root)
        for end in range(1, size + 1):
            proof = merkle.consistency_proof(end, size, nodes)
            merkle.verify_consistency(end, size, proof, naive_root(entries[:end]), root)


@given(st.integers(1, 300), st.data())
def test_a_changed_proof_is_refused(size: int, data: st.DataObject) -> None:
    leaves = [merkle.leaf_hash(i.to_bytes(2, "big")) for i in range(size)]
    nodes, root = nodes_of(leaves), merkle.root(leaves)
    index = data.draw(st.integers(0, size - 1))
    proof = list(merkle.inclusion_proof(index, size, nodes))
    other = data.draw(st.integers(0, size - 1).filter(lambda i: i != index) if size > 1 else st.just(size))
    with pytest.raises(IntegrityError):
        merkle.verify_inclusion(other, size, leaves[index], proof, root)
    with pytest.raises(IntegrityError):
        merkle.verify_inclusion(index, size, leaves[index], [*proof, leaves[0]], root)
    if proof:
        with pytest.raises(IntegrityError):
            merkle.verify_inclusion(index, size, leaves[index], proof[:-1], root)
        at, bit = data.draw(st.integers(0, len(proof) - 1)), data.draw(st.integers(0, 255))
        proof[at] = (int.from_bytes(proof[at], "big") ^ 1 << bit).to_bytes(32, "big")
        with pytest.raises(IntegrityError):
            merkle.verify_inclusion(index, size, leaves[index], proof, root)


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_rewritten_history_has_no_consistency_proof(first: int, more: int) -> None:
    leaves = [merkle.leaf_hash(i.to_bytes(2, "big")) for i in range(first + more)]
    rewritten = [merkle.leaf_hash(b"other"), *leaves[1:]]
    proof = merkle.consistency_proof(first, len(leaves), nodes_of(rewritten))
    with pytest.raises(IntegrityError):
        merkle.verify_consistency(first, len(leaves), proof, merkle.root(leaves[:first]), merkle.root(rewritten))


@given(st.integers(1, 300), st.integers(0, 300), st.data())
def test_a_changed_consistency_proof_is_refused(first: int, more: int, data: st.DataObject) -> None:
    leaves = [merkle.leaf_hash(i.to_bytes(2, "big")) for i in range(first + more)]
    proof = list(merkle.consistency_proof(first, len(leaves), nodes_of(leaves)))
    roots = merkle.root(leaves[:first]), merkle.root(leaves)
    changed = [[*proof, leaves[0]], [leaves[0], *proof], proof[:-1], proof[1:]]
    if proof:
        at, bit = data.draw(st.integers(0, len(proof) - 1)), data.draw(st.integers(0, 255))
        flipped = (int.from_bytes(proof[at], "big") ^ 1 << bit).to_bytes(32, "big")
        changed.append([*proof[:at], flipped, *proof[at + 1 :]])
        changed.append([*proof[:at], proof[at][:31], *proof[at + 1 :]])
    for each in changed:
        if each != proof:
            with pytest.raises(IntegrityError):
                merkle.verify_consistency(first, len(leaves), each, *roots)
    for size in {first - 1, first + 1, len(leaves) + 1} - {len(leaves)}:
        with pytest.raises(IntegrityError):
            merkle.verify_consistency(size, len(leaves), proof, *roots)


def test_appending_costs_the_logarithm_of_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    edge, hashed = merkle.CompactRange(), 0

    def counted(left: bytes, right: bytes, hash_nodes: Any = merkle.node_hash) -> bytes:
        nonlocal hashed
        hashed += 1
        return hash_nodes(left, right)  # type: ignore[no-any-return]

    monkeypatch.setattr(merkle, "node_hash", counted)
    for i in range(4096):
        before = hashed
        edge.append(merkle.leaf_hash(i.to_bytes(2, "big")))
        edge.root()
        assert hashed - before <= 2 * 13


def test_an_edge_that_does_not_fit_its_size_is_refused() -> None:
    with pytest.raises(CallerError, match="edge hashes"):
        merkle.CompactRange(3, [b"\0" * 32])
