"""The part of the facade that changes the cluster, and sends messages to workers and clients.

Methods that change the cluster send stimuli to the core. There is no ``async def``: what takes time
is a future of the server's loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from distributed.core import addr_from_args
from distributed.utils import import_file
from paceline.protocol import messages as m
from paceline.scheduler.core import stimuli
from paceline.scheduler.core.handlers.commands import COMMANDED_STATES
from paceline.workers_compat.graphs.annotations import pickled_unless_plain
from paceline.workers_compat.security.unpickling import deserialize

from .server_port import FacadeServer
from .state_attributes import StateAttributes
from .stock_calls import StockCoroutine, stock_value
from .views import TaskView

#: States in which a task is placed again when its restrictions change.
UNPLACED = ("no-worker", "queued")


class RemoteHandlers:
    """A worker or nanny, as in ``await scheduler.rpc(address).identity()``."""

    def __init__(self, address: str, server: FacadeServer) -> None:
        self.address = address
        self._server = server

    def __getattr__(self, op: str) -> Callable[..., StockCoroutine]:
        if op.startswith("__"):
            raise AttributeError(op)

        def request(**arguments: Any) -> StockCoroutine:
            call = self._server.rpc_call(self.address, dict(arguments, op=op, reply=True))
            task = self._server.spawn(call, f"a plugin's request to {self.address}")
            return StockCoroutine(task, lambda value: stock_value(deserialize(value)))

        return request

    def close_rpc(self) -> StockCoroutine:
        """Do nothing: connections belong to the server."""
        return StockCoroutine(None)

    def __aenter__(self) -> StockCoroutine:
        return StockCoroutine(self)

    def __aexit__(self, *exc_info: object) -> StockCoroutine:
        return self.close_rpc()


class ClusterCommands(StateAttributes):
    """Methods of stock's ``Scheduler`` that act on tasks, workers, clients and logs."""

    local_directory: str
    serve: Callable[..., Any]

    # Tasks

    def transition(self, key: Any, finish: str, stimulus_id: str) -> None:
        self.transitions({key: finish}, stimulus_id)

    def transitions(self, recommendations: Mapping[Any, str], stimulus_id: str) -> None:
        """Move tasks, the last one first. Raise ValueError except for ``COMMANDED_STATES``."""
        unknown = set(recommendations.values()).difference(COMMANDED_STATES)
        if unknown:
            raise ValueError(
                f"plugins can move tasks to {', '.join(COMMANDED_STATES)}, not to {unknown}"
            )
        keys = list(recommendations)
        size = self.state.config.turn_tasks_max
        for end in range(len(keys), 0, -size):
            part = {key: recommendations[key] for key in keys[max(0, end - size) : end]}
            self.send_stimulus(stimuli.MakeTransitions(part), stimulus_id=stimulus_id)

    def set_restrictions(self, worker: dict[Any, Any]) -> None:
        """Restrict tasks to workers: key -> addresses. Takes effect at once within a hook."""
        plain = {key: names if names is None else _names(names) for key, names in worker.items()}
        tasks = self.state.tasks
        unknown = [key for key in plain if key not in tasks]
        if unknown and not self.plugin_host.depth:
            raise KeyError(unknown[0])
        if self.plugin_host.depth:
            for key, names in plain.items():
                self.plugin_host.write(stimuli.WriteTask(key, "worker_restrictions", names))
            unplaced = (key for key in plain if key in tasks and tasks[key].state in UNPLACED)
            plain = {key: plain[key] for key in unplaced}
        if plain:
            self.send_stimulus(stimuli.RestrictionsSet(plain))

    def reschedule(
        self, key: Any, worker: str | None = None, *, stimulus_id: str | None = None
    ) -> None:
        """Reschedule a task that its worker, which is `worker` if given, has released."""
        self.send_stimulus(m.Reschedule(key=key), worker or "", stimulus_id)

    def stimulus_queue_slots_maybe_opened(self, *, stimulus_id: str) -> None:
        """Assign queued tasks to workers with free threads."""
        self.send_stimulus(stimuli.Continue(), stimulus_id=stimulus_id)

    def stimulus_retry(self, keys: Iterable[Any], client: str | None = None) -> Any:
        """Compute erred tasks again, with the tasks that caused the errors. Await the result."""
        return self.handlers.built_in("retry")(keys=list(keys), client=client or "")

    def update_data(
        self,
        *,
        who_has: Mapping[Any, Iterable[Any]],
        nbytes: Mapping[Any, int],
        client: str | None = None,
        serializers: Any = None,
    ) -> None:
        """Report data that is on workers, in one turn, unlike the request of this name.

        Raises KeyError if a worker is unknown.
        """
        known = self.state.workers
        placed = {
            key: [known[self.coerce_address(w)].address for w in workers]
            for key, workers in who_has.items()
        }
        self.send_stimulus(stimuli.DataPlaced(placed, dict(nbytes), client or ""))

    # Clients

    def client_desires_keys(self, keys: Iterable[Any], client: str) -> None:
        self.send_stimulus(m.ClientDesiresKeys(keys=list(keys), client=client), client)

    def client_releases_keys(
        self, keys: Iterable[Any], client: str, stimulus_id: str | None = None
    ) -> None:
        message = m.ClientReleasesKeys(keys=list(keys), client=client)
        self.send_stimulus(message, client, stimulus_id)

    def stimulus_cancel(
        self,
        keys: Iterable[Any],
        client: str,
        force: bool = False,
        reason: str | None = None,
        msg: str | None = None,
    ) -> None:
        """Cancel these keys for a client, or for all clients if `force` is set."""
        texts = {k: v for k, v in (("reason", reason), ("msg", msg)) if v is not None}
        message = m.CancelKeys(keys=list(keys), client=client, force=force, **texts)
        self.send_stimulus(message, client)

    def remove_client(self, client: str, stimulus_id: str | None = None) -> None:
        """Release the keys of a client, as if it had left."""
        self.send_stimulus(stimuli.ClientRemoved(client), stimulus_id=stimulus_id)

    def subscribe_topic(self, topic: str, client: str) -> None:
        self.send_stimulus(m.SubscribeTopic(topic=topic, client=client), client)

    def unsubscribe_topic(self, topic: str, client: str) -> None:
        self.send_stimulus(m.UnsubscribeTopic(topic=topic, client=client), client)

    # Workers

    def remove_worker(
        self,
        address: str,
        *,
        stimulus_id: str | None = None,
        expected: bool = False,
        close: bool = True,
    ) -> StockCoroutine:
        """Remove a worker. Results that only it had are computed again.

        The coroutine waits for ``remove_worker`` hooks of plugins. Its result is "OK", or
        "already-removed" if there is no such worker.
        """
        address = self.coerce_address(address)
        if address not in self.state.workers:
            return StockCoroutine("already-removed")
        removed = stimuli.WorkerRemoved(address, expected=expected, close=close)
        hooks = self.plugin_host.hooks_started_by(
            lambda: self.send_stimulus(removed, stimulus_id=stimulus_id), "remove_worker"
        )
        done = asyncio.gather(*hooks, return_exceptions=True) if hooks else None
        return StockCoroutine(done, lambda _: "OK")

    def close_worker(self, worker: str) -> None:
        self.send_stimulus(stimuli.CloseWorker(worker))

    def request_acquire_replicas(self, addr: str, keys: Iterable[Any], *, stimulus_id: str) -> None:
        """Ask a worker to fetch replicas when it has time."""
        replicas = stimuli.MoveReplicas(acquire={addr: list(keys)})
        self.send_stimulus(replicas, stimulus_id=stimulus_id)

    def request_remove_replicas(self, addr: str, keys: Iterable[Any], *, stimulus_id: str) -> None:
        """Ask a worker to drop replicas that other workers have too."""
        replicas = stimuli.MoveReplicas(drop={addr: list(keys)})
        self.send_stimulus(replicas, stimulus_id=stimulus_id)

    # Events and files

    def log_event(self, topic: str | Iterable[str], msg: Any) -> None:
        """Log an event under one or several topics, and send it to their subscribers."""
        topics = [topic] if isinstance(topic, str) else list(topic)
        self.send_stimulus(stimuli.LogEventCommand(topics, pickled_unless_plain(msg)))

    def log_worker_event(self, worker: str, topic: str | Iterable[str], msg: Any) -> None:
        self.log_event(topic, {**msg, "worker": worker} if isinstance(msg, dict) else msg)

    def upload_file(self, filename: str, data: Any, load: bool = True) -> StockCoroutine:
        """Make a module importable here and in the graph compilers. Raise errors of its import."""
        content = data.encode() if isinstance(data, str) else bytes(data)
        path = os.path.join(self.local_directory, os.path.basename(filename))
        with open(path, "wb") as file:
            file.write(content)
        if load:
            import_file(path)
        self.server.graph_compilers.upload_file(os.path.basename(filename), content)
        return StockCoroutine({"status": "OK", "nbytes": len(content)})

    # Requests

    def rpc(self, addr: Any = None, ip: str | None = None, port: int | None = None) -> Any:
        """Return an object for requests to the peer at an address or (host, port).

        In stock this is a ``ConnectionPool``, of which paceline has only the call.
        """
        return RemoteHandlers(str(addr_from_args(addr, ip, port)), self.server)

    def broadcast(
        self,
        *,
        msg: dict[str, Any],
        workers: Any = None,
        hosts: Any = None,
        nanny: bool = False,
        serializers: Any = None,
        on_error: str = "raise",
    ) -> StockCoroutine:
        """Send one request to many workers. Await the result for address -> reply."""
        replies = self.serve(
            m.Broadcast, msg=msg, workers=workers, hosts=hosts, nanny=nanny, on_error=on_error
        )
        return StockCoroutine(replies, _stock_replies)

    def gather_on_worker(
        self, worker_address: str, who_has: Mapping[Any, Iterable[str]]
    ) -> StockCoroutine:
        """Make a worker fetch keys from others. Await the keys that it could not fetch."""
        holders = {key: list(names) for key, names in who_has.items()}
        return StockCoroutine(self.server.gather_on_worker(worker_address, holders))

    def delete_worker_data(
        self, worker_address: str, keys: Iterable[Any], stimulus_id: str
    ) -> StockCoroutine:
        """Make a worker delete its copies of `keys`. Await the result."""
        deletion = self.server.delete_worker_data(worker_address, list(keys), stimulus_id)
        return StockCoroutine(deletion)

    # Messages

    def send_all(self, client_msgs: Mapping[str, Any], worker_msgs: Mapping[str, Any]) -> None:
        """Send messages (dicts in wire format) to clients by name and workers by address."""
        for name, messages in client_msgs.items():
            _send(self.client_comms, name, messages)
        for address, messages in worker_msgs.items():
            _send(self.stream_comms, address, messages)

    def client_send(self, client: str, msg: dict[str, Any]) -> None:
        self.send_all({client: [msg]}, {})

    def worker_send(self, worker: str, msg: dict[str, Any]) -> None:
        self.send_all({}, {worker: [msg]})

    def report(
        self, msg: dict[str, Any], ts: TaskView | None = None, client: str | None = None
    ) -> None:
        """Send a message to the clients that want its task, to one client, or to all clients."""
        key: Any = msg.get("key") if ts is None else ts.key
        core = self.state.tasks.get(key)
        if core is None:
            names = list(self.client_comms) if client is None else [client]
        else:
            names = [cs.client_key for cs in core.who_wants if cs.client_key != client]
            names += [] if client is None else [client]
        self.send_all({name: [msg] for name in names}, {})

    def report_on_key(self, key: Any = None, *, ts: Any = None, client: str | None = None) -> None:
        """Send the state of a key to a client, or to all clients that want it."""
        key = ts.key if ts is not None else key
        core = self.state.tasks.get(key)
        wanting = [] if core is None else [cs.client_key for cs in core.who_wants]
        for name in [client] if client else wanting:
            self.send_stimulus(m.ReportKey(key=key), name)


def _names(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else sorted(map(str, names))


def _send(streams: Mapping[str, Any], name: str, messages: Any) -> None:
    stream = streams.get(name)
    if stream is not None and not stream.closed():
        stream.send(*messages)


def _stock_replies(replies: dict[str, Any]) -> dict[str, Any]:
    return {address: stock_value(deserialize(reply)) for address, reply in replies.items()}
