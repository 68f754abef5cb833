"""Scheduler plugins: where they live, and when their hooks are called.

Only plugins that really override a hook are called for it; while there is none for any hook of the core, the core
knows of no plugins at all. A plugin that has nothing to do for a while may sleep: it is there, and none of its hooks is
called. An exception of a plugin is logged and harms nobody.

Must not know: what plugins do; how their wishes become stimuli (``facade.py``).
"""

from __future__ import annotations

import inspect
import logging
import operator
import warnings
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from paceline.protocol.messages import StartStop
from paceline.protocol.payload import Payload
from paceline.scheduler.core.groups import TASK_STATES
from paceline.scheduler.core.handlers.commands import write_task
from paceline.scheduler.core.ports import TurnWrites
from paceline.scheduler.core.state import SchedulerState, TaskState
from paceline.scheduler.core.stimuli import WriteTask

from .unpickling import plugin_name
from .views import Sight, opened, serialized

logger = logging.getLogger("distributed.scheduler")

CORE_HOOKS = (
    "add_client",
    "add_worker",
    "remove_client",
    "remove_worker",
    "restart",
    "transition",
    "update_graph",
)
"""Hooks that the core calls, within a turn."""

OTHER_HOOKS = ("before_close", "close", "log_event", "valid_workers_downscaling")
"""Hooks that the server calls."""

Spawn = Callable[[Any, str], Any]


