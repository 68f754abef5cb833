"""Graphs: uncommitted rows, commits, known keys, lost dependencies, priorities, failures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from paceline.protocol import messages as m
from paceline.protocol.keys import Key
from paceline.scheduler.core.state.graphs.pending_graph import FREED_ROWS_MAX
from paceline.scheduler.core.stimuli import (
    AnnotationSet,
    Continue,
    DataPlaced,
    GraphChunk,
    GraphCommit,
    GraphDropped,
    GraphFailed,
)
from paceline.testing import Env, fake_error

MakeEnv = Callable[..., Env]


def test_graph_runs_from_roots_to_desired_keys(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"]})
    duo.expect("w0: compute-task x")
    assert duo.states("x", "y") == ["processing", "waiting"]
    duo.finish("x")
    duo.expect("w0: compute-task y with x@w0")
    duo.finish("y")
    duo.expect("w0: free-keys x", "alice: key-in-memory y")
    duo.release("y")
    duo.expect("w0: free-keys y")
    assert not duo.state.tasks
    assert not duo.state.task_groups


def test_rows_of_an_uncommitted_graph_are_invisible(duo: Env) -> None:
    *chunks, commit = duo.rows({"x": [], "y": ["x"], "z": ["y"]}, chunk_size=1)
    for chunk in chunks:
        duo.turn(chunk, "alice")
        assert not duo.state.tasks
        assert not duo.wants_continue
    duo.expect()
    duo.turn(commit, "alice")
    duo.expect("w0: compute-task x")
    assert not duo.state.graphs


def test_a_commit_without_rows(duo: Env) -> None:
    duo.submit({"x": []})
    duo.finish("x")
    duo.take()
    duo.submit({}, want=["x"])
    duo.expect("alice: key-in-memory x")
    duo.submit({}, want=["nobody-knows"])
    duo.expect("alice: cancelled-keys nobody-knows (lost dependencies)")


def test_a_commit_without_rows_recomputes_a_released_key(duo: Env) -> None:
    """`Client.recreate_error_locally` sends one for the inputs of the erred task."""
    duo.submit({"x": [], "y": ["x"]}, want=["y"])
    duo.finish("x")
    duo.finish("y")
    assert duo.states("x", "y") == ["released", "memory"]
    duo.take()
    duo.submit({}, want=["x"])
    duo.expect("w0: compute-task x")
    duo.finish("x")
    duo.expect("alice: key-in-memory x")


def test_best_placed_rows_go_first(duo: Env) -> None:
    duo.lose("w1", expected=True)
    duo.take()
    duo.submit({"a": [], "b": [], "c": []}, priorities={"a": 2, "b": 0, "c": 1})
    duo.expect("w0: compute-task b", "w0: compute-task c", "w0: compute-task a")


def test_user_priority_comes_before_generation_and_order(duo: Env) -> None:
    duo.submit({"a": [], "b": []}, annotations={"b": AnnotationSet(priority=5)})
    assert duo.task("a").priority == (0, 1, 0)
    assert duo.task("b").priority == (-5, 1, 1)
    duo.now += 1
    duo.submit({"c": []}, commit={"user_priority": 2})
    duo.now += 1
    duo.submit({"d": [], "e": []}, commit={"user_priority": {"d": 3}})
    assert duo.task("c").priority == (-2, 2, 0)
    assert duo.task("d").priority == (-3, 3, 0)
    assert duo.task("e").priority == (0, 3, 1)


def test_graphs_in_quick_succession_are_of_one_generation(duo: Env) -> None:
    duo.submit({"a": []}, commit={"fifo_timeout_seconds": 60})
    duo.now += 10
    duo.submit({"b": []}, commit={"fifo_timeout_seconds": 60})
    duo.now += 61
    duo.submit({"c": []}, commit={"fifo_timeout_seconds": 60})
    generations = [duo.task(key).priority[1] for key in "abc"]  # type: ignore[index]
    assert generations == [1, 1, 2]


def test_tasks_that_a_task_submits_come_before_all_others(duo: Env) -> None:
    duo.submit({"old": []})
    duo.now += 1
    duo.submit({"a": []}, commit={"user_priority": 10})
    duo.submit({"b": []}, commit={"submitting_task": "a"})
    old, b = duo.task("old").priority, duo.task("b").priority
    assert old is not None and b is not None
    assert b < old


def test_known_keys_are_not_computed_again(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"]})
    duo.finish("x", "y")
    duo.take()
    duo.client("bob")
    duo.submit({"x": [], "y": ["x"]}, client="bob")
    duo.expect("bob: key-in-memory y")
    duo.release("y")
    duo.expect()
    duo.release("y", client="bob")
    duo.expect("w0: free-keys y")


def test_only_needed_tasks_run_again(duo: Env) -> None:
    """y is in memory, so x is not needed for it; z needs x again."""
    duo.submit({"x": [], "y": ["x"]})
    duo.finish("x", "y")
    duo.take()
    assert duo.states("x", "y") == ["released", "memory"]
    duo.submit({"x": [], "z": ["x", "y"]})
    duo.expect("w0: compute-task x")
    assert duo.states("x", "y", "z") == ["processing", "memory", "waiting"]


def test_a_graph_that_depends_on_a_running_task_waits_for_it(duo: Env) -> None:
    duo.submit({"x": []})
    duo.take()
    duo.submit({"y": ["x"]})
    duo.expect()
    duo.release("x")
    duo.expect()
    duo.finish("x")
    duo.expect("w0: compute-task y with x@w0")


def test_unneeded_tasks_are_forgotten(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"], "z": ["x"]}, want=["y"])
    duo.expect("w0: compute-task x")
    assert duo.states("z") == ["forgotten"]
    assert [d.key for d in duo.task("x").dependents] == ["y"]


def test_resubmitted_key_keeps_its_dependencies(duo: Env) -> None:
    duo.submit({"a": [], "b": [], "x": ["a"]})
    duo.take()
    duo.submit({"x": ["b"]}, want=["x"])
    duo.expect()
    assert [d.key for d in duo.task("x").dependencies] == ["a"]
    assert any("Detected different `run_spec` for key 'x'" in text for _, text in duo.lines)


def test_lost_dependencies_refuse_the_graph(duo: Env) -> None:
    duo.submit({"y": ["gone"], "z": ["y"]})
    duo.expect("alice: cancelled-keys z (lost dependencies)")
    assert not duo.state.tasks
    assert any("missing dependency gone" in text for _, text in duo.lines)


def test_desired_key_without_task_is_a_lost_dependency(duo: Env) -> None:
    duo.desire("x")
    duo.submit({"y": ["x"]})
    duo.expect("alice: cancelled-keys y (lost dependencies)")
    assert duo.states("x", "y") == ["released", "forgotten"]


def test_desires_before_the_graph(duo: Env) -> None:
    duo.client("bob")
    duo.desire("x", client="bob")
    duo.expect()
    assert duo.states("x") == ["released"]
    duo.submit({"x": []})
    duo.expect("w0: compute-task x")
    duo.finish("x")
    duo.expect("bob: key-in-memory x", "alice: key-in-memory x")
    duo.release("x")
    assert duo.states("x") == ["memory"]


def test_desire_that_ends_before_the_graph_arrives(duo: Env) -> None:
    duo.desire("x")
    duo.release("x")
    assert not duo.state.tasks


def test_annotations(env: Env) -> None:
    env.join("w0", "w1", "w2")
    env.take()
    env.submit(
        {"a": [], "b": [], "c": []},
        annotations={
            "a": AnnotationSet(value={"workers": ["w2"]}, workers=["w2"]),
            "b": AnnotationSet(retries=2),
            "c": AnnotationSet(workers=["host-w1"], allow_other_workers=True),
        },
    )
    a, b, c = map(env.task, "abc")
    assert (a.worker_restrictions, a.annotations) == ({"w2": None}, {"workers": ["w2"]})
    assert env.where("a") == "w2"
    assert b.retries == 2
    assert (c.host_restrictions, c.loose_restrictions) == ({"host-w1": None}, True)
    assert env.where("c") == "w1"


def test_host_and_port_restrict_a_task_to_an_address(duo: Env) -> None:
    duo.submit({"a": []}, annotations={"a": AnnotationSet(workers=[("10.0.0.1", 8000)])})
    assert duo.task("a").worker_restrictions == {"tcp://10.0.0.1:8000": None}
    assert duo.task("a").host_restrictions is None


def test_actors(duo: Env) -> None:
    duo.submit({"a": []}, commit={"actors": ["a"]})
    duo.expect("w0: compute-task a as actor")
    assert duo.task("a") in duo.worker("w0").actors
    duo.finish("a")
    assert duo.task("a") in duo.worker("w0").actors
    duo.submit({"b": []}, commit={"actors": True})
    assert duo.where("b") == "w1"


def test_graph_on_an_erred_task_fails(duo: Env) -> None:
    duo.submit({"x": []})
    duo.fail("x")
    duo.take()
    duo.submit({"y": ["x"], "z": ["y"], "other": []})
    duo.expect("alice: task-erred z: boom x", "w1: compute-task other")
    assert duo.states("x", "y", "z") == ["erred", "erred", "erred"]
    assert duo.task("z").exception_blame is duo.task("x")


def test_dependencies_of_a_failed_task_do_not_run(duo: Env) -> None:
    """New roots of a task that cannot run are not computed."""
    duo.submit({"x": []})
    duo.fail("x")
    duo.take()
    duo.submit({"root": [], "inner": ["root"], "y": ["x", "inner"]})
    duo.expect("alice: task-erred y: boom x")
    assert duo.states("root", "inner", "y") == ["released", "released", "erred"]


def test_a_graph_that_cannot_be_compiled(duo: Env) -> None:
    duo.client("bob")
    duo.desire("x", client="bob")
    failed = GraphFailed(7, ["x", "y"], "alice", fake_error("broken"), None, "broken pickle")
    duo.turn(GraphChunk(7, ["x"], [0], [("x", "x")], [[]], [], [b"x"], [0]), "alice")
    duo.turn(failed, "alice")
    duo.expect(
        "bob: task-erred x: broken",
        "alice: task-erred x: broken",
        "alice: task-erred y: broken",
    )
    assert not duo.state.graphs
    assert (40, "broken pickle") in duo.lines


def test_a_graph_that_cannot_be_compiled_leaves_tasks_of_others_alone(duo: Env) -> None:
    duo.client("bob")
    duo.submit({"x": [], "y": []}, client="bob")
    duo.finish("x")
    duo.take()
    failed = GraphFailed(7, ["x", "y"], "alice", fake_error("broken"), None, "broken pickle")
    duo.turn(failed, "alice")
    duo.expect("alice: task-erred x: broken", "alice: task-erred y: broken")
    duo.finish("y")
    duo.expect("bob: key-in-memory y")


def test_a_commit_that_fails_does_not_block_the_next_graph(duo: Env) -> None:
    broken = duo.rows({"x": []})[-1]  # without its rows
    with pytest.raises(IndexError):
        duo.turn(broken, "alice")
    duo.submit({"y": []})
    duo.expect("w0: compute-task y")
    assert not duo.state.deferred.commits


def test_graph_of_removed_client_is_dropped(duo: Env) -> None:
    *chunks, commit = duo.rows({"x": [], "y": ["x"]}, chunk_size=1)
    duo.turn(chunks[0], "alice")
    duo.leave("alice")
    duo.turn(chunks[1], "alice")
    duo.turn(commit, "alice")
    duo.expect()
    assert not duo.state.tasks and not duo.state.graphs


def test_late_rows_of_dropped_graph_are_ignored_after_reconnect(duo: Env) -> None:
    *chunks, commit = duo.rows({"x": [], "y": ["x"]}, chunk_size=1)
    duo.turn(chunks[0], "alice")
    duo.leave("alice")
    duo.client("alice")
    duo.turn(chunks[1], "alice")
    duo.turn(commit, "alice")
    duo.expect()
    assert not duo.state.tasks and not duo.state.graphs


def test_driver_abandons_a_graph(duo: Env) -> None:
    *chunks, _ = duo.rows({"x": []})
    duo.turn(chunks[0], "alice")
    duo.turn(GraphDropped(chunks[0].graph_id))
    assert not duo.state.graphs
    duo.turn(GraphDropped(99))
    duo.expect()


def test_graphs_of_two_clients_interleave(duo: Env) -> None:
    duo.client("bob")
    first = duo.rows({"a1": [], "a2": ["a1"]}, chunk_size=1)
    second = duo.rows({"b1": [], "b2": ["b1"]}, chunk_size=1, client="bob")
    for one, other in zip(first, second, strict=True):
        duo.turn(one, "alice")
        duo.turn(other, "bob")
    duo.expect("w0: compute-task a1", "w1: compute-task b1")


def test_event_of_a_graph(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"]})
    ((_, event),) = [
        e for e in duo.state.events.topics["alice"].events if e[1]["action"] == "update-graph"
    ]
    assert event["status"] == "OK"
    assert event["metrics"]["tasks"] == event["metrics"]["new_tasks"] == 2
    assert event["metrics"]["key_collisions"] == 0


def test_computations_gather_while_the_cluster_is_busy(duo: Env) -> None:
    duo.submit({"a": []})
    duo.submit({"b": []})
    assert len(duo.state.computations) == 1
    duo.work()
    duo.submit({"c": []})
    assert [[g.name for g in c.groups] for c in duo.state.computations] == [["a", "b"], ["c"]]


def test_rows_of_a_large_graph_are_freed_over_several_turns(duo: Env) -> None:
    duo.checks = False
    keys: list[Key] = [("x", n) for n in range(2 * FREED_ROWS_MAX + 1)]
    *chunks, commit = duo.rows(dict.fromkeys(keys, ()), keys[:1])
    for message in (*chunks, commit):
        duo.turn(message, "alice")
    (graph,) = duo.state.deferred.commits
    n_rows = {len(graph.keys)}
    while duo.wants_continue:
        duo.turn(Continue())
        n_rows.add(len(graph.keys))
        duo.checks = graph.stage == "done"
    assert n_rows == {2 * FREED_ROWS_MAX + 1, FREED_ROWS_MAX + 1, 1, 0}
    assert not graph.tasks and not duo.state.deferred and not duo.state.graphs
    assert len(duo.state.tasks) == 1, "the others are not needed"
    duo.submit({"y": []})
    assert duo.states("y") == ["processing"]


def test_rows_of_a_large_graph_that_is_dropped_while_inserted_are_freed(duo: Env) -> None:
    duo.checks = False
    keys: list[Key] = [("x", n) for n in range(2 * FREED_ROWS_MAX)]
    *chunks, commit = duo.rows(dict.fromkeys(keys, ()), keys[:1], chunk_size=1000)
    for message in (*chunks, commit):
        duo.turn(message, "alice")
    (graph,) = duo.state.deferred.commits
    n_inserted = len(duo.state.tasks)
    assert 0 < n_inserted < len(keys) and len(graph.chunks) == len(chunks) - n_inserted // 1000
    duo.turn(GraphDropped(graph.graph_id))
    while duo.wants_continue:
        duo.turn(Continue())
    assert not graph.chunks and not graph.keys and not duo.state.tasks and not duo.state.deferred


def test_run_specs_keep_their_buffers(duo: Env) -> None:
    chunk = GraphChunk(
        1, ["x", "y"], [0, 1], [("x", "x"), ("y", "y")], [[], []], [], [b"sx", b"sy"], [0, 1],
        spec_buffers={1: [0, 0]}, buffers=[b"large"],
    )  # fmt: skip
    duo.turn(chunk, "alice")
    duo.turn(GraphCommit(1, ["x", "y"], "alice", received_at=duo.now), "alice")
    sent = {m.key: m.run_spec for ms in duo.outbox.workers.values() for m in ms}
    assert (sent["x"].header, sent["x"].frames) == (b"sx", ())
    assert (sent["y"].header, sent["y"].frames) == (b"sy", (b"large", b"large"))


def test_result_with_lost_inputs_can_be_computed_again_with_its_graph(duo: Env) -> None:
    duo.feed(DataPlaced({"d": ["w0"]}, {"d": 8}, client="alice"))
    duo.submit({"y": ["d"]}, annotations={"y": AnnotationSet(workers=["w1"])})
    duo.finish("y")
    duo.lose("w0")
    assert duo.task("y").has_lost_dependencies
    duo.submit({"d": [], "y": ["d"]})
    duo.take()
    duo.feed(m.ReleaseWorkerData(key="y"), "w1")
    assert duo.states("d", "y") == ["processing", "waiting"]
    duo.work()
    assert duo.states("d", "y") == ["released", "memory"]
