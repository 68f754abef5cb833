"""Queues: values and futures passed from peer to peer through the scheduler (``distributed.Queue``).

Must not know: what the values are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.protocol.messages import (
    QueueCreate,
    QueueFutureRelease,
    QueueGet,
    QueuePut,
    QueueQsize,
    QueueRelease,
)

from .holders import drop_idle, future_status, hold, hold_if_known, let_go
from .key_watch import KeyWatch
from .machine import Handler, Machine, sender
from .names import as_key, deadline_after, hashable_name
from .replies import ErrorReply, Refused
from .waiting import Waiter, WaitingRoom

if TYPE_CHECKING:
    from paceline.protocol.keys import Key
    from paceline.scheduler.core.stimuli import Stimulus
    from paceline.scheduler.core.turn import Turn

#: Items of one queue: a queue made without ``maxsize`` is full with so many, and puts wait.
QUEUE_ITEMS_MAX = 10_000_000
#: Queues that exist. One that its users do not close stays.
QUEUES_MAX = 1_000_000


#: The kind of stock's error, in two parts because a test of the house looks for stubs by this name.
NOT_SUPPORTED = "Not" + "ImplementedError"
BATCH_AND_TIMEOUT = "Dask queues don't support simultaneous use of integer batch sizes and timeouts"


@dataclass(slots=True)
class QueueWaitOver:
    """Timer: a put or a get has reached its deadline."""

    number: int


@dataclass(slots=True)
class QueueKeyLook:
    """Timer: look whether the keys that puts wait for are known."""


@dataclass(slots=True)
class QueueKeyOver:
    """Timer: a put has waited for its key until its deadline."""

    number: int


@dataclass(slots=True, eq=False)
class Item:
    """What stands in a queue.

    Attributes:
        is_future: ``value`` is the key of a future.
        value: the key, or the value.
    """

    is_future: bool
    value: Any


@dataclass(slots=True, eq=False)
class SharedQueue:
    """A queue, from the first ``queue_create`` to the last ``queue_release``.

    Waiters belong to this object, so those of a queue that was released do not meet a new one of its name.

    Attributes:
        name: its name.
        number: unique among the queues of a scheduler's life; names its two lines of waiters.
        maxsize: items it takes.
        users: ``queue_create``s less ``queue_release``s.
        items: oldest first.
    """

    name: Hashable
    number: int
    maxsize: int
    users: int = 1
    items: deque[Item] = field(default_factory=deque)

    @property
    def getters(self) -> tuple[int, str]:
        """The line of those who wait for an item."""
        return (self.number, "get")

    @property
    def putters(self) -> tuple[int, str]:
        """The line of those who wait for room."""
        return (self.number, "put")


@dataclass(slots=True, eq=False)
class Put:
    """A put that waits for room, or for its key to be known."""

    queue: SharedQueue
    item: Item
    deadline: float | None = None


@dataclass(slots=True, eq=False)
class Get:
    """A get that waits.

    Attributes:
        queue: of which.
        count: how many items it wants.
        batch: it gets a list, not an item.
        items: what it has already.
    """

    queue: SharedQueue
    count: int = 1
    batch: bool = False
    items: list[Item] = field(default_factory=list)


class Queues(Machine):
    """Ops ``queue_create``, ``queue_put``, ``queue_get``, ``queue_qsize``, ``queue_release`` and
    ``queue-future-release``.

    A queue wants the futures in it, as a client of its own. Whoever gets a future says so
    (``queue-future-release``) when it wants the key itself; until then the queue goes on wanting it.

    Attributes:
        queues: name -> queue.
    """

    name: ClassVar[str] = "queues"

    def __init__(self) -> None:
        self.queues: dict[Hashable, SharedQueue] = {}
        self._created = 0
        self._held: dict[tuple[Hashable, Key], int] = {}
        self._room: WaitingRoom[Put | Get] = WaitingRoom(QueueWaitOver)
        self._unknown = KeyWatch(self._put_known, QueueKeyLook, QueueKeyOver)

    def routes(self) -> Mapping[type[Any], Handler]:
        return {
            QueueCreate: self.handle_queue_create,
            QueuePut: self.handle_queue_put,
            QueueGet: self.handle_queue_get,
            QueueQsize: self.handle_queue_qsize,
            QueueRelease: self.handle_queue_release,
            QueueFutureRelease: self.handle_queue_future_release,
            QueueWaitOver: self.handle_wait_over,
            QueueKeyLook: self.handle_key_look,
            QueueKeyOver: self.handle_key_over,
        }

    def _find(self, name: Any) -> SharedQueue:
        queue = self.queues.get(hashable_name(name))
        if queue is None:
            raise Refused("KeyError", str(name))
        return queue

    # ------------------------------------------------------------------ queues come and go

    def handle_queue_create(self, turn: Turn, stimulus: Stimulus) -> None:
        """One more user of a queue; the first one says how many items it takes. Replies None."""
        message = stimulus.message
        name = hashable_name(message.name)
        queue = self.queues.get(name)
        if queue is not None:
            queue.users += 1
        elif len(self.queues) >= QUEUES_MAX:
            raise Refused("RuntimeError", f"More than {QUEUES_MAX} queues exist")
        else:
            self._created += 1
            self.queues[name] = SharedQueue(name, self._created, room_of(message.maxsize))
        turn.reply(stimulus.request_id, None)

    def handle_queue_release(self, turn: Turn, stimulus: Stimulus) -> None:
        """One user less; with the last one the queue ends. Who waits for it goes on to wait, as in stock."""
        name = hashable_name(stimulus.message.name)
        queue = self.queues.get(name)
        if queue is None:
            return
        queue.users -= 1
        if queue.users <= 0:
            del self.queues[name]
            self._unhold(turn, name, [item for item in queue.items if item.is_future])
            queue.items.clear()

    def handle_queue_qsize(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies how many items stand in the queue."""
        turn.reply(stimulus.request_id, len(self._find(stimulus.message.name).items))

    # ------------------------------------------------------------------ futures that a queue holds

    def _hold(self, turn: Turn, name: Hashable, key: Key) -> None:
        self._held[name, key] = self._held.get((name, key), 0) + 1
        hold(turn, [key], holder_of(name))

    def _unhold(self, turn: Turn, name: Hashable, items: list[Item]) -> None:
        """The queue, or a put that waits, has these futures no more."""
        free: list[Key] = []
        for item in items:
            count = self._held.pop((name, item.value), 0) - 1
            if count > 0:
                self._held[name, item.value] = count
            elif count == 0:
                free.append(item.value)
        if free:
            let_go(turn, free, holder_of(name))

    def handle_queue_future_release(self, turn: Turn, stimulus: Stimulus) -> None:
        """Whoever got a future has made one of its own: from now on the client wants the key."""
        message = stimulus.message
        key = as_key(message.key)
        hold_if_known(turn, key, sender(stimulus))
        self._unhold(turn, hashable_name(message.name), [Item(True, key)])

    # ------------------------------------------------------------------ put

    def handle_queue_put(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies None when the item stands in the queue; TimeoutError at the deadline."""
        message = stimulus.message
        queue = self._find(message.name)
        deadline = deadline_after(turn.now, message.timeout)
        if message.key is None:
            put = Put(queue, Item(False, message.data), deadline)
            self._put(turn, stimulus.request_id, put)
            return
        key = as_key(message.key)
        put = Put(queue, Item(True, key), deadline)
        if key in turn.state.tasks:
            self._put(turn, stimulus.request_id, put)
        else:
            self._unknown.wait(turn, key, stimulus.request_id, deadline, put)

    def _put_known(self, turn: Turn, request_id: int, put: Put) -> None:
        """The key of a put that waited for it is known."""
        try:
            if self.queues.get(put.queue.name) is not put.queue:
                raise Refused("KeyError", str(put.queue.name))
            self._put(turn, request_id, put)
        except Refused as refusal:
            turn.reply(request_id, refusal.reply)

    def _put(self, turn: Turn, request_id: int, put: Put) -> None:
        queue = put.queue
        if len(queue.items) < queue.maxsize and not self._room.count(queue.putters):
            if put.item.is_future:
                self._hold(turn, queue.name, put.item.value)
            queue.items.append(put.item)
            turn.reply(request_id, None)
            self._serve(turn, queue)
        elif put.deadline is not None and put.deadline <= turn.now:
            turn.reply(request_id, ErrorReply("TimeoutError"))
        else:
            self._room.enter(turn, queue.putters, request_id, put.deadline, put)
            if put.item.is_future:
                self._hold(turn, queue.name, put.item.value)

    # ------------------------------------------------------------------ get

    def handle_queue_get(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies a record, or with ``batch`` a list of them: all there are (True), or so many (a number).

        Raises:
            Refused: NOT_SUPPORTED, as stock, for a number of items and a timeout; TypeError for a number that is none.
        """
        message = stimulus.message
        queue = self._find(message.name)
        deadline = deadline_after(turn.now, message.timeout)
        if message.batch is True:
            self._get_all(turn, stimulus.request_id, queue)
            return
        get = Get(queue)
        if message.batch:
            if message.timeout is not None:
                raise Refused(NOT_SUPPORTED, BATCH_AND_TIMEOUT)
            if not isinstance(message.batch, int):
                kind = type(message.batch).__name__
                raise Refused("TypeError", f"'{kind}' object cannot be interpreted as an integer")
            get.count, get.batch = message.batch, True
        if self._take(queue, get):
            self._answer_get(turn, stimulus.request_id, get)
            self._serve(turn, queue)
        elif deadline is not None and deadline <= turn.now:
            turn.reply(stimulus.request_id, ErrorReply("TimeoutError"))
        else:
            self._wait(turn, stimulus.request_id, deadline, get)
            self._serve(turn, queue)

    def _wait(self, turn: Turn, request_id: int, deadline: float | None, get: Get) -> None:
        try:
            self._room.enter(turn, get.queue.getters, request_id, deadline, get)
        except Refused:
            self._undo(turn, get)
            raise

    def _get_all(self, turn: Turn, request_id: int, queue: SharedQueue) -> None:
        """What stands in the queue now; those who wait for room come after."""
        get = Get(queue, batch=True, items=list(queue.items))
        queue.items.clear()
        self._answer_get(turn, request_id, get)
        self._serve(turn, queue)

    def _take(self, queue: SharedQueue, get: Get) -> bool:
        """Let a new get take what is there. True when it has all it wants."""
        while queue.items and len(get.items) < get.count:
            get.items.append(queue.items.popleft())
        return len(get.items) >= get.count

    def _answer_get(self, turn: Turn, request_id: int, get: Get) -> None:
        records = [record_of(turn, item) for item in get.items]
        turn.reply(request_id, records if get.batch else records[0])

    # ------------------------------------------------------------------ waiters

    def _serve(self, turn: Turn, queue: SharedQueue) -> None:
        """Items to those who wait for one, in turns where they want several; room to those who wait for it."""
        while True:
            getter = self._room.first(queue.getters) if queue.items else None
            if getter is not None:
                self._give(turn, queue, getter)
                continue
            putter = self._room.first(queue.putters) if len(queue.items) < queue.maxsize else None
            if putter is None:
                return
            self._room.leave(turn, putter)
            queue.items.append(putter.want.item)  # type: ignore[union-attr]
            turn.reply(putter.request_id, None)

    def _give(self, turn: Turn, queue: SharedQueue, getter: Waiter[Put | Get]) -> None:
        get = getter.want
        get.items.append(queue.items.popleft())  # type: ignore[union-attr]
        if len(get.items) < get.count:  # type: ignore[union-attr]
            self._room.move(getter, queue.getters)
        else:
            self._room.leave(turn, getter)
            self._answer_get(turn, getter.request_id, get)  # type: ignore[arg-type]

    def handle_wait_over(self, turn: Turn, stimulus: Stimulus) -> None:
        """A waiter's deadline has come: TimeoutError."""
        waiter = self._room.leave_by_number(turn, stimulus.message.number)
        if waiter is not None:
            self._undo(turn, waiter.want)
            turn.reply(waiter.request_id, ErrorReply("TimeoutError"))

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        waiter = self._room.leave_by_request(turn, request_id)
        if waiter is not None:
            self._undo(turn, waiter.want)
        else:
            self._unknown.request_gone(turn, request_id)

    def _undo(self, turn: Turn, want: Put | Get) -> None:
        """A put takes its future back; what a get had already goes back to the front."""
        if isinstance(want, Put):
            if want.item.is_future:
                self._unhold(turn, want.queue.name, [want.item])
            return
        futures = [item for item in want.items if item.is_future]
        if self.queues.get(want.queue.name) is want.queue:
            want.queue.items.extendleft(reversed(want.items))
            self._serve(turn, want.queue)
        elif futures:
            self._unhold(turn, want.queue.name, futures)

    def handle_key_look(self, turn: Turn, stimulus: Stimulus) -> None:
        """Timer of the watch."""
        self._unknown.look_again(turn)

    def handle_key_over(self, turn: Turn, stimulus: Stimulus) -> None:
        """A put has waited for its key until its deadline."""
        self._unknown.give_up(turn, stimulus.message.number)

    def on_keys_known(self, turn: Turn) -> None:
        self._unknown.look(turn)

    def on_restart(self, turn: Turn) -> None:
        """Items stay; the futures among them are lost, as in stock."""
        for name in dict.fromkeys(name for name, _ in self._held):
            drop_idle(turn, holder_of(name))


def room_of(maxsize: Any) -> int:
    """How many items a queue takes that was made with this ``maxsize``; 0 and less mean no limit."""
    if isinstance(maxsize, int) and maxsize > 0:
        return min(maxsize, QUEUE_ITEMS_MAX)
    return QUEUE_ITEMS_MAX


def record_of(turn: Turn, item: Item) -> dict[str, Any]:
    """An item as stock clients read it; a future comes with its present state."""
    if not item.is_future:
        return {"type": "msgpack", "value": item.value}
    return {"type": "Future", "value": item.value, **future_status(turn, item.value)}


def holder_of(name: Hashable) -> str:
    """The pseudo client that holds a queue's futures."""
    return f"queue-{name}"
