"""What must not be found in a task: the answer, in every form that a careless image could hold it."""

from __future__ import annotations

import ast
import base64
import hashlib
import types
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Final, Protocol

import msgspec

from ropewalk.core.records import Record, digest_bytes
from ropewalk.core.syntax import compile_module
from ropewalk.tasks.bodies import describe, first_line, functions, parse, walk

WEIGHT_MIN: Final = 12
"""Syntax nodes below which equal bodies say nothing."""
_CHUNK_BYTES: Final = 60
"""Of encoded text that is searched for, at each of base64's three alignments."""
_CHUNKS_MAX: Final = 96


class Package(Protocol):
    """The release that a task may hold."""

    @property
    def distribution(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def import_names(self) -> tuple[str, ...]: ...


class Secret(Record):
    """One function that the task asks for, or that judges it."""

    kind: str
    """`fixed function` or `held-out test`."""
    name: str
    """Its own name; what the scan of an image looks up."""
    place: str
    """Where it comes from, for people."""
    body: str
    """Digest of its body (`tasks.bodies`)."""
    text: str
    """Its body by `plain_lines`."""
    mark: str
    """Digest of its byte code, as this Python compiles it; empty where it does not."""
    words: tuple[bytes, ...] = ()
    """Names that its body uses, in ASCII: a file without one of them does not hold it."""


class Fingerprints(Record):
    """Everything to look for."""

    distribution: str
    version: str
    """The release that the task may hold."""
    import_names: tuple[str, ...]
    files: dict[str, str]
    """sha256 of whole files that must not be there → what they are."""
    secrets: tuple[Secret, ...]
    encoded: tuple[bytes, ...]
    """Pieces of the base64 of what is new, at three alignments."""


def take_fingerprints(
    tree: Package,
    *,
    before: Mapping[str, bytes],
    after: Mapping[str, bytes],
    tests: Mapping[str, bytes] | None = None,
    held_out: Collection[str] = (),
) -> Fingerprints:
    """Fingerprints of the difference between two states of a package, and of held-out tests.

    Args:
        tree: the release that the task may hold.
        before, after: editable files as they are and as they should become.
        tests: whole test files, path → content.
        held_out: body digests of the tests that judge.
    """
    changed = {path: content for path, content in after.items() if before.get(path) != content and content.strip()}
    files = {digest_bytes(content): f"the fixed {path}" for path, content in changed.items()}
    old = [secret for path, content in before.items() for secret, _ in _secrets("known", path, content)]
    known, marks = {secret.body for secret in old}, {secret.mark for secret in old}
    texts = [_plain_module(before[path]) for path in changed if path in before]
    secrets: list[Secret] = []
    pieces: list[bytes] = []
    for path, content in changed.items():
        for secret, weight in _secrets("fixed function", path, content):
            if secret.body not in known and weight >= WEIGHT_MIN:
                # What only got another signature has its text and byte code in the older source too.
                text = "" if any(secret.text in text for text in texts) else secret.text
                mark = "" if secret.mark in marks else secret.mark
                secrets.append(msgspec.structs.replace(secret, text=text, mark=mark))
        pieces.extend(_new_pieces(before.get(path, b""), content))
    for path, content in (tests or {}).items():
        judging = [secret for secret, _ in _secrets("held-out test", path, content) if secret.body in held_out]
        for secret in judging if path.endswith(".py") else ():
            secrets.append(secret)
            pieces.append(_lines_of(content, secret.place.partition("::")[2]))
            files[digest_bytes(content)] = f"{path} with its held-out tests"
    encoded = tuple(chunk for piece in pieces for chunk in _base64_chunks(piece))
    return Fingerprints(
        distribution=tree.distribution, version=tree.version, import_names=tree.import_names, files=files,
        secrets=tuple(secrets), encoded=encoded[:_CHUNKS_MAX],
    )  # fmt: skip


def plain_lines(text: str) -> str:
    """Text without indentation, blank lines, and the marks of patches and comments, for comparison."""
    return "\n".join(stripped for line in text.splitlines() if (stripped := line.lstrip("+-#> \t").strip()))


def code_marks(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """Qualified name and mark of every function in compiled code."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names = "\0".join([*constant.co_names, *constant.co_varnames]).encode("utf-8", "replace")
            yield constant.co_qualname, hashlib.sha256(constant.co_code + b"\0" + names).hexdigest()
            yield from code_marks(constant)


def code_names(code: types.CodeType) -> Iterator[str]:
    """Names of all functions in compiled code, without what they are in."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant.co_name
            yield from code_names(constant)


@lru_cache(maxsize=64)
def _plain_module(content: bytes) -> str:
    return plain_lines(content.decode("utf-8", "replace"))


@lru_cache(maxsize=256)
def _secrets(kind: str, path: str, content: bytes) -> tuple[tuple[Secret, int], ...]:
    """Every function of a module as a secret, with its weight."""
    return tuple(_each_secret(kind, path, content))


def _each_secret(kind: str, path: str, content: bytes) -> Iterator[tuple[Secret, int]]:
    lines = content.decode("utf-8", "replace").splitlines()
    marks = _compiled(content)
    known = functions(content)  # most were described before, for other questions
    for name, node in _functions(content):
        body = known[name] if known[name].first_line == first_line(node) else describe(name, node)
        statements = _without_docstring(node.body)
        text = "\n".join("\n".join(lines[s.lineno - 1 : s.end_lineno]) for s in statements)
        qualified = name  # `outer.inner` here is `outer.<locals>.inner` there; inner functions have no mark
        yield Secret(
            kind=kind, name=node.name, place=f"{path}::{name}", body=body.digest, text=plain_lines(text),
            mark=marks.get(qualified, ""), words=_words(node),
        ), body.weight  # fmt: skip


def _words(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[bytes, ...]:
    found: set[str] = set()
    for statement in _without_docstring(function.body):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
    return tuple(sorted(name.encode() for name in found if name.isascii()))


def _compiled(content: bytes) -> dict[str, str]:
    try:
        return dict(code_marks(compile_module(content, "<secret>")))
    except (SyntaxError, RecursionError):
        return {}


def _functions(content: bytes) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    tree = parse(content)
    if tree is not None:
        yield from walk(tree)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    head = body[0]
    if isinstance(head, ast.Expr) and isinstance(head.value, ast.Constant) and isinstance(head.value.value, str):
        return body[1:]
    return body


def _lines_of(content: bytes, name: str) -> bytes:
    lines = content.splitlines()
    found = next((node for dotted, node in _functions(content) if dotted == name), None)
    return b"\n".join(lines[found.lineno - 1 : found.end_lineno]) if found else b""


def _new_pieces(before: bytes, after: bytes) -> Iterator[bytes]:
    """Runs of lines that only the fixed file has, long enough to be told from chance."""
    old = set(before.splitlines())
    run: list[bytes] = []
    for line in [*after.splitlines(), b""]:
        if line.strip() and line not in old:
            run.append(line)
            continue
        piece = b"\n".join(run)
        if len(piece) >= 2 * _CHUNK_BYTES:
            yield piece
        run = []


def _base64_chunks(piece: bytes) -> Iterator[bytes]:
    for shift in range(3):
        whole = base64.b64encode(piece[shift : shift + 3 * (len(piece[shift:]) // 3)])
        if len(whole) >= _CHUNK_BYTES // 2:
            yield whole[:_CHUNK_BYTES]
