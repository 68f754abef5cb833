"""Queries of a state that was built by hand."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.protocol.payload import Payload, pickled_header
from paceline.scheduler.core.config import MEASURES, SchedulerConfig, heartbeat_interval
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.core.inspection.dump import dump_state
from paceline.scheduler.core.lifecycle import accounting
from paceline.scheduler.core.policy import scaling
from paceline.scheduler.core.state.addresses import coerce_address, registration_error
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.core.state.model import TaskGroup, TaskPrefix, TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_states import STATE_NUMBERS
from paceline.scheduler.core.stimuli import AnnotationSet
from paceline.testing import Env

A, B = "tcp://10.0.0.1:1000", "tcp://10.0.0.2:1000"


@pytest.fixture
def state() -> SchedulerState:
    """Build workers alice (1 thread) and bob (2, paused); tasks ("x", 0) on alice, ("x", 1) on both, "y" running."""
    state = SchedulerState(SchedulerConfig(), EventLog(), errors=None)  # type: ignore[arg-type]
    add_worker(state, A, "alice", 1)
    add_worker(state, B, "bob", 2, status="paused")
    for key, on in ((("x", 0), [A]), (("x", 1), [A, B])):
        ts = add_task(state, key, "memory")
        accounting.set_nbytes(state, ts, 10)
        for address in on:
            accounting.add_replica(state, ts, state.workers[address])
    y = add_task(state, "y", "processing")
    y.processing_on = state.workers[A]
    state.workers[A].processing[y] = None
    return state


def add_worker(
    state: SchedulerState, address: str, name: Any, nthreads: int, **facts: Any
) -> WorkerState:
    host = address.split("//")[1].split(":")[0]
    ws = WorkerState(
        address=address, name=name, host=host, nthreads=nthreads, memory_limit=1000, **facts
    )
    state.workers[address] = ws
    state.aliases[name] = address
    state.total_nthreads += nthreads
    state.total_memory += ws.memory_limit
    return ws


def add_task(state: SchedulerState, key: Any, status: str) -> TaskState:
    name = key if isinstance(key, str) else key[0]
    prefix = state.task_prefixes.setdefault(name, TaskPrefix(name))
    group = state.task_groups.setdefault(name, TaskGroup(name, prefix))
    prefix.group_table[group] = None
    ts = TaskState(
        key, group, state.shares.account("c"), run_spec=pickled_header(b"spec"), state=status
    )
    group.counts[STATE_NUMBERS[status]] += 1
    group.n_added += 1
    state.tasks[key] = ts
    return ts


def test_identity_has_requested_number_of_workers(state: SchedulerState) -> None:
    state.workers[A].extra = {"gpu": 1}
    whole = queries.identity(state, id="s", address="tcp://s:1", services={"dashboard": 2})
    assert list(whole["workers"]) == [A, B]
    assert whole["workers"][A]["id"] == "alice"
    assert whole["workers"][A]["gpu"] == 1
    assert whole["workers"][B]["status"] == "paused"
    assert (whole["n_workers"], whole["total_threads"], whole["total_memory"]) == (2, 3, 2000)
    assert whole["services"] == {"dashboard": 2}
    none = queries.identity(state, n_workers=0)
    assert (none["n_workers"], none["workers"]) == (2, {})
    assert list(queries.identity(state, n_workers=1)["workers"]) == [A]


def test_identity_has_stocks_fields(state: SchedulerState) -> None:
    from distributed.core import Status
    from distributed.scheduler import WorkerState as StockWorker

    stock = StockWorker(
        address=A,
        status=Status.running,
        pid=0,
        name="alice",
        nthreads=1,
        memory_limit=0,
        local_directory="",
        nanny=None,
        server_id="",
        services=None,
        versions=None,
        extra=None,
    )
    assert list(queries.worker_identity(state.workers[A])) == list(stock.identity())


def test_addresses(state: SchedulerState) -> None:
    assert coerce_address(state, "alice") == A
    assert coerce_address(state, A) == A
    assert coerce_address(state, "10.0.0.9:1") == "tcp://10.0.0.9:1"
    assert coerce_address(state, ("10.0.0.9", 1)) == "tcp://10.0.0.9:1"
    with pytest.raises(TypeError):
        coerce_address(state, 17)
    assert queries.workers_list(state, None) == [A, B]
    assert queries.workers_list(state, ["10.0.0.2", A]) == [B, A]


def test_registration_is_refused_for_a_taken_name_or_address(state: SchedulerState) -> None:
    assert registration_error(state, "tcp://10.0.0.3:1", "carol") is None
    assert registration_error(state, "tcp://10.0.0.3:1", "bob") == "name taken, bob"
    with pytest.raises(ValueError, match="Worker already exists"):
        registration_error(state, A, "carol")


def test_workers(state: SchedulerState) -> None:
    assert queries.ncores(state) == {A: 1, B: 2}
    assert queries.ncores(state, ["bob", "tcp://9.9.9.9:9"]) == {B: 2}
    assert queries.ncores_running(state) == {A: 1}
    assert queries.processing(state) == {A: ["y"], B: []}
    assert queries.processing(state, ["alice"]) == {A: ["y"]}
    with pytest.raises(KeyError):
        queries.processing(state, ["tcp://9.9.9.9:9"])
    assert queries.has_what(state) == {A: [("x", 0), ("x", 1)], B: [("x", 1)]}
    assert queries.has_what(state, ["tcp://9.9.9.9:9"]) == {"tcp://9.9.9.9:9": []}


def test_tasks(state: SchedulerState) -> None:
    assert queries.who_has(state) == {("x", 0): [A], ("x", 1): [A, B], "y": []}
    assert queries.who_has(state, [("x", 1), "gone"]) == {("x", 1): [A, B], "gone": []}
    assert queries.nbytes(state) == {"x": 20}
    assert queries.nbytes(state, [("x", 0), "y"], summary=False) == {("x", 0): 10, "y": -1}
    with pytest.raises(KeyError):
        queries.nbytes(state, ["gone"])
    assert queries.get_task_status(state, ["y", "gone"]) == {"y": "processing", "gone": None}
    states = queries.get_task_prefix_states(state)
    assert states["x"] == {"memory": 2, "erred": 0, "released": 0, "processing": 0, "waiting": 0}


def test_story_by_key_recommendation_and_stimulus(state: SchedulerState) -> None:
    b = add_task(state, "b", "waiting")
    state.transition_log.extend(
        [
            ("a", "released", "waiting", {b: "waiting"}, "one", 1.0),
            ("b", "released", "waiting", {}, "one", 1.0),
            ("c", "released", "waiting", {}, "two", 2.0),
        ]
    )
    assert [t[0] for t in queries.story(state, "b")] == ["a", "b"]
    assert [t[0] for t in queries.story(state, "two")] == ["c"]
    assert queries.story(state, "nothing") == []


def test_call_stacks_of_dependencies(
    state: SchedulerState,
) -> None:
    z = add_task(state, "z", "waiting")
    z.dependencies = (state.tasks["y"],)
    assert queries.call_stack_keys(state) == {A: None, B: None}
    assert queries.call_stack_keys(state, ["z"]) == {A: ["y"]}
    assert queries.call_stack_keys(state, [("x", 0)]) == {}
    with pytest.raises(KeyError):
        queries.call_stack_keys(state, ["gone"])


def test_replay(state: SchedulerState) -> None:
    spec = queries.get_runspec(state, "y")
    assert isinstance(spec, Payload) and spec.kind == "pickled" and b"spec" in spec.header
    with pytest.raises(KeyError):
        queries.get_runspec(state, "gone")
    y, x = state.tasks["y"], state.tasks[("x", 0)]
    y.ensure_details().exception_blame = x
    assert queries.get_error_cause(state, ["gone", ("x", 1), "y"]) == ("x", 0)
    assert queries.get_error_cause(state, [("x", 1)]) is None


def test_metadata(state: SchedulerState) -> None:
    state.task_metadata["a"] = {"b": 1}
    assert queries.get_metadata(state, ["a", "b"]) == 1
    assert queries.get_metadata(state, ["a", "c"], default=None) is None
    with pytest.raises(KeyError):
        queries.get_metadata(state, ["a", "c"])
    mark = {"__Enum__": True, "name": "no_default", "__module__": "dask.typing", "__name__": "_"}
    with pytest.raises(KeyError):
        queries.get_metadata(state, ["a", "c"], default=mark)


@pytest.mark.parametrize("n", [0, 1, 10, 11, 49, 50, 199, 200, 1000])
def test_heartbeat_interval_is_stocks(n: int) -> None:
    from distributed.scheduler import heartbeat_interval as stock_interval

    assert heartbeat_interval(n) == stock_interval(n)


def test_idle_workers_with_little_data_close_first(state: SchedulerState) -> None:
    assert scaling.workers_to_close(state, n=1) == [B]
    assert scaling.workers_to_close(state, target=0, attribute="name") == ["bob", "alice"]
    assert scaling.workers_to_close(state) == [B]
    assert scaling.workers_to_close(state, minimum=2) == []
    state.workers[B].long_running[state.tasks["y"]] = None
    assert scaling.workers_to_close(state, n=2) == [A]


def test_memory_for_the_data_is_kept(state: SchedulerState) -> None:
    for ws in state.workers.values():
        ws.processing.clear()
        ws.nbytes = 400
    assert scaling.workers_to_close(state, memory_ratio=2) == []
    assert scaling.workers_to_close(state, memory_ratio=1) == [A]


def test_adaptive_target(state: SchedulerState) -> None:
    state.compute_occupancy = 100.0
    assert scaling.adaptive_target(state, 5.0) == 1  # one task cannot use more than one worker
    state.workers[B].nbytes = 1500
    assert scaling.adaptive_target(state, 5.0) == 4  # little memory is left


def test_dump_shows_sets_of_names_as_lists(env: Env) -> None:
    env.join("w0")
    restricted = AnnotationSet(workers=["w0", "other-host"])
    env.submit({"x": []}, annotations={"x": restricted})
    env.fail("x")
    dump = dump_state(env.state, {})
    shown = {name: dump["tasks"]["x"][name] for name in ("erred_on", "worker_restrictions")}
    assert shown == {"erred_on": ["w0"], "worker_restrictions": ["w0"]}
    assert dump["tasks"]["x"]["host_restrictions"] == ["other-host"]
    assert set(dump["memory"]) == set(MEASURES)
