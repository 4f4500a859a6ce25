"""Encoded values as people write them in Python: `["f", "0x1.8p+1"]` is `3.0`. For messages; it decides nothing."""

from __future__ import annotations

from typing import Any, Final

DEPTH_MAX: Final = 24
_BRACKETS: Final = {"l": "[]", "q": "[]", "S": "{}", "t": "()"}


def notation(value: Any, depth: int = 0) -> str:
    """The value's text; `…` where it is deeper than values are, or no encoded value at all."""
    if depth > DEPTH_MAX:
        return "…"
    if not isinstance(value, list):
        return repr(value)
    try:
        return _tagged(value, depth + 1)
    except (ValueError, TypeError, IndexError, OverflowError):
        return "…"


def _tagged(value: list[Any], depth: int) -> str:
    match value:
        case ["i", str(text)]:
            return hex(int(text, 16))
        case ["f", str(text)]:
            return repr(float.fromhex(text))
        case ["j", str(real), str(imaginary)]:
            return repr(complex(float.fromhex(real), float.fromhex(imaginary)))
        case ["D", str(text)]:
            return f"Decimal({text!r})"
        case ["Q", top, bottom]:
            return f"Fraction({notation(top, depth)}, {notation(bottom, depth)})"
        case ["b", str(text)]:
            return repr(bytes.fromhex(text))
        case ["s", str(text)]:
            return repr(bytes.fromhex(text).decode("utf-8", "surrogatepass"))
        case ["l" | "q" | "S" | "t" as tag, list(items)]:
            opening, closing = _BRACKETS[tag][0], _BRACKETS[tag][1]
            inner = ", ".join(notation(item, depth) for item in items)
            if tag == "S" and not items:
                return "set()"
            return f"{opening}{inner}{',' if tag == 't' and len(items) == 1 else ''}{closing}"
        case ["d" | "O", list(pairs)]:
            return "{" + ", ".join(f"{notation(key, depth)}: {notation(item, depth)}" for key, item in pairs) + "}"
        case ["r", start, stop, step]:
            return f"range({notation(start, depth)}, {notation(stop, depth)}, {notation(step, depth)})"
        case ["sl", [start, stop, step]]:
            return f"slice({notation(start, depth)}, {notation(stop, depth)}, {notation(step, depth)})"
        case ["T", str(name)]:
            return name
        case ["E", list(names), *_]:
            return str(names[0])
        case ["o", str(name), *_]:
            return f"<{name}>"
        case [str(tag), *rest]:
            return f"{tag}({', '.join(notation(part, depth) for part in rest)})"
    return "…"
