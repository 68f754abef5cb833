"""Programs on locks, semaphores, multi-locks, events, queues, variables, published datasets and topics.

They do not depend on the scheduler that serves them. Each returns a comparable result and uses unique names,
because clusters are shared.
"""

from __future__ import annotations

import itertools
import operator
import re
import time
import uuid
from collections.abc import Callable

from distributed import (
    Client,
    Event,
    Future,
    Lock,
    MultiLock,
    Queue,
    Semaphore,
    Variable,
    get_worker,
    print,
    wait,
    worker_client,
)

LONG_SECONDS = 30  # timeout of waits that should succeed
SHORT_SECONDS = 0.2  # timeout of waits that should time out


def outcome(function: Callable[[], object]) -> object:
    """Return the result of a call, or the type and text of its error, without the suffix that makes names unique."""
    try:
        return function()
    except Exception as error:
        return (type(error).__name__, re.sub(r"-[0-9a-f]{8}\b", "", str(error)))


def unique(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:8]}"


def until(condition: Callable[[], object]) -> bool:
    """Wait for an action of another process."""
    deadline = time.monotonic() + LONG_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def cancelled_future(client: Client, seconds: float = 1) -> Future:
    """Return a future whose key the scheduler has forgotten, although its task still runs for some time."""
    future = client.submit(time.sleep, seconds, pure=False)
    until(lambda: future.key in {key for keys in client.processing().values() for key in keys})
    future.cancel()
    time.sleep(SHORT_SECONDS)
    return future


# ------------------------------------------------------------------ locks and semaphores


def count_up(_: int, lock: Lock, variable: Variable) -> None:
    """Read, wait, write: the count is right only if the lock excludes other tasks."""
    with lock:
        number = variable.get(timeout=LONG_SECONDS)
        time.sleep(0.005)
        variable.set(number + 1)


def lock_in_tasks(client: Client) -> object:
    name = unique("counter")
    variable, lock = Variable(name, client=client), Lock(name)
    variable.set(0)
    client.gather(client.map(count_up, range(40), lock=lock, variable=variable, pure=False))
    return variable.get(timeout=LONG_SECONDS), lock.locked()


def lock_outcomes(client: Client) -> object:
    name = unique("lock")
    first, second = Lock(name), Lock(name)
    steps: list[object] = [first.acquire(), second.acquire(timeout=SHORT_SECONDS)]
    steps += [second.acquire(blocking=False), first.locked(), second.locked()]
    steps += [first.release(), outcome(first.release), second.acquire(timeout="10 s")]
    steps += [outcome(lambda: first.acquire(blocking=False, timeout=1)), second.release()]
    return [*steps, first.locked()]


def semaphore_outcomes(client: Client) -> object:
    name = unique("semaphore")
    semaphore = Semaphore(max_leases=2, name=name)
    steps: list[object] = [semaphore.get_value(), semaphore.acquire(), semaphore.acquire()]
    steps += [semaphore.acquire(timeout=SHORT_SECONDS), semaphore.get_value()]
    steps += [semaphore.release(), semaphore.get_value(), semaphore.acquire(timeout=0)]
    steps.append(outcome(Semaphore(max_leases=3, name=name).acquire))
    steps += [semaphore.close(), semaphore.get_value(), outcome(semaphore.acquire)]
    return steps


def at_once(_: int, semaphore: Semaphore, name: str) -> int:
    """Return how many tasks were in the section at the same time as this one."""
    with semaphore:
        Queue(name).put(1)
        time.sleep(0.02)
        inside = Queue(name).qsize()
        Queue(name).get(timeout=LONG_SECONDS)
    return inside


def semaphore_in_tasks(client: Client) -> object:
    name = unique("section")
    semaphore, queue = Semaphore(max_leases=2, name=name), Queue(name, client=client)
    inside = client.gather(client.map(at_once, range(20), semaphore=semaphore, name=name))
    return max(inside) <= 2, semaphore.get_value(), queue.qsize()


