"""Tasks that prefer one worker while the other is idle: which worker runs them, with stealing switched on and off."""

from __future__ import annotations

import time

from distributed import Client, get_worker

#: Number of tasks that prefer one worker, and the duration of each (seconds).
N_TASKS = 16
SECONDS = 0.1


def where(i: int, *data: object) -> tuple[int, str]:
    """Sleep, then return the number and the worker's address."""
    time.sleep(SECONDS * (3 if i % 5 == 0 else 1))
    return i, get_worker().address


def switch(interval_ms: float | None, dask_scheduler: object = None) -> bool:
    """Set the interval of stealing, or stop it if None. Return whether stealing is enabled."""
    callback = dask_scheduler.periodic_callbacks["stealing"]
    callback.stop()
    if interval_ms is not None:
        callback.callback_time = interval_ms
        callback.start()
    return callback.is_running()


def stolen(dask_scheduler: object = None) -> list[object]:
    """Return the kinds of stealing events, and their number of parts."""
    events = dask_scheduler.get_events("stealing")
    return sorted({(event[0], len(event)) for _, event in events if event[0] == "confirm"})


def on_one(client: Client, *data: object) -> tuple[list[int], int]:
    """Return the results of skewed tasks that prefer one worker, and the number of workers they ran on."""
    preferred = sorted(client.scheduler_info()["workers"])[0]
    futures = client.map(
        where, range(N_TASKS), *([each] * N_TASKS for each in data),
        workers=[preferred], allow_other_workers=True, pure=False,
    )  # fmt: skip
    results = client.gather(futures)
    return [i for i, _ in results], len({worker for _, worker in results})


def switched(client: Client) -> list[object]:
    """Run tasks with stealing off, where one worker runs all, and on, where both do."""
    out: list[object] = [client.run_on_scheduler(switch, None)]
    out += on_one(client)
    out.append(client.run_on_scheduler(switch, 50))
    out += on_one(client)
    out.append(client.run_on_scheduler(switch, 1000))
    out.append(client.run_on_scheduler(stolen))
    out.append(all(isinstance(event, tuple) for _, event in client.get_events("stealing")))
    return out


def with_data(client: Client) -> list[object]:
    """Small data on the preferred worker follows the stolen tasks."""
    preferred = sorted(client.scheduler_info()["workers"])[0]
    data = client.scatter(bytes(1000), workers=[preferred])
    client.run_on_scheduler(switch, 50)
    out: list[object] = list(on_one(client, data))
    out.append(client.run_on_scheduler(switch, 1000))
    return out


def restricted(client: Client) -> int:
    """Tasks that may run on one worker only are not stolen."""
    preferred = sorted(client.scheduler_info()["workers"])[0]
    client.run_on_scheduler(switch, 50)
    futures = client.map(where, range(8), workers=[preferred], pure=False)
    count = len({worker for _, worker in client.gather(futures)})
    client.run_on_scheduler(switch, 1000)
    return count
