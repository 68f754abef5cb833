"""Programs on futures: submit, map, nesting, gathering, and libraries that use them.

They do not depend on the scheduler that serves them. Each returns a comparable result.
"""

from __future__ import annotations

import operator
import time

import dask.array as da
import numpy as np
from distributed import (
    Client,
    Future,
    as_completed,
    fire_and_forget,
    get_client,
    rejoin,
    secede,
    wait,
    worker_client,
)

TIMEOUT_SECONDS = 60


def double(x: int) -> int:
    return 2 * x


def submit_and_map(client: Client) -> object:
    one = client.submit(operator.add, 1, 2)
    many = client.map(double, range(100))
    pairs = client.map(operator.add, many, many)
    batched = client.map(double, range(50), batch_size=10)
    return one.result(), client.gather(many), client.gather(pairs), client.gather(batched)


def keywords_and_priorities(client: Client) -> object:
    base = client.submit(int, "7f", base=16, priority=5)
    scaled = client.map(
        lambda x, scale, offset=0: x * scale + offset, range(5), scale=base, offset=1
    )
    return base.result(), client.gather(scaled)


def as_completed_adds(client: Client) -> object:
    """Iterate over results as they complete, and submit more work meanwhile."""
    seen = []
    completed = as_completed(client.map(double, range(20)), with_results=True)
    for future, result in completed:
        seen.append(result)
        if result == 10:
            completed.add(client.submit(operator.add, future, 1000))
    return sorted(seen)


def as_completed_batches(client: Client) -> object:
    futures = client.map(double, range(100, 130))
    batches = as_completed(futures, with_results=True).batches()
    return sorted(result for batch in batches for _, result in batch)


def wait_for_first(client: Client) -> object:
    slow = client.submit(time.sleep, 3, pure=False)
    quick = client.submit(double, 4)
    done, pending = wait([slow, quick], return_when="FIRST_COMPLETED", timeout=TIMEOUT_SECONDS)
    outcome = (quick in done, slow in pending, [f.status for f in (quick, slow)])
    slow.cancel()
    return outcome, slow.status


def futures_as_arguments(client: Client) -> object:
    """Futures in positional and keyword arguments, and inside lists, tuples and dicts."""
    a, b, c = client.map(double, [1, 2, 3])

    def collect(*args: object, **kwargs: object) -> object:
        return list(args), dict(sorted(kwargs.items()))

    return client.submit(collect, a, [b, (c, {"deep": a})], named=c, listed=[a, b]).result()


def scattered(client: Client) -> object:
    """Scatter data from the client as list, dict and single value, also broadcast to all workers."""
    single = client.scatter(np.arange(1000))
    several = client.scatter([1, 2, 3], hash=False)
    named = client.scatter({"a": 10, "b": 20})
    everywhere = client.scatter({"weight": 5}, broadcast=True)["weight"]
    total = client.submit(np.sum, single)
    sums = client.map(operator.add, several, [everywhere] * 3)
    return total.result(), client.gather(sums), client.gather(named), sorted(named)


def with_worker_client(client: Client) -> object:
    """Submit tasks from tasks and wait for them, seceding from the worker's threads meanwhile."""

    def fibonacci(n: int) -> int:
        if n < 2:
            return n
        with worker_client() as inner:
            parts = [inner.submit(fibonacci, n - 1), inner.submit(fibonacci, n - 2)]
            return sum(inner.gather(parts))

    return client.submit(fibonacci, 7).result(timeout=TIMEOUT_SECONDS)


