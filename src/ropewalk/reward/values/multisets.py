"""Compares sequences in any order, where candidate code never ran.

Elements are counted by a key that equal ones share, so that the cost is in proportion to the output of a hostile
process, whatever order it chose. Only OrderedDicts have no key: one equals a dict in any order, and another one in its
own alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, Final

from ropewalk.reward.values.codec import (
    NAN,
    NUMBER_TEXT_MAX,
    SEQUENCES,
    MalformedValueError,
    Work,
    body_of,
    is_nan,
    number_of,
    pairs_of,
    plain_key,
    room_of,
    same,
    tag_of,
)

_COLLISIONS_MAX: Final = 16
"""Of hashes in one set: more are chosen to make a table slow."""


class _KeylessError(Exception):
    """An expected element without a key."""


def same_multiset(expected: Any, actual: Any, work: Work | None = None) -> bool:
    """Whether two sequences hold equal elements equally often (`assertCountEqual`).

    Raises:
        TooMuchWorkError: `work` is used up.
    """
    left, right = _elements(expected), _elements(actual)
    if left is None or right is None or len(left) != len(right):
        return False
    work = work or Work()
    try:
        trusted = _Keys(work)
        wanted = Counter(map(trusted.of, left))
        hostile = _Keys(work, text_max=room_of(trusted.longest), values_max=trusted.values)
        for item in right:
            # Only trusted keys are in the table, and the first that is not among them ends it.
            key = hostile.of(item)
            if wanted[key] <= 0:
                return False
            wanted[key] -= 1
    except _KeylessError:
        return _same_pairwise(left, right, work)
    except (MalformedValueError, ArithmeticError, ValueError, TypeError, RecursionError):
        return False
    return True


def _same_pairwise(expected: list[Any], actual: list[Any], work: Work) -> bool:
    rest = list(actual)
    for item in expected:
        for index, other in enumerate(rest):
            if same(item, other, work):
                del rest[index]
                break
        else:
            return False
    return True


def _elements(value: Any) -> list[Any] | None:
    tag = tag_of(value)
    try:
        if tag in SEQUENCES or tag == "S":
            return body_of(value)
        if tag in ("d", "O"):
            return [key for key, _ in pairs_of(value)]
    except MalformedValueError:
        return None
    return list(value) if isinstance(value, str) else None


class _Keys:
    """Makes keys: equal for values that `codec.same` finds equal, and for no others."""

    def __init__(self, work: Work, *, text_max: int = NUMBER_TEXT_MAX, values_max: int | None = None) -> None:
        """`values_max`: that equal ones can have, all elements together; None: these are the trusted ones."""
        self._work, self._text_max, self._values_max = work, text_max, values_max
        self.values = 0
        self.longest = 0
        """Of the numbers, as text."""

    def of(self, value: Any) -> Hashable:
        """The key.

        Raises:
            MalformedValueError: it is no encoded value, or one that equals nothing that is expected.
            _KeylessError: a trusted one has none.
        """
        self._work.visit(value)
        self.values += 1
        if self._values_max is not None and self.values > self._values_max:
            raise MalformedValueError("more values than expected")
        number = number_of(value, text_max=self._text_max)
        if number is not None:
            self.longest = max(self.longest, len(str(value)))
            return NAN if is_nan(number) else number
        tag = tag_of(value)
        if tag in SEQUENCES:
            return (tag, self._all(body_of(value)))
        if tag == "S":
            return (tag, *_unordered(self._all(body_of(value))))
        if tag == "O" and self._values_max is None:
            raise _KeylessError
        if tag in ("d", "O"):  # where none is expected, an OrderedDict is like any dict
            return ("d", *_unordered(tuple(map(self._all, pairs_of(value)))))
        return plain_key(value)

    def _all(self, values: Iterable[Any]) -> tuple[Hashable, ...]:
        return tuple(map(self.of, values))


def _unordered(keys: tuple[Hashable, ...]) -> tuple[int, frozenset[Hashable]]:
    if max(Counter(map(hash, keys)).values(), default=0) > _COLLISIONS_MAX:
        raise MalformedValueError("set")
    return len(keys), frozenset(keys)
