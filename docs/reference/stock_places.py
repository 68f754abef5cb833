"""Find where the installed distributed sends and handles each operation, in its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

#: Modules of distributed that send or handle messages.
MODULES = (
    "scheduler", "worker", "worker_state_machine", "client", "nanny", "core", "stealing",
    "batched", "actor", "spans", "queues", "variable", "semaphore", "event", "multi_lock",
    "publish", "recreate_tasks", "active_memory_manager", "diagnostics/memory_sampler",
    "diagnostics/plugin", "deploy/adaptive", "deploy/spec", "shuffle/_scheduler_plugin",
    "shuffle/_worker_plugin", "shuffle/_core", "utils_comm", "deploy/cluster", "pubsub",
    "cfexecutor", "security", "http/scheduler/api",
)  # fmt: skip
#: Places listed for an operation, at most, of each kind.
PLACES_MAX = 5


@dataclass
class Places:
    """Qualified names of what sends and handles an operation, in the order of ``MODULES``."""

    sent: dict[str, None] = field(default_factory=dict)
    handled: dict[str, None] = field(default_factory=dict)


def places(ops: Iterable[str]) -> dict[str, Places]:
    """Return the places of each operation in `ops`."""
    spec = find_spec("distributed")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    found = {op: Places() for op in ops}
    for module in MODULES:
        path = root / f"{module}.py"
        if path.exists():
            name = module.replace("/", ".")
            _visit(ast.parse(path.read_text()), name, name, found)
    return found


def _visit(tree: ast.AST, where: str, owner: str, found: dict[str, Places]) -> None:
    for node in ast.iter_child_nodes(tree):
        inner, inside = where, owner
        if isinstance(node, ast.ClassDef):
            inner = inside = f"{where}.{node.name}"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{where}.{node.name}"
        elif isinstance(node, ast.Dict):
            _dict(node, where, owner, found)
        elif isinstance(node, ast.keyword) and node.arg == "op":
            _record_sent(node.value, where, found)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None and any(getattr(t, "id", "") == "op" for t in targets):
                _record_sent(node.value, where, found)
        elif isinstance(node, ast.Attribute) and node.attr in found:
            if _calls_remotely(where) and _is_remote(node.value):
                found[node.attr].sent[where] = None
        _visit(node, inner, inside, found)


def _dict(node: ast.Dict, where: str, owner: str, found: dict[str, Places]) -> None:
    """Record the operations in a dict.

    ``{"op": "x"}`` sends an operation, ``{"x": self.handler}`` is a table of handlers.
    """
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            continue
        if key.value == "op":
            _record_sent(value, where, found)
        elif key.value in found:
            name = _handler(value)
            if name:
                found[key.value].handled[f"{owner}.{name}"] = None


def _handler(value: ast.AST) -> str:
    """Return the name in ``self.handler``, or in an argument of a function that wraps one."""
    if isinstance(value, ast.Attribute):
        return value.attr
    if isinstance(value, ast.Call) and value.args:
        return _handler(value.args[-1]) or getattr(value.args[-1], "id", "")
    return ""


def _calls_remotely(where: str) -> bool:
    """Return whether ``self.scheduler`` in module `where` is an RPC object, not the scheduler."""
    return (
        where.partition(".")[0] not in ("scheduler", "stealing", "http", "active_memory_manager")
        and "Extension" not in where
    )


def _record_sent(value: ast.AST, where: str, found: dict[str, Places]) -> None:
    if isinstance(value, ast.Constant) and value.value in found:
        found[value.value].sent[where] = None


def _is_remote(value: ast.AST) -> bool:
    """Return whether `value` has the name of an RPC object, such as ``self.scheduler``."""
    if isinstance(value, ast.Call):
        value = value.func
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return name in (
        "scheduler",
        "rpc",
        "nanny",
        "worker",
        "r",
        "scheduler_rpc",
        "scheduler_comm",
        "pool",
    )