def multi_lock_outcomes(client: Client) -> object:
    x, y, z = (unique(word) for word in "xyz")
    one, both, other = MultiLock([x]), MultiLock([x, y]), MultiLock([y, z])
    steps: list[object] = [one.acquire(), both.acquire(timeout=SHORT_SECONDS)]
    steps += [outcome(both.release)[0], other.acquire(timeout=SHORT_SECONDS)]
    steps += [MultiLock([x, y, z]).acquire(blocking=False), one.release(), other.release()]
    steps += [MultiLock([x, y, z]).acquire(num_locks=2), MultiLock([x, y, z]).acquire(num_locks=1)]
    steps += [outcome(MultiLock([x]).release), outcome(lambda: MultiLock([]).acquire())[0]]
    return [*steps, MultiLock([x, y, z]).acquire(timeout=SHORT_SECONDS)]


def count_up_together(number: int, names: list[str], variable: Variable) -> None:
    with MultiLock(names[number % 2 : number % 2 + 2]):
        value = variable.get(timeout=LONG_SECONDS)
        time.sleep(0.005)
        variable.set(value + 1)


def multi_lock_in_tasks(client: Client) -> object:
    names = [unique("m") for _ in range(3)]
    variable = Variable(unique("counter"), client=client)
    variable.set(0)
    client.gather(client.map(count_up_together, range(20), names=names, variable=variable))
    return variable.get(timeout=LONG_SECONDS)


# ------------------------------------------------------------------ events


def event_outcomes(client: Client) -> object:
    event = Event(unique("event"), client=client)
    steps: list[object] = [event.is_set(), event.wait(timeout=SHORT_SECONDS), event.clear()]
    steps += [event.set(), event.is_set(), event.wait(timeout=0), event.wait(timeout="1s")]
    return [*steps, event.clear(), event.is_set(), event.wait(timeout=0)]


def wait_for_event(number: int, event: Event) -> tuple[int, bool]:
    get_worker()
    with worker_client():
        return number, event.wait(timeout=LONG_SECONDS)


def events_in_tasks(client: Client) -> object:
    event = Event(unique("start"), client=client)
    futures = client.map(wait_for_event, range(6), event=event)
    time.sleep(SHORT_SECONDS)
    done_before = sum(future.done() for future in futures)
    event.set()
    return done_before, client.gather(futures)


# ------------------------------------------------------------------ queues


def queue_of_values(client: Client) -> object:
    queue = Queue(unique("queue"), client=client)
    values = [1, "two", None, {"three": [3, 3.0]}, (4, "four"), b"five", True]
    for value in values:
        queue.put(value)
    size = queue.qsize()
    singles = [queue.get(timeout=1) for _ in range(3)]
    return size, singles, queue.get(batch=2), queue.get(batch=True), queue.get(batch=True)


def queue_of_futures(client: Client) -> object:
    queue = Queue(unique("queue"), client=client)
    kept = client.submit(operator.add, 1, 2)
    queue.put(kept)
    queue.put(client.submit(operator.mul, 6, 7))  # only the queue holds this future
    queue.put(client.submit(operator.truediv, 1, 0))
    wait(kept)
    futures = queue.get(batch=3)
    return [
        all(isinstance(future, Future) for future in futures),
        futures[0].result(timeout=LONG_SECONDS),
        futures[1].result(timeout=LONG_SECONDS),
        outcome(lambda: futures[2].result(timeout=LONG_SECONDS)),
        queue.qsize(),
    ]


def queue_timeouts(client: Client) -> object:
    queue = Queue(unique("queue"), client=client, maxsize=1)
    steps = [outcome(lambda: queue.get(timeout=SHORT_SECONDS))[0], queue.put(1)]
    steps.append(outcome(lambda: queue.put(2, timeout="100ms"))[0])
    steps.append(outcome(lambda: queue.get(timeout=1, batch=2)))
    steps.append(outcome(lambda: queue.put(cancelled_future(client), timeout=0.3))[1].split()[2:])
    queue.close()
    steps.append(until(lambda: outcome(queue.qsize) == ("KeyError", "'queue'")))
    return steps


