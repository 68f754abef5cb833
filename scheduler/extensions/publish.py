"""Published datasets: values that contain futures, stored on the scheduler under a name."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar, TypeAlias

from paceline.protocol import messages as m
from paceline.scheduler.core.extension import Extension, ExtensionError, ExtensionErrorReply
from paceline.scheduler.core.handlers.clients import client_desires_keys
from paceline.scheduler.core.turn import Turn

from .holders import release_keys, remove_idle_holder
from .names import as_key, hashable_name, shown_name
from .wait_queues import Waiter, WaitQueues

#: Maximum number of published datasets. Each keeps its keys in memory until it is unpublished.
DATASETS_MAX = 100_000
#: Maximum number of flushes without their request, which follows soon unless the client died.
FLUSHES_MAX = 10_000
#: Interval at which a request that waits for a flush checks that its client still exists, seconds.
CLIENT_CHECK_SECONDS = 30.0


#: Requests that wait for their flush.
Publication: TypeAlias = m.PublishPut | m.PublishDelete


class PublishedDatasets(Extension):
    """Operations ``publish_put``, ``..._delete``, ``..._get``, ``..._list`` and their flush.

    A client sends the graph of a dataset through its stream, and the request through another
    connection. ``publish_flush_batched_send`` with the ``uid`` of the request arrives through the
    stream after all earlier messages; a put or a delete waits for it.

    Attributes:
        datasets: name -> {"data": serialized value, "keys": keys of its futures}.
    """

    name: ClassVar[str] = "publish"

    def __init__(self) -> None:
        self.datasets: dict[Hashable, dict[str, Any]] = {}
        self._flushed: dict[Hashable, None] = {}
        self._waiting: WaitQueues[Publication] = WaitQueues(self._check_client)

    # ------------------------------------------------------------------ flushes

    def handle_publish_flush_batched_send(
        self, turn: Turn, message: m.PublishFlushBatchedSend
    ) -> None:
        """Resume the request with the same ``uid``: all earlier messages were handled."""
        uid = hashable_name(message.uid)
        waiter = self._waiting.first(uid)
        if waiter is None:
            if len(self._flushed) >= FLUSHES_MAX:
                del self._flushed[next(iter(self._flushed))]
            self._flushed[uid] = None
            return
        self._waiting.leave(turn, waiter)
        self._answer(turn, waiter.request_id, waiter.want)

    def handle_after_flush(self, turn: Turn, message: Publication) -> None:
        """Handle a put or a delete after its flush and reply None."""
        uid = hashable_name(message.uid)
        if uid in self._flushed:
            del self._flushed[uid]
            self._answer(turn, turn.request_id, message)
        else:
            self._wait(turn, uid, turn.request_id, message)

    def _wait(self, turn: Turn, uid: Hashable, request_id: int, message: Publication) -> None:
        self._waiting.enter(turn, uid, request_id, turn.now + CLIENT_CHECK_SECONDS, message)

    def _check_client(self, turn: Turn, waiter: Waiter[Publication]) -> None:
        """Continue to wait if the client still exists, otherwise reply TimeoutError."""
        if waiter.want.client in turn.state.clients:
            self._wait(turn, waiter.queue, waiter.request_id, waiter.want)
        else:
            turn.reply(waiter.request_id, ExtensionErrorReply("TimeoutError"))

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        """Drop the request: its client could not learn whether it succeeded."""
        self._waiting.leave_by_request(turn, request_id)

    def on_restart(self, turn: Turn) -> None:
        """Keep the datasets, whose futures are lost, as in stock."""
        for name in self.datasets:
            remove_idle_holder(turn, holder_of(name))

    # ------------------------------------------------------------------ datasets

    def _answer(self, turn: Turn, request_id: int, message: Publication) -> None:
        try:
            if isinstance(message, m.PublishPut):
                self._put(turn, message)
            else:
                self._delete(turn, message)
        except ExtensionError as error:
            turn.reply(request_id, error.reply)
        else:
            turn.reply(request_id, None)

    def _put(self, turn: Turn, message: m.PublishPut) -> None:
        """Publish datasets in order; those before one that fails stay published.

        Raises:
            ExtensionError: KeyError for an existing name, ValueError if the lists differ in length.
        """
        if not len(message.names) == len(message.keys) == len(message.data):
            raise ExtensionError("ValueError", "names, keys and data differ in length")
        for raw_name, keys, data in zip(message.names, message.keys, message.data):
            name = hashable_name(raw_name)
            old = self.datasets.get(name)
            if old is not None and not message.override:
                raise ExtensionError("KeyError", f"Dataset {name} already exists")
            if old is None and len(self.datasets) >= DATASETS_MAX:
                raise ExtensionError(
                    "RuntimeError", f"More than {DATASETS_MAX} datasets are published"
                )
            new = tuple(as_key(key) for key in keys)
            # desire new keys first, so that a key of both datasets is never released
            client_desires_keys(turn, new, holder_of(name))
            self.datasets[name] = {"data": data, "keys": new}
            if old is not None:
                kept = set(new)
                gone = [key for key in old["keys"] if key not in kept]
                release_keys(turn, gone, holder_of(name))

    def _delete(self, turn: Turn, message: m.PublishDelete) -> None:
        """Unpublish datasets, ignoring unknown names."""
        for name in message.names:
            old = self.datasets.pop(hashable_name(name), None)
            if old is not None:
                release_keys(turn, list(old["keys"]), holder_of(hashable_name(name)))

    def handle_publish_get(self, turn: Turn, message: m.PublishGet) -> None:
        """Reply a list with {"data", "keys"} for each name, or None for an unknown one."""
        names = message.names
        found = [self.datasets.get(hashable_name(name)) for name in names]
        turn.reply(turn.request_id, found)

    def handle_publish_list(self, turn: Turn, message: m.PublishList) -> None:
        """Reply the names, sorted as text."""
        turn.reply(turn.request_id, sorted(self.datasets, key=str))


def holder_of(name: Hashable) -> str:
    """Return the pseudo client that holds the keys of the dataset `name`."""
    return f"published-{shown_name(name)}"
