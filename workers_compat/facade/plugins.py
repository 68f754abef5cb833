"""Scheduler plugins and calls of their hooks.

A hook is called only for plugins that override it. While no plugin overrides a hook of the core,
the core has no reference to plugins at all. A suspended plugin stays registered, but none of its
hooks is called. Exceptions of plugins are logged.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin
from paceline.scheduler.core.handlers.commands import write_task
from paceline.scheduler.core.ports import TurnWrites
from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_states import TASK_STATES
from paceline.scheduler.core.stimuli import WriteTask
from paceline.workers_compat.security.unpickling import deserialize, plugin_name

from .hook_arguments import HookArguments, annotations_by_type, as_arguments
from .views import ViewContext

logger = logging.getLogger("distributed.scheduler")

#: Hooks that the core calls within a turn.
CORE_HOOKS = (
    "add_client",
    "add_worker",
    "remove_client",
    "remove_worker",
    "restart",
    "transition",
    "update_graph",
)

#: Hooks that the server calls.
OTHER_HOOKS = ("before_close", "close", "log_event", "valid_workers_downscaling")

HOOK_FAILED = "Hook %s of a scheduler plugin failed"

Spawn = Callable[[Any, str], Any]


class Plugins:
    """Plugins by name. Implements ``core.ports.PluginPort``.

    Args:
        facade: stock's ``Scheduler`` over this one.
        state: its ``plugins`` attribute is set while a plugin overrides a hook of the core.
        spawn: runs a coroutine returned by a hook in the background, under a name.
        scheduler: what plugins and functions receive as the scheduler; by default the facade.

    Attributes:
        by_name: the plugins, in order of registration.
        suspended: names of plugins whose hooks are not called.
        depth: number of hooks of the current turn that are running.
        leaving: key -> arguments of the view of a task that is being forgotten while hooks run.
        pending_hooks: hook -> tasks of its coroutines that are running, of hooks that are awaited.
        writes: records what hooks write within a turn, for the journal or the log of a durable
            scheduler; None without them.
        send_stimulus: feeds a stimulus between turns; set by the facade.
    """

    def __init__(
        self, facade: Any, state: SchedulerState, spawn: Spawn, scheduler: Any = None
    ) -> None:
        self.facade = facade
        self.scheduler = facade if scheduler is None else scheduler
        self.by_name: dict[str, Any] = {}
        self.suspended: set[str] = set()
        self.depth = 0
        self.pending_hooks: dict[str, set[Any]] = {"add_worker": set(), "remove_worker": set()}
        self.leaving: dict[Any, tuple[TaskState, ViewContext, Any]] = {}
        self.writes: TurnWrites | None = None
        self.send_stimulus: Callable[[Any], Any] | None = None
        self.context = ViewContext(state, self.write)
        self._state = state
        self._spawn = spawn
        self._hooks: dict[str, list[Callable[..., Any]]] = {}
        self._final_states: frozenset[str] = frozenset()
        self._arguments = HookArguments()
        self._find_hooks()

    # Registration

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def add(self, plugin: Any, name: str | None = None, idempotent: bool = False) -> None:
        """Register a plugin. It replaces one of the same name, with stock's warning."""
        name = plugin_name(plugin) if name is None else name
        if name in self.by_name:
            if idempotent:
                return
            warnings.warn(
                f"Scheduler already contains a plugin with name {name}; overwriting.",
                category=UserWarning,
                stacklevel=2,
            )
        self.by_name[name] = plugin
        self._find_hooks()

    def remove(self, name: str) -> None:
        """Unregister a plugin. Raise ValueError if there is none of this name."""
        if name not in self.by_name:
            raise ValueError(f"Could not find plugin {name!r} among the current scheduler plugins")
        del self.by_name[name]
        self.suspended.discard(name)
        self._find_hooks()

    def suspend(self, name: str) -> None:
        """Call none of the hooks of a plugin until ``resume``."""
        if name in self.by_name and name not in self.suspended:
            self.suspended.add(name)
            self._find_hooks()

    def resume(self, name: str) -> None:
        if name in self.suspended:
            self.suspended.remove(name)
            self._find_hooks()

    def _find_hooks(self) -> None:
        plugins = [each for name, each in self.by_name.items() if name not in self.suspended]
        self._hooks = {
            hook: [getattr(plugin, hook) for plugin in plugins if overrides(plugin, hook)]
            for hook in (*CORE_HOOKS, *OTHER_HOOKS)
        }
        listeners = [each for each in plugins if overrides(each, "transition")]
        self._final_states = frozenset().union(
            *(getattr(each, "FINISHES", TASK_STATES) for each in listeners)
        )
        is_needed = any(self._hooks[hook] for hook in CORE_HOOKS)
        self._state.plugins = self if is_needed else None

    # Writes of plugins

    def write(self, command: WriteTask) -> None:
        """Write an attribute of a task: at once within a hook, else as a stimulus."""
        if self.depth and self.writes is not None:
            self.writes.made.append((self.writes.calls, command))
        if self.depth or self.send_stimulus is None:
            write_task(self._state, command)
        else:
            self.send_stimulus(command)

    # Called by the core. Each call is counted, so that a replay knows in which one a write was
    # made.

    def transition(
        self,
        ts: TaskState,
        start: str,
        finish: str,
        stimulus_id: str,
        detail: Any,
        edges: tuple[Any, Any] | None,
    ) -> None:
        """See ``core.ports.PluginPort``. Called several times per task, so it is one function."""
        if self.writes is not None:
            self.writes.calls += 1
        if finish not in self._final_states:
            return
        key = ts.key
        if detail is not None:
            more = self._arguments.of_transition(ts, detail)
            more["stimulus_id"] = stimulus_id
        elif edges is not None:
            self.leaving[key] = (ts, self.context, edges)
        depth = self.depth
        self.depth = depth + 1
        try:
            for hook in self._hooks["transition"]:
                try:
                    if detail is None:
                        result = hook(key, start, finish, stimulus_id=stimulus_id)
                    else:
                        result = hook(key, start, finish, **more)
                except Exception:
                    logger.exception(HOOK_FAILED, "transition")
                else:
                    if result is not None:
                        self._spawn_if_coroutine(result, "transition")
        finally:
            self.depth = depth
            if edges is not None:
                self.leaving.pop(key, None)

    def update_graph(
        self,
        *,
        client: str,
        keys: list[Any],
        touched: Callable[[], list[TaskState]],
        new_tasks: list[TaskState],
        stimulus_id: str,
    ) -> None:
        self._count_call()
        if not self._hooks["update_graph"]:
            return
        tasks = touched()
        self._call(
            "update_graph",
            self.scheduler,
            client=client,
            keys=set(keys),
            tasks=[ts.key for ts in tasks],
            annotations=annotations_by_type(new_tasks),
            priority={ts.key: ts.priority for ts in tasks},
            stimulus_id=stimulus_id,
        )

    def add_worker(self, address: str) -> None:
        self._call_counted("add_worker", scheduler=self.scheduler, worker=address)

    def remove_worker(self, address: str, stimulus_id: str) -> None:
        self._count_call()
        arguments = {"scheduler": self.scheduler, "worker": address}
        for hook in list(self._hooks["remove_worker"]):
            more = {"stimulus_id": stimulus_id} if takes_keyword(hook, "stimulus_id") else {}
            self._call_one(hook, "remove_worker", (), {**arguments, **more})

    def add_client(self, client: str) -> None:
        self._call_counted("add_client", scheduler=self.scheduler, client=client)

    def remove_client(self, client: str) -> None:
        self._call_counted("remove_client", scheduler=self.scheduler, client=client)

    def restart(self) -> None:
        self._call_counted("restart", self.scheduler)

    # Called by the server

    def on_records(self, records: Iterable[tuple[Any, ...]]) -> None:
        """Call ``log_event`` hooks after a turn. See ``Driver.record_sinks``."""
        if not self._hooks["log_event"]:
            return
        for record in records:
            if record[0] == "log-event":
                self._call("log_event", record[1], deserialize(record[2]))

    def valid_workers_downscaling(self, workers: list[Any]) -> list[Any]:
        """Return those of the worker views that plugins allow to retire.

        An exception of a plugin is raised: without its answer, no worker may be closed.
        """
        for hook in list(self._hooks["valid_workers_downscaling"]):
            found = hook(self.scheduler, workers)
            if found is not None:
                workers = list(found)
        return workers

    def has_stream_handler(self, op: str) -> bool:
        """Return whether a plugin added a handler for stream messages of an unknown op."""
        return bool(self.facade.stream_handlers.is_added(op))

    def replaces_core_handler(self, kind: type) -> bool:
        """Return whether a plugin added a handler for messages that the core handles otherwise."""
        return kind in self.facade.stream_handlers.replaced

    def handle_replaced(self, message: Any, **peer: str) -> None:
        """Call that handler. Serialized values are passed on unchanged."""
        arguments = as_arguments(message)
        # the sender, unless the message names another
        arguments |= {role: name for role, name in peer.items() if arguments.get(role) is None}
        self._call_stream_handler(message.__struct_config__.tag, peer, arguments)

    def handle_stream_message(self, op: str, raw: dict[str, Any], **peer: str) -> None:
        """Call the added handler of `op`. `peer` is ``worker=address`` or ``client=name``."""
        arguments = {name: deserialize(value) for name, value in raw.items() if name != "op"}
        self._call_stream_handler(op, peer, arguments)

    def _call_stream_handler(
        self, op: str, peer: dict[str, str], arguments: dict[str, Any]
    ) -> None:
        try:
            result = self.facade.stream_handlers[op](**{**peer, **arguments})
        except Exception:
            logger.exception("Handler of %r in a scheduler plugin failed", op)
            return
        if inspect.iscoroutine(result):
            self._spawn(result, f"handler of {op} of a scheduler plugin")

    def hooks_started_by(self, action: Callable[[], Any], hook: str) -> set[Any]:
        """Call `action`, and return the tasks of coroutines of `hook` that it started."""
        before = set(self.pending_hooks[hook])
        action()
        return self.pending_hooks[hook] - before

    def closing_hooks(self, hook: str) -> list[Awaitable[Any]]:
        """Call ``"before_close"`` or ``"close"`` hooks and return what they want awaited."""
        found = [self._call_one(each, hook, (), {}) for each in list(self._hooks[hook])]
        return [result for result in found if inspect.isawaitable(result)]

    # Calls

    def _count_call(self) -> None:
        if self.writes is not None:
            self.writes.calls += 1

    def _call_counted(self, hook: str, *args: Any, **kwargs: Any) -> None:
        self._count_call()
        self._call(hook, *args, **kwargs)

    def _call(self, hook: str, *args: Any, **kwargs: Any) -> None:
        functions = self._hooks[hook]  # replaced if a hook adds or removes a plugin
        for function in functions:
            self._call_one(function, hook, args, kwargs)

    def _call_one(
        self, function: Callable[..., Any], hook: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call one hook. A coroutine that it returns within a turn runs in the background."""
        in_turn = hook in CORE_HOOKS
        self.depth += in_turn
        try:
            result = function(*args, **kwargs)
        except Exception:
            logger.exception(HOOK_FAILED, hook)
            return None
        finally:
            self.depth -= in_turn
        if result is not None and in_turn and self._spawn_if_coroutine(result, hook):
            return None
        return result

    def _spawn_if_coroutine(self, result: Any, hook: str) -> bool:
        """Run what a hook returned in the background if it is a coroutine. Return whether it is."""
        if not inspect.iscoroutine(result):
            return False
        task = self._spawn(result, f"hook {hook} of a scheduler plugin")
        if hook in self.pending_hooks:
            self.pending_hooks[hook].add(task)
            task.add_done_callback(self.pending_hooks[hook].discard)
        return True


def overrides(plugin: Any, hook: str) -> bool:
    """Return whether a plugin overrides a hook of ``SchedulerPlugin``."""
    method = getattr(plugin, hook, None)
    if not callable(method):
        return False
    return getattr(method, "__func__", method) is not getattr(SchedulerPlugin, hook, None)


def takes_keyword(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function accepts a keyword argument. Older plugins lack the newer ones."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
