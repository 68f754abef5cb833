"""What plugins, preloads and ``Client.run_on_scheduler`` functions find on the ``Scheduler`` object that they receive.

It has the attributes and methods of stock's ``Scheduler`` that others use. Reading computes the documented
views; requests that the scheduler serves are methods under the names of their ops; what changes the cluster
becomes a stimulus. Within a hook of a plugin such a stimulus waits for the end of the turn. Programs may hang
attributes of their own on it.

Must not know: sockets; how requests are served (the server's table of handlers is given).
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from paceline.protocol import messages as m
from paceline.protocol.catalogue import TABLES
from paceline.protocol.messages.base import Request
from paceline.scheduler.core import invariants, placement, stimuli, story
from paceline.scheduler.core.handlers.commands import ASKABLE

from .annotations import closed_unless_plain
from .facade_reach import Reach
from .plugins import Plugins
from .span_views import ComputationView, SpansView
from .stock_names import StockNames, TickPart, tick_parts
from .stream_handlers import StreamHandlers
from .topic_views import Broker, opened_events
from .views import ClientView, StreamView, TaskView, Views, WorkerView, opened

logger = logging.getLogger("distributed.scheduler")

#: How often this process is measured where the configuration does not say, seconds.
MONITOR_SECONDS = 0.5
#: States in which a task looks for a worker anew when its restrictions change.
UNPLACED = ("no-worker", "queued")
_REQUEST_FIELDS = frozenset(Request.__struct_fields__)
_OWN = frozenset(
    (
        "_server",
        "_scheduler",
        "_port",
        "_folder",
        "_monitor",
        "plugin_host",
        "handlers",
        "_extensions",
    )
)


class InProcess:
    """The peer of a request that comes from this process."""

    number = 0
    address = "inproc://scheduler"
    closed = False

    def reply(self, value: Any) -> None:
        """Nobody listens to more than the return value."""


class DeferringServer:
    """The server as a facade's requests see it: stimuli wait while a turn of the core is under way."""

    def __init__(self, server: Any, busy: Callable[[], bool]) -> None:
        self._server = server
        self._busy = busy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def tell(self, message: Any, source: str = "", stimulus_id: str | None = None) -> None:
        """Feed a stimulus now, or right after the turn."""
        if self._busy():
            self._server.driver.feed_after_turn(message, source, stimulus_id)
        else:
            self._server.tell(message, source, stimulus_id)

    def ask(
        self, message: Any, source: str = "", stimulus_id: str | None = None
    ) -> asyncio.Future[Any]:
        """Feed a request that the core answers, now or soon after the turn."""
        if not self._busy():
            return self._server.ask(message, source, stimulus_id)
        future = self._server.loop.create_future()

        def ask_now() -> None:
            answered = self._server.ask(message, source, stimulus_id)
            answered.add_done_callback(lambda done: _copy_outcome(done, future))

        self._server.loop.call_soon(ask_now)
        return future


def _copy_outcome(done: asyncio.Future[Any], future: asyncio.Future[Any]) -> None:
    if future.done():
        return
    if done.cancelled():
        future.cancel()
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


