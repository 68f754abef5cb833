"""Graphs and keys that cause failures: real processes, and the stock scheduler for comparison.

The tests do not depend on how paceline is built; a compiler process is found as a child of the scheduler process.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_cluster import Cluster, scheduler_command

pytestmark = pytest.mark.slow

#: Timeout after which an operation counts as unanswered.
ANSWER_SECONDS = 3.0

KEYS: dict[str, Any] = {
    "empty tuple": (),
    "starts with an empty tuple": ((), 1),
    "nested empty tuples": (((),),),
    "ends with an empty tuple": ("x", ()),
    "empty text": "",
    "starts with an empty text": ("", 1),
    "only brackets": "<>",
    "one bracket": "(",
    "NUL": "a\0b",
    "bytes": b"ab",
    "bytes that are no text": b"\xff",
    "starts with bytes that are no text": (b"\xff", 1),
    "None": None,
    "contains None": ("x", None),
    "True": True,
    "contains True": ("x", True),
    "integer": 7,
    "negative integer": -(2**63),
    "huge integer": 2**70,
    "contains a huge integer": ("x", 2**70),
    "float": 1.5,
    "infinity": float("inf"),
    "NaN": float("nan"),
    "starts with a number": (1, "x"),
    "nested": (("x", 1), 2),
    "surrogate": "a\udc80",
    "contains a surrogate": ("a\udc80", 1),
    "contains a list": ("x", (1, (2,))),
    "long": "k" * 60_000,
}


def compute(client: Any, key: Any) -> Any:
    from dask._task_spec import Task

    return client.get({key: Task(key, operator.neg, 1)}, key, sync=False).result(
        timeout=ANSWER_SECONDS
    )


def submit(client: Any, key: Any) -> Any:
    return client.submit(operator.neg, 2, key=key).result(timeout=ANSWER_SECONDS)


def scatter(client: Any, key: Any) -> Any:
    future = client.scatter({key: 5}, timeout=ANSWER_SECONDS)[key]
    return future.result(timeout=ANSWER_SECONDS)


def cancel(client: Any, key: Any) -> Any:
    from distributed import Future

    client.cancel([Future(key, client)])


def who_has(client: Any, key: Any) -> Any:
    return client.sync(client.scheduler.who_has, keys=[key])


def task_status(client: Any, key: Any) -> Any:
    return client.sync(client.scheduler.get_task_status, keys=[key])


def story(client: Any, key: Any) -> Any:
    client.sync(client.scheduler.story, keys_or_stimuli=[key])


def metadata(client: Any, key: Any) -> Any:
    client.sync(client.scheduler.set_metadata, keys=["here", key], value=3)
    return client.get_metadata(["here", key])


def publish(client: Any, key: Any) -> Any:
    client.sync(client._publish_dataset, 1, name=key, override=True)
    return client.sync(client._get_dataset, key)


def variable(client: Any, key: Any) -> Any:
    from distributed import Variable

    value = Variable(name=key, client=client)
    value.set(4)
    return value.get(timeout=ANSWER_SECONDS)


def queue(client: Any, key: Any) -> Any:
    from distributed import Queue

    value = Queue(name=key, client=client)
    value.put(4, timeout=ANSWER_SECONDS)
    return value.get(timeout=ANSWER_SECONDS)


def event(client: Any, key: Any) -> Any:
    from distributed import Event

    value = Event(name=key, client=client)
    value.set()
    return value.wait(timeout=ANSWER_SECONDS)


OPERATIONS: tuple[Callable[[Any, Any], Any], ...] = (
    *(compute, submit, scatter, cancel, who_has, task_status, story),
    *(metadata, publish, variable, queue, event),
)


def outcome(client: Any, operation: Callable[[Any, Any], Any], key: Any) -> str:
    """Return what a program sees: "ok" with the value, or the type of the error; "TimeoutError" without an answer."""
    found = ["TimeoutError"]

    def run() -> None:
        try:
            found[0] = f"ok {operation(client, key)!r}"
        except BaseException as error:
            found[0] = type(error).__name__

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(3 * ANSWER_SECONDS)
    text = found[0]
    # addresses of workers differ between clusters
    return "ok (a worker)" if "tcp://" in text else text[:80]


@contextlib.contextmanager
def connected(cluster: Cluster) -> Iterator[Callable[[], Any]]:
    """Return a function that returns a client, and replaces it if its last message broke it."""
    from distributed import Client

    clients: list[Any] = []

    def current() -> Any:
        if not clients or clients[-1].status != "running":
            clients.append(Client(cluster.address, timeout=60))
        return clients[-1]

    yield current
    for client in clients:
        with contextlib.suppress(Exception):
            client.close(timeout=5)


def n_workers(client: Any) -> int:
    return len(client.sync(client.scheduler.identity)["workers"])


def released(client: Any, key: Any) -> None:
    """Wait until the scheduler has forgotten `key`, so that operations do not affect each other."""
    deadline = time.monotonic() + ANSWER_SECONDS
    with contextlib.suppress(Exception):  # no message can carry some of these keys
        while task_status(client, key) != {key: None} and time.monotonic() < deadline:
            time.sleep(0.01)


def outcomes(kind: str, folder: Path) -> tuple[dict[tuple[str, str], str], list[tuple[str, str]]]:
    """Return (key, operation) -> outcome, and the cases after which a worker was missing."""
    found: dict[tuple[str, str], str] = {}
    lost: list[tuple[str, str]] = []
    with (
        Cluster(scheduler_command(kind), folder, nannies=(True, True), nthreads=1) as cluster,
        connected(cluster) as current,
    ):
        for name, key in KEYS.items():
            for operation in OPERATIONS:
                case = name, operation.__name__
                found[case] = outcome(current(), operation, key)
                released(current(), key)
                if n_workers(current()) < 2:
                    lost.append(case)
                    current().wait_for_workers(2, timeout=60)
    return found, lost


@pytest.mark.timeout(900)
def test_unusual_keys_have_the_outcome_of_stock(tmp_path: Path) -> None:
    found, lost = outcomes("paceline", tmp_path / "paceline")
    expected, _ = outcomes("stock", tmp_path / "stock")
    assert lost == [], "no key removes a worker"
    different = {
        case: (found[case], expected[case]) for case in found if found[case] != expected[case]
    }
    assert different == {
        # paceline refuses what is no key (None) or cannot be found again (NaN), as for tasks
        ("None", "scatter"): ("TypeError", "ok 5"),
        ("contains None", "scatter"): ("TypeError", "ok 5"),
        ("contains None", "publish"): ("TypeError", "ok 1"),
        ("contains None", "variable"): ("TypeError", "ok 4"),
        ("contains None", "queue"): ("TypeError", "ok 4"),
        ("contains None", "event"): ("TypeError", "ok True"),
        ("NaN", "scatter"): ("TypeError", "TimeoutError"),
        ("NaN", "publish"): ("ValueError", "KeyError"),
        ("NaN", "variable"): ("ValueError", "TimeoutError"),
        ("NaN", "queue"): ("ValueError", "KeyError"),
        ("NaN", "event"): ("ValueError", "ok False"),
        # the stock scheduler sends these to workers, which end; its client gets a plain Exception
        ("empty tuple", "scatter"): ("IndexError", "Exception"),
        ("starts with an empty tuple", "scatter"): ("IndexError", "Exception"),
        ("nested empty tuples", "scatter"): ("IndexError", "Exception"),
        ("bytes that are no text", "scatter"): ("UnicodeDecodeError", "Exception"),
        ("starts with bytes that are no text", "scatter"): ("UnicodeDecodeError", "Exception"),
    }


class Endless:
    """An argument that never finishes unpickling."""

    def __reduce__(self) -> Any:
        return exec, ("import time; time.sleep(10000)",)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("gives_up", ["release", "cancel"])
def test_endless_graphs_of_one_client_do_not_block_others(tmp_path: Path, gives_up: str) -> None:
    """The client itself is not blocked either, once it has released or cancelled the graphs."""
    with (
        Cluster(scheduler_command("paceline"), tmp_path, nannies=(False,)) as cluster,
        cluster.client() as bad,
        cluster.client() as good,
    ):
        futures = [bad.submit(operator.neg, Endless(), key=f"endless-{i}") for i in range(6)]
        assert good.gather(good.map(operator.neg, range(20))) == [-i for i in range(20)]
        assert {future.status for future in futures} == {"pending"}
        if gives_up == "cancel":
            bad.cancel(futures)
        else:
            del futures
            # the client releases keys in a callback of its loop; a graph that is sent before may use them
            bad.sync(asyncio.sleep, 0)
        assert bad.submit(operator.neg, 7).result(timeout=60) == -7


@pytest.mark.timeout(300)
def test_killed_compiler_loses_no_graph(tmp_path: Path) -> None:
    import psutil

    with (
        Cluster(scheduler_command("paceline"), tmp_path, nannies=(False,)) as cluster,
        cluster.client() as client,
    ):
        (scheduler,) = [p for p in cluster.processes if p.name == "scheduler"]
        tried = tmp_path / "tried"
        future = client.submit(operator.neg, SlowAtFirst(str(tried)), key="slow")
        deadline = time.monotonic() + 60
        while not tried.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        psutil.Process(int(tried.read_text())).kill()
        assert future.result(timeout=60) == -3
        assert psutil.Process(scheduler.pid).is_running()


class SlowAtFirst:
    """An argument that does not finish unpickling the first time, and is 3 from then on."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        code = (
            "(lambda os, time, path: 3 if os.path.exists(path) else"
            " (open(path + '.part', 'w').write(str(os.getpid())),"
            " os.rename(path + '.part', path), time.sleep(1000)))"
            f"(__import__('os'), __import__('time'), {self.path!r})"
        )
        return eval, (code,)
