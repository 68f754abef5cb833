"""A real scheduler in this process, stock workers and a stock client: plugins and functions see what stock shows."""

from __future__ import annotations

import asyncio

import pytest
from distributed import Client, SchedulerPlugin, Worker
from distributed.core import Status
from paceline.scheduler.server.scheduler import Scheduler
from paceline.workers_compat.facade.plugins import overrides


class Recorder(SchedulerPlugin):
    """Record the calls of all hooks."""

    name = "recorder"

    def __init__(self):
        self.seen = []

    def transition(self, key, start, finish, *args, stimulus_id, **kwargs):
        self.seen.append(("transition", key, start, finish, sorted(kwargs)))

    def update_graph(
        self, scheduler, *, client, keys, tasks, annotations, priority, stimulus_id, **kw
    ):
        self.seen.append(("update_graph", keys, set(tasks), annotations, priority))

    async def add_worker(self, scheduler, worker):
        await asyncio.sleep(0)
        self.seen.append(("add_worker", worker))

    def remove_worker(self, scheduler, worker, **kwargs):
        self.seen.append(("remove_worker", worker))

    def add_client(self, scheduler, client):
        self.seen.append(("add_client", client))

    def remove_client(self, scheduler, client):
        self.seen.append(("remove_client", client))

    def log_event(self, topic, msg):
        self.seen.append(("log_event", topic))

    def of(self, kind):
        return [entry[1:] for entry in self.seen if entry[0] == kind]


def inc(x):
    return x + 1


def fail(x):
    raise ValueError(x)


async def test_attributes_for_functions(world):
    futures = world.client.map(inc, range(3), key="inc")
    total = world.client.submit(sum, futures, key="total")
    assert await total == 6

    def look(dask_scheduler):
        s = dask_scheduler
        ts = s.tasks["total"]
        (ws,) = s.workers.values()
        assert ts in ws.has_what
        return {
            "state": ts.state,
            "dependencies": sorted(d.key for d in ts.dependencies),
            "who_has": [w.address for w in ts.who_has],
            "wants": len(ts.who_wants),
            "prefix": ts.prefix.name,
            "name": ws.name,
            "status": ws.status.name,
            "nthreads": ws.nthreads,
            "memory": ws.memory.process > 0,
            "occupancy": ws.occupancy,
            "clients": len(s.clients),
            "identity": s.identity()["type"],
            "log": s.transition_log[-1][0] is not None,
            "story": [t.finish for t in s.story("total")],
            "spec": repr(type(ts.run_spec).__name__),
            "address": s.address,
            "id": s.id,
            "status_": s.status.name,
            "extensions": "queues" in s.extensions,
            "who": s.who_has(keys=["total"]),
            "total_nthreads": s.total_nthreads,
            "underscore": len(s._tasks),
            "pid": s.proc.pid > 0,
            "priority": len(ts.priority),
        }

    found = await world.client.run_on_scheduler(look)
    address = world.worker.address
    assert found["state"] == "memory"
    assert len(found["dependencies"]) == 3
    assert found["who_has"] == [address]
    assert found["wants"] == 1
    assert found["prefix"] == "total"
    assert (found["name"], found["status"], found["nthreads"]) == ("alice", "running", 2)
    assert found["memory"] and found["log"] and found["extensions"] and found["pid"]
    assert found["story"][-1] == "memory"
    assert found["spec"] == "'Task'"
    assert found["address"] == world.scheduler.address
    assert found["status_"] == "running"
    assert found["who"] == {"total": [address]} or found["who"] == {"total": (address,)}
    assert found["underscore"] == 4
    assert found["priority"] == 3


@pytest.mark.parametrize("name", ["tasks", "workers", "clients"])
async def test_objects_of_the_scheduler_are_not_sent(world, name):
    assert await world.client.submit(inc, 1) == 2
    with pytest.raises(TypeError, match="cannot be sent: return the attributes you need"):
        await world.client.run_on_scheduler(lambda dask_scheduler: getattr(dask_scheduler, name))


