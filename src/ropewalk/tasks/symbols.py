"""Which names a release defines, read from its source without running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from ropewalk.tasks.bodies import parse


class Symbols:
    """Names by module. Where reading cannot tell (a dynamic module, a star import from outside), a name is there."""

    def __init__(self, files: Mapping[str, bytes], *, source_root: str = "") -> None:
        """Takes a package's Python files by path, and the folder where imports start."""
        prefix = f"{source_root}/" if source_root else ""
        self._sources: dict[str, bytes] = {}
        self._packages: set[str] = set()
        for path, content in files.items():
            if not path.startswith(prefix) or not path.endswith(".py"):
                continue
            parts = path[len(prefix) : -3].split("/")
            if parts[-1] == "__init__":
                parts.pop()
                self._packages.add(".".join(parts))
            self._sources[".".join(parts)] = content
        self._tops = {module.split(".")[0] for module in self._sources if module}
        self._names: dict[str, frozenset[str] | None] = {}

    def lacks_module(self, module: str) -> bool:
        """Whether a module would belong to this package and is not in it."""
        return module.split(".")[0] in self._tops and not self._has_module(module)

    def lacks(self, module: str, name: str) -> bool:
        """Whether `from module import name` would fail here; False for modules of other packages."""
        if module.split(".")[0] not in self._tops:
            return False
        if not self._has_module(module):
            return True
        if self._has_module(f"{module}.{name}"):
            return False
        names = self._defined(module, frozenset())
        return names is not None and name not in names

    def _has_module(self, module: str) -> bool:
        return module in self._sources or any(known.startswith(f"{module}.") for known in self._sources)

    def _defined(self, module: str, seen: frozenset[str]) -> frozenset[str] | None:
        """Names that a module binds; None where that cannot be known."""
        if module in seen:
            return frozenset()
        if module not in self._names:
            self._names[module] = self._read(module, seen | {module})
        return self._names[module]

    def _read(self, module: str, seen: frozenset[str]) -> frozenset[str] | None:
        tree = parse(self._sources.get(module, b""))
        if tree is None:
            return None
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Import):
                names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(node, module)
                for alias in node.names:
                    if alias.name != "*":
                        names.add(alias.asname or alias.name)
                        continue
                    starred = self._defined(origin, seen) if origin in self._sources else None
                    if starred is None:
                        return None
                    names |= starred
        return None if names & {"__getattr__"} or _is_dynamic(tree) else frozenset(names)

    def _origin(self, node: ast.ImportFrom, module: str) -> str:
        if not node.level:
            return node.module or ""
        base = module.split(".") if module in self._packages else module.split(".")[:-1]
        base = base[: len(base) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])


def _is_dynamic(tree: ast.Module) -> bool:
    """Whether the module writes into its own namespace by computed names."""
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("globals", "vars", "exec")
        for node in ast.walk(tree)
    )
