"""Queues: pass values and futures between clients (``distributed.Queue``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline.protocol import messages as m
from paceline.protocol.keys import Key
from paceline.scheduler.core.extension import Extension, ExtensionError, ExtensionErrorReply
from paceline.scheduler.core.handlers.clients import client_desires_keys
from paceline.scheduler.core.turn import Turn

from .holders import Item, desire_if_known, release_keys, remove_idle_holder
from .key_watch import KeyWatch
from .names import as_key, deadline_after, hashable_name
from .wait_queues import Waiter, WaitQueues

#: Maximum number of items in a queue without ``maxsize``; further puts wait.
QUEUE_ITEMS_MAX = 10_000_000
#: Maximum number of queues. A queue exists until its users close it.
QUEUES_MAX = 1_000_000
#: Text of the error in stock.
BATCH_AND_TIMEOUT = "Dask queues don't support simultaneous use of integer batch sizes and timeouts"


@dataclass(slots=True, eq=False)
class SharedQueue:
    """A queue, from the first ``queue_create`` to the last ``queue_release``.

    Waiters belong to this object. Those of a released queue do not move to a new one with its name.

    Attributes:
        name: name of the queue.
        number: unique among all queues of a scheduler; part of the names of its wait queues.
        maxsize: maximum number of items.
        users: number of ``queue_create`` minus number of ``queue_release``.
        items: elements, oldest first.
    """

    name: Hashable
    number: int
    maxsize: int
    users: int = 1
    items: deque[Item] = field(default_factory=deque)

    @property
    def getters(self) -> tuple[int, str]:
        return (self.number, "get")

    @property
    def putters(self) -> tuple[int, str]:
        return (self.number, "put")


@dataclass(slots=True, eq=False)
class Put:
    """A put that waits until the queue is not full."""

    queue: SharedQueue
    item: Item


@dataclass(slots=True, eq=False)
class Get:
    """A get that waits for items.

    Attributes:
        queue: the queue.
        count: number of requested items.
        batch: whether the reply is a list.
        items: items taken so far.
    """

    queue: SharedQueue
    count: int = 1
    batch: bool = False
    items: list[Item] = field(default_factory=list)


class Queues(Extension):
    """The operations ``queue_...`` and ``queue-future-release``.

    A queue desires the keys of its futures as a pseudo client. It continues to desire the key of a
    future that a client took until the client, with ``queue-future-release``, desires it itself.

    Attributes:
        queues: name -> queue.
    """

    name: ClassVar[str] = "queues"

    def __init__(self) -> None:
        self.queues: dict[Hashable, SharedQueue] = {}
        self._created = 0
        self._future_counts: dict[tuple[Hashable, Key], int] = {}
        self._waiting: WaitQueues[Put | Get] = WaitQueues(self._time_out)
        self._key_watch = KeyWatch(self._put)

    def _find(self, name: Any) -> SharedQueue:
        queue = self.queues.get(hashable_name(name))
        if queue is None:
            raise ExtensionError("KeyError", str(name))
        return queue

    # ------------------------------------------------------------------ create and release

    def handle_queue_create(self, turn: Turn, message: m.QueueCreate) -> None:
        """Add a user to a queue, creating it with ``maxsize`` for the first one, and reply None."""
        name = hashable_name(message.name)
        queue = self.queues.get(name)
        if queue is not None:
            queue.users += 1
        elif len(self.queues) >= QUEUES_MAX:
            raise ExtensionError("RuntimeError", f"More than {QUEUES_MAX} queues exist")
        else:
            self._created += 1
            self.queues[name] = SharedQueue(name, self._created, capacity(message.maxsize))
        turn.reply(turn.request_id, None)

    def handle_queue_release(self, turn: Turn, message: m.QueueRelease) -> None:
        """Remove a user and, with the last one, the queue. As in stock, requests keep waiting."""
        name = hashable_name(message.name)
        queue = self.queues.get(name)
        if queue is None:
            return
        queue.users -= 1
        if queue.users <= 0:
            del self.queues[name]
            self._remove_futures(turn, name, queue.items)
            queue.items.clear()

    def handle_queue_qsize(self, turn: Turn, message: m.QueueQsize) -> None:
        """Reply the number of items in the queue."""
        turn.reply(turn.request_id, len(self._find(message.name).items))

    # ------------------------------------------------------------------ futures in queues

    def _add_future(self, turn: Turn, name: Hashable, item: Item) -> None:
        if item.is_future:
            counts, key = self._future_counts, item.value
            counts[name, key] = counts.get((name, key), 0) + 1
            client_desires_keys(turn, [key], holder_of(name))

    def _remove_futures(self, turn: Turn, name: Hashable, items: Iterable[Item]) -> None:
        """Release the futures in `items`, which left the queue or belong to a dropped put."""
        free: list[Key] = []
        for item in [item for item in items if item.is_future]:
            count = self._future_counts.pop((name, item.value), 0) - 1
            if count > 0:
                self._future_counts[name, item.value] = count
            elif count == 0:
                free.append(item.value)
        if free:
            release_keys(turn, free, holder_of(name))

    def handle_queue_future_release(self, turn: Turn, message: m.QueueFutureRelease) -> None:
        """Let the client, which has created its own future, desire the key itself."""
        key = as_key(message.key)
        desire_if_known(turn, key, message.client or turn.source)
        self._remove_futures(turn, hashable_name(message.name), [Item(True, key)])

    # ------------------------------------------------------------------ put

    def handle_queue_put(self, turn: Turn, message: m.QueuePut) -> None:
        """Reply None once the item is in the queue, or TimeoutError at the deadline.

        As in stock, the queue is looked up only once the key is known.
        """
        deadline = deadline_after(turn.now, message.timeout)
        item = Item.of(message.key, message.data)
        want = (message.name, item, deadline)
        if item.is_unknown(turn):
            self._key_watch.wait(turn, item.value, turn.request_id, deadline, want)
        else:
            self._put(turn, turn.request_id, want)

    def _put(self, turn: Turn, request_id: int, want: tuple[Any, Item, float | None]) -> None:
        name, item, deadline = want
        queue = self._find(name)
        if len(queue.items) < queue.maxsize and not self._waiting.count(queue.putters):
            self._add_future(turn, queue.name, item)
            queue.items.append(item)
            turn.reply(request_id, None)
            self._serve(turn, queue)
        elif deadline is not None and deadline <= turn.now:
            turn.reply(request_id, ExtensionErrorReply("TimeoutError"))
        else:
            self._waiting.enter(turn, queue.putters, request_id, deadline, Put(queue, item))
            self._add_future(turn, queue.name, item)

    # ------------------------------------------------------------------ get

    def handle_queue_get(self, turn: Turn, message: m.QueueGet) -> None:
        """Reply an item, or with ``batch`` a list: all items (True) or that number of items.

        Raises:
            ExtensionError: NotImplementedError, as in stock, for a number of items and a timeout;
                TypeError for another ``batch``.
        """
        queue = self._find(message.name)
        deadline = deadline_after(turn.now, message.timeout)
        get = Get(queue)
        if message.batch is True:
            get.count, get.batch = len(queue.items), True
        elif message.batch:
            if message.timeout is not None:
                raise ExtensionError("NotImplementedError", BATCH_AND_TIMEOUT)
            if not isinstance(message.batch, int):
                kind = type(message.batch).__name__
                raise ExtensionError(
                    "TypeError", f"'{kind}' object cannot be interpreted as an integer"
                )
            get.count, get.batch = message.batch, True
        if self._take(queue, get):
            self._answer_get(turn, turn.request_id, get)
            self._serve(turn, queue)
        elif deadline is not None and deadline <= turn.now:
            turn.reply(turn.request_id, ExtensionErrorReply("TimeoutError"))
        else:
            self._wait(turn, turn.request_id, deadline, get)
            self._serve(turn, queue)

    def _wait(self, turn: Turn, request_id: int, deadline: float | None, get: Get) -> None:
        try:
            self._waiting.enter(turn, get.queue.getters, request_id, deadline, get)
        except ExtensionError:
            self._undo(turn, get)
            raise

    def _take(self, queue: SharedQueue, get: Get) -> bool:
        """Move available items to `get` and return whether it is complete."""
        while queue.items and len(get.items) < get.count:
            get.items.append(queue.items.popleft())
        return len(get.items) >= get.count

    def _answer_get(self, turn: Turn, request_id: int, get: Get) -> None:
        records = [item.record(turn) for item in get.items]
        turn.reply(request_id, records if get.batch else records[0])

    # ------------------------------------------------------------------ waiters

    def _serve(self, turn: Turn, queue: SharedQueue) -> None:
        """Serve waiting gets, in turns if they request several items, and waiting puts."""
        while True:
            getter = self._waiting.first(queue.getters) if queue.items else None
            if getter is not None:
                self._give(turn, queue, getter)
                continue
            putter = (
                self._waiting.first(queue.putters) if len(queue.items) < queue.maxsize else None
            )
            if putter is None:
                return
            self._waiting.leave(turn, putter)
            queue.items.append(putter.want.item)  # type: ignore[union-attr]
            turn.reply(putter.request_id, None)

    def _give(self, turn: Turn, queue: SharedQueue, getter: Waiter[Put | Get]) -> None:
        get = getter.want
        get.items.append(queue.items.popleft())  # type: ignore[union-attr]
        if len(get.items) < get.count:  # type: ignore[union-attr]
            self._waiting.move(getter, queue.getters)
        else:
            self._waiting.leave(turn, getter)
            self._answer_get(turn, getter.request_id, get)  # type: ignore[arg-type]

    def _time_out(self, turn: Turn, waiter: Waiter[Put | Get]) -> None:
        self._undo(turn, waiter.want)
        turn.reply(waiter.request_id, ExtensionErrorReply("TimeoutError"))

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        waiter = self._waiting.leave_by_request(turn, request_id)
        if waiter is not None:
            self._undo(turn, waiter.want)
        else:
            self._key_watch.request_gone(turn, request_id)

    def _undo(self, turn: Turn, want: Put | Get) -> None:
        """Release the future of a dropped put; return the items of a dropped get to the front."""
        queue = want.queue
        if isinstance(want, Put):
            self._remove_futures(turn, queue.name, [want.item])
        elif self.queues.get(queue.name) is queue:
            queue.items.extendleft(reversed(want.items))
            self._serve(turn, queue)
        else:
            self._remove_futures(turn, queue.name, want.items)

    def on_restart(self, turn: Turn) -> None:
        """Keep the items; futures among them are lost, as in stock."""
        for name in dict.fromkeys(name for name, _ in self._future_counts):
            remove_idle_holder(turn, holder_of(name))


def capacity(maxsize: Any) -> int:
    """Return the maximum number of items for `maxsize`; 0 and less mean no limit."""
    if isinstance(maxsize, int) and maxsize > 0:
        return min(maxsize, QUEUE_ITEMS_MAX)
    return QUEUE_ITEMS_MAX


def holder_of(name: Hashable) -> str:
    """Return the pseudo client that holds the futures of the queue `name`."""
    return f"queue-{name}"