def pass_on(source: Queue, target: Queue, count: int) -> int:
    for _ in range(count):
        target.put(source.get(timeout=LONG_SECONDS) + 1)
    return count


def queues_between_tasks(client: Client) -> object:
    """Run a chain of tasks that each read one queue and write the next, with room for two items in between."""
    queues = [Queue(unique("chain"), client=client, maxsize=2) for _ in range(4)]
    tasks = [
        client.submit(pass_on, source, target, 10, pure=False)
        for source, target in itertools.pairwise(queues)
    ]
    out = []
    for number in range(10):
        queues[0].put(number)
        if number >= 4:
            out.append(queues[-1].get(timeout=LONG_SECONDS))
    out += [queues[-1].get(timeout=LONG_SECONDS) for _ in range(4)]
    return out, client.gather(tasks)


def futures_made_in_tasks(name: str, start: int) -> None:
    """The client of the task closes soon; the queue holds the future that the task put."""
    with worker_client() as client:
        Queue(name, client=client).put(client.submit(operator.add, start, 100))


def queue_holds_futures_of_tasks(client: Client) -> object:
    queue = Queue(unique("made"), client=client)
    client.gather([client.submit(futures_made_in_tasks, queue.name, at) for at in range(5)])
    futures = [queue.get(timeout=LONG_SECONDS) for _ in range(5)]
    return sorted(client.gather(futures))


def queue_outlives_its_client(client: Client) -> object:
    name = unique("lasting")
    with Client(client.scheduler.address, set_as_default=False) as other:
        Queue(name, client=other).put(other.submit(operator.add, 10, 1))
    return Queue(name, client=client).get(timeout=LONG_SECONDS).result(timeout=LONG_SECONDS)


# ------------------------------------------------------------------ variables


def variable_of_values(client: Client) -> object:
    variable = Variable(unique("variable"), client=client)
    steps = [outcome(lambda: variable.get(timeout=SHORT_SECONDS))[0]]
    for value in (1, None, "text", {"a": [1, 2]}, (1, (2, 3))):
        variable.set(value)
        steps.append(variable.get(timeout=LONG_SECONDS))
    variable.delete()
    steps.append(until(lambda: outcome(lambda: variable.get(timeout=0.05))[0] == "TimeoutError"))
    return steps


def variable_of_futures(client: Client) -> object:
    variable = Variable(unique("variable"), client=client)
    # only the variable holds this future
    variable.set(client.submit(operator.add, 1, 1, pure=False))
    first = variable.get(timeout=LONG_SECONDS)
    variable.set(client.submit(operator.truediv, 1, 0, pure=False))
    second = variable.get(timeout=LONG_SECONDS)
    steps = [first.result(timeout=LONG_SECONDS)]
    steps.append(outcome(lambda: second.result(timeout=LONG_SECONDS)))
    variable.set(5)
    steps += [variable.get(timeout=LONG_SECONDS), first.result(timeout=LONG_SECONDS)]
    steps.append(outcome(lambda: variable.set(cancelled_future(client), "300ms"))[1].split()[2:])
    return steps


def variable_waited_for(client: Client) -> object:
    name = unique("late")
    waiting = client.submit(lambda: Variable(name).get(timeout=LONG_SECONDS), pure=False)
    time.sleep(SHORT_SECONDS)
    Variable(name, client=client).set(7)
    return waiting.result(timeout=LONG_SECONDS)


def deleted_while_held(client: Client) -> object:
    """A client that got the future from the variable keeps it when the variable is deleted."""
    variable = Variable(unique("variable"), client=client)
    with Client(client.scheduler.address, set_as_default=False) as other:
        variable.set(client.submit(operator.add, 20, 1, pure=False))
        future = Variable(variable.name, client=other).get(timeout=LONG_SECONDS)
        variable.delete()
        return future.result(timeout=LONG_SECONDS)


