"""Programs that register plugins with the scheduler, workers and nannies, including plugins that fail.

They do not depend on the scheduler that serves them. Each returns a comparable result.
"""

from __future__ import annotations

import operator
from typing import Any

from distributed import Client, NannyPlugin, SchedulerPlugin, WorkerPlugin, wait

from .client_requests import kind
from .coordination import LONG_SECONDS, unique, until


class Recorder(SchedulerPlugin):
    """Record every call of a hook, with the names of its arguments."""

    def __init__(self, name: str, mark: str) -> None:
        self.name = name
        self.mark = mark
        self.seen: list[Any] = []

    async def start(self, scheduler: Any) -> None:
        self.seen.append(("start", hasattr(scheduler, "tasks")))

    def update_graph(self, scheduler: Any, **arguments: Any) -> None:
        mine = [str(key) for key in arguments["tasks"] if self.mark in str(key)]
        if mine:
            names = sorted(set(arguments) - {"span_metadata"})
            wanted = sorted(str(k).replace(self.mark, "") for k in arguments["keys"])
            annotations = {
                name: sorted(set(map(str, values.values())))
                for name, values in arguments["annotations"].items()
            }
            self.seen.append(("update_graph", names, len(mine), wanted, annotations))
            self.seen.append(("priority", sorted({len(p) for p in arguments["priority"].values()})))

    def transition(self, key: Any, start: str, finish: str, *args: Any, **arguments: Any) -> None:
        if self.mark in str(key):
            self.seen.append(
                (str(key).replace(self.mark, ""), start, finish, "stimulus_id" in arguments)
            )

    def log_event(self, topic: str, msg: Any) -> None:
        if topic == self.mark:
            self.seen.append(("log_event", msg))

    def add_client(self, scheduler: Any, client: str) -> None:
        self.seen.append(("add_client", client in scheduler.clients))

    def remove_client(self, scheduler: Any, client: str) -> None:
        self.seen.append(("remove_client",))


def seen_by(name: str, dask_scheduler: Any = None) -> list[Any]:
    return list(dask_scheduler.plugins[name].seen)


def every_hook_is_called(client: Client) -> object:
    """Return the hooks of a scheduler plugin that ran for a chain of tasks, an erred one, an event and a second client."""
    name, mark = unique("recorder"), unique("mark")
    client.register_plugin(Recorder(name, mark), name=name)
    import dask

    with dask.annotate(priority=3, note="mine"):
        first = client.submit(operator.add, 1, 2, key="first" + mark)
    second = client.submit(operator.add, first, 2, key="second" + mark)
    erred = client.submit(operator.truediv, second, 0, key="third" + mark)
    wait([second, erred])
    client.log_event(mark, {"a": 1})
    with Client(client.scheduler.address, set_as_default=False) as other:
        other.submit(operator.add, 5, 5, key="other" + mark).result(timeout=LONG_SECONDS)
    until(lambda: ("remove_client",) in client.run_on_scheduler(seen_by, name))
    del first, second, erred
    until(lambda: sum(e[2] == "forgotten" for e in tasks_only(client, name)) == 4)
    seen = client.run_on_scheduler(seen_by, name)
    client.unregister_scheduler_plugin(name)
    by_key = {
        word: [e[1:] for e in seen if e[0] == word]
        for word in ("first", "second", "third", "other")
    }
    rest = [e for e in seen if e[0] not in by_key]
    return by_key, rest, kind(lambda: client.run_on_scheduler(seen_by, name))


def tasks_only(client: Client, name: str) -> list[Any]:
    return [e for e in client.run_on_scheduler(seen_by, name) if len(e) == 4]


class Steering(SchedulerPlugin):
    """Modify tasks before they are scheduled, as two published plugins do."""

    def __init__(self, name: str, mark: str, worker: str) -> None:
        self.name, self.mark, self.worker = name, mark, worker

    def update_graph(self, scheduler: Any, **arguments: Any) -> None:
        for key in arguments["tasks"]:
            if self.mark in str(key):
                ts = scheduler.tasks[key]
                ts.worker_restrictions = {self.worker}
                ts.loose_restrictions = False
                ts.priority = (-5, *ts.priority[1:])


