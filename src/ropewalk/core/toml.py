"""TOML from outside, with one kind of error."""

from __future__ import annotations

import tomllib
from typing import Any

from ropewalk.core.errors import CallerError
from ropewalk.core.limits import JSON_DEPTH_MAX


def parse_toml(text: str | bytes, *, what: str) -> dict[str, Any]:
    """The document's tables; bytes are UTF-8. `what` names it in messages. The caller limits its size.

    Raises:
        CallerError: no TOML, nested deeper than JSON_DEPTH_MAX, or a number of more digits than Python reads.
    """
    try:
        plain = tomllib.loads(text.decode() if isinstance(text, bytes) else text)
    except tomllib.TOMLDecodeError as error:
        raise CallerError(
            f"{what} is not TOML: {error}.",
            next_step='write KEY = VALUE, one a line: text in "quotes", lists in [brackets], tables below [a.name].',
        ) from error
    except UnicodeDecodeError as error:
        raise CallerError(f"{what} is not UTF-8 text (byte {error.start}).", next_step="save it as UTF-8.") from error
    except ValueError as error:
        raise CallerError(
            f"{what} has a value that cannot be read: {error}.", next_step="write a shorter number."
        ) from error
    except RecursionError:
        raise _too_deep(what) from None
    level: list[Any] = [plain]
    for _ in range(JSON_DEPTH_MAX):
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
    if level:  # dotted names nest without brackets
        raise _too_deep(what)
    return plain


def _too_deep(what: str) -> CallerError:
    return CallerError(
        f"{what} is nested deeper than {JSON_DEPTH_MAX} levels.", next_step="write it with fewer brackets or dots."
    )
