"""Programs that misuse coordination primitives: bad names, wrong types, releases without acquire, deleted objects, timeouts.

They do not depend on the scheduler that serves them. Each returns the outcome of every step.
"""

from __future__ import annotations

import operator
import threading
import time
from typing import Any

from distributed import Client, Event, Lock, MultiLock, Queue, Semaphore, Variable, get_worker, warn

from .client_requests import kind
from .coordination import LONG_SECONDS, SHORT_SECONDS, outcome, unique, until

#: Delay after which a message on a client's stream has arrived; a request may overtake it, on both schedulers.
LET_GO_SECONDS = 0.5


class Closed:
    """A value that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def locks_used_wrongly(client: Client) -> object:
    name = unique("lock")
    odd: Any = {"a": 1}
    tuples = Lock((name, 1))
    return [
        outcome(Lock(name).release),
        outcome(lambda: Lock(name).acquire(timeout="no time")),
        kind(lambda: Lock(odd).acquire(timeout=1)),
        kind(lambda: tuples.acquire(timeout=1)),
        kind(tuples.locked),
        kind(tuples.release),
        kind(lambda: Lock(b"bytes" + name.encode()).acquire(timeout=1)),
        Lock(name).acquire(timeout=1),
        kind(lambda: Lock(name).acquire(timeout=-1)),
        Lock(name).acquire(timeout=0),
        kind(lambda: Lock(name).acquire(timeout=Closed())),
    ]


def semaphores_used_wrongly(client: Client) -> object:
    name = unique("semaphore")
    one = Semaphore(max_leases=1, name=name)
    steps: list[object] = [
        outcome(lambda: Semaphore(max_leases=0, name=unique("s")).get_value()),
        outcome(lambda: Semaphore(max_leases=-1, name=unique("s")).acquire(timeout=0)),
        outcome(one.release),
        one.acquire(timeout=1),
        one.acquire(timeout=SHORT_SECONDS),
        outcome(lambda: Semaphore(max_leases=2, name=name).acquire(timeout=1)),
        outcome(lambda: one.acquire(timeout="no time")),
        one.close(),
        kind(one.release),
        outcome(lambda: one.acquire(timeout=1)),
        one.get_value(),
    ]
    return steps


def multi_locks_used_wrongly(client: Client) -> object:
    x, y = unique("x"), unique("y")
    held = MultiLock([x])
    return [
        held.acquire(),
        outcome(lambda: MultiLock([x, y]).acquire(num_locks=3))[0],
        MultiLock([x, y]).acquire(timeout=SHORT_SECONDS),
        MultiLock([y]).acquire(timeout=1),
        kind(lambda: held.acquire(timeout=SHORT_SECONDS)),
        held.release(),
        outcome(held.release),
        kind(lambda: MultiLock([{"a": 1}]).acquire(timeout=1)),
        outcome(lambda: MultiLock([x]).acquire(blocking=False, timeout=3)),
        outcome(lambda: MultiLock([x]).acquire(timeout="no time")),
    ]


def events_used_wrongly(client: Client) -> object:
    name = unique("event")
    event = Event(name, client=client)
    return [
        event.is_set(),
        event.wait(timeout=SHORT_SECONDS),
        event.wait(timeout=0),
        outcome(lambda: event.wait(timeout="no time")),
        event.clear(),
        event.set(),
        event.set(),
        event.wait(timeout=0),
        Event(name, client=client).is_set(),
        event.clear(),
        event.is_set(),
        kind(lambda: Event({"a": 1}, client=client).wait(timeout=0)),  # type: ignore[arg-type]
    ]


def queues_used_wrongly(client: Client) -> object:
    name = unique("queue")
    queue = Queue(name, client=client, maxsize=2)
    steps: list[object] = [
        kind(lambda: queue.get(timeout=0)),
        kind(lambda: queue.get(timeout=SHORT_SECONDS)),
        kind(lambda: queue.get(batch=3, timeout=SHORT_SECONDS)),
        queue.get(batch=True),
        kind(lambda: queue.get(timeout="no time")),
        kind(lambda: queue.put(Closed())),
        queue.put([1, (2, 3)]),
        queue.put({"a": None}),
        kind(lambda: queue.put(3, timeout=SHORT_SECONDS)),
        queue.qsize(),
        kind(lambda: queue.get(batch="odd")),
        queue.qsize(),
        queue.close(),
        time.sleep(LET_GO_SECONDS),
        Queue(name, client=client).qsize(),
        kind(lambda: Queue(name, client=client).get(timeout=0)),
    ]
    return steps


def queue_of_lost_futures(client: Client) -> object:
    """Put futures of an erred task and of an unknown key."""
    queue = Queue(unique("queue"), client=client)
    erred = client.submit(operator.truediv, 1, 0, pure=False)
    queue.put(erred)
    got = queue.get(timeout=LONG_SECONDS)
    again = Queue(queue.name, client=client)
    steps: list[object] = [outcome(lambda: got.result(timeout=LONG_SECONDS))]
    steps.append(kind(lambda: again.get(timeout=0)))
    return steps


def variables_used_wrongly(client: Client) -> object:
    name = unique("variable")
    variable = Variable(name, client=client)
    erred = client.submit(operator.truediv, 1, 0, pure=False)
    steps: list[object] = [
        kind(lambda: variable.get(timeout=SHORT_SECONDS)),
        kind(lambda: variable.get(timeout=0)),
        kind(lambda: variable.get(timeout="no time")),
        kind(variable.delete),
        kind(lambda: variable.set(Closed())),
        variable.set(1),
        variable.get(timeout=0),
        variable.set(erred),
        outcome(lambda: variable.get(timeout=LONG_SECONDS).result(timeout=LONG_SECONDS)),
        kind(variable.delete),
    ]
    return steps


def datasets_used_wrongly(client: Client) -> object:
    name = unique("dataset")
    steps: list[object] = [
        outcome(lambda: client.publish_dataset()),
        outcome(lambda: client.publish_dataset(1, 2)),
        outcome(lambda: client.publish_dataset(1, name=name, **{name: 2}))[0],
        outcome(lambda: client.get_dataset(name)),
        outcome(lambda: client.unpublish_dataset(name)),
        kind(lambda: client.publish_dataset(Closed(), name=name)),
        name in client.list_datasets(),
        client.publish_dataset([1], name=name),
        outcome(lambda: client.publish_dataset([2], name=name)),
        client.get_dataset(name),
        client.publish_dataset([2], name=name, override=True),
        client.get_dataset(name, default=3),
        client.unpublish_dataset(name),
        client.get_dataset(name, default=3),
        outcome(lambda: client.datasets[name]),
        kind(lambda: client.datasets.__delitem__(name)),
        kind(lambda: client.publish_dataset(1, name={"a": 1})),
    ]
    return steps


def topics_used_wrongly(client: Client) -> object:
    topic = unique("topic")
    heard: list[object] = []

    def broken(event: object) -> None:
        heard.append(event)
        raise RuntimeError("a handler that fails")

    client.subscribe_topic(topic, broken)
    steps: list[object] = []
    time.sleep(SHORT_SECONDS)
    client.log_event(topic, "first")
    until(lambda: heard)
    client.log_event(topic, "second")
    until(lambda: len(heard) == 2)
    steps += [len(heard), [event[1] for event in client.get_events(topic)]]
    client.unsubscribe_topic(topic)
    steps.append(outcome(lambda: client.unsubscribe_topic(topic)))
    steps.append(len(client.get_events(topic)))
    return [*steps, client.submit(operator.add, 1, 1, pure=False).result(timeout=LONG_SECONDS)]


def warnings_of_tasks(client: Client) -> object:
    """A warning of a task reaches the client's topic, with its category; one that cannot be pickled does not."""
    heard: list[Any] = []
    client.subscribe_topic("warn", lambda event: heard.append(event[1]))
    time.sleep(SHORT_SECONDS)

    def complain(text: str) -> str:
        warn(text, UserWarning)
        return "done"

    def complain_closed() -> str:
        get_worker().log_event("warn", {"message": "plain", "category": "no pickle"})
        return "done"

    text = unique("complaint")
    steps: list[object] = [client.submit(complain, text, pure=False).result(timeout=LONG_SECONDS)]
    until(lambda: heard)
    steps.append(client.submit(complain_closed, pure=False).result(timeout=LONG_SECONDS))
    until(lambda: len(heard) >= 2)
    client.unsubscribe_topic("warn")
    return [*steps, len(heard), sorted(heard[0])]


def waits_that_end_while_others_wait(client: Client) -> object:
    """Three clients wait for a lock and the second gives up; the others acquire it in order."""
    name = unique("lock")
    lock = Lock(name)
    lock.acquire()
    got: list[object] = []

    def wait(number: int, seconds: float) -> None:
        mine = Lock(name)
        took = mine.acquire(timeout=seconds)
        got.append((number, took))
        if took:
            mine.release()

    def begin(number: int, seconds: float) -> threading.Thread:
        thread = threading.Thread(target=wait, args=(number, seconds), daemon=True)
        thread.start()
        time.sleep(SHORT_SECONDS)
        return thread

    threads = [begin(0, LONG_SECONDS), begin(1, SHORT_SECONDS), begin(2, LONG_SECONDS)]
    threads[1].join(LONG_SECONDS)
    lock.release()
    for thread in threads:
        thread.join(LONG_SECONDS)
    return [*got, lock.locked()]
