"""Programs that observe work: spans, computations, profiles, task streams, metadata, reports, samplers.

They do not depend on the scheduler that serves them. Results that depend on time are reduced to their shape.
"""

from __future__ import annotations

import operator
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
from dask import delayed
from distributed import Client, get_task_metadata, get_task_stream, performance_report, span, wait

TIMEOUT_SECONDS = 60
POLL_SECONDS = 0.05


def settled(client: Client, look: Any, good: Any) -> Any:
    """Return ``look(dask_scheduler)`` of the scheduler once ``good`` is true for it."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not good(found := client.run_on_scheduler(look)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return found


def spans_of_a_workflow(client: Client) -> object:
    """Return names, parents, sums and states of nested spans."""
    with span("wf") as wf_id:
        with span("load"):
            x = da.ones(40, chunks=10, dtype="int64") + 1
        with span("sum"):
            total = x.sum()
        future = client.compute(total)
    value = future.result()

    def look(dask_scheduler: Any) -> Any:
        root = dask_scheduler.extensions["spans"].spans[wf_id]
        return {
            "names": sorted(each.name for each in root.traverse_spans()),
            "parents": sorted(each.parent is not None for each in root.traverse_spans()),
            "tasks": sum(root.states.values()),
            "nbytes": root.nbytes_total,
            "actions": sorted(root.all_durations),
            "done": root.done,
            "times": 0 < root.enqueued <= root.start <= root.stop,
            "id": root.annotation["ids"] == (wf_id,),
        }

    return value, settled(client, look, lambda found: found["done"])


def fine_performance_metrics(client: Client) -> object:
    """Return what workers measured while tasks of a span ran, once heartbeats have delivered it."""
    with span("measured") as span_id:
        client.submit(time.sleep, 0.05, key="sleep-1", pure=False).result()

    def look(dask_scheduler: Any) -> Any:
        measured = dask_scheduler.extensions["spans"].spans[span_id]
        metrics = measured.cumulative_worker_metrics
        everywhere = dask_scheduler.cumulative_worker_metrics
        mine = [name for name in metrics if name[2] != "idle or other spans"]
        return {
            "names": sorted(name for name in metrics if name[0] == "execute"),
            "asleep": metrics.get(("execute", "sleep", "thread-noncpu", "seconds"), 0) > 0.04,
            "in all": all(everywhere.get(name, 0) >= metrics[name] - 1e-9 for name in mine),
            "threads": sum(n for _, _, n in measured.nthreads_intervals) > 0,
        }

    return settled(client, look, lambda found: found["asleep"])


def the_default_span_is_not_told_of(client: Client) -> object:
    """Tasks see the span in which they were submitted; tasks outside a span see none."""
    with span("outer", "inner") as inner:
        there = client.submit(dask.get_annotations, key="there").result()
    elsewhere = client.submit(dask.get_annotations, key="elsewhere").result()
    return there["span"]["name"], there["span"]["ids"][-1] == inner, elsewhere


def computations_of_two_graphs(client: Client) -> object:
    """Return the last computations: groups, states and ends. Workers' clocks are corrected by an estimate that can be off by seconds."""
    for key in ("lonely-a", "lonely-b"):
        client.submit(operator.add, 1, 2, key=key, pure=False).result()

    def look(dask_scheduler: Any) -> Any:
        return [
            (
                sorted(group.name for group in each.groups),
                each.stop > each.start - 5,
                list(each.code),
            )
            for each in list(dask_scheduler.computations)[-2:]
        ]

    return client.run_on_scheduler(look)


