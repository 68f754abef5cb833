"""Where the installed distributed says an op, and what handles it there.

Found by reading its syntax trees, so that it stays true with each release. No line of it is taken.

It must not know: what the op does there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

#: Modules that speak the protocol.
MODULES = (
    "scheduler", "worker", "worker_state_machine", "client", "nanny", "core", "stealing", "batched", "actor", "spans",
    "queues", "variable", "semaphore", "event", "multi_lock", "publish", "recreate_tasks", "active_memory_manager",
    "diagnostics/memory_sampler", "diagnostics/plugin", "deploy/adaptive", "deploy/spec", "shuffle/_scheduler_plugin",
    "shuffle/_worker_plugin", "shuffle/_core", "utils_comm", "deploy/cluster", "pubsub", "cfexecutor", "security", "http/scheduler/api",
)  # fmt: skip
#: So many places of an op are named, of each kind.
PLACES_MAX = 5


@dataclass
class Places:
    """Where an op is said, and what handles it: qualified names, in the order of ``MODULES``."""

    said: dict[str, None] = field(default_factory=dict)
    handled: dict[str, None] = field(default_factory=dict)


def places(ops: Iterable[str]) -> dict[str, Places]:
    """Op -> its places."""
    spec = find_spec("distributed")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    found = {op: Places() for op in ops}
    for module in MODULES:
        path = root / f"{module}.py"
        if path.exists():
            name = module.replace("/", ".")
            _look(ast.parse(path.read_text()), name, name, found)
    return found


def _look(tree: ast.AST, where: str, owner: str, found: dict[str, Places]) -> None:
    for node in ast.iter_child_nodes(tree):
        inner, inside = where, owner
        if isinstance(node, ast.ClassDef):
            inner = inside = f"{where}.{node.name}"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{where}.{node.name}"
        elif isinstance(node, ast.Dict):
            _dict(node, where, owner, found)
        elif isinstance(node, ast.keyword) and node.arg == "op":
            _said(node.value, where, found)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None and any(getattr(t, "id", "") == "op" for t in targets):
                _said(node.value, where, found)
        elif isinstance(node, ast.Attribute) and node.attr in found:
            if _asks_others(where) and _is_remote(node.value):
                found[node.attr].said[where] = None
        _look(node, inner, inside, found)


def _dict(node: ast.Dict, where: str, owner: str, found: dict[str, Places]) -> None:
    """``{"op": "x"}`` says an op; ``{"x": self.handler}`` is a row of a table of handlers."""
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            continue
        if key.value == "op":
            _said(value, where, found)
        elif key.value in found:
            name = _handler(value)
            if name:
                found[key.value].handled[f"{owner}.{name}"] = None


def _handler(value: ast.AST) -> str:
    """``self.handler``, or what is given to the function that makes a handler."""
    if isinstance(value, ast.Attribute):
        return value.attr
    if isinstance(value, ast.Call) and value.args:
        return _handler(value.args[-1]) or getattr(value.args[-1], "id", "")
    return ""


def _asks_others(where: str) -> bool:
    """Not within the scheduler, where ``self.scheduler`` is the object itself."""
    return where.split(".")[0] not in ("scheduler", "stealing", "http", "active_memory_manager") and "Extension" not in where


def _said(value: ast.AST, where: str, found: dict[str, Places]) -> None:
    if isinstance(value, ast.Constant) and value.value in found:
        found[value.value].said[where] = None


def _is_remote(value: ast.AST) -> bool:
    """Whether this looks like an RPC object: ``self.scheduler``, ``rpc``, ``self.rpc(address)``, ``worker``."""
    if isinstance(value, ast.Call):
        value = value.func
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return name in ("scheduler", "rpc", "nanny", "worker", "r", "scheduler_rpc", "scheduler_comm", "pool")
