"""Programs with failures: tasks that raise, workers that die.

They do not depend on the scheduler that serves them. Those below NANNIES kill worker processes, which nannies restart.
"""

from __future__ import annotations

import operator
import os
import signal
import time
import traceback

from dask import delayed
from distributed import Client, KilledWorker, wait

from tests.support.real_cluster import wait_for_nannies

NANNIES = ("worker_killed_in_the_middle", "only_copy_lost", "task_that_kills_its_worker")
TIMEOUT_SECONDS = 90


def outer(x: int) -> float:
    return inner(x)


def inner(x: int) -> float:
    if x == 3:
        raise ValueError(f"three is not allowed: {x}", x)
    return 1 / (x - 5)


def described(error: BaseException | None, frames: object = None) -> tuple[str, str, list[str]]:
    """Return the comparable parts of an exception: type, message, functions of the user in its traceback."""
    stack = frames if frames is not None else getattr(error, "__traceback__", None)
    names = [frame.name for frame in traceback.extract_tb(stack)]
    return type(error).__name__, str(error), [name for name in names if name in ("outer", "inner")]


def task_that_raises(client: Client) -> object:
    """Every way to get the exception of a task returns the whole exception."""
    outcomes = []
    for value in (3, 5):
        future = client.submit(outer, value, pure=False)
        wait(future)
        outcomes.append((future.status, described(future.exception(), future.traceback())))
        try:
            future.result()
        except (ValueError, ZeroDivisionError) as exc:
            outcomes.append(("result", described(exc)))
    return outcomes


def error_of_a_dependency(client: Client) -> object:
    """An error propagates to dependents, and `gather` and `compute` raise it."""
    bad = client.submit(outer, 3, key="bad-root")
    good = client.submit(operator.add, 1, 1)
    below = client.submit(operator.add, bad, good)
    further = client.submit(operator.add, below, 1)
    wait(further)
    outcomes = [(f.status, described(f.exception())) for f in (bad, below, further)]
    outcomes.append(client.gather([good, further], errors="skip"))
    for attempt in (
        lambda: client.gather([good, further]),
        lambda: delayed(outer)(3).compute(),
        lambda: client.compute(delayed(operator.add)(delayed(outer)(5), 1)).result(),
    ):
        try:
            attempt()
        except (ValueError, ZeroDivisionError) as exc:
            outcomes.append(described(exc))
    return outcomes


def exception_of_a_local_class(client: Client) -> object:
    class Peculiar(Exception):
        def __init__(self, code: int, *, detail: str) -> None:
            super().__init__(code)
            self.detail = detail

        def __reduce__(self) -> object:
            return _peculiar, (self.args[0], self.detail)

    def _peculiar(code: int, detail: str) -> Peculiar:
        return Peculiar(code, detail=detail)

    def fail() -> None:
        raise Peculiar(7, detail="words")

    error = client.submit(fail).exception()
    return type(error).__name__, error.args, error.detail


def cause_is_kept(client: Client) -> object:
    def fail() -> None:
        try:
            {}["missing"]
        except KeyError as exc:
            raise RuntimeError("while looking") from exc

    error = client.submit(fail).exception()
    return type(error).__name__, str(error), repr(error.__cause__)


def result_that_cannot_be_pickled(client: Client) -> object:
    def make() -> object:
        import threading

        return threading.Lock()

    future = client.submit(make, pure=False)
    try:
        future.result()
    except TypeError as exc:
        return type(exc).__name__, "pickle" in str(exc)
    return "no error"


def retries_then_succeeds(client: Client) -> object:
    """A task that fails twice is run again, and `Client.retry` runs one that has failed for good."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:

        def flaky(folder: str, name: str, failures: int) -> int:
            path = os.path.join(folder, name)
            with open(path, "a") as file:
                file.write("x")
            attempts = os.path.getsize(path)
            if attempts <= failures:
                raise OSError(f"attempt {attempts}")
            return attempts

        healed = client.submit(flaky, folder, "healed", 2, retries=2, pure=False)
        failed = client.submit(flaky, folder, "failed", 2, retries=1, pure=False)
        wait([healed, failed])
        before = (healed.status, failed.status, described(failed.exception()))
        failed.retry()
        return before, healed.result(), failed.result()


def key_that_cannot_unpickle(client: Client) -> object:
    """A value that raises on unpickling fails only its own task."""

    class Hostile:
        def __reduce__(self) -> object:
            return operator.truediv, (1, 0)

    future = client.submit(type, Hostile(), pure=False)
    error = future.exception(timeout=TIMEOUT_SECONDS)
    return type(error).__name__, client.submit(operator.add, 1, 2).result()


# --- below: under nannies, which must first report the workers that an earlier program left


def worker_killed_in_the_middle(client: Client) -> object:
    """One worker is killed while a graph is half done; the result is right all the same."""

    def slow(i: int) -> int:
        time.sleep(0.03)
        return i

    wait_for_nannies(client, 2)
    values = client.map(slow, range(60), pure=False)
    sums = client.map(operator.add, values[::2], values[1::2], pure=False)
    total = client.submit(sum, sums)
    while sum(f.done() for f in values) < 15:
        time.sleep(0.01)
    pids = client.run(os.getpid)
    os.kill(next(iter(pids.values())), signal.SIGKILL)
    outcome = total.result(timeout=TIMEOUT_SECONDS)
    wait_for_nannies(client, 2)
    return outcome


def only_copy_lost(client: Client) -> object:
    """Results held only by a dead worker are computed again; scattered data is lost, and reported as lost."""
    wait_for_nannies(client, 2)
    pids = client.run(os.getpid)
    address, pid = next(iter(pids.items()))
    kept = client.submit(operator.add, 20, 22, workers=[address], allow_other_workers=True)
    scattered = client.scatter({"only-here": 5}, workers=[address])["only-here"]
    wait(kept)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while scattered.status == "finished" and time.monotonic() < deadline:
        time.sleep(0.05)
    result = client.submit(operator.add, kept, 1).result(timeout=TIMEOUT_SECONDS)
    wait_for_nannies(client, 2)
    return result, scattered.status


def task_that_kills_its_worker(client: Client) -> object:
    """A task that repeatedly kills its process fails with KilledWorker; other tasks continue."""
    wait_for_nannies(client, 2)

    def suicide(x: int) -> None:
        os._exit(11)

    future = client.submit(suicide, 1, key="suicide")
    dependent = client.submit(operator.add, future, 1, key="after-suicide")
    wait(dependent, timeout=TIMEOUT_SECONDS)
    error = future.exception()
    healthy = client.submit(operator.add, 1, 1, pure=False).result(timeout=TIMEOUT_SECONDS)
    wait_for_nannies(client, 2)
    kind = isinstance(error, KilledWorker)
    return kind, error.task, future.status, dependent.status, healthy
