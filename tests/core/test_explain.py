"""Why a task does not run: each way in which one is held up is found, and said."""

from __future__ import annotations

from typing import Any

from env import Env
from paceline.protocol import messages as m
from paceline.scheduler.core.explain import BELOW_MAX, explain, explain_all
from paceline.scheduler.core.stimuli import AnnotationSet, AskBack


def ask(env: Env, key: Any) -> dict[str, Any]:
    return explain(env.state, key, env.now)


def test_what_nobody_ever_heard_of(duo: Env) -> None:
    told = ask(duo, "nobody")
    assert told["state"] is None
    assert "does not know nobody" in told["summary"]


def test_a_task_that_was_forgotten(duo: Env) -> None:
    duo.submit({"x": []})
    duo.finish("x")
    duo.release("x")
    told = ask(duo, "x")
    assert told["state"] is None
    assert "has forgotten x" in told["summary"]
    assert told["story"][-1][2] == "forgotten"


def test_the_name_of_many_tasks(duo: Env) -> None:
    duo.submit({("x-1", i): [] for i in range(3)})
    told = ask(duo, "x-1")
    assert told["namesakes"]
    assert "name of several" in told["summary"]


def test_a_graph_that_is_being_taken_in(duo: Env) -> None:
    chunk, commit = duo.rows({"x": []})
    duo.turn(chunk, "alice")
    assert "graph of alice" in ask(duo, "x")["summary"]
    duo.feed(commit, "alice")
    assert ask(duo, "x")["state"] == "processing"


def test_graphs_that_are_being_read_elsewhere(duo: Env) -> None:
    told = explain(duo.state, "x", duo.now, compiling=2)
    assert "2 graphs" in told["summary"]


def test_no_worker_at_all(env: Env) -> None:
    env.client("alice")
    env.submit({"x": []})
    env.now += 65
    told = ask(env, "x")
    assert told["state"] == "queued"
    assert told["seconds"] == 65
    assert told["summary"] == "x can run, but there is no worker (for 65.0 s): start one."


def test_a_resource_that_no_worker_has(duo: Env) -> None:
    annotated = AnnotationSet(resources={"GPU": 2.0})
    duo.feed(m.SetResources(worker="w1", resources={"GPU": 1.0}), "w1")
    duo.submit({"x": []}, annotations={"x": annotated})
    told = ask(duo, "x")
    assert told["state"] == "no-worker"
    assert told["workers"]["n_able"] == 0
    assert told["workers"]["reasons"] == {"resource": 2}
    assert "it needs GPU >= 2, which none supply" in told["summary"]
    assert any("w1: has 1 of GPU, 2 needed." in line for line in told["words"])


def test_a_worker_that_is_not_there(duo: Env) -> None:
    annotated = AnnotationSet(workers=["tcp://10.0.0.9:1"])
    duo.submit({"x": []}, annotations={"x": annotated})
    told = ask(duo, "x")
    assert told["workers"]["absent"] == ["tcp://10.0.0.9:1"]
    assert "may run on tcp://10.0.0.9:1 alone, and that is not there" in told["summary"]


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


def test_a_task_that_waits_leads_to_what_it_waits_for_in_the_end(duo: Env) -> None:
    annotated = AnnotationSet(resources={"GPU": 1.0})
    duo.submit(
        {"a": [], "b": ["a"], "c": ["b"], "other": ["c", "d"], "d": []},
        annotations={"a": annotated},
    )
    told = ask(duo, "other")
    assert told["state"] == "waiting"
    assert told["waits_for"]["n"] == 2
    assert told["waits_for"]["bottom"] == {"no-worker": 1, "processing": 1}
    assert told["waits_for"]["cause"]["key"] == "a"
    assert "At the bottom: a can run on none of the 2 workers" in told["summary"]
    assert "Wanted by alice." in told["words"]


