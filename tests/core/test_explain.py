"""``explain``: each cause that keeps a task from running is found and described."""

from __future__ import annotations

from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core.inspection.explain import explain, explain_all
from paceline.scheduler.core.inspection.explain.facts import BELOW_MAX, candidates
from paceline.scheduler.core.inspection.queries import prefix_states
from paceline.scheduler.core.stimuli import AnnotationSet, RecallTask
from paceline.testing import Env


def ask(env: Env, key: Any) -> dict[str, Any]:
    return explain(env.state, key, env.now)


def test_unknown_key(duo: Env) -> None:
    found = ask(duo, "unknown")
    assert found["state"] is None
    assert "does not know unknown" in found["summary"]


def test_a_task_that_was_forgotten(duo: Env) -> None:
    duo.submit({"x": []})
    duo.finish("x")
    duo.release("x")
    found = ask(duo, "x")
    assert found["state"] is None
    assert "has forgotten x" in found["summary"]
    assert found["story"][-1][2] == "forgotten"


def test_a_result_that_was_released(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"]}, want=["y"])
    duo.finish("x", "y")
    expected = "x has finished, and its result was released 0 ms ago: no client holds a future"
    assert expected in ask(duo, "x")["summary"]


def test_name_of_a_group(duo: Env) -> None:
    duo.submit({("x-1", i): [] for i in range(30)})
    found = ask(duo, "x-1")
    assert found["namesakes"]
    assert "not a task" in found["summary"]
    assert found["summary"].endswith("for example ('x-1', 0), ('x-1', 1), ('x-1', 2).")


def test_dependents_are_counted(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"], **{f"z{i}": ["y"] for i in range(12)}})
    assert "Wanted by 1 task that depends on it (y)." in ask(duo, "x")["words"]
    expected = "Wanted by 12 tasks that depend on it (z0, z1, z2 and 9 more)."
    assert expected in ask(duo, "y")["words"]


def test_key_in_a_pending_graph(duo: Env) -> None:
    chunk, commit = duo.rows({"x": []})
    duo.turn(chunk, "alice")
    assert "graph of alice" in ask(duo, "x")["summary"]
    duo.feed(commit, "alice")
    assert ask(duo, "x")["state"] == "processing"


def test_key_may_be_in_a_graph_being_compiled(duo: Env) -> None:
    found = explain(duo.state, "x", duo.now, compiling=2)
    assert "2 graphs" in found["summary"]


def test_no_worker_at_all(env: Env) -> None:
    env.client("alice")
    env.submit({"x": []})
    env.now += 65
    found = ask(env, "x")
    assert found["state"] == "queued"
    assert found["seconds"] == 65
    assert found["summary"] == "x can run, but no worker is connected (for 65.0 s). Start a worker."
    env.submit({"y": []}, annotations={"y": AnnotationSet(workers=["w9"])})
    assert ask(env, "y")["summary"] == "y can run, but no worker is connected (for 0 ms)."
    env.submit({"z": []}, annotations={"z": AnnotationSet(resources={"GPU": 1})})
    assert ask(env, "z")["summary"].endswith("(for 0 ms). Start a worker with GPU >= 1.")


def test_two_resources_that_no_worker_has(duo: Env) -> None:
    annotated = AnnotationSet(resources={"GPU": 2.0, "TPU": 1.0})
    duo.submit({"x": []}, annotations={"x": annotated})
    summary = ask(duo, "x")["summary"]
    assert "it needs GPU >= 2, TPU >= 1, which no worker supplies" in summary


def test_a_loose_restriction_excludes_no_worker(duo: Env) -> None:
    duo.submit(
        {"x": []}, annotations={"x": AnnotationSet(workers=["w0"], allow_other_workers=True)}
    )
    assert candidates(duo.state, duo.task("x"))["able"] == ["w0", "w1"]


def test_time_since_the_last_heartbeat_counts_as_executing(duo: Env) -> None:
    duo.submit({"x": []})
    duo.heartbeat(duo.where("x"), executing={"x": 1.0})
    duo.now += 8
    assert "has been executing for 9.0 s" in ask(duo, "x")["summary"]


def test_a_resource_that_no_worker_has(duo: Env) -> None:
    annotated = AnnotationSet(resources={"GPU": 2.0})
    duo.feed(m.SetResources(worker="w1", resources={"GPU": 1.0}), "w1")
    duo.submit({"x": []}, annotations={"x": annotated})
    found = ask(duo, "x")
    assert found["state"] == "no-worker"
    assert found["workers"]["n_able"] == 0
    assert found["workers"]["reasons"] == {"resource": 2}
    assert "it needs GPU >= 2, which no worker supplies" in found["summary"]
    assert any("w1: has 1 of GPU, 2 needed." in line for line in found["words"])


def test_a_restriction_to_an_absent_worker(duo: Env) -> None:
    annotated = AnnotationSet(workers=["tcp://10.0.0.9:1"])
    duo.submit({"x": []}, annotations={"x": annotated})
    found = ask(duo, "x")
    assert found["workers"]["absent"] == ["tcp://10.0.0.9:1"]
    assert "is restricted to tcp://10.0.0.9:1, which is not connected" in found["summary"]


def test_workers_that_are_paused(duo: Env) -> None:
    duo.status("w0", "paused")
    duo.status("w1", "paused")
    duo.submit({"x": []})
    assert "2 paused" in ask(duo, "x")["summary"]


def test_a_queue_behind_full_workers(duo: Env) -> None:
    duo.submit({("x", i): [] for i in range(20)})
    last = ask(duo, ("x", 19))
    assert last["state"] == "queued"
    assert last["queue"]["before"] == last["queue"]["length"] - 1
    assert "worker-saturation" in last["summary"]
    assert f"{last['queue']['before']} of {last['queue']['length']} queued tasks" in last["summary"]
    assert "2 workers with 4 slots have 4 tasks" in last["summary"]


def test_a_waiting_task_leads_to_its_root_cause(duo: Env) -> None:
    annotated = AnnotationSet(resources={"GPU": 1.0})
    duo.submit(
        {"a": [], "b": ["a"], "c": ["b"], "other": ["c", "d"], "d": []},
        annotations={"a": annotated},
    )
    found = ask(duo, "other")
    assert found["state"] == "waiting"
    assert found["waits_for"]["n"] == 2
    assert found["waits_for"]["bottom"] == {"no-worker": 1, "processing": 1}
    assert found["waits_for"]["cause"]["key"] == "a"
    assert "Root cause: a can run on none of the 2 workers" in found["summary"]
    assert "Wanted by alice." in found["words"]


def test_a_worker_without_heartbeats(duo: Env) -> None:
    duo.submit({"x": []})
    duo.now += 100
    found = ask(duo, "x")
    assert "has not sent a heartbeat for 100.0 s" in found["summary"]
    assert "It is removed after 5 minutes" in found["summary"]


def test_an_executing_task(duo: Env) -> None:
    duo.submit({"x": []})
    duo.now += 30
    duo.heartbeat(duo.where("x"), executing={"x": 29.5})
    found = ask(duo, "x")
    assert found["worker"]["executing"] == 29.5
    assert "has been executing for 29.5 s" in found["summary"]
    assert "30.0 s ago" in found["summary"]
    assert any("call_stack" in line for line in found["words"])


def test_waiting_for_a_thread(env: Env) -> None:
    env.client("alice")
    env.join("w1", nthreads=1)
    env.submit({"x": [], "y": []})
    env.heartbeat("w1", executing={"x": 3.0})
    assert "waits for a free thread (1 thread busy with x)" in ask(env, "y")["summary"]


def test_waiting_for_data(duo: Env) -> None:
    duo.submit({"x": [], "y": [], "z": ["x", "y"]})
    duo.finish("x", "y")
    found = ask(duo, "z")
    assert found["worker"]["n_missing"] == 1
    assert "has to fetch 1 dependency (8 B)" in found["summary"]


def test_an_erred_task_and_its_dependent(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"]})
    duo.fail("x", exception_text="ValueError('boom')")
    assert "failed on w" in ask(duo, "x")["summary"]
    assert "ValueError('boom')" in ask(duo, "x")["summary"]
    assert ask(duo, "y")["summary"].startswith(
        "y cannot run because x, which it depends on, failed"
    )


def test_a_task_in_memory(duo: Env) -> None:
    duo.submit({"x": []})
    duo.finish("x")
    assert "x is in memory (8 B) on w" in ask(duo, "x")["summary"]


def test_a_wanted_key_that_was_never_submitted(duo: Env) -> None:
    duo.desire("x")
    assert "no graph with this key was submitted" in ask(duo, "x")["summary"]


def test_the_search_for_the_root_cause_is_bounded(duo: Env) -> None:
    width = BELOW_MAX // 2 + 10
    graph: Any = {("a", i): [] for i in range(width)}
    graph |= {("b", i): [("a", i)] for i in range(width)}
    graph["z"] = [("b", i) for i in range(width)]
    duo.checks = False
    duo.submit(graph)
    found = ask(duo, "z")
    assert not found["waits_for"]["whole"]
    assert "the search stopped" in " ".join(found["words"])


def test_the_cluster_as_a_whole(duo: Env) -> None:
    assert explain_all(duo.state, duo.now)["suspects"] == []
    annotated = AnnotationSet(resources={"GPU": 1.0})
    duo.submit({"a": [], "b": []}, annotations={"a": annotated})
    found = explain_all(duo.state, duo.now)
    assert found["states"] == {"no-worker": 1, "processing": 1}
    assert prefix_states(duo.state) == {"a": {"no-worker": 1}, "b": {"processing": 1}}
    assert [each["key"] for each in found["suspects"]] == ["a", "b"]


def test_the_result_can_be_serialized(duo: Env) -> None:
    from paceline.protocol.codec import Codec

    duo.submit({("x", i): [] for i in range(20)} | {"y": [("x", 0)]})
    for key in ("y", ("x", 0), ("x", 19), "unknown", None):
        answer = explain_all(duo.state, duo.now) if key is None else ask(duo, key)
        Codec().encode(answer)


def test_a_task_that_is_being_recalled(env: Env) -> None:
    env.client("alice")
    env.join("w1", nthreads=1)
    env.submit({"x": [], "y": []})
    env.heartbeat("w1", executing={"x": 3.0})
    env.join("w2", nthreads=1)
    env.turn(RecallTask("y", "w2"))
    found = ask(env, "y")
    assert found["worker"]["asked_back"]["thief"] == "w2"
    assert (
        "was asked to give it back so that it can move to w2 and has not answered"
        in found["summary"]
    )
    assert ask(env, "x")["worker"]["asked_back"] is None
