"""The workloads of the clients. Each checks its results and returns what was wrong."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, Event, Lock, Queue, Semaphore, Variable, as_completed

Workload = Callable[[Client, Path, random.Random], list[str]]

#: Duration of a short task, seconds.
SHORT_SECONDS = 0.01
#: Held while dask optimizes a dataframe: two threads may wait for each other's cached properties,
#: which Python before 3.12 computes under a lock.
PLANNING = threading.Lock()


def leave_mark(path: str, value: int) -> int:
    """Append to a file that this task has run, and return ``value`` + 1."""
    time.sleep(SHORT_SECONDS)
    with open(path, "a") as file:
        file.write(f"{value}\n")
    return value + 1


def count(lock_name: str, path: str) -> None:
    """Increment the number in a file, which the lock protects."""
    with Lock(lock_name):
        target = Path(path)
        number = int(target.read_text())
        time.sleep(SHORT_SECONDS)
        target.write_text(str(number + 1))


def produce(name: str, numbers: list[int]) -> None:
    """Put numbers into a queue, in order."""
    queue = Queue(name, maxsize=5)
    for number in numbers:
        queue.put(number, timeout=60)
        time.sleep(SHORT_SECONDS)


def use_semaphore(name: str) -> None:
    """Hold a semaphore for a short time."""
    with Semaphore(2, name=name):
        time.sleep(SHORT_SECONDS)


def futures(client: Client, folder: Path, choice: random.Random) -> list[str]:
    """Run tasks that leave a mark, and check that each ran once and has the right result."""
    path = folder / uuid.uuid4().hex
    n = choice.randint(50, 300)
    mapped = client.map(leave_mark, [str(path)] * n, range(n), pure=False)
    total = client.submit(sum, mapped).result(timeout=300)
    marks = sorted(map(int, path.read_text().split()))
    wrong = []
    if total != sum(range(1, n + 1)):
        wrong.append(f"the sum of futures is {total}")
    if marks != list(range(n)):
        wrong.append(f"{len(marks)} runs of {n} tasks")
    if any(future.status != "finished" for future in mapped):
        wrong.append("a future is not finished")
    return wrong


def chain(client: Client, folder: Path, choice: random.Random) -> list[str]:
    """Submit each task when the one before it is done."""
    value = 0
    n = choice.randint(10, 60)
    for _ in range(n):
        value = client.submit(lambda x: x + 1, value, pure=False).result(timeout=300)
    return [] if value == n else [f"the chain ends with {value}, not {n}"]


def arrays(client: Client, folder: Path, choice: random.Random) -> list[str]:
    """Reduce an array and its transpose."""
    n = choice.choice([1000, 2000])
    x = da.ones((n, n), chunks=(200, 200))
    total = (x + x.T).sum().compute(scheduler=client, optimize_graph=choice.random() < 0.5)
    return [] if total == 2 * n * n else [f"the sum of an array is {total}"]


def compute(client: Client, collection: Any) -> Any:
    """Compute a dataframe or series."""
    with PLANNING:
        future = client.compute(collection)
    return future.result(timeout=300)


def dataframe(client: Client, folder: Path, choice: random.Random) -> list[str]:
    """Group a dataframe."""
    frame = pd.DataFrame({"k": np.arange(20_000) % 7, "v": np.arange(20_000)})
    found = compute(client, dd.from_pandas(frame, npartitions=20).groupby("k").v.sum())
    expected = frame.groupby("k").v.sum()
    return [] if found.sort_index().equals(expected) else ["groups of a dataframe differ"]


def shuffle(client: Client, folder: Path, choice: random.Random) -> list[str]:
    """Shuffle a dataframe between the workers (P2P)."""
    frame = pd.DataFrame({"k": np.arange(20_000) % 997, "v": np.arange(20_000)})
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        shuffled = dd.from_pandas(frame, npartitions=12).shuffle("k")
        total = compute(client, shuffled.v.sum())
    return [] if total == frame.v.sum() else [f"the sum of a shuffled column is {total}"]


def locks(client: Client, folder: Path, choice: random.Random) -> list[str]:
    """Increment a number in a file, which a lock protects, from several tasks."""
    path = folder / uuid.uuid4().hex
    path.write_text("0")
    name, n = uuid.uuid4().hex, 12
    client.gather(client.map(count, [name] * n, [str(path)] * n, pure=False))
    return [] if int(path.read_text()) == n else [f"a lock let {path.read_text()} of {n} in"]


def queues(client: Client, folder: Path, choice: random.Random) -> list[str]:
    """Send numbers from a task to the client through a bounded queue."""
    name, numbers = uuid.uuid4().hex, list(range(choice.randint(10, 40)))
    future = client.submit(produce, name, numbers, pure=False)
    queue = Queue(name, client=client, maxsize=5)
    found = [queue.get(timeout=60) for _ in numbers]
    future.result(timeout=60)
    return [] if found == numbers else [f"a queue returned {found}"]


def coordination(client: Client, folder: Path, choice: random.Random) -> list[str]:
    """Use variables, events, semaphores and published data."""
    name = uuid.uuid4().hex
    wrong = []
    variable, event = Variable(name, client=client), Event(name, client=client)
    variable.set(client.submit(lambda: 42, pure=False))
    if variable.get(timeout=60).result(timeout=60) != 42:
        wrong.append("a variable changed")
    waiting = client.submit(lambda n: Event(n).wait(60), name, pure=False)
    time.sleep(choice.random())
    event.set()
    if not waiting.result(timeout=60):
        wrong.append("an event was not seen")
    client.publish_dataset(**{name: client.submit(lambda: 7, pure=False)})
    if client.get_dataset(name).result(timeout=60) != 7:
        wrong.append("published data changed")
    client.unpublish_dataset(name)
    variable.delete()
    client.gather(client.map(use_semaphore, [name] * 4, pure=False))
    return wrong


def scattered(client: Client, folder: Path, choice: random.Random) -> list[str]:
    """Scatter values, and use them as they complete."""
    values = client.scatter([np.full(choice.randint(10, 200_000), i) for i in range(10)])
    found = {
        future.result()
        for future in as_completed(client.map(lambda v: int(v[0]), values), loop=client.loop)
    }
    return [] if found == set(range(10)) else [f"scattered values are {found}"]


def fail_once(path: str) -> int:
    """Fail in the first of two runs."""
    target = Path(path)
    if not target.exists():
        target.touch()
        raise ValueError("the first run")
    return 1


def requests(client: Client, folder: Path, choice: random.Random) -> list[str]:
    """Send requests of many kinds, also with a new client."""
    name = uuid.uuid4().hex
    future = client.submit(lambda x: x + 1, 1, pure=False)
    future.result(timeout=60)
    client.replicate(future, n=2)
    client.set_metadata([name], 1)
    client.log_event(name, 1)
    failed = client.submit(fail_once, str(folder / name), pure=False)
    error = failed.exception(timeout=60)
    failed.retry()
    with Client(client.scheduler.address, set_as_default=False) as other:
        is_right = {
            "who_has": len(client.who_has([future])[future.key]) > 0,
            "metadata": other.get_metadata([name]) == 1,
            "events": [event for _, event in other.get_events(name)] == [1],
            "a gather": client.gather(future, direct=False) == 2,
            "a story": isinstance(client.story(future.key), list),  # empty if the logs are full
            "versions": "workers" in client.get_versions(),
            "a retry": isinstance(error, ValueError) and failed.result(timeout=60) == 1,
            "a new client": other.submit(abs, -1, pure=False).result(timeout=60) == 1,
        }
    return [f"{what} is wrong" for what, right in is_right.items() if not right]


WORKLOADS: dict[str, Workload] = {
    each.__name__: each
    for each in (
        futures,
        chain,
        arrays,
        dataframe,
        shuffle,
        locks,
        queues,
        coordination,
        scattered,
        requests,
    )
}


def describe(error: BaseException) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {str(error)[:200]!r}"


def run(
    name: str, address: str, folder: Path, seed: int, until: Callable[[], bool]
) -> dict[str, Any]:
    """Repeat a workload with a client of its own. Return the number of runs and the problems."""
    choice, problems, runs = random.Random(seed), [], 0
    with Client(address, set_as_default=False) as client:
        while until() and len(problems) < 5:
            runs += 1
            try:
                problems += [f"{name}: {each}" for each in WORKLOADS[name](client, folder, choice)]
            except Exception as error:
                problems.append(f"{name}: {describe(error)}")
    return {"runs": runs, "problems": problems}
