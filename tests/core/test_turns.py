"""Long work is split into turns; other stimuli are handled in between, and the result is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.stimuli import (
    AnnotationSet,
    ClientRemoved,
    Continue,
    DataPlaced,
    ReleaseAll,
    RetryKeys,
    WorkerRemoved,
)
from paceline.testing import Env, Graph

WIDTH = 12


def layered(name: str = "", depth: int = 3, width: int = WIDTH) -> Graph:
    """Return a graph of roots, layers above them, and one final task."""
    graph: dict[Any, list[Any]] = {}
    before: list[Any] = []
    for level in range(depth):
        layer = [(f"layer{level}{name}", i) for i in range(width)]
        for i, key in enumerate(layer):
            graph[key] = [before[i], before[i - 1]] if before else []
        before = layer
    graph[f"total{name}"] = before
    return graph


def small_turns(tasks: int = 3, **config: Any) -> Env:
    env = Env(turn_tasks_max=tasks, **config)
    env.client("alice", "bob")
    env.join("w0", "w1", nthreads=2)
    env.take()
    return env


def outcome(env: Env) -> dict[Any, str]:
    """Return the state that is left when all work is done."""
    env.run_deferred()
    env.work()
    return {key: ts.state for key, ts in env.state.tasks.items()}


def test_client_whose_keys_others_want_leaves_in_bounded_turns() -> None:
    env = small_turns()
    graph: dict[Any, list[Any]] = {("x", i): [] for i in range(20)}
    env.submit(graph)
    env.submit(graph, client="bob")
    bob = env.state.clients["bob"]
    for n_left in (17, 14, 11):
        env.turn(Continue() if n_left < 17 else ClientRemoved("bob"))
        assert len(bob.wants_what) == n_left
    env.run_deferred()
    assert not bob.wants_what and len(env.state.tasks) == 20


def test_a_commit_takes_as_many_turns_as_it_needs() -> None:
    env = small_turns()
    graph = layered()
    *chunks, commit = env.rows(graph, chunk_size=5)
    for chunk in chunks:
        env.turn(chunk, "alice")
    env.turn(commit, "alice")
    turns = 0
    while env.wants_continue:
        counter = env.state.transition_counter
        env.turn(Continue())
        turns += 1
        assert env.state.transition_counter - counter <= 3 * 3  # recommendations of each row
    assert turns > len(graph)
    assert outcome(env) == outcome_in_one(graph)


def outcome_in_one(graph: Graph) -> dict[Any, str]:
    env = small_turns(2000)
    env.submit(graph)
    assert not env.wants_continue
    return outcome(env)


Between = Callable[[Env], None]


def client_lost(env: Env) -> None:
    env.turn(ClientRemoved("alice"), "alice")


def worker_lost(env: Env) -> None:
    if "w0" in env.state.workers:
        env.turn(WorkerRemoved("w0"))


def worker_leaves(env: Env) -> None:
    if "w0" in env.state.workers:
        env.turn(WorkerRemoved("w0", expected=True))


def cancel(env: Env) -> None:
    env.cancel("total", force=True)


def release(env: Env) -> None:
    env.release("total")


def restart(env: Env) -> None:
    env.turn(ReleaseAll())


def overlap(env: Env) -> None:
    for part in env.rows({**layered(), "more": ["total"]}, want=["more"], client="bob"):
        env.turn(part, "bob")


def desire(env: Env) -> None:
    env.desire(("layer1", 3), client="bob")


BETWEEN: dict[str, tuple[Between, Graph, str]] = {
    # stimulus in between, its graph, the clients that desire it
    "client-lost": (client_lost, {}, ""),
    "cancel": (cancel, {}, ""),
    "release": (release, {}, ""),
    "restart": (restart, {}, ""),
    "worker-lost": (worker_lost, layered(), "total"),
    "worker-leaves": (worker_leaves, layered(), "total"),
}


@pytest.mark.parametrize("what", BETWEEN)
@pytest.mark.parametrize("turn", [0, 1, 2, 5, 13, 14, 20, 30, 40, 50, 60, 70, 80])
def test_between_the_turns_of_a_commit(what: str, turn: int) -> None:
    between, graph, wanted = BETWEEN[what]
    env = small_turns()
    *chunks, commit = env.rows(layered(), chunk_size=4)
    for chunk in chunks:
        env.turn(chunk, "alice")
    env.turn(commit, "alice")
    for _ in range(turn):
        if env.wants_continue:
            env.turn(Continue())
    between(env)
    expected = outcome_in_one(graph) if graph else {}
    found = outcome(env)
    assert found == expected
    if wanted:
        env.release(wanted)
        assert not env.state.tasks


@pytest.mark.parametrize("what", ["client-lost", "restart"])
@pytest.mark.parametrize("chunk", [1, 4, 9])
def test_between_the_chunks_of_a_graph(what: str, chunk: int) -> None:
    env = small_turns()
    parts = env.rows(layered(), chunk_size=4)
    for part in parts[:chunk]:
        env.turn(part, "alice")
    BETWEEN[what][0](env)
    for part in parts[chunk:]:
        env.turn(part, "alice")
    assert outcome(env) == {}
    assert not env.state.graphs


@pytest.mark.parametrize("turn", [0, 1, 2, 5, 13, 20, 30, 40, 60, 80])
@pytest.mark.parametrize("first_goes", [False, True])
def test_an_overlapping_graph_between(turn: int, first_goes: bool) -> None:
    env = small_turns()
    for part in env.rows(layered(), chunk_size=4):
        env.turn(part, "alice")
    for _ in range(turn):
        env.turn(Continue())
    overlap(env)
    if first_goes:
        client_lost(env)
    found = outcome(env)
    assert found["more"] == "memory"
    assert ("total" in found) and (found["total"] == ("released" if first_goes else "memory"))
    env.release("total")
    env.release("more", client="bob")
    assert not env.state.tasks


@pytest.mark.parametrize("turn", [0, 1, 2, 5, 13, 20, 30, 40, 60, 80])
def test_desire_between(turn: int) -> None:
    env = small_turns()
    for part in env.rows(layered(), chunk_size=4):
        env.turn(part, "alice")
    for _ in range(turn):
        env.turn(Continue())
    desire(env)
    client_lost(env)
    assert outcome(env).get(("layer1", 3)) in ("memory", "released")
    env.release(("layer1", 3), client="bob")
    assert not env.state.tasks


def graph_of_external_data(turn: int) -> Env:
    """Return alice's graph of data that bob has scattered, after `turn` turns of its insertion."""
    env = small_turns()
    env.feed(DataPlaced({"d": ["w0"]}, {"d": 8}, client="bob"))
    graph = {key: deps if deps else ["d"] for key, deps in layered(depth=2, width=4).items()}
    for part in env.rows(graph):
        env.turn(part, "alice")
    for _ in range(turn):
        env.turn(Continue())
    return env