class Plugins:
    """Plugins by name (``flows.ports.PluginHost``), and the port through which the core calls them
    (``core.ports.PluginPort``).

    Args:
        facade: what the scheduler looks like to code that was written for stock's.
        state: whose ``plugins`` attribute is set while a plugin has a hook that the core calls.
        spawn: runs what an asynchronous hook returns, in the background, under a name.
        scheduler: what plugins and functions receive as the scheduler: the ``Scheduler`` object, which finds on the facade
            what it has not itself. The facade where there is none.

    Attributes:
        facade, scheduler: see above.
        by_name: the plugins, in order of registration.
        sleeping: names of those whose hooks are not called for now.
        depth: how many hooks of a turn are running: while > 0 the core is in the middle of a turn.
        leaving: key -> what its view is made of, of a task that is being forgotten while hooks hear of it.
        partings: what plugins still do about workers that left (``async def remove_worker``).
        writes: where it is noted what hooks write within a turn, or None (``Driver.writes``).
        tell: feeds a stimulus, between turns; set by the server.
        sight: what views of tasks, workers and clients are made with.
    """

    def __init__(
        self, facade: Any, state: SchedulerState, spawn: Spawn, scheduler: Any = None
    ) -> None:
        self.facade = facade
        self.scheduler = facade if scheduler is None else scheduler
        self.by_name: dict[str, Any] = {}
        self.sleeping: dict[str, None] = {}
        self.depth = 0
        self.partings: set[Any] = set()
        self.leaving: dict[Any, tuple[TaskState, Sight, Any]] = {}
        self.writes: TurnWrites | None = None
        self.tell: Callable[[Any], Any] | None = None
        self.sight = Sight(state, self.write)
        self._state = state
        self._spawn = spawn
        self._hooks: dict[str, list[Callable[..., Any]]] = {}
        self._finishes: frozenset[str] = frozenset()
        self._arguments = Arguments()
        self._find_hooks()

    # where they live

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def add(self, plugin: Any, name: str | None = None, idempotent: bool = False) -> None:
        """Call its hooks from now on; it replaces one of the same name, with stock's warning."""
        if name is None:
            name = plugin_name(plugin)
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
        """Call its hooks no more.

        Raises:
            ValueError: there is none of this name.
        """
        if name not in self.by_name:
            raise ValueError(f"Could not find plugin {name!r} among the current scheduler plugins")
        del self.by_name[name]
        self.sleeping.pop(name, None)
        self._find_hooks()

    def sleep(self, name: str) -> None:
        """Call none of a plugin's hooks until it is woken."""
        if name in self.by_name and name not in self.sleeping:
            self.sleeping[name] = None
            self._find_hooks()

    def wake(self, name: str) -> None:
        """Call its hooks again."""
        if name in self.sleeping:
            del self.sleeping[name]
            self._find_hooks()

    def each(self) -> list[Any]:
        """The plugins, in order of registration."""
        return list(self.by_name.values())

    def _find_hooks(self) -> None:
        plugins = [each for name, each in self.by_name.items() if name not in self.sleeping]
        self._hooks = {
            hook: [getattr(plugin, hook) for plugin in plugins if overrides(plugin, hook)]
            for hook in (*CORE_HOOKS, *OTHER_HOOKS)
        }
        listening = [each for each in plugins if overrides(each, "transition")]
        self._finishes = frozenset().union(*(_finishes(each) for each in listening))
        heard = any(self._hooks[hook] for hook in CORE_HOOKS)
        self._state.plugins = self if heard else None

    # what plugins write

    def write(self, command: WriteTask) -> None:
        """Carry out what somebody wrote on a task: at once within a hook, as a stimulus between turns."""
        if self.depth:
            if self.writes is not None:
                self.writes.made.append((self.writes.calls, command))
            write_task(self._state, command)
        elif self.tell is not None:
            self.tell(command)
        else:
            write_task(self._state, command)

    # what the core calls; each call counts, so that a replay finds what was written within it

    def transition(
        self,
        ts: TaskState,
        start: str,
        finish: str,
        stimulus_id: str,
        detail: Any,
        edges: tuple[Any, Any] | None,
    ) -> None:
        """See ``core.ports.PluginPort``. Called several times a task: all in one function."""
        if self.writes is not None:
            self.writes.calls += 1
        if finish not in self._finishes:
            return
        key = ts.key
        if detail is not None:
            more = self._arguments.of_transition(ts, detail)
            more["stimulus_id"] = stimulus_id
        elif edges is not None:
            self.leaving[key] = (ts, self.sight, edges)
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
                    self._log_failure("transition")
                else:
                    if result is not None:
                        self._await_later(result, "transition")
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
        """See ``core.ports.PluginPort``."""
        self._count()
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
        """See ``core.ports.PluginPort``."""
        self._count()
        self._call("add_worker", scheduler=self.scheduler, worker=address)

    def remove_worker(self, address: str, stimulus_id: str) -> None:
        """See ``core.ports.PluginPort``."""
        self._count()
        for hook in list(self._hooks["remove_worker"]):
            more = {"stimulus_id": stimulus_id} if takes_keyword(hook, "stimulus_id") else {}
            self._call_one(
                hook, "remove_worker", (), {"scheduler": self.scheduler, "worker": address, **more}
            )

    def add_client(self, client: str) -> None:
        """See ``core.ports.PluginPort``."""
        self._count()
        self._call("add_client", scheduler=self.scheduler, client=client)

    def remove_client(self, client: str) -> None:
        """See ``core.ports.PluginPort``."""
        self._count()
        self._call("remove_client", scheduler=self.scheduler, client=client)

    def restart(self) -> None:
        """See ``core.ports.PluginPort``."""
        self._count()
        self._call("restart", self.scheduler)

    # what the server calls

    def on_records(self, records: Iterable[tuple[Any, ...]]) -> None:
        """After a turn: tells of events that were logged in it (a sink of ``Driver.record_sinks``)."""
        if not self._hooks["log_event"]:
            return
        for record in records:
            if record[0] == "log-event":
                self._call("log_event", record[1], opened(record[2]))

    def valid_workers_downscaling(self, workers: list[Any]) -> list[Any]:
        """Views of workers that plugins let go, of those given."""
        for hook in list(self._hooks["valid_workers_downscaling"]):
            found = self._call_one(hook, "valid_workers_downscaling", (self.scheduler, workers), {})
            if found is not None:
                workers = list(found)
        return workers

    def serves(self, op: str) -> bool:
        """Whether somebody put a handler of an op that the catalogue does not have on the facade."""
        return self.facade.handlers.has_own(op)

    def answer(self, op: str, raw: dict[str, Any]) -> Any:
        """What that handler gives; its own exceptions go to the asker."""
        return self.facade.handlers.answer(op, raw)

    def takes(self, op: str) -> bool:
        """Whether somebody put a handler of a stream's op that the catalogue does not have on the facade."""
        return bool(self.facade.stream_handlers.has_own(op))

    def took_over(self, kind: type) -> bool:
        """Whether somebody put a handler on the facade for messages that the core takes otherwise."""
        return kind in self.facade.stream_handlers.taken_over

    def take_over(self, message: Any, **peer: str) -> None:
        """Give such a message to that handler; what is closed in it stays closed."""
        self._give(message.__struct_config__.tag, peer, as_arguments(message))

    def take(self, op: str, raw: dict[str, Any], **peer: str) -> None:
        """Give a message of a stream to that handler.

        Args:
            peer: ``worker=address`` or ``client=name``.
        """
        arguments = {name: opened(value) for name, value in raw.items() if name != "op"}
        self._give(op, peer, arguments)

    def _give(self, op: str, peer: dict[str, str], arguments: dict[str, Any]) -> None:
        try:
            result = self.facade.stream_handlers[op](**{**peer, **arguments})
        except Exception:
            logger.exception("The handler of %r that a scheduler plugin has failed", op)
            return
        if inspect.iscoroutine(result):
            self._spawn(result, f"handler of {op} of a scheduler plugin")

    def closing(self, hook: str) -> list[Awaitable[Any]]:
        """What is to be awaited before (``"before_close"``) or while (``"close"``) the scheduler closes."""
        found = [self._call_one(each, hook, (), {}) for each in list(self._hooks[hook])]
        return [result for result in found if inspect.isawaitable(result)]

    # calling

    def _count(self) -> None:
        if self.writes is not None:
            self.writes.calls += 1

    def _call(self, hook: str, *args: Any, **kwargs: Any) -> None:
        functions = self._hooks[hook]  # another list where a hook adds or removes a plugin
        for function in functions:
            self._call_one(function, hook, args, kwargs)

    def _call_one(
        self, function: Callable[..., Any], hook: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call one hook; what it returns to be awaited is awaited in the background, where the core called it."""
        in_turn = hook in CORE_HOOKS
        self.depth += in_turn
        try:
            result = function(*args, **kwargs)
        except Exception:
            self._log_failure(hook)
            return None
        finally:
            self.depth -= in_turn
        if result is not None and in_turn and self._await_later(result, hook):
            return None
        return result

    def _log_failure(self, hook: str) -> None:
        logger.exception("The hook %s of a scheduler plugin failed", hook)

    def _await_later(self, result: Any, hook: str) -> bool:
        """What a hook within a turn returns to be awaited is awaited in the background; whether it was such a thing."""
        if not inspect.iscoroutine(result):
            return False
        task = self._spawn(result, f"hook {hook} of a scheduler plugin")
        if hook == "remove_worker":
            self.partings.add(task)
            task.add_done_callback(self.partings.discard)
        return True


def overrides(plugin: Any, hook: str) -> bool:
    """Whether a plugin has a hook of its own, beside what ``SchedulerPlugin`` does (nothing)."""
    from distributed.diagnostics.plugin import SchedulerPlugin

    method = getattr(plugin, hook, None)
    if not callable(method):
        return False
    return getattr(method, "__func__", method) is not getattr(SchedulerPlugin, hook, None)


def _finishes(plugin: Any) -> Iterable[str]:
    """States that a plugin's ``transition`` wants to hear of; a plugin of ours may say which (``FINISHES``)."""
    return getattr(plugin, "FINISHES", TASK_STATES)


def takes_keyword(function: Callable[..., Any], name: str) -> bool:
    """Whether a function can be given this keyword argument. Plugins of old do not know the newer ones."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def annotations_by_type(tasks: Iterable[TaskState]) -> dict[str, dict[Any, Any]]:
    """Annotation -> key -> value, of tasks that have any."""
    found: dict[str, dict[Any, Any]] = {}
    for ts in tasks:
        annotations = ts.annotations
        if not annotations:
            continue
        if isinstance(annotations, Payload):
            annotations = opened(annotations)
            if isinstance(annotations, Payload):  # this process opens no pickles
                continue
        for name, value in annotations.items():
            found.setdefault(name, {})[ts.key] = value
    return found


def as_arguments(message: Any) -> dict[str, Any]:
    """What a message says, by the names of its fields."""
    return {name: getattr(message, name) for name in message.__struct_fields__}


_NOT_TOLD = frozenset(("op", "key", "report", "run_id", "stimulus_id"))


class Arguments:
    """What hooks are told of messages and other causes, by the names of their fields, which are looked up once a type."""

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields: dict[type, _Fields] = {}

    def of_transition(self, ts: TaskState, detail: Any) -> dict[str, Any]:
        """What stock tells plugins of a transition beside its states: whatever its cause said."""
        fields = self._fields_of(type(detail))
        found = fields.of(detail)
        if fields.has_report and detail.report is not None:
            found = {**self._fields_of(type(detail.report)).of(detail.report), **found}
        if fields.has_cause and isinstance(found["cause"], TaskState):
            found["cause"] = found["cause"].key
        if ts.who_has and "worker" not in found:
            found["worker"] = next(reversed(ts.who_has)).address
        return found

    def _fields_of(self, kind: type) -> _Fields:
        fields = self._fields.get(kind)
        if fields is None:
            fields = self._fields[kind] = _Fields(kind)
        return fields


class _Fields:
    """Of a kind of message or cause: what plugins are told of it.

    Attributes:
        has_report: whether it has a message of a worker beside it.
        has_cause: whether it names the task at fault.
    """

    __slots__ = ("_closed", "_has_startstops", "_names", "_values", "has_cause", "has_report")

    def __init__(self, kind: type) -> None:
        of_message = getattr(kind, "__struct_fields__", None)
        names = of_message or tuple(getattr(kind, "__dataclass_fields__", ()))
        self.has_report = "report" in names
        self.has_cause = "cause" in names
        self._has_startstops = "startstops" in names
        self._names = tuple(name for name in names if name not in _NOT_TOLD)
        self._values = _values_of(self._names)
        self._closed = [name for name in _maybe_closed(kind, names) if name not in _NOT_TOLD]

    def of(self, detail: Any) -> dict[str, Any]:
        """Their names and values."""
        found: dict[str, Any] = dict(zip(self._names, self._values(detail), strict=True))
        for name in self._closed:
            value = found[name]
            if type(value) is Payload:
                found[name] = serialized(value)
        if self._has_startstops:  # as the dicts that they are on the wire
            found["startstops"] = msgspec.to_builtins(found["startstops"] or [])
        return found


def _values_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of these attributes; ``attrgetter`` does where there are several."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda detail: tuple([getattr(detail, name) for name in names])


def _maybe_closed(kind: type, names: tuple[str, ...]) -> Iterable[str]:
    """Names of fields that may hold a closed value."""
    if not issubclass(kind, msgspec.Struct):
        return names
    plain = (int, str, float, bool, list[StartStop])
    return [
        field.name
        for field in msgspec.structs.fields(kind)
        if not any(field.type == each or field.type == each | None for each in plain)
    ]
