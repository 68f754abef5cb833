"""The part of the facade that changes the cluster. Each method sends stimuli to the core."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core import stimuli
from paceline.scheduler.core.handlers.commands import COMMANDED_STATES
from paceline.workers_compat.graphs.annotations import pickled_unless_plain

from .state_attributes import StateAttributes
from .stock_calls import StockCoroutine

#: States in which a task is placed again when its restrictions change.
UNPLACED = ("no-worker", "queued")


class ClusterCommands(StateAttributes):
    """Methods of stock's ``Scheduler`` that change tasks, workers, clients and logs."""

    local_directory: str

    # Tasks

    def transition(self, key: Any, finish: str, stimulus_id: str) -> None:
        """Move one task to another state. See ``transitions``."""
        self.transitions({key: finish}, stimulus_id)

    def transitions(self, recommendations: Mapping[Any, str], stimulus_id: str) -> None:
        """Move tasks to "released", "waiting", "processing" or "forgotten", the last one first.

        Raises:
            ValueError: Any other state.
        """
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
        if self.plugin_host.depth:
            for key, names in plain.items():
                self.plugin_host.write(stimuli.WriteTask(key, "worker_restrictions", names))
            tasks = self.state.tasks
            unplaced = (key for key in plain if key in tasks and tasks[key].state in UNPLACED)
            plain = {key: plain[key] for key in unplaced}
        if plain:
            self.send_stimulus(stimuli.RestrictionsSet(plain))

    def reschedule(
        self, key: Any, worker: str | None = None, *, stimulus_id: str | None = None
    ) -> None:
        """Reschedule a task that its worker has released (stock's ``_reschedule``).

        Do nothing if `worker` is given and another worker has the task.
        """
        self.send_stimulus(m.Reschedule(key=key), worker or "", stimulus_id)

    def stimulus_queue_slots_maybe_opened(self, *, stimulus_id: str) -> None:
        """Assign queued tasks to workers with free threads."""
        self.send_stimulus(stimuli.Continue(), stimulus_id=stimulus_id)

    def stimulus_retry(self, keys: Iterable[Any], client: str | None = None) -> Any:
        """Compute erred tasks again, with the tasks that caused the errors. Await the result."""
        return self.handlers["retry"](keys=list(keys), client=client or "")

    # Clients

    def client_desires_keys(self, keys: Iterable[Any], client: str) -> None:
        """Keep these keys for a client."""
        self.send_stimulus(m.ClientDesiresKeys(keys=list(keys), client=client), client)

    def client_releases_keys(
        self, keys: Iterable[Any], client: str, stimulus_id: str | None = None
    ) -> None:
        """Stop keeping these keys for a client."""
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
        """Send events of a topic to a client from now on."""
        self.send_stimulus(m.SubscribeTopic(topic=topic, client=client), client)

    def unsubscribe_topic(self, topic: str, client: str) -> None:
        """Stop sending events of a topic to a client."""
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

        Returns:
            A coroutine that returns "OK", or "already-removed" if there is no such worker.
        """
        address = self.coerce_address(address)
        if address not in self.state.workers:
            return StockCoroutine("already-removed")
        removed = stimuli.WorkerRemoved(address, expected=expected, close=close)
        self.send_stimulus(removed, stimulus_id=stimulus_id)
        return StockCoroutine("OK")

    def close_worker(self, worker: str) -> None:
        """Ask a worker to close."""
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
        """Log an event of a worker."""
        self.log_event(topic, {**msg, "worker": worker} if isinstance(msg, dict) else msg)

    def upload_file(self, filename: str, data: Any, load: bool = True) -> StockCoroutine:
        """Make a module importable here and in the graph compilers.

        Raises:
            Exception: What the import of the module raises.
        """
        from distributed.utils import import_file

        content = data.encode() if isinstance(data, str) else bytes(data)
        path = os.path.join(self.local_directory, os.path.basename(filename))
        with open(path, "wb") as file:
            file.write(content)
        if load:
            import_file(path)
        self.server.graph_compilers.upload_file(os.path.basename(filename), content)
        return StockCoroutine({"status": "OK", "nbytes": len(content)})


def _names(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else sorted(map(str, names))
