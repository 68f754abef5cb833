"""Published datasets: values with futures in them, stored on the scheduler under a name.

Must not know: what a dataset is (it stays closed).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.protocol.messages import (
    PublishDelete,
    PublishFlushBatchedSend,
    PublishGet,
    PublishList,
    PublishPut,
)

from .holders import drop_idle, hold, let_go
from .machine import Handler, Machine
from .names import as_key, hashable_name, shown_name
from .replies import ErrorReply, Refused
from .waiting import WaitingRoom

if TYPE_CHECKING:
    from paceline.scheduler.core.stimuli import Stimulus
    from paceline.scheduler.core.turn import Turn

#: Datasets that can be published at once: each holds its keys in memory until it is unpublished.
DATASETS_MAX = 100_000
#: Flushes remembered whose request has not come. It follows at once, or never (its client died).
FLUSHES_MAX = 10_000
#: How often a request that waits for its client's flush asks whether the client is still there, seconds.
CLIENT_CHECK_SECONDS = 30.0


@dataclass(slots=True)
class FlushWaitOver:
    """Timer: a request has waited long for its client's flush."""

    number: int


class PublishedDatasets(Machine):
    """Ops ``publish_put``, ``publish_delete``, ``publish_get``, ``publish_list`` and
    ``publish_flush_batched_send``.

    A client sends the graph of a dataset's keys through its stream, and the request through another
    connection. A flush with the request's ``uid``, sent through the stream, tells that what came before has
    been handled: a put or a delete waits for it.

    Attributes:
        datasets: name -> {"data": closed value, "keys": its futures' keys}.
    """

    name: ClassVar[str] = "publish"

    def __init__(self) -> None:
        self.datasets: dict[Hashable, dict[str, Any]] = {}
        self._flushed: dict[Hashable, None] = {}
        self._room: WaitingRoom[Any] = WaitingRoom(FlushWaitOver)

    def routes(self) -> Mapping[type[Any], Handler]:
        return {
            PublishPut: self.handle_after_flush,
            PublishDelete: self.handle_after_flush,
            PublishFlushBatchedSend: self.handle_publish_flush_batched_send,
            PublishGet: self.handle_publish_get,
            PublishList: self.handle_publish_list,
            FlushWaitOver: self.handle_wait_over,
        }

    # ------------------------------------------------------------------ flushes

    def handle_publish_flush_batched_send(self, turn: Turn, stimulus: Stimulus) -> None:
        """What the client streamed before has been handled."""
        uid = hashable_name(stimulus.message.uid)
        waiter = self._room.first(uid)
        if waiter is None:
            if len(self._flushed) >= FLUSHES_MAX:
                del self._flushed[next(iter(self._flushed))]
            self._flushed[uid] = None
            return
        self._room.leave(turn, waiter)
        self._answer(turn, waiter.request_id, waiter.want)

    def handle_after_flush(self, turn: Turn, stimulus: Stimulus) -> None:
        """A put or a delete. Replies None, after its flush."""
        uid = hashable_name(stimulus.message.uid)
        if uid in self._flushed:
            del self._flushed[uid]
            self._answer(turn, stimulus.request_id, stimulus.message)
        else:
            self._wait(turn, uid, stimulus.request_id, stimulus.message)

    def _wait(self, turn: Turn, uid: Hashable, request_id: int, message: Any) -> None:
        self._room.enter(turn, uid, request_id, turn.now + CLIENT_CHECK_SECONDS, message)

    def handle_wait_over(self, turn: Turn, stimulus: Stimulus) -> None:
        """Go on waiting for a client that is still there."""
        waiter = self._room.leave_by_number(turn, stimulus.message.number)
        if waiter is None:
            return
        if waiter.want.client in turn.state.clients:
            self._wait(turn, waiter.line, waiter.request_id, waiter.want)
        else:
            turn.reply(waiter.request_id, ErrorReply("TimeoutError"))

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        """The put of a client that died is not carried out: nobody could say that it was."""
        self._room.leave_by_request(turn, request_id)

    def on_restart(self, turn: Turn) -> None:
        """Datasets stay; their futures are lost, as in stock."""
        for name in self.datasets:
            drop_idle(turn, holder_of(name))

    # ------------------------------------------------------------------ datasets

    def _answer(self, turn: Turn, request_id: int, message: Any) -> None:
        try:
            if isinstance(message, PublishPut):
                self._put(turn, message)
            else:
                self._delete(turn, message)
        except Refused as refusal:
            turn.reply(request_id, refusal.reply)
        else:
            turn.reply(request_id, None)

    def _put(self, turn: Turn, message: PublishPut) -> None:
        """Publish one after the other; those before one that fails stay published.

        Raises:
            Refused: KeyError where a name is taken, ValueError where the columns differ in length.
        """
        if not len(message.names) == len(message.keys) == len(message.data):
            raise Refused("ValueError", "names, keys and data differ in length")
        for raw_name, keys, data in zip(message.names, message.keys, message.data):
            name = hashable_name(raw_name)
            old = self.datasets.get(name)
            if old is not None and not message.override:
                raise Refused("KeyError", f"Dataset {name} already exists")
            if old is None and len(self.datasets) >= DATASETS_MAX:
                raise Refused("RuntimeError", f"More than {DATASETS_MAX} datasets are published")
            new = tuple(as_key(key) for key in keys)
            # wanted first, so that a key of both the old and the new one is never let go
            hold(turn, list(new), holder_of(name))
            self.datasets[name] = {"data": data, "keys": new}
            if old is not None:
                kept = set(new)
                gone = [key for key in old["keys"] if key not in kept]
                let_go(turn, gone, holder_of(name))

    def _delete(self, turn: Turn, message: PublishDelete) -> None:
        """Unpublish; unknown names are ignored."""
        for name in message.names:
            old = self.datasets.pop(hashable_name(name), None)
            if old is not None:
                let_go(turn, list(old["keys"]), holder_of(hashable_name(name)))

    def handle_publish_get(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies a list: per name, {"data", "keys"}, or None where there is no such dataset."""
        names = stimulus.message.names
        found = [self.datasets.get(hashable_name(name)) for name in names]
        turn.reply(stimulus.request_id, found)

    def handle_publish_list(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies the names, sorted as text."""
        turn.reply(stimulus.request_id, sorted(self.datasets, key=str))


def holder_of(name: Hashable) -> str:
    """The pseudo client that holds a dataset's keys."""
    return f"published-{shown_name(name)}"