def groups_and_prefixes(client: Client) -> object:
    """Return the attributes of groups and prefixes while their tasks exist."""
    # tasks of earlier clients may not be forgotten yet
    earlier = client.run_on_scheduler(lambda dask_scheduler: set(dask_scheduler.task_groups))
    futures = client.map(operator.neg, range(10), key=[f"neg-{i}" for i in range(10)])
    doubled = delayed(sum)([da.ones(20, chunks=5).sum() for _ in range(2)]).persist()
    wait([*futures, doubled])

    def look(dask_scheduler: Any) -> Any:
        prefix = dask_scheduler.task_prefixes["neg"]
        return {
            "states": {k: v for k, v in prefix.states.items() if v},
            "types": sorted(prefix.types),
            "groups": len(prefix.groups),
            "nbytes": prefix.nbytes_total > 0,
            "durations": sorted(prefix.all_durations),
            "average": prefix.duration_average >= 0,
            "lengths": sorted(
                len(group)
                for name, group in dask_scheduler.task_groups.items()
                if name not in earlier
            ),
        }

    return client.run_on_scheduler(look)


def task_stream_of_a_block(client: Client) -> object:
    """Return the records of the tasks that finished in a block."""
    with get_task_stream(client=client) as stream:
        client.gather(client.map(operator.add, range(5), range(5), pure=False))
    (first, *_) = stream.data
    return len(stream.data), sorted(first), sorted(first["startstops"][0]), first["status"]


def metadata_of_a_block(client: Client) -> object:
    """Return the tasks of a block that have metadata, and their final states."""
    with get_task_metadata() as tasks:
        good = client.submit(operator.add, 1, 2, key="good", pure=False)
        bad = client.submit(operator.truediv, 1, 0, key="bad", pure=False)
        wait([good, bad])
    # the order in which they end is a race
    return sorted(tasks.metadata), sorted(tasks.state.items())


def profiles(client: Client) -> object:
    """Return the shape of workers' profiles, merged and separate; the profile of tasks contains their function."""
    client.gather(client.map(time.sleep, [0.2] * 4, pure=False))
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (merged := client.profile())["count"] and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    each = client.profile(merge_workers=False)
    nothing = client.profile(key="no-such-prefix")
    server = client.profile(server=True)
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
    return (
        sorted(merged),
        merged["identifier"],
        merged["count"] > 0,
        sorted(each) == addresses,
        {address in addresses for address in each},
        nothing,
        sorted(server),
        sorted(client.profile(scheduler=True)),
    )


def profile_metadata(client: Client) -> object:
    """Return the number of samples over time, as dashboards request it."""
    client.gather(client.map(time.sleep, [0.2] * 4, pure=False))

    async def look(dask_scheduler: Any) -> Any:
        found = await dask_scheduler.get_profile_metadata(profile_cycle_interval="1s")
        return found

    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not any((found := client.run_on_scheduler(look))["keys"].values()):
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)
    return (  # stock's times are not always in order: it merges counts of workers by their own clocks
        sorted(found),
        all(isinstance(n, int) for _, n in found["counts"]),
        {len(pair) for column in found["keys"].values() for pair in column},
    )


def a_performance_report(client: Client) -> object:
    """Write a performance report; return its tabs, and the text of the first one."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        with performance_report(filename=str(file), mode="inline"):
            da.ones((40, 40), chunks=(10, 10)).sum().compute()
        page = file.read_text()
    titles = re.findall(
        r'"title":"([^"]*\([^"]*\)|Summary|Task Stream|System|Scheduler Logs)"', page
    )
    tasks = re.search(r"number of tasks: (\d+)", page)
    return (
        sorted(set(titles)),
        tasks is not None and int(tasks[1]) >= 16,
        "compute time" in page,
        "da.ones((40, 40)" in page,
        f"Workers: {len(client.scheduler_info(n_workers=-1)['workers'])}" in page,
        "Dask Performance Report" in page,
    )


def a_memory_sampler(client: Client) -> object:
    """Sample the cluster's memory over a block."""
    from distributed.diagnostics import MemorySampler

    sampler = MemorySampler()
    with sampler.sample("block", client=client, interval=0.05):
        client.submit(time.sleep, 0.3, pure=False).result()
    frame = sampler.to_pandas()
    return list(frame.columns), bool(len(frame) > 2), bool((frame["block"].dropna() > 0).all())
