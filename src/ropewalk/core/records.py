"""Records: frozen typed values whose canonical bytes are the same on every machine, and their digests.

Canonical bytes are RFC 8785 (JSON Canonicalization Scheme) of the record's JSON form. Digests are sha256 in
lower-case hexadecimal (64 characters); an id is `kind:` and the first 32 of them.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, TypeVar, dataclass_transform

import msgspec
import rfc8785

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.limits import JSON_BYTES_MAX, JSON_DEPTH_MAX

T = TypeVar("T")
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")


class _RecordMeta(msgspec.StructMeta):
    """Hands `kw_only` down too, which msgspec leaves to each class."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> _RecordMeta:
        return super().__new__(mcls, name, bases, namespace, **{"kw_only": True, **options})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, metaclass=_RecordMeta, frozen=True, forbid_unknown_fields=True):
    """Base of every record. Unknown fields are errors; fields are named on construction."""


def to_plain(value: Any) -> Any:
    """The value as dicts, lists, strings, numbers, booleans and None."""
    return msgspec.to_builtins(value)


def canonical_bytes(value: Any) -> bytes:
    """RFC 8785 bytes of a record or plain value.

    Raises:
        CallerError: the value has no canonical form (NaN, an infinite number, an integer past 2**53 - 1, text with a
            lone surrogate).
    """
    try:
        return rfc8785.dumps(to_plain(value))
    except (rfc8785.CanonicalizationError, TypeError, UnicodeError) as error:
        # Of a key that no UTF-8 has, the error would repeat the key.
        why = "a key is not UTF-8" if isinstance(error, UnicodeError) else error
        raise CallerError(f"A {type(value).__name__} has no canonical JSON form: {why}.") from error


def digest_bytes(data: bytes) -> str:
    """sha256 of bytes, 64 lower-case hexadecimal characters."""
    return hashlib.sha256(data).hexdigest()


def digest(value: Any) -> str:
    """sha256 of a value's canonical bytes."""
    return digest_bytes(canonical_bytes(value))


def content_id(kind: str, value: Any) -> str:
    """`kind:` and the first 32 characters of the value's digest."""
    return f"{kind}:{digest(value)[:32]}"


def json_text(plain: Any, **options: Any) -> str:
    """JSON for people and terminals: `json.dumps`, where letters stay letters, and what is not printable (controls,
    what turns a line's direction, lone surrogates) is escaped. Read again it is the same value.
    """
    return _NOT_ASCII.sub(_printable, json.dumps(plain, ensure_ascii=False, **options))


def _printable(found: re.Match[str]) -> str:
    letter = found[0]
    return letter if letter.isprintable() else "\\u007f" if letter == "\x7f" else json.dumps(letter)[1:-1]


def decode(data: bytes | str, type: type[T], *, what: str = "") -> T:
    """A record out of JSON from outside, strictly.

    Raises:
        CallerError: larger than JSON_BYTES_MAX, deeper than JSON_DEPTH_MAX, a duplicate key, NaN, a missing,
            unknown or wrongly typed field. The message says which, and where.
    """
    name = what or type.__name__
    if len(data) > JSON_BYTES_MAX:
        raise CallerError(f"{name}: {len(data)} bytes of JSON, {JSON_BYTES_MAX} allowed.")
    try:
        plain = json.loads(data, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
        _check_depth(plain)
        return msgspec.convert(plain, type)
    except RecursionError:
        raise CallerError(f"{name}: nested deeper than {JSON_DEPTH_MAX} levels.") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise CallerError(f"{name}: {error}.") from error


def decode_own(data: bytes | str, type: type[T], *, what: str = "") -> T:
    """Like `decode`, for bytes that Ropewalk wrote itself: what does not fit was tampered with or lost.

    Raises:
        IntegrityError: the bytes are not such a record.
    """
    try:
        return decode(data, type, what=what)
    except CallerError as error:
        raise IntegrityError(f"Stored record is damaged. {error.message}") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key {next(n for n in names if names.count(n) > 1)!r}")
    return plain


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_depth(plain: Any) -> None:
    level = [plain]
    for _ in range(JSON_DEPTH_MAX + 1):
        level = [
            child
            for value in level
            if isinstance(value, (dict, list))
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ValueError(f"nested deeper than {JSON_DEPTH_MAX} levels")