async def test_custom_attributes_and_settings(world):
    def write(dask_scheduler):
        dask_scheduler._raft_comm_state = {"a": 1}
        dask_scheduler.idle_timeout = "1 hour"

    def read(dask_scheduler):
        return dask_scheduler._raft_comm_state, dask_scheduler.idle_timeout

    await world.client.run_on_scheduler(write)
    assert await world.client.run_on_scheduler(read) == ({"a": 1}, 3600)
    with pytest.raises(AttributeError, match="no_such"):
        await world.client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.no_such)


async def test_writes_without_an_effect_are_errors(world):
    scheduler = world.scheduler
    await world.client.submit(inc, 1)
    for name in ("bandwidth", "total_nthreads", "workers"):
        with pytest.raises(AttributeError, match="read-only"):
            setattr(scheduler, name, 5)
    for plugins in (scheduler.plugins, scheduler.worker_plugins, scheduler.nanny_plugins):
        with pytest.raises(TypeError, match="read-only"):
            plugins["x"] = SchedulerPlugin()
    for name in ("computations", "transition_log"):
        with pytest.raises(AttributeError, match="clear"):
            getattr(scheduler, name).clear()
    found = await world.client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.nanny_plugins)
    assert type(found) is dict
    assert scheduler.total_nthreads == 2


async def test_plugin_hooks_are_called(world):
    recorder = Recorder()
    world.facade.add_plugin(recorder)
    assert world.facade.plugins["recorder"] is recorder
    future = world.client.submit(inc, 1, key="a", retries=3)
    assert await future == 2
    bad = world.client.submit(fail, 1, key="bad")
    with pytest.raises(ValueError):
        await bad
    (graph, _) = recorder.of("update_graph")
    assert graph[0] == {"a"}
    assert graph[1] == {"a"}
    assert graph[2]["retries"] == {"a": 3}
    assert len(graph[3]["a"]) == 3
    steps = [entry for entry in recorder.of("transition") if entry[0] == "a"]
    assert steps[0][1:3] == ("released", "waiting")
    last = steps[-1]
    assert last[1:3] == ("processing", "memory")
    assert {"worker", "nbytes", "typename", "startstops"} <= set(last[3])
    failed = [e for e in recorder.of("transition") if e[0] == "bad" and e[2] == "erred"]
    told = {"exception", "cause", "worker", "startstops", "thread", "status"}
    assert told <= set(failed[0][3])
    async with Worker(world.scheduler.address, name="bob") as bob:
        await asyncio.sleep(0.05)
    async with Client(world.scheduler.address, asynchronous=True) as other:
        await other.log_event("topic", 1)
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.1)
    assert (bob.address,) in recorder.of("add_worker")
    assert (bob.address,) in recorder.of("remove_worker")
    assert (other.id,) in recorder.of("add_client")
    assert (other.id,) in recorder.of("remove_client")
    assert ("topic",) in recorder.of("log_event")
    world.facade.remove_plugin("recorder")
    assert world.scheduler.server.state.plugins is None
    with pytest.raises(ValueError, match="recorder"):
        world.facade.remove_plugin("recorder")


async def test_hooks_of_tasks_that_are_sent_get_no_arguments_of_a_worker(world):
    recorder = Recorder()
    world.facade.add_plugin(recorder)
    assert await world.client.gather(world.client.map(inc, range(20))) == list(range(1, 21))
    arguments = {entry[1:3]: entry[3] for entry in recorder.of("transition")}
    assert arguments["queued", "processing"] == []


async def test_forgotten_tasks_are_still_seen_by_the_hook(world):
    seen = []

    class Last(SchedulerPlugin):
        def transition(self, key, start, finish, *args, **kwargs):
            if finish == "forgotten":
                ts = world.facade.tasks[key]
                seen.append((ts.key, ts.state, {d.key for d in ts.dependencies}))

    world.facade.add_plugin(Last())
    a = world.client.submit(inc, 1, key="a")
    b = world.client.submit(inc, a, key="b")
    await b
    a.release()
    b.release()
    while len(seen) < 2:
        await asyncio.sleep(0.01)
    assert ("b", "forgotten", {"a"}) in seen
    assert "b" not in world.facade.tasks


