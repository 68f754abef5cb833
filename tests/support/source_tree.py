"""The parsed source files of the packages, for tests of the project's rules.

Lists the packages with their folders, import names and layers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# folder -> (import name, layer); a file belongs to the longest folder that contains it
PACKAGES = {
    "protocol": ("paceline.protocol", 0),
    "scheduler/core": ("paceline.scheduler.core", 1),
    "scheduler/extensions": ("paceline.scheduler.extensions", 1),
    "transfer": ("paceline.transfer", 1),
    "testing": ("paceline.testing", 2),
    "workers_compat": ("paceline.workers_compat", 2),
    "scheduler/server": ("paceline.scheduler.server", 3),
    "scheduler": ("paceline.scheduler", 3),
    "paceline": ("paceline", 3),
}


@dataclass(frozen=True)
class Import:
    """An import: absolute dotted name, line, and whether only a type checker executes it."""

    name: str
    line: int
    for_types: bool


@dataclass(frozen=True)
class Source:
    """A Python file of a package."""

    path: Path
    folder: str  # of its package

    @property
    def where(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def package(self) -> str:
        return PACKAGES[self.folder][0]

    @property
    def layer(self) -> int:
        return PACKAGES[self.folder][1]

    @property
    def module(self) -> str:
        below = self.path.relative_to(ROOT / self.folder).with_suffix("").parts
        return ".".join([self.package, *(p for p in below if p != "__init__")])

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    def imports(self) -> Iterator[Import]:
        """Return every import at any depth, relative ones made absolute."""
        types_only = {
            id(node)
            for block in ast.walk(self.tree)
            if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
            for child in block.body
            for node in ast.walk(child)
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, node.lineno, id(node) in types_only)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                for alias in node.names:
                    # `from x import y`: y may be a module; the caller decides by prefix
                    yield Import(f"{base}.{alias.name}", node.lineno, id(node) in types_only)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.module.split(".")
        if self.path.name != "__init__.py":
            package = package[:-1]
        package = package[: len(package) - node.level + 1]
        return ".".join([*package, *([node.module] if node.module else [])])


def package_of(module: str) -> tuple[str, int] | None:
    """Return package and layer of a dotted name of the project; None for other names."""
    found = [
        (name, layer)
        for name, layer in PACKAGES.values()
        if module == name or module.startswith(name + ".")
    ]
    return max(found, key=lambda item: len(item[0]), default=None)


def sources() -> list[Source]:
    """Return all Python files of all packages, each in the innermost package that contains it."""
    found: dict[Path, Source] = {}
    for folder in sorted(PACKAGES, key=len, reverse=True):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.setdefault(path, Source(path, folder))
    return sorted(found.values(), key=lambda source: source.where)


def project_files() -> list[Path]:
    """Return every file of the project that git would list, without generated folders."""
    left_out = {".git", ".venv", "build", "dist", "site", "__pycache__", "paceline.egg-info"}
    left_out |= {".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
    return [
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file() and not left_out & set(path.relative_to(ROOT).parts)
    ]