@pytest.mark.parametrize("turn", range(0, 30, 3))
def test_external_data_lost_between(turn: int) -> None:
    """The rows that need it cannot run; the client is notified; no task is left waiting."""
    env = graph_of_external_data(turn)
    worker_lost(env)
    assert outcome(env) == {}
    sent = env.take()
    assert any(line.startswith("alice: cancelled-keys total") for line in sent)
    assert any(line.startswith("bob: cancelled-keys d") for line in sent)


@pytest.mark.parametrize("turn", range(0, 30, 3))
def test_external_data_released_between_is_kept_until_it_is_used(turn: int) -> None:
    env = graph_of_external_data(turn)
    env.release("d", client="bob")
    found = outcome(env)
    assert found["total"] == "memory"


def test_released_key_is_not_restored_by_its_commit() -> None:
    env = small_turns()
    for part in env.rows(layered(), want=["total", ("layer0", 1)]):
        env.turn(part, "alice")
    env.turn(Continue())
    env.turn(_released("total", ("layer0", 1)), "alice")
    assert outcome(env) == {}


def _released(*keys: Any) -> Any:
    return m.ClientReleasesKeys(keys=list(keys), client="alice")


# ------------------------------------------------------------------ other long work


@pytest.mark.parametrize("n_rows", [4, 5, 6])
def test_keys_of_earlier_graphs_are_registered_in_several_turns(n_rows: int) -> None:
    env = small_turns()
    earlier = {("old", i): [] for i in range(4)}
    env.submit(earlier, client="bob")
    rows = {("x", i): [] for i in range(n_rows)}
    env.submit(rows, [*rows, *earlier])
    assert {ts.key for ts in env.state.clients["alice"].wants_what} == {*rows, *earlier}


def test_dependencies_that_another_client_needs_run_on() -> None:
    """Their release is deferred, and does not start them again."""
    env = small_turns()
    keys = [("x", i) for i in range(20)]
    env.submit({**{key: [] for key in keys}, "y": keys})
    env.submit({key: [] for key in keys}, client="bob")
    env.take()
    assert env.processing("w0") and env.processing("w1")
    env.release("y")
    env.expect()


def test_large_release_is_split() -> None:
    env = small_turns()
    env.submit(layered(width=40))
    env.take()
    env.turn(_released("total"), "alice")
    assert env.wants_continue
    assert len(env.state.tasks) > 100
    turns = 0
    while env.wants_continue:
        env.turn(Continue())
        turns += 1
    assert turns > 30
    assert not env.state.tasks


def test_releases_of_a_batch_are_split_together() -> None:
    """The messages of a batch are handled one after the other, and each may release many tasks."""
    env = small_turns()
    names = "abcdef"
    for name in names:
        env.submit(layered(name, width=40), want=[f"total{name}"])
    env.take()
    counter = env.state.transition_counter
    for name in names:
        env.turn(_released(f"total{name}"), "alice")
    assert env.state.transition_counter - counter <= 3
    assert outcome(env) == {}


