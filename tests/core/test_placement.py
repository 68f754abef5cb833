"""Placement of tasks: locality, load, restrictions, resources, root-ish tasks, actors."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from paceline.scheduler.core.policy import placement
from paceline.scheduler.core.policy.coassignment import LARGE_PART
from paceline.scheduler.core.stimuli import AnnotationSet, RestrictionsSet
from paceline.testing import Env, Graph

from tests.support.annotations import on

MakeEnv = Callable[..., Env]


def test_unrelated_tasks_go_to_idle_workers_in_turn(env: Env) -> None:
    env.join("w0", "w1", "w2")
    for i in range(3):
        env.submit({f"x{i}": []})
    assert {env.where(f"x{i}") for i in range(3)} == {"w0", "w1", "w2"}


def test_large_clusters_are_not_searched(env: Env) -> None:
    env.join(*(f"w{i}" for i in range(25)))
    for i in range(25):
        env.submit({f"x{i}": []})
    used = {env.where(f"x{i}") for i in range(25)}
    assert len(used) > 20


def test_fetching_many_inputs_is_estimated_from_a_part_of_them(duo: Env) -> None:
    duo.checks = False
    n = 2 * placement.SAMPLE_MIN + 2
    duo.submit({**{("x", i): [] for i in range(n)}, "y": [("x", i) for i in range(n)]})
    nbytes = n * duo.state.config.default_data_size_nbytes
    seconds = placement.fetch_seconds(duo.state, duo.task("y"), duo.worker("w1"))
    assert seconds == nbytes / duo.state.bandwidth


def test_a_task_goes_where_its_data_is(duo: Env) -> None:
    duo.submit({"small": [], "large": [], "y": ["small", "large"]})
    duo.finish("small", nbytes=10)
    duo.finish("large", nbytes=10**9)
    assert (duo.where("y")) == "w1"


def test_busy_holder_is_avoided_if_transfer_is_cheap(duo: Env) -> None:
    duo.submit({"a": []})
    duo.finish("a", nbytes=1000, seconds=1)
    assert duo.state.bandwidth == 1e8
    duo.submit({"slow1": [], "slow2": []}, annotations=on("w0", "slow1", "slow2"))
    duo.fetched("w1", "a")
    duo.submit({"y": ["a"]})
    assert duo.where("y") == "w1"


@pytest.mark.parametrize(("weight", "where"), [(4.0, "w0"), (1.0, "w1")])
def test_a_task_waits_for_the_holder_of_large_inputs(
    make_env: MakeEnv, weight: float, where: str
) -> None:
    """Its worker is busy for 1 s, and fetching takes 0.5 s."""
    env = make_env(fetch_weight=weight)
    env.join("w0", "w1")
    env.submit({"large": [], "small": []}, annotations=on("w0", "large") | on("w1", "small"))
    env.finish("large", nbytes=50_000_000, seconds=1)
    env.finish("small", nbytes=1000, seconds=1)
    env.submit({"large-2": []}, annotations=on("w0", "large-2"))
    env.submit({"y": ["large", "small"]})
    assert env.where("y") == where


def test_expensive_large_result_is_read_in_place(duo: Env) -> None:
    """The dependents, of the same prefix, are not expected to take seconds too. Stock would move a gigabyte for the fourth."""
    graph: dict[Any, list[Any]] = {("x", i): [] for i in range(4)}
    graph |= {("x", 10 + i): [("x", 2), ("x", 3)] for i in range(6)}
    duo.submit(graph)
    for i in range(3):
        duo.finish(("x", i), seconds=0.01)
    holder = duo.where(("x", 3))
    duo.finish(("x", 3), nbytes=10**9, seconds=20)
    assert {duo.where(("x", 10 + i)) for i in range(6)} == {holder}


def test_only_holders_are_candidates(duo: Env) -> None:
    """As in stock: a worker without any of the data is no candidate, even if it is idle."""
    duo.submit({"a": []})
    duo.finish("a", nbytes=1)
    duo.submit({"slow1": [], "slow2": []}, annotations=on("w0", "slow1", "slow2"))
    duo.submit({"y": ["a"]})
    assert duo.where("y") == "w0"


def test_data_on_a_paused_worker_is_fetched(duo: Env) -> None:
    duo.submit({"a": []})
    duo.finish("a")
    duo.status("w0", "paused")
    duo.submit({"y": ["a"]})
    assert duo.where("y") == "w1"


# ------------------------------------------------------------------ restrictions


def test_restrictions_to_workers_and_hosts(env: Env) -> None:
    env.join("w0", host="h0")
    env.join("w1", "w2", host="h1")
    annotations = {
        "a": AnnotationSet(workers=["w2"]),
        "b": AnnotationSet(workers=["h0"]),
        "c": AnnotationSet(workers=["h1"]),
        "d": AnnotationSet(workers=["w0", "h1"]),
    }
    env.submit({key: [] for key in "abcd"}, annotations=annotations)
    assert env.where("a") == "w2"
    assert env.where("b") == "w0"
    assert env.where("c") == "w1"
    assert env.where("d") in ("w0", "w1", "w2")


def test_restrictions_outweigh_locality(duo: Env) -> None:
    duo.submit({"a": []})
    duo.finish("a", nbytes=10**9)
    duo.submit({"y": ["a"]}, annotations=on("w1", "y"))
    assert duo.where("y") == "w1"


def test_loose_restrictions_are_met_if_possible(duo: Env) -> None:
    loose = {
        "a": AnnotationSet(workers=["w1"], allow_other_workers=True),
        "b": AnnotationSet(workers=["elsewhere"], allow_other_workers=True),
    }
    duo.submit({"a": [], "b": []}, annotations=loose)
    assert duo.where("a") == "w1"
    assert duo.states("b") == ["processing"]


def test_an_unsatisfied_task_waits_for_its_worker(duo: Env) -> None:
    duo.submit({"a": [], "b": []}, annotations=on("w9", "a", "b"))
    assert duo.states("a", "b") == ["no-worker", "no-worker"]
    duo.join("w8")
    duo.expect()
    duo.join("w9")
    duo.expect("w9: compute-task a", "w9: compute-task b")


def test_restrictions_set_after_submission(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=1.0)
    env.join("w0", "w1")
    env.submit({("x", i): [] for i in range(5)})
    env.take()
    env.feed(RestrictionsSet({("x", 4): ["w1"], "nobody-knows": ["w0"]}))
    env.expect("w1: compute-task ('x',4)")
    env.feed(RestrictionsSet({("x", 3): "w0"}))
    env.expect("w0: compute-task ('x',3)")


def test_resources(env: Env) -> None:
    env.join("w0")
    env.join("w1", resources={"gpu": 1})
    env.join("w2", resources={"gpu": 4, "disk": 1})
    annotations = {
        "a": AnnotationSet(resources={"gpu": 2}),
        "b": AnnotationSet(resources={"gpu": 1, "disk": 1}),
        "c": AnnotationSet(resources={"gpu": 5}),
        "d": AnnotationSet(resources={"gpu": 1}, workers=["w1"]),
        "e": AnnotationSet(resources={"disk": 1}, workers=["w1"]),
    }
    env.submit({key: [] for key in "abcde"}, annotations=annotations)
    assert [env.where(key) for key in "abd"] == ["w2", "w2", "w1"]
    assert env.states("c", "e") == ["no-worker", "no-worker"]
    assert env.worker("w2").used_resources == {"gpu": 3, "disk": 1}
    env.finish("a")
    assert env.worker("w2").used_resources == {"gpu": 1, "disk": 1}


def test_resource_restrictions_are_never_loose(env: Env) -> None:
    """A stock worker fails when it is sent a task with a resource that it does not have."""
    env.join("w0", "w1")
    env.join("w2", resources={"gpu": 1})
    loose = AnnotationSet(workers=["w0"], allow_other_workers=True, resources={"gpu": 1})
    other = AnnotationSet(workers=["w0"], allow_other_workers=True, resources={"disk": 1})
    env.submit({"a": [], "b": []}, annotations={"a": loose, "b": other})
    assert env.where("a") == "w2"
    assert env.states("b") == ["no-worker"]
    env.join("w3")
    assert env.states("b") == ["no-worker"]
    env.join("w4", resources={"disk": 1})
    assert env.where("b") == "w4"


def test_free_resources_are_preferred(env: Env) -> None:
    """Stock gives it to the less loaded worker, whose GPU is in use."""
    env.join("w0", "w1", nthreads=4, resources={"gpu": 1})
    gpu = AnnotationSet(resources={"gpu": 1})
    env.submit({"a": []}, annotations={"a": gpu})
    assert env.where("a") == "w0"
    others = {("x", i): [] for i in range(4)}
    env.submit(others, annotations=dict.fromkeys(others, AnnotationSet(workers=["w1"])))
    env.submit({"b": []}, annotations={"b": gpu})
    assert env.where("b") == "w1"


def test_tasks_with_resources_do_not_accumulate_at_their_data(env: Env) -> None:
    env.join("w0", "w1", nthreads=4, resources={"cores": 128})
    graph = {"root": [], **{("g", i): ["root"] for i in range(6)}}
    annotated = AnnotationSet(resources={"cores": 100})
    env.submit(graph, annotations={key: annotated for key in graph if key != "root"})
    env.finish("root")
    assert [len(env.processing(address)) for address in ("w0", "w1")] == [3, 3]


def test_large_data_outweighs_wait_for_resources(env: Env) -> None:
    env.join("w0", "w1", nthreads=4, resources={"gpu": 1})
    gpu = AnnotationSet(resources={"gpu": 1})
    env.submit({"big": []}, annotations={"big": AnnotationSet(workers=["w0"])})
    env.finish("big", nbytes=10**10)
    graph = {("g", i): ["big"] for i in range(3)}
    env.submit(graph, annotations=dict.fromkeys(graph, gpu))
    assert len(env.processing("w0")) == 3


def test_actors_spread(env: Env) -> None:
    env.join("w0", "w1")
    env.submit({"data": []})
    env.finish("data", nbytes=10**9)
    env.submit({"a": ["data"], "b": ["data"]}, commit={"actors": True})
    assert sorted([env.where("a"), env.where("b")]) == ["w0", "w1"]


def test_other_tasks_do_not_avoid_workers_with_actors(duo: Env) -> None:
    duo.submit(
        {"actor": [], "data": []},
        annotations=on("w0", "actor", "data"),
        commit={"actors": ["actor"]},
    )
    duo.finish("actor", "data")
    duo.fetched("w1", "data")
    duo.submit({"busy": []}, annotations=on("w1", "busy"))
    duo.submit({"y": ["data"]})
    assert duo.where("y") == "w0"


def test_actors_with_resources_spread(env: Env) -> None:
    env.join("w0", "w1", resources={"gpu": 4})
    graph: dict[Any, list[Any]] = {"data": [], "a": ["data"], "b": ["data"]}
    gpu = dict.fromkeys("ab", AnnotationSet(resources={"gpu": 1}))
    env.submit(graph, annotations=gpu, commit={"actors": ["a", "b"]})
    env.finish("data", nbytes=10**9)
    assert sorted([env.where("a"), env.where("b")]) == ["w0", "w1"]


def test_inputs_count_as_work_until_they_are_fetched(duo: Env) -> None:
    duo.submit({"a": [], "b": []}, annotations=on("w0", "a", "b"))
    duo.finish("a", "b", nbytes=10**9)
    duo.submit({"y": ["a"], "z": ["b"]}, annotations=on("w1", "y", "z"))
    w1 = duo.worker("w1")
    assert w1.network_occ == duo.state.network_occ == 2 * 10**9
    duo.finish("y")
    assert w1.network_occ == duo.state.network_occ == 10**9
    duo.fetched("w1", "b")
    assert w1.network_occ == duo.state.network_occ == 0


# ------------------------------------------------------------------ root-ish tasks


def queueing(env: Env, n: int = 12) -> Env:
    env.submit({("x", i): [] for i in range(n)})
    return env


@pytest.mark.parametrize(
    ("saturation", "nthreads", "sent"),
    [(1.0, 1, 1), (1.0, 2, 2), (1.1, 1, 2), (1.1, 4, 5), (2.0, 2, 4), (0.1, 2, 1)],
)
def test_roots_wait_on_the_scheduler(
    make_env: MakeEnv, saturation: float, nthreads: int, sent: int
) -> None:
    env = make_env(worker_saturation=saturation)
    env.join("w0", nthreads=nthreads)
    queueing(env)
    assert len(env.processing("w0")) == sent
    assert len(env.state.queued) == 12 - sent
    env.finish(("x", 0))
    assert len(env.processing("w0")) == sent
    assert env.processing("w0")[-1] == ("x", sent)


@pytest.mark.parametrize(
    ("saturation", "part", "sent"),
    [(1.1, LARGE_PART, 2), (1.1, LARGE_PART / 4, 3), (1.2, LARGE_PART, 3)],
)
def test_roots_with_large_results_wait_for_free_threads(
    make_env: MakeEnv, saturation: float, part: float, sent: int
) -> None:
    env = make_env(worker_saturation=saturation, coassigned_tasks=0)
    env.join("w0", nthreads=2, memory_limit=10**9)
    chains: Graph = {("x", i): [] for i in range(12)}
    env.submit(chains | {("y", i): [("x", i)] for i in range(12)})
    assert len(env.processing("w0")) == 3
    for i in range(2):
        env.finish(("x", i), nbytes=int(part * 10**9))
        env.finish(("y", i))
        assert len(env.processing("w0")) == sent


def test_successors_go_before_roots_with_large_results(make_env: MakeEnv) -> None:
    env = make_env()
    env.join("w0", memory_limit=10**9)
    env.submit({("x", i): [] for i in range(6)} | {("y", i): [("x", i)] for i in range(6)})
    env.finish(("x", 0), nbytes=10**7)
    env.finish(("y", 0))
    env.finish(("x", 1), nbytes=10**7)
    assert env.processing("w0") == [("y", 1)]


def test_infinite_saturation_sends_all_roots_at_once_in_runs(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=inf)
    env.join("w0", "w1")
    queueing(env)
    assert not env.state.queued
    assert [key[1] for key in env.processing("w0")] == [0, 1, 2, 3, 4, 5]
    assert [key[1] for key in env.processing("w1")] == [6, 7, 8, 9, 10, 11]


def test_ready_successors_go_before_new_roots(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=1.0)
    env.join("w0")
    graph: dict[object, list[object]] = {("x", i): [] for i in range(4)}
    graph.update({("y", i): [("x", i)] for i in range(4)})
    env.submit(
        graph,
        priorities={("x", i): 2 * i for i in range(4)} | {("y", i): 2 * i + 1 for i in range(4)},
    )
    env.expect("w0: compute-task ('x',0)")
    env.finish(("x", 0))
    env.expect("w0: compute-task ('y',0) with ('x',0)@w0")
    env.finish(("y", 0))
    env.expect("w0: free-keys ('x',0)", "w0: compute-task ('x',1)", "alice: key-in-memory ('y',0)")


def test_the_queue_is_by_priority(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=1.0)
    env.join("w0")
    queueing(env, 4)
    env.now += 1
    env.submit({("later", i): [] for i in range(4)})
    env.submit(
        {("urgent", i): [] for i in range(4)},
        annotations={("urgent", i): AnnotationSet(priority=1) for i in range(4)},
    )
    env.work()
    order = [t[0] for t in env.state.transition_log if t[1:3] == ("processing", "memory")]
    names = [key[0] for key in order]
    assert names == ["x"] + ["urgent"] * 4 + ["x"] * 3 + ["later"] * 4


def test_queued_tasks_are_released_with_their_futures(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=1.0)
    env.join("w0")
    queueing(env)
    env.take()
    env.release(*[("x", i) for i in range(1, 12)])
    env.expect()
    assert not len(env.state.queued)


def test_root_ish(make_env: MakeEnv) -> None:
    env = make_env()
    env.join("w0", nthreads=2)

    def rootish(graph: dict[object, list[object]], key: object, **rows: object) -> bool:
        env.submit(graph, **rows)
        return placement.is_rootish(env.state, env.task(key))

    assert rootish({("a", i): [] for i in range(5)}, ("a", 0))
    assert not rootish({("b", i): [] for i in range(4)}, ("b", 0))
    few = {"f": []} | {("c", i): ["f"] for i in range(5)}
    assert rootish(few, ("c", 0))
    many = {("g", i): [] for i in range(5)} | {("d", i): [("g", i)] for i in range(5)}
    assert not rootish(many, ("d", 0))
    assert rootish({"e": []}, "e", producers=["e"])
    restricted = {("h", 0): AnnotationSet(workers=["w0"])}
    assert not rootish({("h", i): [] for i in range(5)}, ("h", 0), annotations=restricted)


# ------------------------------------------------------------------ idle, saturated


def test_idle_and_saturated(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=inf)
    env.join("w0", "w1", "w2")
    state = env.state
    assert list(state.loads.idle) == [env.worker(w) for w in ("w0", "w1", "w2")]
    keys = [f"x{i}" for i in range(12)]
    env.submit({key: [] for key in keys}, annotations=on("w0", *keys))
    placement.refresh_idle(state)
    assert list(state.loads.saturated) == [env.worker("w0")]
    assert set(state.loads.idle) == {env.worker("w1"), env.worker("w2")}
    env.status("w0", "paused")
    assert not state.loads.saturated
    env.status("w0", "running")
    env.work()
    placement.refresh_idle(state)
    assert len(state.loads.idle) == 3


@pytest.mark.parametrize(("n", "expected"), [(3, "idle"), (6, ""), (10, "saturated")])
def test_load_counts_threads(make_env: MakeEnv, n: int, expected: str) -> None:
    """The tasks that wait for one of four threads decide, not all tasks."""
    env = make_env(worker_saturation=inf)
    env.join("w0", nthreads=4)
    env.join("w1", nthreads=12)
    keys = [f"x{i}" for i in range(n)]
    env.submit({key: [] for key in keys}, annotations=on("w0", *keys))
    assert placement.load_class(env.state, env.worker("w0")) == expected


def test_idle_and_saturated_are_refreshed_by_the_tick(make_env: MakeEnv) -> None:
    """Refreshing at each start and end of a task would cost too much. Other readers compute the current class."""
    env = make_env(worker_saturation=inf)
    env.join("w0", "w1", "w2")
    w0, w1 = env.worker("w0"), env.worker("w1")
    keys = [f"x{i}" for i in range(12)]
    env.submit({key: [] for key in keys}, annotations=on("w0", *keys))
    state = env.state
    assert w0 in state.loads.idle and not state.loads.saturated  # not refreshed yet
    assert placement.load_class(state, w0) == "saturated"
    assert placement.load_class(state, w1) == "idle"
    env.tick()
    assert w0 not in state.loads.idle and list(state.loads.saturated) == [w0]


def test_removed_worker_is_not_refreshed(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=inf)
    env.join("w0", "w1")
    env.submit({"x": []}, annotations=on("w0", "x"))
    env.lose("w0")
    env.tick()
    state = env.state
    assert [ws.address for ws in state.loads.idle] == ["w1"]
    assert not state.loads.saturated
