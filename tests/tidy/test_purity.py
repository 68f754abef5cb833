"""Rules 3, 4, 7 and 10: assignment of a task's state, await, bare dicts, module-level state."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.source_tree import Source, sources

MUTABLE_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTABLE_CALLS = {
    *("list", "dict", "set", "bytearray", "defaultdict", "deque", "OrderedDict", "Counter"),
    *("count", "WeakValueDictionary", "WeakKeyDictionary", "WeakSet", "SortedSet", "SortedDict"),
    *("SortedList", "Lock", "RLock", "local", "Random"),
}
MUTATORS = {
    *("append", "add", "update", "pop", "popitem", "clear", "setdefault", "extend", "insert"),
    *("remove", "discard", "appendleft", "popleft", "sort", "reverse", "__setitem__"),
}
CACHES = {"lru_cache", "cache"}
# modules that encode messages, and one that logs messages in transit
CODECS = {
    "protocol/codec.py",
    "scheduler/server/wiretap/report.py",
    "scheduler/server/peers/message_checks.py",
}
# below the server, but loaded by a stock worker and run by its event loop
LOADED_BY_WORKERS = {"transfer/worker_transfer.py", "transfer/wrappers.py"}


def name_of(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def assigned(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        yield node.target


#: The transitions, and the steps that they share.
STATE_ASSIGNED_IN = (
    "scheduler/core/lifecycle/steps.py",
    "scheduler/core/lifecycle/transitions.py",
)


def test_state_of_a_task_is_assigned_in_transitions_only() -> None:
    found = []
    for source in sources():
        if source.where in STATE_ASSIGNED_IN:
            continue
        if source.package == "paceline.protocol":
            continue
        if source.where == "workers_compat/dashboard/scheduler_proxy.py":
            continue  # the representation of a task on a page is not a task
        for node in ast.walk(source.tree):
            for target in assigned(node):
                if isinstance(target, ast.Attribute) and target.attr == "state":
                    if name_of(target.value) != "self":
                        found.append(f"{source.where}:{node.lineno}: {ast.unparse(target)} = ...")
            if isinstance(node, ast.Call) and name_of(node.func) in ("setattr", "__setattr__"):
                if any(isinstance(a, ast.Constant) and a.value == "state" for a in node.args):
                    found.append(f"{source.where}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_nothing_awaits_below_the_server() -> None:
    asynchronous = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    found = [
        f"{source.where}:{node.lineno}"
        for source in sources()
        if source.layer < 3 and source.where not in LOADED_BY_WORKERS
        for node in ast.walk(source.tree)
        if isinstance(node, asynchronous)
    ]
    assert found == []


def test_no_message_is_a_bare_dict() -> None:
    """A dict with a constant "op" is a message without a type."""
    found = [
        f"{source.where}:{node.lineno}: {ast.unparse(node)[:80]}"
        for source in sources()
        if source.where not in CODECS
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Dict)
        and any(isinstance(key, ast.Constant) and key.value == "op" for key in node.keys)
    ]
    assert found == []


def module_level(source: Source) -> Iterator[tuple[ast.stmt, str, ast.expr]]:
    """Yield (statement, name, value) of every assignment at module level, also in `if` and `try`."""
    stack: list[ast.stmt] = list(source.tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            stack += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in assigned(node):
                yield node, name_of(target), node.value


def is_mutable(value: ast.expr) -> bool:
    called = isinstance(value, ast.Call) and name_of(value.func) in MUTABLE_CALLS
    return called or isinstance(value, MUTABLE_DISPLAYS)


def is_constant_name(name: str) -> bool:
    return name.isupper() or (name.startswith("__") and name.endswith("__"))


def inside_functions(node: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """Yield every node in the body of a function."""
    inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    for child in ast.iter_child_nodes(node):
        if inside:
            yield child
        yield from inside_functions(child, inside)


def mutations(source: Source, tables: set[str]) -> Iterator[str]:
    """Yield the places at which a function changes one of these names. Tables are filled at module level only."""
    for node in inside_functions(source.tree):
        targets = [*assigned(node), *(node.targets if isinstance(node, ast.Delete) else [])]
        changed = [t.value for t in targets if isinstance(t, ast.Subscript)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in MUTATORS:
                changed.append(node.func.value)
        for value in changed:
            if isinstance(value, ast.Name) and value.id in tables:
                yield f"{source.where}:{node.lineno}: changes {value.id}"


def test_no_module_level_state() -> None:
    """Two schedulers in one process share no state: tables are constants, caches belong to objects."""
    found = []
    tables = {
        name for source in sources() for _, name, value in module_level(source) if is_mutable(value)
    }
    for source in sources():
        for node, name, value in module_level(source):
            if is_mutable(value) and not is_constant_name(name):
                found.append(f"{source.where}:{node.lineno}: {name} is no constant's name")
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Global):
                found.append(f"{source.where}:{node.lineno}: global {', '.join(node.names)}")
            for decorator in getattr(node, "decorator_list", []):
                inner = decorator.func if isinstance(decorator, ast.Call) else decorator
                if name_of(inner) in CACHES:
                    found.append(f"{source.where}:{node.lineno}: @{name_of(inner)} is shared state")
        found += mutations(source, {name for name in tables if name.isupper()})
    assert sorted(set(found)) == []