def with_get_client(client: Client) -> object:
    """Use dask.array and futures in tasks, on the cluster that runs them."""

    def inner_array(n: int) -> int:
        get_client()
        x = da.ones(n, chunks=n // 4)
        secede()
        total = int(x.sum().compute())
        rejoin()
        return total

    def submit_inside(x: int) -> list[int]:
        inner = get_client()
        futures: list[Future] = inner.map(double, range(x))
        secede()
        return inner.gather(futures)

    nested = client.submit(submit_inside, 21)
    array = client.submit(inner_array, 1000)
    return array.result(timeout=TIMEOUT_SECONDS), nested.result(timeout=TIMEOUT_SECONDS)


def forgotten_but_done(client: Client) -> object:
    """fire_and_forget tasks run although no client holds the future."""

    def publish(i: int) -> None:
        with worker_client() as inner:
            inner.set_metadata(["forgotten", str(i)], i * i)

    for i in range(5):
        fire_and_forget(client.submit(publish, i, pure=False))
    deadline = time.monotonic() + TIMEOUT_SECONDS
    seen: dict[str, int] = {}
    while len(seen) < 5 and time.monotonic() < deadline:
        seen = client.get_metadata(["forgotten"], {}) or {}
        time.sleep(0.05)
    return dict(sorted(seen.items()))


def persist_compute_gather(client: Client) -> object:
    """Persist a collection on the workers, read it in chunks and compute on it again."""
    x = da.arange(100_000, chunks=10_000).persist()
    wait(x)
    total = client.compute(x.sum())
    chunks = client.compute(list(x.to_delayed()))
    parts = []
    for start in range(0, len(chunks), 3):
        parts += [int(part.sum()) for part in client.gather(chunks[start : start + 3])]
    return int(total.result()), parts, int(x[::7].sum().compute())


def joblib_backend(client: Client) -> object:
    import joblib

    with joblib.parallel_config(backend="dask"):
        return joblib.Parallel()(joblib.delayed(pow)(i, 2) for i in range(40))


def concurrent_futures_interface(client: Client) -> object:
    from concurrent.futures import as_completed as completed_standard

    with client.get_executor(pure=False) as executor:
        mapped = list(executor.map(double, range(20)))
        submitted = [executor.submit(operator.add, i, 1) for i in range(10)]
        done = sorted(f.result() for f in completed_standard(submitted, timeout=TIMEOUT_SECONDS))
        failed = executor.submit(operator.truediv, 1, 0)
        error = failed.exception(timeout=TIMEOUT_SECONDS)
    return mapped, done, type(error).__name__, str(error)


def two_clients(client: Client) -> object:
    """Two clients hold the same key; it is kept until both have released it; each sees the other's data."""
    with Client(client.scheduler.address, set_as_default=False) as other:
        mine = client.submit(double, 123, key="shared-by-two")
        theirs = other.submit(double, 123, key="shared-by-two")
        values = [mine.result(), theirs.result()]
        del mine
        time.sleep(0.2)
        values.append(theirs.result())
        client.publish_dataset(together=client.submit(double, 7, key="published"))
        values.append(other.get_dataset("together").result())
        client.unpublish_dataset("together")
        return values, sorted(client.list_datasets())


def cancelled(client: Client) -> object:
    """Cancelling a future cancels its dependents, and the key may be submitted again."""
    slow = client.submit(time.sleep, 5, key="to-be-cancelled")
    after = client.submit(lambda nothing: 1, slow, key="depends-on-cancelled")
    client.cancel([slow])
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not after.cancelled() and time.monotonic() < deadline:
        time.sleep(0.01)
    states = [slow.status, after.status]
    del slow, after
    again = client.submit(double, 8, key="to-be-cancelled")
    return states, again.result()


def pinned_to_workers(client: Client) -> object:
    """Restrictions: by worker name and by address, strict and loose."""
    workers = client.scheduler_info()["workers"]
    names = sorted(str(w["name"]) for w in workers.values())

    def where() -> str:
        from distributed import get_worker

        return str(get_worker().name)

    strict = [client.submit(where, workers=[name], pure=False) for name in names]
    loose = client.submit(double, 9, workers=["127.0.0.9"], allow_other_workers=True, pure=False)
    return client.gather(strict) == names, loose.result()


def metadata_and_topics(client: Client) -> object:
    client.set_metadata(["runs", "first"], {"count": 3, "names": ["a", "b"]})
    client.log_event("integration", {"answer": 42})
    events = [event for _, event in client.get_events("integration")][-1:]
    return client.get_metadata(["runs", "first"]), events


def progress_bar(client: Client) -> object:
    """Stock's progress bar sends a function to the scheduler; it reports both success and failure."""
    import contextlib
    import io

    from distributed import progress

    shown = []
    for function in (double, chr):
        futures = client.map(function, range(-1, 20), pure=False)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            progress(futures, notebook=False)
        shown.append("100% Completed" in out.getvalue())
        wait(futures)
    return shown
