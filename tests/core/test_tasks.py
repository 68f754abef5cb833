"""Reports of workers on tasks: finished, erred, retried, seceded, rescheduled; and replies to outdated requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from paceline.protocol import messages as m
from paceline.protocol.flat_map import FlatMap
from paceline.scheduler.core.lifecycle.outgoing import FLAT_MIN
from paceline.scheduler.core.state.model import TaskPrefix
from paceline.scheduler.core.stimuli import AnnotationSet
from paceline.scheduler.core.text import format_nbytes
from paceline.testing import Env

MakeEnv = Callable[..., Env]


def test_unneeded_result_is_freed(duo: Env) -> None:
    duo.submit({"x": []})
    duo.take()
    finished = duo.finished("x")
    duo.release("x")
    duo.expect("w0: free-keys x")
    duo.feed(finished, "w0")
    duo.expect("w0: free-keys x")


def test_finished_under_an_old_run_id_is_run_again(duo: Env) -> None:
    """The worker replies to an earlier compute-task, so its result may be another."""
    duo.submit({"x": []})
    duo.take()
    duo.feed(duo.finished("x", run_id=0), "w0")
    duo.expect("w0: free-keys x", "w1: compute-task x")


def test_finished_on_another_worker(duo: Env) -> None:
    duo.submit({"x": []})
    duo.take()
    duo.feed(duo.finished("x", run_id=0), "w1")
    duo.expect("w1: free-keys x")
    assert duo.where("x") == "w0"


def test_finished_twice(duo: Env) -> None:
    duo.submit({"x": []})
    finished = duo.finished("x")
    duo.finish("x")
    duo.take()
    duo.feed(finished, "w0")
    duo.expect()
    duo.feed(m.TaskFinished(key="x", run_id=99, nbytes=1), "w1")
    duo.expect("w1: free-keys x")


def test_finished_on_a_removed_worker(duo: Env) -> None:
    duo.submit({"x": []})
    finished = duo.finished("x")
    duo.lose("w0")
    duo.take()
    duo.feed(finished, "w0")
    duo.expect()
    assert duo.where("x") == "w1"


def test_metadata_and_type_are_kept(duo: Env) -> None:
    duo.submit({"x": []})
    duo.finish("x", metadata={"rows": 3}, typename="Frame", type=b"pickled class")
    ts = duo.task("x")
    assert (ts.metadata, ts.type, ts.group.type_counts) == ({"rows": 3}, "Frame", {"Frame": 1})
    (report,) = duo.outbox.clients["alice"]
    assert report == m.KeyInMemory(key="x", type=b"pickled class")


def test_durations_are_learned(duo: Env) -> None:
    duo.submit({("x", 0): [], ("x", 1): []})
    prefix = duo.task(("x", 0)).prefix
    assert prefix.duration_average == -1
    assert duo.state.compute_occupancy == pytest.approx(1.0)  # 0.5 s each, unknown
    duo.finish(("x", 0), seconds=4)
    assert prefix.duration_average == pytest.approx(4)
    assert duo.state.compute_occupancy == pytest.approx(4)
    duo.finish(("x", 1), seconds=2)
    assert prefix.duration_average == pytest.approx(3)
    assert duo.state.compute_occupancy == 0
    assert prefix.all_durations == {"compute": pytest.approx(6)}


def quick_and_slow(env: Env, *seconds: float) -> TaskPrefix:
    """Run tasks of one prefix on one worker, one after the other; return the prefix."""
    env.join("w0")
    env.submit({("x", i): [] for i in range(len(seconds) + 1)})
    for i, each in enumerate(seconds):
        env.finish(("x", i), seconds=each)
    return env.task(("x", 0)).group.prefix


@pytest.mark.parametrize(
    ("seconds", "average"),
    [
        ((0.1, 0.1, 100), 0.25),  # counts as four times the average
        ((0.1, 0.1, 100, 100), 0.625),
        # three in a row: the duration of such tasks has changed
        ((0.1, 0.1, 100, 100, 100), 50.3125),
        ((0.1, 100, 0.1, 100, 0.1, 100), 0.671875),  # the next ones are average again
        ((0.1, 0.4), 0.25),
        ((0.001, 0.02), 0.0105),  # below the limit
    ],
)
def test_single_outlier_has_little_effect_on_the_prefix(
    env: Env, seconds: tuple[float, ...], average: float
) -> None:
    assert quick_and_slow(env, *seconds).duration_average == pytest.approx(average)


def test_observed_execution_does_not_change_durations(env: Env) -> None:
    prefix = quick_and_slow(env, 0.1, 0.1)
    env.heartbeat("w0", executing={("x", 2): 30})
    assert prefix.duration_average == -1  # as in stock: twice what it has run, until one ends
    assert env.state.compute_occupancy == pytest.approx(60)
    env.finish(("x", 2), seconds=100)
    assert prefix.duration_average == pytest.approx(0.25)
    assert env.state.compute_occupancy == 0


def test_a_default_duration_is_used_until_the_first_is_measured(make_env: MakeEnv) -> None:
    env = make_env(default_task_durations_seconds={"slow": 10.0})
    env.join("w0")
    env.submit({"slow": []})
    assert env.state.compute_occupancy == pytest.approx(10)


# ------------------------------------------------------------------ errors


def test_error_propagates_to_dependents(duo: Env) -> None:
    duo.submit({"a": [], "b": [], "c": ["a", "b"], "d": ["c"]}, want=["c", "d"])
    duo.take()
    duo.finish("b")
    duo.expect()
    duo.fail("a")
    duo.expect(
        "alice: task-erred c: boom a",
        "alice: task-erred d: boom a",
        "w1: free-keys b",
    )
    assert duo.states("a", "b", "c", "d") == ["erred", "released", "erred", "erred"]
    assert {duo.task(key).exception_blame for key in "acd"} == {duo.task("a")}
    assert duo.task("a").erred_on == {"w0": None}
    assert [e.key for e in duo.state.erred_tasks] == ["d", "c", "a"]


def test_error_stops_unneeded_siblings(duo: Env) -> None:
    duo.submit({"a": [], "b": [], "c": ["a", "b"]})
    duo.take()
    duo.fail("a")
    duo.expect("w1: free-keys b", "alice: task-erred c: boom a")
    assert duo.states("a", "b", "c") == ["erred", "released", "erred"]


def test_error_under_an_old_run_id_is_run_again(duo: Env) -> None:
    duo.submit({"x": []})
    duo.take()
    duo.fail("x", run_id=0)
    duo.expect("w0: free-keys x", "w1: compute-task x")


def test_error_of_an_undesired_task(duo: Env) -> None:
    duo.submit({"x": []})
    duo.take()
    erred = m.TaskErred(key="x", run_id=duo.task("x").run_id)
    duo.release("x")
    duo.take()
    duo.feed(erred, "w0")
    duo.expect()


def test_retries_are_used_up(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"]}, annotations={"x": AnnotationSet(retries=2)})
    duo.expect("w0: compute-task x")
    duo.fail("x")
    duo.expect("w0: free-keys x", "w1: compute-task x")
    duo.fail("x")
    duo.expect("w1: free-keys x", "w0: compute-task x")
    duo.fail("x")
    duo.expect("alice: task-erred y: boom x")
    assert duo.task("x").retries == 0


def test_forgotten_erred_tasks_are_freed_on_their_worker(duo: Env) -> None:
    duo.submit({"x": []})
    duo.fail("x")
    duo.take()
    duo.release("x")
    duo.expect("w0: free-keys x")
    assert not duo.state.tasks


# ------------------------------------------------------------------ secede, reschedule


def test_seceded_task_frees_its_slot(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=1.0)
    env.join("w0")
    env.submit({("x", i): [] for i in range(4)})
    env.take()
    assert env.states(("x", 1)) == ["queued"]
    run_id = env.task(("x", 0)).run_id
    env.feed(m.LongRunning(key=("x", 0), run_id=run_id, compute_duration=2.0), "w0")
    env.expect("w0: compute-task ('x',1)")
    ws = env.worker("w0")
    assert [ts.key for ts in ws.long_running] == [("x", 0)]
    assert env.task(("x", 0)).prefix.duration_average == 2.0
    assert env.state.compute_occupancy == pytest.approx(2.0)  # of ("x", 1) only
    env.finish(("x", 0))
    env.expect("alice: key-in-memory ('x',0)")
    assert not ws.long_running


def test_a_task_that_secedes_again_is_counted_once(duo: Env) -> None:
    duo.submit({"x": []})
    duo.take()
    run_id = duo.task("x").run_id
    for seconds in (2.0, None, 4.0):
        duo.feed(m.LongRunning(key="x", run_id=run_id, compute_duration=seconds), "w0")
    assert duo.state.compute_occupancy == 0
    duo.expect()


def test_secede_of_another_attempt_is_ignored(duo: Env) -> None:
    duo.submit({"x": []})
    for source, run_id in (("w0", 0), ("w1", duo.task("x").run_id), ("gone", 1)):
        duo.feed(m.LongRunning(key="x", run_id=run_id, compute_duration=1.0), source)
    assert not duo.worker("w0").long_running
    duo.feed(m.LongRunning(key="nobody-knows", run_id=1, compute_duration=1.0), "w0")


def test_reschedule(duo: Env) -> None:
    duo.submit({"x": []})
    duo.take()
    duo.feed(m.Reschedule(key="x"), "w1")  # sent by another worker
    duo.expect()
    duo.feed(m.Reschedule(key="x"), "w0")
    duo.expect("w0: free-keys x", "w1: compute-task x")
    duo.feed(m.Reschedule(key="x"))  # called by a plugin
    duo.expect("w1: free-keys x", "w0: compute-task x")
    duo.finish("x")
    duo.take()
    duo.feed(m.Reschedule(key="x"), "w1")
    duo.feed(m.Reschedule(key="nobody-knows"), "w1")
    duo.expect()
    assert any("Attempting to reschedule task 'nobody-knows'" in t for _, t in duo.lines)


def test_keep_alive(duo: Env) -> None:
    duo.feed(m.KeepAlive(), "w0")
    duo.expect()


# ------------------------------------------------------------------ actors


def test_actor_of_lost_worker_is_not_recreated(duo: Env) -> None:
    duo.submit({"a": []}, commit={"actors": True})
    duo.finish("a")
    duo.take()
    duo.lose("w0")
    duo.expect(
        "w0: close (scheduler-remove-worker)",
        "driver: drop-worker-connection w0",
        "w1: remove-worker w0",
        "alice: task-erred a: ActorLost",
    )
    assert duo.states("a") == ["erred"]


def test_call_of_a_lost_actor_is_freed_on_its_worker(duo: Env) -> None:
    on_w1 = {"y": AnnotationSet(workers=["w1"])}
    duo.submit({"a": [], "y": ["a"]}, ["a", "y"], annotations=on_w1, commit={"actors": ["a"]})
    duo.finish("a")
    assert (duo.task("a").who_has[0].address, duo.where("y")) == ("w0", "w1")
    duo.take()
    duo.lose("w0")
    duo.expect(
        "w0: close (scheduler-remove-worker)",
        "driver: drop-worker-connection w0",
        "w1: free-keys y",
        "w1: remove-worker w0",
        "alice: task-erred a: ActorLost",
        "alice: task-erred y: ActorLost",
    )


def test_an_actor_is_released_with_its_future(duo: Env) -> None:
    duo.submit({"a": []}, commit={"actors": True})
    duo.finish("a")
    duo.take()
    duo.release("a")
    duo.expect("w0: free-keys a")
    assert not duo.worker("w0").actors


# ------------------------------------------------------------------ inputs larger than a worker


def test_task_with_inputs_that_do_not_fit_fails_at_once(env: Env) -> None:
    env.join("w0", memory_limit=1000)
    env.submit({"x": [], "y": ["x"]})
    env.take()
    env.finish("x", nbytes=2000)
    env.expect("w0: free-keys x", "alice: task-erred y: MemoryError")
    assert env.worker("w0").processing == {}
    assert env.task("y").group.prefix.state_counts["erred"] == 1
    text = next(text for level, text in env.lines if level == 40)
    assert "has 1.95 kiB worth of input dependencies, but worker w0" in text


def test_inputs_of_unknown_size_count_with_the_default(env: Env) -> None:
    default = env.state.config.default_data_size_nbytes
    env.join("w0", memory_limit=default + 1999)
    env.submit({"x": [], "data": [], "y": ["x", "data"]})
    env.take()
    env.finish("data", nbytes=None)
    env.finish("x", nbytes=2000)
    assert env.task("y").state == "erred"
    text = next(text for level, text in env.lines if level == 40)
    assert f"has {format_nbytes(2000 + default)} worth of input dependencies" in text


@pytest.mark.parametrize("limit", [0, 10_000, 1_000_000])
@pytest.mark.pure
def test_many_inputs_are_counted_without_lookups(
    env: Env, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Each lookup in the map of a large message costs as much as decoding the whole map."""
    monkeypatch.setattr(FlatMap, "__getitem__", None)
    monkeypatch.setattr(FlatMap, "as_dict", None)
    env.checks = False
    env.join("w0", nthreads=FLAT_MIN + 1, memory_limit=limit)
    roots = [f"x-{i}" for i in range(FLAT_MIN + 1)]
    env.submit({**{key: [] for key in roots}, "y": roots})
    env.finish(*roots, nbytes=20)
    assert (env.task("y").state == "erred") == (limit == 10_000)
