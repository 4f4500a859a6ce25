"""What a forger can see, and what is a trivial step away from it.

Values come from two places: literals spelled out in sources, and objects that a trusted run found within reach of the
code under test. Everything is kept as *outlines*: texts that are equal for values that look alike.
"""

from __future__ import annotations

import ast
import doctest
import json
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from ropewalk.core.syntax import parse_module
from ropewalk.reward.values.assertions import name_of
from ropewalk.reward.values.codec import children, number_of
from ropewalk.reward.values.encode import encode

SEPARATOR: Final = "\x1f"
_RANGE_MAX = 1_000
_ITEMS_MAX = 2_000
_DECIMAL_MAX = 10**4000
"""Python refuses to write longer numbers in decimal."""
_LISTS = ("l", "t", "q", "S", "sl")
_TOKEN = re.compile(r"[^\s,;=()\[\]{}<>\"'|]+")


@dataclass(frozen=True)
class Visible:
    """What can be seen.

    Attributes:
        wholes: outlines of values as they stand.
        near: outlines of their parts, and of what one trivial function makes of them: length, order, sum, sign …
        numbers: all numbers among these.
        text: all strings among these in lower case, between separators.
        runs: the outlines of all sequences' items, between separators.
    """

    wholes: frozenset[str] = frozenset()
    near: frozenset[str] = frozenset()
    numbers: frozenset[float] = frozenset()
    text: str = ""
    runs: str = ""

    def __or__(self, other: Visible) -> Visible:
        return Visible(
            self.wholes | other.wholes,
            self.near | other.near,
            self.numbers | other.numbers,
            self.text + other.text,
            self.runs + other.runs,
        )


def outline(value: Any) -> str:
    """A text that is equal for values that look alike: the types of sequences and of numbers do not matter."""
    return json.dumps(_outline(value), sort_keys=True)


def seen_in(texts: Iterable[str]) -> Visible:
    """What is spelled out in files: literals and examples of Python sources, numbers and words of anything else."""
    return _union(map(_seen_in, texts))


def seen_among(values: Iterable[Any]) -> Visible:
    """What encoded values show."""
    wholes: dict[str, Any] = {}
    for value in values:
        wholes.setdefault(outline(value), value)
    near: dict[str, Any] = {}
    for value in wholes.values():
        for part in _parts(value):
            near.setdefault(outline(part), part)
    for value in [*wholes.values(), *(part for key, part in near.items() if key not in wholes)]:
        for derived in _steps(value):
            near.setdefault(outline(derived), derived)
    everything = [*wholes.values(), *(value for key, value in near.items() if key not in wholes)]
    return Visible(
        wholes=frozenset(wholes),
        near=frozenset(near),
        numbers=frozenset(number for value in everything if (number := plain_number(value)) is not None),
        text=_joined(value.lower() for value in everything if isinstance(value, str)),
        runs=_joined(SEPARATOR.join(map(outline, items_of(value))) for value in everything if items_of(value)),
    )


def plain_number(value: Any) -> float | None:
    """A real, finite number; None for anything else."""
    try:
        number = number_of(value)
        if number is None or isinstance(number, complex):
            return None
        plain = float(number)
    except (ValueError, OverflowError):
        return None
    return plain if math.isfinite(plain) else None


def items_of(value: Any) -> list[Any]:
    """Items of an encoded sequence or set; empty for anything else."""
    if not isinstance(value, list) or not value:
        return []
    if value[0] == "r":
        span = range(*(number_of(part) for part in value[1:]))  # type: ignore[arg-type]
        return list(span[:_RANGE_MAX])
    return list(value[1][:_ITEMS_MAX]) if value[0] in _LISTS else []


def in_order(items: list[Any]) -> list[Any]:
    """Encoded items, sorted as Python sorts numbers and strings, and anyhow where it does not."""
    numbers = [plain_number(item) for item in items]
    if all(number is not None for number in numbers):
        return [item for _, item in sorted(zip(numbers, items, strict=True), key=lambda pair: pair[0] or 0.0)]
    if all(isinstance(item, str) for item in items):
        return sorted(items)
    return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def _union(parts: Iterable[Visible]) -> Visible:
    found = list(parts)
    return Visible(
        wholes=frozenset().union(*(part.wholes for part in found)),
        near=frozenset().union(*(part.near for part in found)),
        numbers=frozenset().union(*(part.numbers for part in found)),
        text="".join(part.text for part in found),
        runs="".join(part.runs for part in found),
    )


def _joined(texts: Iterable[str]) -> str:
    joined = SEPARATOR.join(texts)
    return f"{SEPARATOR}{joined}{SEPARATOR}" if joined else ""


@lru_cache(maxsize=128)
def _seen_in(text: str) -> Visible:
    # Many graders are built against the same source.
    return seen_among(_values_in(text))


