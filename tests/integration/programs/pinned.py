"""Tasks that are pinned to workers: all at once, as training libraries need them, and by resources."""

from __future__ import annotations

import time
from typing import Any

from distributed import Client, Future, get_worker, wait

#: On stock a waiting task is not rescheduled when a worker adds the resource.
EXPECTED = {
    "resources_at_run_time": [
        "no-worker",
        "no-worker",
        True,
        [0, 1, 2, 3, 4, 5],
        True,
        "no-worker",
    ],
}
#: Timeout for tasks that wait for each other, seconds.
MEETING_SECONDS = 20


def meet(name: str, n: int, rank: int) -> tuple[int, list[int]]:
    """Return once all ``n`` tasks have arrived, which requires that all of them run at the same time."""
    from distributed import Queue, get_client

    client = get_client()
    done = Queue(f"{name}-done-{rank}", client=client)
    Queue(f"{name}-arrived", client=client).put(rank)
    return rank, done.get(timeout=MEETING_SECONDS)


def usher(client: Client, name: str, n: int) -> None:
    """Send the list of ranks to all tasks of a meeting once all have arrived."""
    from distributed import Queue

    arrived = Queue(f"{name}-arrived", client=client)
    ranks = sorted(arrived.get(timeout=MEETING_SECONDS) for _ in range(n))
    for rank in ranks:
        Queue(f"{name}-done-{rank}", client=client).put(ranks)


def addresses(of: Client) -> list[str]:
    return sorted(of.scheduler_info()["workers"])


def one_on_each_worker(client: Client) -> list[Any]:
    """Train as LightGBM and XGBoost do: one task pinned to each worker that has a part of the data, all at the same time."""
    workers = addresses(client)
    parts = [client.submit(range, 10 + i, workers=[w]) for i, w in enumerate(workers)]
    wait(parts)
    holders = {key: list(who) for key, who in client.who_has(parts).items()}
    assert len(holders) == len(workers)
    training = [
        client.submit(
            meet, "train", len(workers), rank,
            workers=[worker], allow_other_workers=False, pure=False,
        )
        for rank, worker in enumerate(workers)
    ]  # fmt: skip
    usher(client, "train", len(workers))
    return client.gather(training)


def one_on_each_busy_worker(client: Client) -> list[Any]:
    """Train while each worker has more tasks than it can run: pinned tasks are not stolen and do not starve."""
    workers = addresses(client)
    noise = client.map(lambda i: time.sleep(0.02) or i, range(60), pure=False)
    training = [
        client.submit(meet, "busy", len(workers), rank, workers=[worker], pure=False, priority=10)
        for rank, worker in enumerate(workers)
    ]
    usher(client, "busy", len(workers))
    return [client.gather(training), client.gather(noise)]


async def set_resource(amount: float, dask_worker: Any = None) -> None:
    """Set the amount of a resource of the worker."""
    await dask_worker.set_resources(GPU=amount)


def state_of(key: str, dask_scheduler: Any = None) -> str:
    ts = dask_scheduler.tasks.get(key)  # its graph may not have arrived yet
    return "unknown" if ts is None else str(ts.state)


def until_state(client: Client, future: Future, state: str) -> str:
    """Return the state of a task once it has the expected state."""
    for _ in range(200):
        found = client.run_on_scheduler(state_of, future.key)
        if found == state:
            return found
        time.sleep(0.02)
    return found


def resources_at_run_time(client: Client) -> list[Any]:
    """A task waits for a resource that no worker has, until a worker adds it."""
    worker = addresses(client)[0]
    future = client.submit(lambda: get_worker().address, resources={"GPU": 2}, pure=False)
    out = [until_state(client, future, "no-worker")]
    client.run(set_resource, 1, workers=[worker])
    out.append(until_state(client, future, "no-worker"))
    client.run(set_resource, 2, workers=[worker])
    out.append(future.result(timeout=MEETING_SECONDS) == worker)
    many = client.map(
        lambda i: (i, get_worker().address), range(6), resources={"GPU": 1}, pure=False
    )
    found = client.gather(many)
    out += [[i for i, _ in found], {address for _, address in found} == {worker}]
    client.run(set_resource, 0, workers=[worker])
    late = client.submit(abs, -1, resources={"GPU": 1}, pure=False)
    out.append(until_state(client, late, "no-worker"))
    late.cancel()
    return out


def restrict(keys: list[str], worker: str, dask_scheduler: Any = None) -> None:
    dask_scheduler.set_restrictions({key: [worker] for key in keys})


def restrictions_at_run_time(client: Client) -> list[Any]:
    """A task that is restricted to a missing worker runs elsewhere once the restriction is removed."""
    first, second = addresses(client)
    nowhere = client.submit(lambda: get_worker().address, workers=["127.0.0.1:1"], pure=False)
    out = [until_state(client, nowhere, "no-worker")]
    client.run_on_scheduler(restrict, [nowhere.key], second)
    other = client.submit(lambda: get_worker().address, workers=[first], pure=False)
    out += [other.result() == first]
    return out