# ------------------------------------------------------------------ published datasets


def published_datasets(client: Client) -> object:
    mine, other_name = unique("mine"), unique("other")
    future = client.submit(operator.add, 30, 1, pure=False)
    client.publish_dataset(future, name=mine)
    client.publish_dataset(**{other_name: {"a": [1, 2]}})
    steps = [mine in client.list_datasets(), other_name in client.datasets]
    steps.append(outcome(lambda: client.publish_dataset(1, name=mine))[0])
    key = future.key
    del future
    with Client(client.scheduler.address, set_as_default=False) as reader:
        loaded = reader.get_dataset(mine)
        steps += [loaded.key == key, loaded.result(timeout=LONG_SECONDS)]
        steps.append(reader.get_dataset(other_name))
        reader.unpublish_dataset(mine)
        steps.append(loaded.result(timeout=LONG_SECONDS))
    client.publish_dataset(5, name=other_name, override=True)
    steps += [client.get_dataset(other_name), client.get_dataset(mine, default="none")]
    steps.append(outcome(lambda: client.get_dataset(mine))[0])
    client.unpublish_dataset(other_name)
    return [*steps, other_name in client.list_datasets()]


def dataset_outlives_its_client(client: Client) -> object:
    import dask.array as da

    name = unique("array")
    with Client(client.scheduler.address) as other:
        x = da.ones((100, 100), chunks=(50, 50)).persist()
        other.publish_dataset(x + 1, name=name)
    loaded = client.get_dataset(name)
    total = client.compute(loaded.sum()).result(timeout=LONG_SECONDS)
    client.unpublish_dataset(name)
    return float(total), name in client.list_datasets()


def tuple_names(client: Client) -> object:
    name = ("part", uuid.uuid4().hex, 3)
    client.publish_dataset([1, 2], name=name)
    steps = [name in client.list_datasets(), client.get_dataset(name)]
    client.unpublish_dataset(name)
    return [*steps, name in client.list_datasets()]


# ------------------------------------------------------------------ topics


def topics(client: Client) -> object:
    topic, twin = unique("topic"), unique("twin")
    heard: list[object] = []
    client.log_event(topic, "before")
    client.subscribe_topic(topic, lambda event: heard.append(event[1]))
    time.sleep(SHORT_SECONDS)
    client.log_event([topic, twin], {"x": (1, 2)})
    client.submit(lambda: get_worker().log_event(topic, "from a task"), pure=False).result()
    client.submit(lambda: get_worker().log_event(topic, {"n": 1}), pure=False).result()
    until(lambda: len(heard) == 3)
    client.unsubscribe_topic(topic)
    time.sleep(SHORT_SECONDS)
    client.log_event(topic, "after")
    logged = [event[1] for event in client.get_events(topic)]
    named = [set(event) for event in (*heard, *logged) if isinstance(event, dict)]
    plain = [event for event in logged if not isinstance(event, dict) or "n" not in event]
    steps = [len(heard), plain, named, [event[1] for event in client.get_events(twin)]]
    steps.append(client.get_events(unique("nothing")))
    # run there, because stock logs its own objects in other topics, which no reply can serialize
    steps.append(
        client.run_on_scheduler(lambda dask_scheduler: twin in dask_scheduler.get_events())
    )
    steps.append(isinstance(client.get_events(topic)[0][0], float))
    return [*steps, outcome(lambda: client.unsubscribe_topic(topic))]


def prints_and_warnings(client: Client) -> object:
    """Print from a task; the output reaches the client."""
    heard: list[object] = []
    client.subscribe_topic("print", lambda event: heard.append(event[1]["args"]))
    time.sleep(SHORT_SECONDS)
    client.submit(lambda: print("hello", 5), pure=False).result()
    until(lambda: heard)
    return heard