class SchedulerFacade(StockNames, Reach):
    """The scheduler for code that was written for stock's.

    Args:
        server: ``scheduler.server.server.Server``: core, state, handlers, driver, loop, ``tell``, ``ask``, ``spawn``.
        scheduler: the ``Scheduler`` object: address, id, status, services, ``close``, ``identity``, ...

    Attributes:
        plugin_host: where plugins live.
        periodic_callbacks: of plugins, and those of stock's that are stopped by programs. They end with the scheduler.
    """

    def __init__(self, server: Any, scheduler: Any) -> None:
        Reach.__init__(self)
        self._server = server
        self._scheduler = scheduler
        self.plugin_host = Plugins(self, server.state, server.spawn, scheduler)
        self.plugin_host.tell = server.tell
        spans = SpansView(server.state, lambda: server.now())
        self._extensions: dict[str, Any] = {"spans": spans}
        self._port = DeferringServer(server, lambda: self.plugin_host.depth > 0)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._monitor: Any = None
        self.periodic_callbacks: dict[str, Any] = {**tick_parts(self)}
        self.handlers = Handlers(self, server)
        self.stream_handlers = StreamHandlers(server)

    def __repr__(self) -> str:
        return repr(self._scheduler)

    def __getattr__(self, name: str) -> Any:
        """Requests that the scheduler serves, then the state's own, then the ``Scheduler`` object's."""
        if name in _OWN or name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("_"):
            # stock's slots, as ``scheduler._tasks``
            return getattr(self, name[1:])
        op = TABLES["scheduler_rpc"].get(name)
        if op is not None and self.serves(op.cls):
            return self.handlers[name]
        try:
            return getattr(self._server.state, name)
        except AttributeError:
            pass
        try:
            # not getattr: the ``Scheduler`` object asks here for what it has not itself
            return object.__getattribute__(self._scheduler, name)
        except AttributeError:
            pass
        raise AttributeError(f"paceline's scheduler has no attribute {name!r}")

    def serves(self, message_type: type) -> bool:
        """Whether requests of this class are served."""
        return message_type in self._server.handlers or message_type in self._server.core_types

    def request(self, message_type: Any, *args: Any, **kwargs: Any) -> Any:
        """A request from within: what its handler gives, an awaitable where that takes time.

        Raises:
            TypeError: the request takes no such arguments. Whatever its handler raises.
        """
        message = build_request(message_type, args, kwargs)
        handler = self._server.handlers.get(message_type)
        if handler is None:
            return self._port.ask(message, getattr(message, "client", None) or "")
        return handler(self._port, message, InProcess())

    # -- the cluster

    @property
    def tasks(self) -> Mapping[Any, TaskView]:
        """Key -> task."""
        return Views(self._server.state.tasks, self._task, self.plugin_host.leaving)

    @property
    def workers(self) -> Mapping[str, WorkerView]:
        """Address -> worker."""
        return Views(self._server.state.workers, self._worker)

    @property
    def clients(self) -> Mapping[str, ClientView]:
        """Name -> client."""
        return Views(self._server.state.clients, self._client)

    @property
    def running(self) -> set[WorkerView]:
        """Workers that take tasks."""
        return set(map(self._worker, self._server.state.running))

    @property
    def idle(self) -> dict[str, WorkerView]:
        """Address -> worker with too little to do."""
        state = self._server.state
        idle = [ws for ws in state.running if placement.is_unoccupied(state, ws)]
        return {ws.address: self._worker(ws) for ws in idle}

    @property
    def saturated(self) -> set[WorkerView]:
        """Workers with much more to do than others."""
        state = self._server.state
        return {self._worker(ws) for ws in state.running if placement.is_saturated(state, ws)}

    @property
    def unrunnable(self) -> dict[TaskView, float]:
        """Task that no worker may run -> since when."""
        return {self._task(ts): since for ts, since in self._server.state.unrunnable.items()}

    @property
    def queued(self) -> list[TaskView]:
        """Tasks that wait for a free thread, next first."""
        return [self._task(ts) for ts in self._server.state.queued]

    @property
    def replicated_tasks(self) -> set[TaskView]:
        """Tasks whose data several workers hold."""
        return {self._task(ts) for ts in self._server.state.replicated_tasks}

    @property
    def computations(self) -> list[ComputationView]:
        """What came while the cluster was busy, one after another; oldest first."""
        return [ComputationView(each) for each in self._server.state.computations]

    @property
    def total_nthreads_history(self) -> list[tuple[float, int]]:
        """(since, threads of the cluster), oldest first; seconds since the epoch."""
        return self._server.state.spans.threads

    @property
    def transition_log(self) -> list[Any]:
        """The last transitions, oldest first, as stock's named tuples."""
        from distributed.scheduler import Transition

        return [
            Transition(key, start, finish, {ts.key: to for ts, to in made.items()}, *more)
            for key, start, finish, made, *more in self._server.state.transition_log
        ]

    def story(self, *keys_or_tasks_or_stimuli: Any) -> list[Any]:
        """Logged transitions that one of these touches, oldest first."""
        from distributed.scheduler import Transition

        names = [k.key if isinstance(k, TaskView) else k for k in keys_or_tasks_or_stimuli]
        return [Transition(*entry) for entry in story.story(self._server.state, *names)]

    def get_events(self, topic: str | None = None) -> Any:
        """Logged events of a topic: (seconds since the epoch, event); without one, of all."""
        found = self._server.state.events.get(topic)
        if isinstance(found, dict):
            return {name: opened_events(events) for name, events in found.items()}
        return opened_events(found)

    @property
    def broker(self) -> Broker:
        """The event log's topics, to be read, under stock's name ``_broker`` too."""
        return Broker(self._server.state.events)

    def _task(self, ts: Any) -> TaskView:
        return TaskView(ts, self.plugin_host.sight)

    def _worker(self, ws: Any) -> WorkerView:
        return WorkerView(ws, self.plugin_host.sight)

    def _client(self, cs: Any) -> ClientView:
        return ClientView(cs, self.plugin_host.sight)

    # -- the process

    @property
    def status(self) -> Any:
        """distributed's ``Status``."""
        return self._scheduler.status

    @property
    def loop(self) -> Any:
        """tornado's loop over the event loop."""
        from tornado.ioloop import IOLoop

        return IOLoop.current()

    io_loop = loop

    @property
    def extensions(self) -> MutableMapping[str, Any]:
        """Name -> extension: machines beside the core, and what is put here."""
        return ChainMap(self._extensions, self._server.core.machines)

    def heartbeat(self, address: str, extensions: Mapping[str, Any]) -> None:
        """A worker's heartbeat brought data of extensions: those that want it get it."""
        for name, data in extensions.items():
            extension = self._extensions.get(name) if data else None
            ws = self._server.state.workers.get(address)
            if ws is None or not hasattr(extension, "heartbeat"):
                continue
            try:
                extension.heartbeat(self._worker(ws), data)
            except Exception:
                logger.exception("The extension %s failed to take a heartbeat of %s", name, address)

    @property
    def plugins(self) -> dict[str, Any]:
        """Name -> plugin. Use ``add_plugin`` and ``remove_plugin`` to change it."""
        return dict(self.plugin_host.by_name)

    @property
    def stream_comms(self) -> Mapping[str, Any]:
        """Worker address -> its stream."""
        return Views(self._server.driver.worker_streams, StreamView)

    @property
    def client_comms(self) -> Mapping[str, Any]:
        """Client name -> its stream."""
        return Views(self._server.driver.client_streams, StreamView)

    def validate_state(self, allow_overlap: bool = False) -> None:
        """Check all that must hold. Raises AssertionError."""
        invariants.validate_state(self._server.state)

    @property
    def monitor(self) -> Any:
        """distributed's ``SystemMonitor`` of this process; it measures from when somebody first asks for it."""
        self._server.flows.own_profile.wake()  # a performance report begins with this
        return self.measuring()

    def measuring(self) -> Any:
        """``monitor``, for what reads it all the time (metrics, pages) and wants no profile of the event loop with it."""
        if self._monitor is None:
            from distributed.system_monitor import SystemMonitor
            from tornado.ioloop import PeriodicCallback

            from .config import get, seconds

            self._monitor = SystemMonitor()
            interval = seconds(get("distributed.admin.system-monitor.interval")) or MONITOR_SECONDS
            measuring = PeriodicCallback(self._monitor.update, interval * 1000)
            self.periodic_callbacks["monitor"] = measuring
            measuring.start()
        return self._monitor

    @property
    def proc(self) -> Any:
        """psutil's view of this process."""
        return self.measuring().proc

    @property
    def deque_handler(self) -> Any:
        """What keeps the last lines of the log (``deque``: these), under stock's name ``_deque_handler`` too."""
        return self._server.flows.log

    @property
    def local_directory(self) -> str:
        """A folder for files of this scheduler; removed when it ends."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="paceline-scheduler-")
        return self._folder.name

    def close(self) -> None:
        """The scheduler has ended: callbacks stop, the folder goes."""
        for callback in self.periodic_callbacks.values():
            if not isinstance(callback, TickPart):
                callback.stop()
        if self._folder is not None:
            self._folder.cleanup()

    # -- what changes the cluster

    def add_plugin(
        self, plugin: Any, *, idempotent: bool = False, name: str | None = None, **_: Any
    ) -> None:
        """Call a plugin's hooks from now on."""
        self.plugin_host.add(plugin, name, idempotent)

    def remove_plugin(self, name: str | None = None) -> None:
        """Call its hooks no more. Raises ValueError when there is none of this name."""
        self.plugin_host.remove(str(name))

    def get_profile(self, **options: Any) -> Any:
        """Statistical profiles of workers; to be awaited. Options of the request ``profile``."""
        return self.handlers["profile"](**options)

    def get_profile_metadata(
        self,
        workers: Iterable[str] | None = None,
        start: float = 0,
        stop: float | None = None,
        profile_cycle_interval: Any = None,
    ) -> Any:
        """How many samples were taken when; to be awaited. See ``flows.diagnostics.profile_metadata``."""
        from .config import get, seconds

        cycle = profile_cycle_interval or get("distributed.worker.profile.cycle")
        return self._server.profile_metadata(
            workers=workers, start=start, stop=stop, bin_seconds=seconds(cycle, "ms")
        )

    def register_worker_plugin(
        self, comm: Any, plugin: bytes, name: str | None = None, idempotent: bool | None = None
    ) -> Any:
        """Give a plugin to all present and future workers; to be awaited."""
        return self.handlers["register_worker_plugin"](
            plugin=plugin, name=name, idempotent=bool(idempotent)
        )

    def log_event(self, topic: str | Iterable[str], msg: Any) -> None:
        """Log an event under one topic or several; those who subscribed hear of it."""
        topics = [topic] if isinstance(topic, str) else list(topic)
        self._port.tell(stimuli.LogEventCommand(topics, closed_unless_plain(msg)))

    def set_restrictions(self, worker: dict[Any, Any]) -> None:
        """Key -> addresses on which alone it may run from now on; within a hook it holds at once."""
        plain = {key: names if names is None else _names(names) for key, names in worker.items()}
        if self.plugin_host.depth:
            for key, names in plain.items():
                self.plugin_host.write(stimuli.WriteTask(key, "worker_restrictions", names))
            tasks = self._server.state.tasks
            unplaced = (key for key in plain if key in tasks and tasks[key].state in UNPLACED)
            plain = {key: plain[key] for key in unplaced}
        if plain:
            self._port.tell(stimuli.SetRestrictions(plain))

    def transitions(self, recommendations: Mapping[Any, str], stimulus_id: str) -> None:
        """Send tasks to other states: key -> "released", "waiting", "processing" or "forgotten"; the last is first.

        Raises:
            ValueError: any other state.
        """
        odd = set(recommendations.values()).difference(ASKABLE)
        if odd:
            raise ValueError(f"plugins can send tasks to {', '.join(ASKABLE)}, not to {odd}")
        keys = list(recommendations)
        size = self._server.state.config.turn_tasks_max
        for end in range(len(keys), 0, -size):
            part = {key: recommendations[key] for key in keys[max(0, end - size) : end]}
            self._port.tell(stimuli.MakeTransitions(part), stimulus_id=stimulus_id)

    @property
    def memory(self) -> Any:
        """distributed's ``MemoryState`` of all workers together."""
        from distributed.scheduler import MemoryState

        return MemoryState.sum(*(ws.memory for ws in self.workers.values()))

    def request_acquire_replicas(self, addr: str, keys: Iterable[Any], *, stimulus_id: str) -> None:
        """Ask a worker to fetch copies when it has time."""
        self._port.tell(stimuli.MoveReplicas(acquire={addr: list(keys)}), stimulus_id=stimulus_id)

    def request_remove_replicas(self, addr: str, keys: Iterable[Any], *, stimulus_id: str) -> None:
        """Ask a worker to drop copies that others have too."""
        self._port.tell(stimuli.MoveReplicas(drop={addr: list(keys)}), stimulus_id=stimulus_id)

    def stimulus_queue_slots_maybe_opened(self, *, stimulus_id: str) -> None:
        """Queued tasks go to workers that have room."""
        self._port.tell(stimuli.Continue(), stimulus_id=stimulus_id)

    def broadcast(self, *, msg: dict[str, Any], **options: Any) -> asyncio.Future[dict[str, Any]]:
        """One request to many workers; to be awaited: address -> reply, opened. See ``flows.broadcast``."""
        opened_replies = self._server.loop.create_future()

        def open_all(done: asyncio.Future[dict[str, Any]]) -> None:
            if not done.cancelled() and done.exception() is None:
                try:
                    replies = {address: opened(reply) for address, reply in done.result().items()}
                except Exception as error:  # one of them cannot be opened here
                    opened_replies.set_exception(error)
                    return
                done = self._finished(replies)
            _copy_outcome(done, opened_replies)

        asked = self._server.loop.create_task(self.handlers["broadcast"](msg=msg, **options))
        asked.add_done_callback(open_all)
        return opened_replies

    def remove_worker(
        self,
        address: str,
        *,
        stimulus_id: str | None = None,
        expected: bool = False,
        close: bool = True,
        **_: Any,
    ) -> Any:
        """Forget a worker; what it alone had is computed again."""
        self._port.tell(
            stimuli.WorkerGone(address, expected=expected, close=close), stimulus_id=stimulus_id
        )
        return self._finished("OK")

    def client_desires_keys(self, keys: Iterable[Any], client: str) -> None:
        """Keep these keys for a client."""
        self._port.tell(m.ClientDesiresKeys(keys=list(keys), client=client), client)

    def client_releases_keys(
        self, keys: Iterable[Any], client: str, stimulus_id: str | None = None
    ) -> None:
        """The opposite."""
        message = m.ClientReleasesKeys(keys=list(keys), client=client)
        self._port.tell(message, client, stimulus_id)

    def upload_file(self, filename: str, data: Any, load: bool = True) -> Any:
        """Make a module importable here and where graphs are read.

        Raises whatever its import raises.
        """
        from distributed.utils import import_file

        content = data.encode() if isinstance(data, str) else bytes(data)
        path = os.path.join(self.local_directory, os.path.basename(filename))
        with open(path, "wb") as file:
            file.write(content)
        if load:
            import_file(path)
        self._server.compilers.upload_file(os.path.basename(filename), content)
        return self._finished({"status": "OK", "nbytes": len(content)})

    def send_all(self, client_msgs: Mapping[str, Any], worker_msgs: Mapping[str, Any]) -> None:
        """Messages (dicts, as on the wire) to clients and workers, by name and address."""
        for name, messages in client_msgs.items():
            self._send(self.client_comms, name, "scheduler_to_client", messages)
        for address, messages in worker_msgs.items():
            self._send(self.stream_comms, address, "scheduler_to_worker", messages)

    def client_send(self, client: str, msg: dict[str, Any]) -> None:
        """One message to a client."""
        self.send_all({client: [msg]}, {})

    def worker_send(self, worker: str, msg: dict[str, Any]) -> None:
        """One message to a worker."""
        self.send_all({}, {worker: [msg]})

    def _send(self, streams: Mapping[str, Any], name: str, direction: Any, messages: Any) -> None:
        stream = streams.get(name)
        if stream is not None:
            stream.send([build_message(direction, message) for message in messages])

    def _finished(self, value: Any) -> asyncio.Future[Any]:
        """A value for those who await what is done already."""
        future = self._server.loop.create_future()
        future.set_result(value)
        return future