@pytest.mark.parametrize("turn", range(0, 40, 4))
def test_key_is_desired_again_in_the_middle_of_the_release(turn: int) -> None:
    env = small_turns()
    env.submit(layered())
    env.turn(_released("total"), "alice")
    for _ in range(turn):
        if env.wants_continue:
            env.turn(Continue())
    for part in env.rows(layered(), client="bob"):
        env.turn(part, "bob")
    found = outcome(env)
    assert found["total"] == "memory"
    env.release("total", client="bob")
    assert not env.state.tasks


@pytest.mark.parametrize("turn", range(0, 30, 3))
def test_second_worker_is_lost_while_the_first_is_removed(turn: int) -> None:
    env = small_turns(allowed_failures=10)
    env.submit(layered(), want=[*layered()])
    for _ in range(30):
        env.finish(env.processing("w0")[0] if env.processing("w0") else env.processing("w1")[0])
    env.join("w2", nthreads=2)
    env.turn(WorkerRemoved("w0"))
    for _ in range(turn):
        if env.wants_continue:
            env.turn(Continue())
    env.turn(WorkerRemoved("w1"))
    assert set(outcome(env).values()) == {"memory"}


@pytest.mark.parametrize("turn", range(0, 60, 6))
def test_error_propagates_and_is_retried_in_the_middle(turn: int) -> None:
    env = small_turns()
    env.submit(layered(), want=["total", ("layer1", 1), ("layer2", 5)])
    key = env.processing("w0")[0]
    run_id = env.task(key).run_id
    env.turn(m.TaskErred(key=key, run_id=run_id), "w0")
    for _ in range(turn):
        if env.wants_continue:
            env.turn(Continue())
    env.turn(RetryKeys(["total", key], "alice"))
    found = outcome(env)
    for wanted in ("total", ("layer1", 1), ("layer2", 5)):
        assert found[wanted] == "memory"


def test_the_queue_is_drained_in_turns() -> None:
    env = small_turns(worker_saturation=1.0)
    env.submit({("x", i): [] for i in range(60)})
    env.join("w2", nthreads=50)
    assert len(env.processing("w2")) == 50
    assert outcome(env) == {("x", i): "memory" for i in range(60)}


def test_commits_wait_for_one_another() -> None:
    env = small_turns()
    for name in ("a", "b", "c"):
        for part in env.rows(layered(name), commit={"fifo_timeout_seconds": 0}):
            env.now += 0.01
            env.turn(part, "alice")
    assert len(env.state.deferred.commits) == 3
    found = outcome(env)
    assert [found[f"total{name}"] for name in ("a", "b", "c")] == ["memory"] * 3
    generations = [env.task(f"total{name}").priority[1] for name in ("a", "b", "c")]  # type: ignore[index]
    assert generations == sorted(generations)


def test_restrictions_hold_through_all_of_it() -> None:
    env = small_turns()
    annotations = {("layer1", i): AnnotationSet(workers=["w1"]) for i in range(WIDTH)}
    env.submit(layered(), annotations=annotations)
    while any(ws.processing for ws in env.state.workers.values()):
        assert not [key for key in env.processing("w0") if key[0] == "layer1"]
        for address in ("w0", "w1"):
            for key in env.processing(address)[:1]:
                env.finish(key)
    assert env.states("total") == ["memory"]


def test_length_of_turns_is_bounded() -> None:
    """The number of transitions per turn is bounded for desires, commits, releases and losses of any size."""
    n, limit = 2000, 50
    env = Env(turn_tasks_max=limit, worker_saturation=float("inf"))
    env.client("alice")
    env.join("w0", nthreads=4)
    graph = {("x", i): [] for i in range(n)}

    def feed(message: Any, source: str) -> None:
        env.checks = False
        env.turn(message, source)
        while env.wants_continue:
            counter = env.state.transition_counter
            env.turn(Continue())
            # deferred work, rows of a commit, and the queue have separate limits
            assert env.state.transition_counter - counter <= 4 * limit
        env.checks = True
        env.check()

    for part in env.rows(graph, want=list(graph)):
        feed(part, "alice")
    assert len(env.processing("w0")) == n
    feed(WorkerRemoved("w0"), "")
    assert len(env.state.queued) + len(env.state.unrunnable) == n
    feed(ClientRemoved("alice"), "alice")
    assert not env.state.tasks


@pytest.mark.parametrize("depth", [1, 3])
def test_lost_data_and_its_dependents_are_reported_in_one_turn(depth: int) -> None:
    """Stock reports them together; here they are too, even if forgetting them takes several turns."""
    env = small_turns(3, worker_saturation=float("inf"))
    env.feed(DataPlaced({"data": ["w0"]}, {"data": 8}, client="alice"))
    graph: dict[Any, list[Any]] = {}
    for level in range(depth):
        for i in range(WIDTH):
            graph[f"x{level}-{i}"] = ["data"] if not level else [f"x{level - 1}-{i}"]
    env.submit(graph, want=list(graph))
    env.take()
    env.turn(WorkerRemoved("w0", expected=False), "w0")
    assert env.wants_continue
    reported = [line for line in env.take() if line.startswith("alice: cancelled-keys")]
    assert all(key in reported[0] for key in ("data", *graph)), reported
    env.run_deferred()
    assert env.state.tasks == {}