async def test_a_plugin_restricts_tasks_before_they_are_scheduled(world):
    """Restrict tasks as QuartiCal and minian do."""
    async with Worker(world.scheduler.address, name="bob", resources={"GPU": 1}) as bob:

        class Restrictor(SchedulerPlugin):
            def update_graph(self, scheduler, *, tasks, annotations, **kwargs):
                for key in tasks:
                    ts = scheduler.tasks[key]
                    ts._worker_restrictions = {bob.address}
                    ts.loose_restrictions = False
                    ts._resource_restrictions = {"GPU": 1}
                    ts._priority = (0, 0, 7)

        world.facade.add_plugin(Restrictor())
        futures = world.client.map(inc, range(5))
        await world.client.gather(futures)
        who = await world.client.who_has(futures)
        assert {address for holders in who.values() for address in holders} == {bob.address}
        ts = world.facade.tasks[futures[0].key]
        assert ts.resource_restrictions == {"GPU": 1}
        assert ts.priority == (0, 0, 7)
        with pytest.raises(AttributeError, match="read-only"):
            ts.state = "erred"


async def test_broken_plugin_does_not_affect_others(world, caplog):
    class Broken(SchedulerPlugin):
        def transition(self, *args, **kwargs):
            raise RuntimeError("broken plugin")

        update_graph = add_client = transition

    world.facade.add_plugin(Broken())
    assert await world.client.submit(inc, 1) == 2
    assert "broken plugin" in caplog.text


async def test_only_overridden_hooks_are_called(world):
    class Quiet(SchedulerPlugin):
        def log_event(self, topic, msg):
            pass

    class Duck:
        def transition(self, *args, **kwargs):
            pass

    assert not overrides(Quiet(), "transition")
    assert overrides(Quiet(), "log_event")
    assert overrides(Duck(), "transition")
    assert not overrides(Duck(), "update_graph")
    world.facade.add_plugin(Quiet(), name="quiet")
    assert world.scheduler.server.state.plugins is None
    world.facade.add_plugin(Duck(), name="duck")
    assert world.scheduler.server.state.plugins is not None
    with pytest.warns(UserWarning, match="overwriting"):
        world.facade.add_plugin(Duck(), name="duck")


async def test_actions_of_a_hook_follow_the_turn(world):
    class Acts(SchedulerPlugin):
        def transition(self, key, start, finish, *args, **kwargs):
            if finish == "memory" and key == "a":
                world.facade.log_event("acted", {"key": key})
                world.facade.set_restrictions({"b": [world.worker.address]})

    world.facade.add_plugin(Acts())
    a = world.client.submit(inc, 1, key="a")
    assert await world.client.submit(inc, a, key="b") == 3
    ((_, event),) = world.facade.get_events("acted")
    assert event == {"key": "a"}
    with pytest.raises(KeyError, match="absent"):
        world.facade.set_restrictions({"absent": [world.worker.address]})


async def test_plugins_through_the_client(world):
    class Registered(SchedulerPlugin):
        name = "registered"

        async def start(self, scheduler):
            self.scheduler = scheduler
            scheduler.started_with = len(scheduler.workers)

    await world.client.register_plugin(Registered())
    assert world.facade.started_with == 1
    assert "registered" in world.facade.plugins
    await world.client.unregister_scheduler_plugin("registered")
    assert "registered" not in world.facade.plugins


async def test_views_of_replicas_and_clients(world):
    """`has_what` supports operations of sets, and `str` of a client is its name."""
    future = await world.client.scatter(1, hash=False)
    ts = world.facade.tasks[future.key]
    ws = world.facade.workers[world.worker.address]
    assert ws.has_what & {ts} == ws.has_what | {ts} == {ts}
    assert ws.has_what - {ts} == set()
    assert list(map(str, ts.who_wants)) == [world.client.id]