class Handlers(MutableMapping[str, Callable[..., Any]]):
    """Op -> function, as stock's ``Scheduler.handlers``. A function that is put here serves the op's requests."""

    def __init__(self, facade: SchedulerFacade, server: Any) -> None:
        self._facade = facade
        self._server = server
        self._own: dict[str, Callable[..., Any]] = {}

    def __getitem__(self, op: str) -> Callable[..., Any]:
        own = self._own.get(op)
        if own is not None:
            return own
        message_type = TABLES["scheduler_rpc"][op].cls
        if not self._facade.serves(message_type):
            raise KeyError(op)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._facade.request(message_type, *args, **kwargs)

        call.__name__ = op
        return call

    def __setitem__(self, op: str, function: Callable[..., Any]) -> None:
        self._own[op] = function
        known = TABLES["scheduler_rpc"].get(op)
        if known is not None:
            self._server.handlers[known.cls] = lambda server, message, peer: self.answer(
                op, _as_dict(message)
            )

    def __delitem__(self, op: str) -> None:
        del self._own[op]
        known = TABLES["scheduler_rpc"].get(op)
        if known is not None:
            self._server.handlers.pop(known.cls, None)

    def __iter__(self) -> Iterator[str]:
        served = [
            op for op, entry in TABLES["scheduler_rpc"].items() if self._facade.serves(entry.cls)
        ]
        return iter(dict.fromkeys((*served, *self._own)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def has_own(self, op: str) -> bool:
        """Whether somebody put a function here for this op."""
        return op in self._own

    def answer(self, op: str, raw: Mapping[str, Any]) -> Any:
        """Call the function that somebody put here with a request's arguments.

        Raises:
            KeyError: nobody did.
        """
        function = self._own[op]
        left_out = ("op", *_REQUEST_FIELDS)
        arguments = {name: opened(value) for name, value in raw.items() if name not in left_out}
        if _expects_comm(function):
            return function(None, **arguments)
        return function(**arguments)


def _expects_comm(function: Callable[..., Any]) -> bool:
    """Whether a handler's first parameter is the connection, as stock tells: by its name."""
    import inspect

    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False
    return bool(parameters) and parameters[0] in ("comm", "stream")


def build_request(message_type: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A request from the arguments of a call. Raises TypeError when it takes no such arguments."""
    names = [name for name in message_type.__struct_fields__ if name not in _REQUEST_FIELDS]
    if len(args) > len(names):
        raise TypeError(f"{message_type.op()} takes at most {len(names)} arguments")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    extra_field = message_type.EXTRA_FIELD
    if extra_field is not None:
        extra = {name: given.pop(name) for name in list(given) if name not in names}
        if extra:
            given[extra_field] = extra
    return message_type(**given)


def build_message(direction: Any, message: Any) -> Any:
    """A stream message from its dict; one of an op that nobody knows stays a dict."""
    if not isinstance(message, dict):
        return message
    known = TABLES[direction].get(str(message.get("op")))
    if known is None:
        return message
    renamed = dict(
        zip(known.cls.__struct_encode_fields__, known.cls.__struct_fields__, strict=True)
    )
    fields = {renamed.get(name, name): value for name, value in message.items() if name != "op"}
    return known.cls(**fields)


def _as_dict(message: Any) -> dict[str, Any]:
    """A request's fields by the names that they have on the wire."""
    kind = type(message)
    names = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
    return {wire: getattr(message, own) for wire, own in names}


def _names(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else sorted(map(str, names))