def _values_in(text: str) -> list[Any]:
    try:
        tree = parse_module(text)
    except (SyntaxError, ValueError, RecursionError):
        return _tokens_in(text)
    found: list[Any] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.expr):
            found += _literal(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ">>>" in node.value:
            for shown in _shown_in(node.value):
                found += _values_in(shown)
    return found


def _tokens_in(text: str) -> list[Any]:
    """Data files: the text, its lines, its words, and the numbers among them."""
    found: list[Any] = [encode(text[:100_000]), *(encode(line.strip()) for line in text.splitlines()[:_ITEMS_MAX])]
    for token in _TOKEN.findall(text)[:20_000]:
        found.append(encode(token))
        with suppress(ValueError):
            found.append(encode(int(token)))
        with suppress(ValueError):
            found.append(encode(float(token)))
    with suppress(ValueError, RecursionError):
        found.append(encode(json.loads(text)))
    return found


def _shown_in(docstring: str) -> list[str]:
    """What the examples of a docstring call, and what they say comes out."""
    try:
        examples = doctest.DocTestParser().get_examples(docstring)
    except ValueError:
        return []
    return [text for example in examples for text in (example.source, example.want.strip())]


def _literal(node: ast.expr) -> list[Any]:
    try:
        if isinstance(node, ast.Call) and name_of(node.func) == "range" and 1 <= len(node.args) <= 3:
            span = range(*(ast.literal_eval(argument) for argument in node.args))
            return [encode(list(span))] if len(span) <= _RANGE_MAX else []
        if isinstance(node, (ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp)):
            return [encode(ast.literal_eval(node))]
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, OverflowError):
        pass
    return []


def _outline(value: Any) -> Any:
    number = number_of(value)
    if number is not None:
        if isinstance(number, int):
            return ["n", str(int(number)) if abs(number) < _DECIMAL_MAX else hex(number)]
        try:
            plain = complex(number)
        except OverflowError:
            return ["n", str(value)]
        whole = plain.imag == 0 and math.isfinite(plain.real) and plain.real == int(plain.real)
        return ["n", str(int(plain.real)) if whole else str(plain)]
    if isinstance(value, list) and value and value[0] == "r":
        return ["+", *(["n", str(item)] for item in items_of(value))]
    inner = children(value)
    if inner or (isinstance(value, list) and value[1:] == [[]]):
        return ["+", *map(_outline, inner)]
    return value


def _parts(value: Any) -> list[Any]:
    """Everything inside a value."""
    found: list[Any] = []
    pending = children(value) or items_of(value)
    while pending and len(found) < _ITEMS_MAX:
        part = pending.pop()
        found.append(part)
        pending += children(part)
    return found


def _steps(value: Any) -> list[Any]:
    """What the most obvious functions make of one value."""
    number = plain_number(value)
    if number is not None:
        exact = int(number) if number == int(number) else number
        return [*map(encode, (-exact, exact + 1, exact - 1, int(number), round(number))), encode(str(exact))]
    if isinstance(value, str):
        return _steps_of_text(value)
    tag = value[0] if isinstance(value, list) and value else ""
    if tag in ("d", "O"):
        keys, values = [pair[0] for pair in value[1]], [pair[1] for pair in value[1]]
        pairs = [["t", pair] for pair in value[1]]
        turned = ["d", [[pair[1], pair[0]] for pair in value[1]]]
        return [["l", keys], ["l", values], ["l", pairs], turned, *_steps_of_items(keys), *_steps_of_items(values)]
    items = items_of(value)
    return _steps_of_items(items) if items else []


def _steps_of_text(text: str) -> list[Any]:
    found: list[Any] = [len(text), text[::-1], text.strip(), text.upper(), text.lower(), text.title()]
    found += [text.split(), list(text), "".join(sorted(text))] if len(text) <= _ITEMS_MAX else []
    for kind in (int, float):
        with suppress(ValueError):
            found.append(kind(text))
    return [encode(one) for one in found]


def _steps_of_items(items: list[Any]) -> list[Any]:
    ordered = in_order(items)
    unique = list({outline(item): item for item in items}.values())
    # The order in which sets are written down is one of those that a sequence can be in.
    as_set = sorted(unique, key=lambda item: json.dumps(item, sort_keys=True))
    sequences = (items[::-1], ordered, ordered[::-1], unique, in_order(unique), as_set, items[1:], items[:-1])
    found: list[Any] = [["l", sequence] for sequence in sequences]
    found += [len(items), len(unique), len(items) - 1]
    numbers = [number for item in items if (number := plain_number(item)) is not None]
    if numbers and len(numbers) == len(items):
        total = math.fsum(numbers)
        found += [encode(total), encode(total / len(numbers)), encode(math.prod(numbers))]
        found.append(["l", [encode(-number) for number in numbers]])
    elif all(isinstance(item, str) for item in items):
        found += [encode(glue.join(items)) for glue in ("", " ", ",", ", ", "\n")]
    return found
