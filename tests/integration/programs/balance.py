"""Work that lies on one worker while the other has nothing to do: who gets it, with stealing switched on and off."""

from __future__ import annotations

import time

from distributed import Client, get_worker

#: Tasks that are given to one worker; each takes so long (seconds).
N_TASKS = 16
SECONDS = 0.1


def where(i: int, *data: object) -> tuple[int, str]:
    """Takes its time. Its number, and the worker it ran on."""
    time.sleep(SECONDS * (3 if i % 5 == 0 else 1))
    return i, get_worker().address


def switch(interval_ms: float | None, dask_scheduler: object = None) -> bool:
    """Look at the balance so often; None: not at all. Returns whether it is looked at."""
    callback = dask_scheduler.periodic_callbacks["stealing"]
    callback.stop()
    if interval_ms is not None:
        callback.callback_time = interval_ms
        callback.start()
    return callback.is_running()


def stolen(dask_scheduler: object = None) -> list[object]:
    """Kinds of events of stealing, and the shapes of their parts."""
    events = dask_scheduler.get_events("stealing")
    return sorted({(event[0], len(event)) for _, event in events if event[0] == "confirm"})


def on_one(client: Client, *data: object) -> tuple[list[int], int]:
    """Results of skewed tasks that prefer one worker, and how many workers they ran on."""
    preferred = sorted(client.scheduler_info()["workers"])[0]
    futures = client.map(
        where, range(N_TASKS), *([each] * N_TASKS for each in data),
        workers=[preferred], allow_other_workers=True, pure=False,
    )  # fmt: skip
    results = client.gather(futures)
    return [i for i, _ in results], len({worker for _, worker in results})


def switched(client: Client) -> list[object]:
    """Off, nobody takes work from others; on, they do."""
    out: list[object] = [client.run_on_scheduler(switch, None)]
    out += on_one(client)
    out.append(client.run_on_scheduler(switch, 50))
    out += on_one(client)
    out.append(client.run_on_scheduler(switch, 1000))
    out.append(client.run_on_scheduler(stolen))
    out.append(all(isinstance(event, tuple) for _, event in client.get_events("stealing")))
    return out


def with_data(client: Client) -> list[object]:
    """Small data that lies with the preferred worker goes where the tasks go."""
    preferred = sorted(client.scheduler_info()["workers"])[0]
    data = client.scatter(bytes(1000), workers=[preferred])
    client.run_on_scheduler(switch, 50)
    out: list[object] = list(on_one(client, data))
    out.append(client.run_on_scheduler(switch, 1000))
    return out


def restricted(client: Client) -> int:
    """What may run on one worker only stays there."""
    preferred = sorted(client.scheduler_info()["workers"])[0]
    client.run_on_scheduler(switch, 50)
    futures = client.map(where, range(8), workers=[preferred], pure=False)
    count = len({worker for _, worker in client.gather(futures)})
    client.run_on_scheduler(switch, 1000)
    return count
