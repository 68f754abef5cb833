"""Every public attribute of stock's scheduler and its states exists on the facade, or is listed with the reason why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import pytest
from distributed import Client, Worker
from distributed.scheduler import Scheduler as Stock
from paceline.scheduler.server.scheduler import Scheduler

OWN = "the core's own step: what a plugin would do with it are commands (WriteTask, MakeTransitions, MoveReplicas, ...)"
DECIDES = "how the core decides; placement.py and stealing.py are other code than stock's"
STARTS = "how stock's process starts and listens; paceline's server has its own"
CHECKS = "one of stock's checks of its own structures; validate_state() checks all of paceline's"
COUNTS = (
    "stock's own bookkeeping of connections and digests; /metrics and the monitor say what there is"
)
TABLES = "a handler by its Python name: it is reached as handlers[op] or stream_handlers[op]"

ABSENT: dict[str, dict[str, str]] = {
    "Scheduler": {
        **dict.fromkeys(
            ("acquire_resources", "release_resources", "add_replica", "remove_replica"), OWN
        ),
        **dict.fromkeys(("remove_all_replicas", "new_task", "send_task_to_worker"), OWN),
        **dict.fromkeys(("add_resources", "remove_resources", "release_worker_data"), TABLES),
        **dict.fromkeys(("add_client", "add_nanny", "add_worker", "client_heartbeat"), TABLES),
        **dict.fromkeys(("handle_long_running", "handle_request_refresh_who_has"), TABLES),
        **dict.fromkeys(("handle_task_erred", "handle_task_finished", "handle_worker"), TABLES),
        **dict.fromkeys(("handle_worker_status_change", "handle_comm", "handle_stream"), TABLES),
        **dict.fromkeys(("handle_uncaught_error", "update_graph"), TABLES),
        **dict.fromkeys(("stimulus_task_erred", "stimulus_task_finished"), OWN),
        **dict.fromkeys(("bulk_schedule_unrunnable_after_adding_worker", "is_unoccupied"), DECIDES),
        **dict.fromkeys(("check_idle_saturated", "check_worker_ttl"), DECIDES),
        **dict.fromkeys(("decide_worker_non_rootish",), DECIDES),
        **dict.fromkeys(("decide_worker_rootish_queuing_disabled",), DECIDES),
        **dict.fromkeys(("decide_worker_rootish_queuing_enabled",), DECIDES),
        **dict.fromkeys(("connection_args", "default_ip", "deserialize", "listen"), STARTS),
        **dict.fromkeys(("listener", "listeners", "service_kwargs"), STARTS),
        **dict.fromkeys(("start_http_server", "start_periodic_callbacks"), STARTS),
        **dict.fromkeys(("start_services", "start_unsafe", "stop_services"), STARTS),
        "transition_counter_max": "stock's guard against endless transitions; turns have a limit",
        **dict.fromkeys(("counters", "digests", "digests_total_since_heartbeat"), COUNTS),
        **dict.fromkeys(("get_connection_counters", "get_worker_monitor_info"), COUNTS),
        **dict.fromkeys(("incoming_comms_active", "incoming_comms_open"), COUNTS),
        **dict.fromkeys(("outgoing_comms_active", "outgoing_comms_open"), COUNTS),
        **dict.fromkeys(("validate_erred", "validate_key", "validate_memory"), CHECKS),
        **dict.fromkeys(("validate_no_worker", "validate_processing", "validate_queued"), CHECKS),
        **dict.fromkeys(("validate_released", "validate_waiting"), CHECKS),
    },
    "TaskState": {"add_dependency": OWN, "set_nbytes": OWN, "validate": CHECKS},
    "WorkerState": {
        **dict.fromkeys(("add_replica", "remove_replica", "add_to_long_running"), OWN),
        **dict.fromkeys(("add_to_processing", "remove_from_processing"), OWN),
        "scheduler": "a worker's view does not lead back: plugins are given the scheduler",
        "scheduler_ref": "the same",
    },
    "ClientState": {},
    "TaskGroup": dict.fromkeys(("add", "add_duration", "add_type", "update_nbytes"), OWN),
    "TaskPrefix": dict.fromkeys(
        ("add_duration", "add_exec_time", "add_group", "remove_group"), OWN
    ),
}
"""Class -> what is deliberately not there -> why."""


def increment(x: int) -> int:
    return x + 1


def things(scheduler: Any, client: Client) -> dict[str, Any]:
    """Return one object of each class."""
    ts = scheduler.tasks["increment-1"]
    (ws,) = scheduler.workers.values()
    cs = scheduler.clients[client.id]
    classes = ("Scheduler", "TaskState", "WorkerState", "ClientState", "TaskGroup", "TaskPrefix")
    return dict(zip(classes, (scheduler, ts, ws, cs, ts.group, ts.prefix)))


@pytest.fixture
async def public() -> dict[str, list[str]]:
    """Return class -> public names on an object of stock's."""
    async with (
        Stock(port=0, host="127.0.0.1", dashboard_address=":0") as scheduler,
        Worker(scheduler.address) as _,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        await client.submit(increment, 1, key="increment-1")
        ts = client.submit(increment, 1, key="increment-1")
        await ts
        found = things(scheduler, client).items()
        return {name: [n for n in dir(each) if not n.startswith("_")] for name, each in found}


async def test_all_public_attributes_exist(public: dict[str, list[str]]) -> None:
    async with (
        Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler,
        Worker(scheduler.address) as _,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        future = client.submit(increment, 1, key="increment-1")
        await future
        facade = scheduler.server.plugins.facade
        for name, thing in things(facade, client).items():
            there = {attribute for attribute in public[name] if hasattr(thing, attribute)}
            missing = set(public[name]) - there - set(ABSENT[name])
            assert not missing, f"{name} lacks {sorted(missing)}"
            stale = set(ABSENT[name]) & there
            assert not stale, f"{name} has {sorted(stale)}, which are said to be absent"


@pytest.fixture
def connect_timeout() -> Iterator[None]:
    """Do not wait for half a minute until a closed port is reported."""
    with dask.config.set({"distributed.comm.timeouts.connect": "3s"}):
        yield


@pytest.mark.usefixtures("connect_timeout")
async def test_messages_of_plugins() -> None:
    """Plugins send requests to workers and messages to clients, subscribe clients, and measure."""
    heard: list[Any] = []
    async with (
        Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler,
        Worker(scheduler.address, name="alice") as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        facade = scheduler.server.plugins.facade
        ip, port = worker.ip, worker.port
        for call in ((worker.address,), ((ip, port),), (None, ip, port), (f"{ip}:{port}",)):
            assert (await facade.rpc(*call).identity())["id"] == worker.id
        with pytest.raises(OSError):
            await facade.rpc("tcp://127.0.0.1:1").identity()
        client._event_handlers["topic"] = heard.append
        facade._broker.subscribe("topic", client.id)
        facade._broker.publish("topic", 1)
        assert [event for _, event in facade._broker.get_events("topic")] == [1]
        future = client.submit(increment, 1)
        await future
        assert facade.tasks[future.key].get_nbytes_deps() == 0
        assert facade.workers[worker.address].task_prefix_count == {}
        facade.report({"op": "cancelled-keys", "keys": [future.key], "reason": "a plugin"})
        while future.status != "cancelled":
            await client.run_on_scheduler(int)
        assert [event[1] for event in heard] == [1]
        facade._broker.unsubscribe("topic", client.id)
        for name in ("mine", ("a", "b")):
            facade.digest_metric(name, 2.0)
            facade.digest_metric(name, 3.0)
            assert (facade.digests_total[name], facade.digests_max[name]) == (5.0, 3.0)
        assert facade.blocked_handlers == []
        facade.remove_client(client.id)
        assert client.id not in facade.clients
