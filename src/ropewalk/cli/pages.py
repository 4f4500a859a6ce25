"""Reference pages made of the code itself, beside that of the commands (`ropewalk.cli.reference`).

python -m ropewalk.cli.pages settings > docs/reference/settings.md
python -m ropewalk.cli.pages python > docs/reference/python.md
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, get_args

import msgspec
import msgspec.inspect

from ropewalk.core.records import Record

_SETTINGS: Final = """# Settings: plans and profiles

Made of the code by `python -m ropewalk.cli.pages settings`. A [plan](../guides/plans.md) says what one run does; each
of its keys can stand in the file, or be given as `--set table.key=value`. A profile says with which drivers, and what
may touch the network; name it with `--profile NAME` or `--profile FILE.toml`, or in `$ROPEWALK_PROFILE`. An unknown key
is an error.
"""
_PYTHON: Final = """# From Python

Made of the code by `python -m ropewalk.cli.pages python`. `import ropewalk` gives `Ropewalk`, `RopewalkSync` and the
errors; the other classes here are what their methods give.

```python
async with Ropewalk.open(state=Path("state")) as rw:
    run = await rw.run(plan)
    await run.wait()
```

`RopewalkSync` has the same methods without `async` and `await`, for scripts and notebooks.
"""


def settings_page() -> str:
    """Every key of plans and profiles, as Markdown."""
    from ropewalk.app.configuration import FAMILIES, SHIPPED, shipped_profiles
    from ropewalk.machinery.profile import NetworkRules
    from ropewalk.rollout.plan import Plan

    parts = [_SETTINGS, "## Plans\n", *_tables(Plan, ""), "## Profiles\n", _PROFILE_HEAD]
    parts += _tables(NetworkRules, "network")
    for family, record in FAMILIES.items():
        parts += _tables(record, family)
    for name in shipped_profiles():
        text = (SHIPPED / f"{name}.toml").read_text(encoding="utf-8").strip()
        parts.append(f"### The profile {name}\n\n```toml\n{text}\n```\n")
    return "\n".join(parts)


_PROFILE_HEAD: Final = """`description` and `tenant` (owner of everything that is made under the profile; without one
nothing can be made) stand at the top of the file, before its tables.
"""


def python_page() -> str:
    """The classes that programs use, with the signatures and texts of their public methods, as Markdown."""
    from ropewalk.app.ropewalk import Ropewalk
    from ropewalk.app.runs import Run
    from ropewalk.core import errors
    from ropewalk.sandbox.sandbox import Sandbox, Snapshot

    parts = [_PYTHON]
    for each in (Ropewalk, Run, Sandbox, Snapshot):
        parts += _class(each)
    names = ("RopewalkError", "CallerError", "DeniedError", "IntegrityError", "UnavailableError")
    parts.append("## Errors\n\nEach has `message`, `next_step` and `exit_code`.\n")
    parts += [f"- `{name}`: {_text(inspect.getdoc(getattr(errors, name)) or '')}" for name in names]
    return "\n".join(parts) + "\n"


def field_texts(record: type[Record]) -> dict[str, str]:
    """What is said of each field of a record, in the string below it."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, after in pairwise([*node.body, ast.Pass()]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            found[statement.target.id] = said if isinstance(said, str) else ""
    return found


def in_words(kind: msgspec.inspect.Type) -> str:
    """What may be written for a key of this type."""
    match kind:
        case msgspec.inspect.UnionType(types):
            return " or ".join(in_words(each) for each in types if not isinstance(each, msgspec.inspect.NoneType))
        case msgspec.inspect.EnumType(cls):
            return ", ".join(f"`{each.value}`" for each in cls)
        case msgspec.inspect.VarTupleType(inner) | msgspec.inspect.ListType(inner):
            return f"list: {in_words(inner)}"
        case msgspec.inspect.DictType(value_type=inner):
            return f"table: {in_words(inner)}"
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            name = "whole number" if isinstance(kind, msgspec.inspect.IntType) else "number"
            bounds = {"≥": kind.ge, ">": kind.gt, "≤": kind.le, "<": kind.lt}
            return " ".join([name, *(f"{sign} {bound:,}" for sign, bound in bounds.items() if bound is not None)])
        case msgspec.inspect.BoolType():
            return "`true` or `false`"
    return "text"


def _tables(record: type[Record], path: str) -> Iterator[str]:
    """A table of the record's own keys, and those of the records in it."""
    texts = field_texts(record)
    rows, inner = [], []
    for each in msgspec.structs.fields(record):
        below = next((one for one in (each.type, *get_args(each.type)) if _is_record(one)), None)
        if below is not None:
            inner.append((each.name, below))
            continue
        kind, said = in_words(msgspec.inspect.type_info(each.type)), texts[each.name]
        rows.append(f"| `{each.name}` | {_cell(kind)} | {_default(each)} | {_cell(_text(said))} |")
    if rows:
        yield f"### [{path}]\n\n| key | type | default | |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    for name, below in inner:
        yield from _tables(below, f"{path}.{name}" if path else name)


def _is_record(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Record)


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default
    if value is msgspec.NODEFAULT:
        if field.default_factory is msgspec.NODEFAULT:
            return "required"
        value = field.default_factory()
    plain = msgspec.to_builtins(value)
    return "absent" if plain is None else _cell(f"`{json.dumps(plain)}`")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _text(text: str) -> str:
    return " ".join(text.split())


def _class(type_: type) -> Iterator[str]:
    yield f"## {type_.__name__}\n\n`{type_.__module__}.{type_.__name__}`\n\n{inspect.getdoc(type_) or ''}\n"
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(type_))).body
    assert isinstance(node, ast.ClassDef)
    for method in node.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("_"):
            yield f"### {type_.__name__}.{method.name}\n\n```python\n{_signature(method)}\n```\n\n{_doc(method)}\n"


def _signature(method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    marks = [f"@{ast.unparse(decorator)}\n" for decorator in method.decorator_list]
    prefix = "async def" if isinstance(method, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(method.returns)}" if method.returns else ""
    return f"{''.join(marks)}{prefix} {method.name}({ast.unparse(method.args)}){returns}"


def _doc(method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The method's text; what it says of arguments and errors as it stands, in a block."""
    first, _, rest = (ast.get_docstring(method) or "").partition("\n\n")
    return f"{first}\n\n```text\n{rest.strip()}\n```" if rest.strip() else first


PAGES: Final[Mapping[str, Callable[[], str]]] = {"settings": settings_page, "python": python_page}
"""Name of a page below `docs/reference` → what makes it."""


if __name__ == "__main__":
    print(PAGES[sys.argv[1]](), end="")
