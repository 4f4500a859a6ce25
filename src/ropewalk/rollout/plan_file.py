"""Reads plans: from TOML, strictly, and from dotted settings as a command line makes them."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import msgspec

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.core.records import Record
from ropewalk.core.toml import parse_toml
from ropewalk.rollout.plan import Plan

_HEADER = re.compile(r"^\s*\[\s*([A-Za-z0-9_.\s-]+?)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"^\s*(?:\"([^\"]+)\"|([A-Za-z0-9_.-]+))\s*=")


def load_plan(path: Path) -> Plan:
    """A plan out of a TOML file.

    Raises:
        CallerError: no such file, not TOML, an unknown key (the message names the nearest known one and the
            line), a wrong value, or parts that do not fit together.
    """
    if path.is_dir():
        raise CallerError(
            f"{path} is a folder, and a plan is a TOML file.",
            next_step=f"to make tasks from a package there, name it as a source: --source {path}",
        )
    try:
        with path.open("rb") as file:
            data = file.read(limits.PLAN_BYTES_MAX + 1)
    except OSError as error:
        raise CallerError(
            f"The plan {path} cannot be read: {error.strerror}.",
            next_step="a plan is a TOML file with a run's settings; give the path of one, or --source for a package.",
        ) from error
    if len(data) > limits.PLAN_BYTES_MAX:
        raise CallerError(
            f"The plan {path} is larger than {limits.PLAN_BYTES_MAX} bytes.",
            next_step="a plan is a TOML file with a run's settings; give the path of one.",
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CallerError(
            f"The plan {path} is not UTF-8 text (byte {error.start}).", next_step="save it as UTF-8."
        ) from error
    return parse_plan(text, where=str(path))


def parse_plan(text: str, *, where: str = "plan") -> Plan:
    """Like `load_plan`, from text. `where` names it in messages."""
    return _to_plan(parse_toml(text, what=where), where, _key_lines(text))


def plan_from_settings(
    settings: Mapping[str, Any], *, base: Plan | None = None, names: Mapping[str, str] | None = None
) -> Plan:
    """A plan out of dotted settings, e.g. `{"run.group": 4}`, above another plan's (default: all defaults).

    Args:
        names: what messages call a setting whose value came by another name, e.g. `{"run.group": "--group"}`.

    Raises:
        CallerError: as `load_plan`.
    """
    plain = msgspec.to_builtins(base or Plan())
    for name, value in settings.items():
        *tables, key = name.split(".")
        table = plain
        for part in tables:
            if not isinstance(table.get(part), dict):
                table[part] = {}
            table = table[part]
        table[key] = list(value) if isinstance(value, tuple) else value
    return _to_plan(plain, "settings", {}, names or {})


def _to_plan(
    plain: dict[str, Any], where: str, lines: Mapping[str, int], names: Mapping[str, str] | None = None
) -> Plan:
    for path, key, known in _unknown(plain, Plan, ""):
        full = f"{path}.{key}" if path else key
        line = lines.get(full) or lines.get(path)
        near = difflib.get_close_matches(key, known, 1, 0.5)
        raise CallerError(
            f"{where}{f', line {line}' if line else ''}: unknown key {key!r} in {f'[{path}]' if path else 'the plan'}.",
            next_step=f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}.",
        )
    try:
        return msgspec.convert(plain, Plan).check()
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        path = path.rstrip("`")
        name = re.sub(r"\[.*", "", path)
        line = lines.get(name)
        if "matching regex" in message:  # only references to secrets have one
            message = "this is no reference to a secret"
        place = f"{where}{f', line {line}' if line else ''}: {path or 'plan'}"
        raise CallerError(
            f"{(names or {}).get(name) or place}: {_said(message)}.",
            next_step=_hint(name, message, _value_at(plain, name)),
        ) from error


def _said(message: str) -> str:
    """A validator's message as people say it."""
    if bound := re.fullmatch(r"Expected `(int|float)` (>=|<=|>|<) (\S+)", message):
        words = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}[bound[2]]
        return f"give {'a whole number' if bound[1] == 'int' else 'a number'}, {words} {bound[3]}"
    if wrong := re.fullmatch(r"Invalid enum value (.+)", message):
        return f"there is no {wrong[1]}"
    return message


def _hint(name: str, message: str, value: Any) -> str:
    """How to write what was written wrongly."""
    if message.endswith("to a secret"):
        return "give env:NAME or file:PATH, which say where it is; never the secret itself."
    if message.startswith("Expected `str`") and isinstance(value, dict):
        return f"in [{name}] every value is text, in quotes."
    if message.startswith("Expected `array`") and isinstance(value, str | int | float):
        return f"write {name.rpartition('.')[2]} = [{json.dumps(value)}]."
    if message.startswith("Invalid enum value"):
        known = _choices(name)
        wrong = message.partition("'")[2].rstrip("'")
        near = difflib.get_close_matches(wrong, known, 1, 0.5)
        return f"{f'did you mean {near[0]!r}? ' if near else ''}There are: {', '.join(known)}."
    default = _value_at(msgspec.to_builtins(Plan()), name)
    if default is not None:
        return f"its default is {json.dumps(default)}; leave it out, or write {name.rpartition('.')[2]} = VALUE."
    return f"leave {name or 'it'} out, or see `docs/reference/settings.md` for what it may be."


def _value_at(plain: Any, name: str) -> Any:
    for part in name.split("."):
        plain = plain.get(part) if isinstance(plain, dict) else None
    return plain


def _choices(name: str) -> list[str]:
    """The values of the enumeration that a setting takes."""
    record: type[Record] | None = Plan
    annotation: Any = None
    for part in name.split("."):
        annotation = {field.name: field.type for field in msgspec.structs.fields(record)}.get(part) if record else None
        record = _record_in(annotation)
    candidates = (annotation, *get_args(annotation))
    return [str(each) for one in candidates if isinstance(one, type) and issubclass(one, Enum) for each in one]


def _unknown(plain: Mapping[str, Any], record: type[Record], path: str) -> Iterator[tuple[str, str, list[str]]]:
    """Every key that no field answers to, with the names that would do."""
    fields = {field.name: field.type for field in msgspec.structs.fields(record)}
    for key, value in plain.items():
        if key not in fields:
            yield path, key, list(fields)
        elif isinstance(value, dict) and (inner := _record_in(fields[key])):
            yield from _unknown(value, inner, f"{path}.{key}" if path else key)


def _record_in(annotation: Any) -> type[Record] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Record):
            return candidate
    return None


def _key_lines(text: str) -> dict[str, int]:
    """Line of every table header and key, by dotted name. Good enough for messages; the parser decides."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = ".".join(part.strip() for part in header[1].split("."))
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            name = key[1] or key[2]
            lines.setdefault(f"{table}.{name}" if table else name, number)
    return lines