async def test_data_is_reported_at_once(world):
    """As in stock, `update_data` is no coroutine: a caller does not await it."""
    updates = {
        "method": world.facade.update_data,
        "handler": world.facade.handlers["update_data"],
    }
    for key, update in updates.items():
        found = update(who_has={key: ["alice"]}, nbytes={key: 28}, client=world.client.id)
        assert found is None
        ts = world.facade.tasks[key]
        assert (ts.state, ts.nbytes) == ("memory", 28)
        assert [ws.address for ws in ts.who_has] == [world.worker.address]
        assert [cs.client_key for cs in ts.who_wants] == [world.client.id]
    with pytest.raises(KeyError):
        world.facade.update_data(who_has={"x": ["tcp://127.0.0.1:1"]}, nbytes={"x": 1})


async def test_uploaded_files(world, tmp_path):
    path = tmp_path / "uploaded_facade_b.py"
    path.write_text("def f():\n    return 17\n")
    await world.client.upload_file(str(path))

    def use(dask_scheduler):
        import uploaded_facade_b

        return uploaded_facade_b.f()

    assert await world.client.run_on_scheduler(use) == 17


async def test_the_scheduler_closes(world):
    order = []

    class Closing(SchedulerPlugin):
        async def before_close(self):
            order.append("before_close")

        async def close(self):
            order.append("close")

    world.facade.add_plugin(Closing())
    await world.scheduler.close()
    assert order == ["before_close", "close"]
    assert world.facade.status in (Status.closed, Status.closing)


async def test_hooks_and_functions_get_the_scheduler_itself(world):
    """As in stock, hooks and functions receive the object that the program made, with attributes that it set."""
    scheduler, received = world.scheduler, []

    class Asking(SchedulerPlugin):
        name = "asking"

        def add_worker(self, scheduler, worker):
            received.append((scheduler, worker in scheduler.workers))

        def add_client(self, scheduler, client):
            received.append((scheduler, client in scheduler.clients))

    scheduler.add_plugin(Asking())
    scheduler.hung_here = 1
    async with (
        Worker(scheduler.address, nthreads=1),
        Client(scheduler.address, asynchronous=True) as client,
    ):
        assert received == [(scheduler, True), (scheduler, True)]
        found = await client.run_on_scheduler(
            lambda dask_scheduler: (dask_scheduler.hung_here, id(dask_scheduler))
        )
        assert found == (1, id(scheduler))
    assert world.facade.hung_here == 1


async def test_a_function_closes_the_scheduler(world):
    """`dask_scheduler.close()` ends the scheduler, not only the facade."""

    async def close(dask_scheduler):
        dask_scheduler.loop.add_callback(dask_scheduler.close)

    await world.client.run_on_scheduler(close)
    await asyncio.wait_for(world.scheduler.finished(), 30)
    assert world.scheduler.status == Status.closed


async def test_plugins_of_the_program_and_a_preload(tmp_path):
    started = []

    class Given(SchedulerPlugin):
        name = "given"

        async def start(self, scheduler):
            started.append(scheduler)

    (tmp_path / "preload_facade_b.py").write_text(
        "from distributed import SchedulerPlugin\n"
        "class Loaded(SchedulerPlugin):\n"
        "    name = 'loaded'\n"
        "async def dask_setup(scheduler):\n"
        "    scheduler.add_plugin(Loaded())\n"
        "    scheduler.services['mine'] = 17\n"
        "    assert scheduler.loop is not None and len(scheduler.tasks) == 0\n"
    )
    path = str(tmp_path / "preload_facade_b.py")
    async with Scheduler(
        port=0, host="127.0.0.1", dashboard=False, plugins=[Given()], preload=path
    ) as scheduler:
        assert set(scheduler.plugins) == {"shuffle", "given", "loaded"}
        assert started == [scheduler]
        assert scheduler.facade.services["mine"] == 17
        assert len(scheduler.workers) == 0
        with pytest.raises(AttributeError, match="no_such"):
            scheduler.no_such  # noqa: B018


async def test_explain(world):
    future = world.client.submit(inc, 1, key="x", resources={"GPU": 1})

    async def ask(dask_scheduler):
        return dask_scheduler.explain(key="x")["summary"]

    while "GPU" not in (said := await world.client.run_on_scheduler(ask)):
        await asyncio.sleep(0.01)
    assert "it needs GPU >= 1, which no worker supplies" in said
    del future