def test_a_worker_that_was_not_heard_of(duo: Env) -> None:
    duo.submit({"x": []})
    duo.now += 100
    told = ask(duo, "x")
    assert "has not been heard of for 100.0 s" in told["summary"]
    assert "after 5 minutes it is given up" in told["summary"]


def test_what_executes(duo: Env) -> None:
    duo.submit({"x": []})
    duo.now += 30
    duo.beat(duo.where("x"), executing={"x": 29.5})
    told = ask(duo, "x")
    assert told["worker"]["executing"] == 29.5
    assert "has been executing for 29.5 s" in told["summary"]
    assert "30.0 s ago" in told["summary"]
    assert any("call_stack" in line for line in told["words"])


def test_what_waits_for_a_thread(env: Env) -> None:
    env.client("alice")
    env.join("w1", nthreads=1)
    env.submit({"x": [], "y": []})
    env.beat("w1", executing={"x": 3.0})
    assert "execute x; it waits for a free one" in ask(env, "y")["summary"]


def test_what_waits_for_data(duo: Env) -> None:
    duo.submit({"x": [], "y": [], "z": ["x", "y"]})
    duo.finish("x", "y")
    told = ask(duo, "z")
    assert told["worker"]["n_missing"] == 1
    assert "has to fetch 1 dependency (8 bytes)" in told["summary"]


def test_what_failed_and_what_failed_with_it(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"]})
    duo.fail("x", exception_text="ValueError('boom')")
    assert "failed on w" in ask(duo, "x")["summary"]
    assert "ValueError('boom')" in ask(duo, "x")["summary"]
    assert ask(duo, "y")["summary"].startswith("y cannot run: x, which it depends on, failed")


def test_what_is_done(duo: Env) -> None:
    duo.submit({"x": []})
    duo.finish("x")
    assert "x is done: its data (8 bytes) is on w" in ask(duo, "x")["summary"]


def test_what_was_asked_for_and_never_sent(duo: Env) -> None:
    duo.desire("x")
    assert "nobody has sent a graph" in ask(duo, "x")["summary"]


def test_a_look_below_ends(duo: Env) -> None:
    width = BELOW_MAX // 2 + 10
    graph: Any = {("a", i): [] for i in range(width)}
    graph |= {("b", i): [("a", i)] for i in range(width)}
    graph["z"] = [("b", i) for i in range(width)]
    duo.checks = False
    duo.submit(graph)
    told = ask(duo, "z")
    assert not told["waits_for"]["whole"]
    assert "not looked at" in " ".join(told["words"])


def test_the_cluster_as_a_whole(duo: Env) -> None:
    assert explain_all(duo.state, duo.now)["suspects"] == []
    annotated = AnnotationSet(resources={"GPU": 1.0})
    duo.submit({"a": [], "b": []}, annotations={"a": annotated})
    told = explain_all(duo.state, duo.now)
    assert told["states"] == {"no-worker": 1, "processing": 1}
    assert [each["key"] for each in told["suspects"]] == ["a", "b"]


def test_the_answer_can_be_sent(duo: Env) -> None:
    from paceline.protocol.codec import Codec

    duo.submit({("x", i): [] for i in range(20)} | {"y": [("x", 0)]})
    for key in ("y", ("x", 0), ("x", 19), "nobody", None):
        answer = explain_all(duo.state, duo.now) if key is None else ask(duo, key)
        Codec().encode(answer)


def test_what_was_asked_back_and_not_answered(env: Env) -> None:
    env.client("alice")
    env.join("w1", nthreads=1)
    env.submit({"x": [], "y": []})
    env.beat("w1", executing={"x": 3.0})
    env.join("w2", nthreads=1)
    env.turn(AskBack("y", "w2"))
    told = ask(env, "y")
    assert told["worker"]["asked_back"]["thief"] == "w2"
    assert (
        "was asked to give it back, so that it can go to w2, and has not answered"
        in told["summary"]
    )
    assert ask(env, "x")["worker"]["asked_back"] is None