def where(_: int) -> str:
    from distributed import get_worker

    return get_worker().address


def priority_of(key: str, dask_scheduler: Any = None) -> Any:
    ts = dask_scheduler.tasks[key]
    return ts.priority[0], sorted(ts.worker_restrictions), ts.loose_restrictions


def tasks_steered_by_a_plugin(client: Client) -> object:
    name, mark = unique("steering"), unique("mark")
    worker = max(client.nthreads())
    client.register_plugin(Steering(name, mark, worker), name=name)
    futures = [client.submit(where, i, key=f"where-{mark}-{i}") for i in range(8)]
    found = set(client.gather(futures))
    written = client.run_on_scheduler(priority_of, futures[0].key)
    client.unregister_scheduler_plugin(name)
    return found == {worker}, written == (-5, [worker], False)


class Broken(SchedulerPlugin):
    """Raise in every hook."""

    name = "broken-of-a-program"

    def transition(self, *args: Any, **arguments: Any) -> None:
        raise RuntimeError("on purpose")

    def update_graph(self, *args: Any, **arguments: Any) -> None:
        raise RuntimeError("on purpose")

    def add_client(self, *args: Any, **arguments: Any) -> None:
        raise RuntimeError("on purpose")


class NeverStarts(SchedulerPlugin):
    name = "never-starts"

    async def start(self, scheduler: Any) -> None:
        raise RuntimeError("at its start")


def broken_scheduler_plugins(client: Client) -> object:
    """Failing hooks affect no other plugin; a plugin that fails to start and an object that is no plugin are refused."""
    client.register_plugin(Broken())
    total = client.submit(sum, client.map(operator.add, range(5), range(5)), pure=False)
    steps: list[object] = [total.result(timeout=LONG_SECONDS)]
    client.unregister_scheduler_plugin(Broken.name)
    steps.append(kind(lambda: client.unregister_scheduler_plugin(Broken.name)))
    steps.append(kind(lambda: client.register_plugin(NeverStarts())))
    steps.append(kind(lambda: client.register_plugin(5)))  # type: ignore[arg-type]
    steps.append(kind(lambda: client.register_plugin(object())))  # type: ignore[arg-type]
    return steps


class OnWorkers(WorkerPlugin):
    def __init__(self, name: str, fail: bool = False) -> None:
        self.name, self.fail = name, fail

    def setup(self, worker: Any) -> None:
        if self.fail:
            raise ValueError("at its setup")
        worker.word_of_a_plugin = self.name

    def teardown(self, worker: Any) -> None:
        worker.word_of_a_plugin = "gone"


def word_of(dask_worker: Any) -> Any:
    return getattr(dask_worker, "word_of_a_plugin", None)


def plugins_of_workers(client: Client) -> object:
    name = unique("on-workers")
    replies = client.register_plugin(OnWorkers(name))
    steps: list[object] = [sorted({value["status"] for value in replies.values()})]
    steps.append(set(client.run(word_of).values()) == {name})
    again = client.register_plugin(OnWorkers(name))
    steps.append(sorted({value["status"] for value in again.values()}))
    steps.append(sorted({v["status"] for v in client.unregister_worker_plugin(name).values()}))
    steps.append(sorted(map(str, client.run(word_of).values())))
    steps.append(kind(lambda: client.register_plugin(OnWorkers(unique("fails"), fail=True))))
    steps.append(kind(lambda: client.unregister_worker_plugin("unknown")))
    return steps


class OnNannies(NannyPlugin):
    restart = False

    def __init__(self, name: str, fail: bool = False) -> None:
        self.name, self.fail = name, fail

    def setup(self, nanny: Any) -> None:
        if self.fail:
            raise ValueError("at its setup")


def plugins_of_nannies(client: Client) -> object:
    name = unique("on-nannies")
    replies = client.register_plugin(OnNannies(name))
    steps: list[object] = [[value["status"] for value in replies.values()]]
    gone = client.unregister_worker_plugin(name, nanny=True)
    steps.append([value["status"] for value in gone.values()])
    steps.append(kind(lambda: client.register_plugin(OnNannies(unique("fails"), fail=True))))
    steps.append(kind(lambda: client.unregister_worker_plugin("unknown", nanny=True)))
    return steps
