"""Keys that clients desire, release, cancel and retry; removal of clients; first step of a restart."""

from __future__ import annotations

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.handlers.clients import EQUAL_HASHES_MAX
from paceline.scheduler.core.stimuli import DataPlaced, ReleaseAll, RetryKeys
from paceline.testing import Env

# ------------------------------------------------------------------ desires


def test_desires_of_known_keys_are_answered(duo: Env) -> None:
    duo.submit({"x": [], "y": []})
    duo.finish("x")
    duo.fail("y")
    duo.submit({"z": []})
    duo.take()
    duo.client("bob")
    duo.desire("x", "y", "z", client="bob")
    duo.expect("bob: key-in-memory x", "bob: task-erred y: boom y")


def test_internal_holders_of_keys_need_no_registration(duo: Env) -> None:
    duo.submit({"x": []})
    duo.finish("x")
    duo.desire("x", client="queue-q")
    duo.take()
    duo.release("x")
    assert duo.states("x") == ["memory"]
    duo.release("x", client="queue-q")
    assert not duo.state.tasks


def test_release_stops_waiting_and_running_tasks(duo: Env) -> None:
    duo.submit({"a": [], "b": ["a"], "c": ["b"]})
    duo.take()
    duo.release("c")
    duo.expect("w0: free-keys a")
    assert not duo.state.tasks


def test_release_keeps_dependencies_of_others(duo: Env) -> None:
    duo.submit({"a": [], "b": ["a"], "c": ["a"]}, want=["b", "c"])
    duo.finish("a", "b")
    duo.take()
    duo.release("b")
    duo.expect("w0: free-keys b")
    assert duo.states("a", "b", "c") == ["memory", "forgotten", "processing"]


def test_released_dependency_stays_known(duo: Env) -> None:
    duo.submit({"a": [], "b": ["a"]}, want=["a", "b"])
    duo.finish("a", "b")
    duo.take()
    duo.release("a")
    duo.expect("w0: free-keys a")
    assert duo.states("a", "b") == ["released", "memory"]
    duo.release("b")
    assert not duo.state.tasks


def test_release_of_key_that_is_not_desired(duo: Env) -> None:
    duo.client("bob")
    duo.submit({"a": []})
    duo.take()
    duo.release("a", "nobody-knows", client="bob")
    duo.release("a", client="nobody")
    duo.expect()
    assert duo.states("a") == ["processing"]


def test_fire_and_forget_task_is_forgotten_when_finished(duo: Env) -> None:
    duo.submit({"x": [], "y": []})
    duo.desire("x", "y", client="fire-and-forget")
    duo.release("x", "y")
    duo.take()
    assert duo.states("x", "y") == ["processing", "processing"]
    duo.finish("x")
    duo.expect("fire-and-forget: key-in-memory x", "w0: free-keys x")
    duo.fail("y")
    duo.expect("fire-and-forget: task-erred y: boom y", "w1: free-keys y")
    assert not duo.state.tasks


def test_fire_and_forget_of_finished_task_is_not_kept(duo: Env) -> None:
    duo.submit({"x": [], "y": []})
    duo.finish("x")
    duo.fail("y")
    duo.desire("x", "y", client="fire-and-forget")
    duo.release("x", "y")
    assert not duo.state.tasks


def test_report_key(duo: Env) -> None:
    duo.submit({"x": [], "y": []})
    duo.finish("x")
    duo.take()
    for key in ("x", "y", "nobody-knows"):
        duo.feed(m.ReportKey(key=key), "alice")
    duo.expect("alice: key-in-memory x", "alice: cancelled-keys nobody-knows")


def test_heartbeat(duo: Env) -> None:
    duo.now += 5
    duo.feed(m.HeartbeatClient(), "alice")
    duo.feed(m.HeartbeatClient(), "nobody")
    duo.expect("alice: adjust-heartbeat-interval 5")
    assert duo.state.clients["alice"].last_seen == duo.now


# ------------------------------------------------------------------ removal of clients


def test_removed_client_releases_all_its_keys(duo: Env) -> None:
    duo.client("bob")
    duo.submit({"a": [], "b": ["a"]})
    duo.submit({"a": [], "c": ["a"]}, client="bob")
    duo.take()
    duo.leave("alice")
    duo.expect()
    assert duo.states("a", "b", "c") == ["processing", "forgotten", "waiting"]
    duo.leave("bob")
    duo.expect("w0: free-keys a")
    assert not duo.state.tasks
    assert set(duo.state.clients) == {"fire-and-forget"}


def test_desires_end_with_the_stream(duo: Env) -> None:
    """Desires end with the stream, so messages that were sent earlier on it are processed first."""
    duo.submit({"a": []})
    duo.feed(m.CloseClient(), "alice")
    assert duo.states("a") == ["processing"]


def test_removal_of_unknown_client(duo: Env) -> None:
    duo.leave("nobody")
    duo.expect()


# ------------------------------------------------------------------ cancel


def test_cancel_includes_dependents(duo: Env) -> None:
    duo.submit({"a": [], "b": ["a"], "c": ["b"]}, want=["a", "b", "c"])
    duo.take()
    duo.client("bob")
    duo.cancel("a", reason="cancelled", msg="why not")
    duo.expect(
        "w0: free-keys a",
        "alice: cancelled-keys c b a (cancelled)",
        "bob: cancelled-keys c b a (cancelled)",
        "fire-and-forget: cancelled-keys c b a (cancelled)",
    )
    assert not duo.state.tasks


def test_cancel_keeps_keys_of_other_clients(duo: Env) -> None:
    duo.client("bob")
    duo.submit({"a": [], "b": ["a"]}, want=["a", "b"])
    duo.desire("a", client="bob")
    duo.take()
    duo.cancel("a")
    assert duo.states("a", "b") == ["processing", "waiting"]
    duo.expect()


def test_cancel_by_force(duo: Env) -> None:
    duo.client("bob")
    duo.submit({"a": [], "b": ["a"]}, want=["a"])
    duo.submit({"b": ["a"]}, want=["b"], client="bob")
    duo.take()
    duo.cancel("a", force=True, reason="enough")
    assert duo.states("a", "b") == ["forgotten", "forgotten"]
    assert "bob: cancelled-keys b a (enough)" in duo.take()


def test_cancel_of_erred_and_finished_keys(duo: Env) -> None:
    duo.submit({"x": [], "y": []})
    duo.finish("x")
    duo.fail("y")
    duo.take()
    duo.cancel("x", "y")
    assert not duo.state.tasks
    assert {line for line in duo.take() if line.startswith("w")} == {
        "w0: free-keys x",
        "w1: free-keys y",
    }


def test_cancel_of_scattered_data(duo: Env) -> None:
    duo.feed(DataPlaced({"d": ["w0"]}, {"d": 8}, client="alice"))
    duo.submit({"y": ["d"]})
    duo.take()
    duo.cancel("d")
    assert duo.states("d", "y") == ["forgotten", "forgotten"]
    sent = duo.take()
    assert "w0: free-keys d" in " ".join(sent).replace("free-keys y d", "free-keys d")
    assert "alice: cancelled-keys y d" in sent


def test_cancel_of_no_keys(duo: Env) -> None:
    duo.cancel("nobody-knows")
    duo.cancel("x", client="nobody")
    assert not duo.state.tasks


def test_arrival_and_departure_of_a_client_are_events(duo: Env) -> None:
    duo.client("bob")
    duo.leave("bob")
    for topic in ("all", "bob"):
        events = [event for _, event in duo.state.events.get(topic)]
        actions = [event["action"] for event in events if event.get("client") == "bob"]
        assert actions == ["add-client", "remove-client"]


def test_restart_frees_erred_tasks_on_their_workers(duo: Env) -> None:
    duo.submit({"x": [], "y": []})
    assert (duo.where("x"), duo.where("y")) == ("w0", "w1")
    duo.fail("x", "y")
    duo.lose("w1")
    duo.take()
    duo.feed(ReleaseAll())
    assert [line for line in duo.take() if "free-keys" in line] == ["w0: free-keys x"]


# ------------------------------------------------------------------ retry


def test_retry_runs_erred_tasks_and_erred_dependents(duo: Env) -> None:
    duo.submit({"a": [], "b": ["a"], "c": ["b"]}, want=["a", "c"])
    duo.fail("a")
    duo.take()
    assert duo.request(RetryKeys(["c"], "alice")) == ("c", "b", "a")
    duo.expect(
        "w0: free-keys a",
        "alice: task-retried a",
        "alice: task-retried c",
        "w1: compute-task a",
    )
    assert duo.states("a", "b", "c") == ["processing", "waiting", "waiting"]
    assert duo.task("c").exception_blame is None
    duo.work()
    assert duo.states("c") == ["memory"]


def test_retry_runs_unwanted_cause_with_finished_dependents(duo: Env) -> None:
    """A dependent that is in memory does not keep the others from being retried."""
    duo.submit({"a": [], "done": ["a"]})
    duo.work()
    duo.submit({"a": [], "b": ["a"]}, ["b"])
    duo.fail("a")
    assert duo.states("a", "b", "done") == ["erred", "erred", "memory"]
    duo.request(RetryKeys(["b"], "alice"))
    assert duo.states("a", "b", "done") == ["processing", "waiting", "memory"]


def test_retry_of_task_that_did_not_err(duo: Env) -> None:
    duo.submit({"a": []})
    duo.take()
    assert duo.request(RetryKeys(["a", "nobody-knows"])) == ("a",)
    duo.expect()


def test_retry_of_a_key_whose_graph_has_not_arrived(duo: Env) -> None:
    """The client would wait for it: ``Client.retry`` sets the futures of the reply to pending."""
    duo.turn(m.ClientDesiresKeys(keys=["a"], client="alice"), source="alice")
    assert duo.states("a") == ["released"]
    assert duo.request(RetryKeys(["a"], "alice")) == ()


def test_one_of_several_failures_is_blamed_and_all_are_retried(duo: Env) -> None:
    duo.submit({"a": [], "b": [], "c": ["a", "b"]}, want=["a", "b", "c"])
    duo.fail("a")
    duo.fail("b")
    duo.take()
    assert set(duo.request(RetryKeys(["c"], "alice"))) == {"a", "b", "c"}
    assert duo.states("a", "b", "c") == ["processing", "processing", "waiting"]


def test_retry_of_one_failure_does_not_wait_for_others(duo: Env) -> None:
    """b stays erred, so c fails again at once."""
    duo.submit({"a": [], "b": [], "c": ["a", "b"]}, want=["a", "b", "c"])
    duo.fail("a")
    duo.fail("b")
    duo.take()
    duo.request(RetryKeys(["a"], "alice"))
    assert duo.states("a", "b", "c") == ["processing", "erred", "erred"]
    assert duo.task("c").exception_blame is duo.task("b")


def test_forgotten_tasks_in_the_log_keep_no_arguments(duo: Env) -> None:
    duo.submit({"x": []})
    duo.finish("x")
    ts = duo.task("x")
    duo.release("x")
    assert any(ts in made for *_, made, _, _ in duo.state.transition_log)
    assert ts.run_spec is None


# ------------------------------------------------------------------ restart


def test_everything_is_forgotten(duo: Env) -> None:
    duo.client("bob")
    held = duo.rows({"h1": [], "h2": ["h1"]}, chunk_size=1)
    duo.submit({"a": [], "b": ["a"], "e": []}, want=["a", "b", "e"])
    duo.feed(DataPlaced({"d": ["w1"]}, {"d": 8}, client="bob"))
    duo.finish("a")
    duo.fail("e")
    duo.turn(held[0], "alice")
    duo.take()
    duo.feed(ReleaseAll())
    assert not duo.state.tasks and not duo.state.graphs and not duo.state.task_prefixes
    assert duo.state.total_occupancy == 0
    sent = duo.take()
    for name in ("alice", "bob"):
        assert f"{name}: restart" in sent
    assert any(line.startswith("w0: free-keys") for line in sent)
    duo.turn(held[1], "alice")
    duo.turn(held[2], "alice")
    assert not duo.state.tasks and not duo.state.graphs
    duo.submit({"a": []})
    assert duo.states("a") == ["processing"]


@pytest.mark.parametrize("tasks", [0, 1, 500])
def test_restart_takes_one_turn_for_any_number_of_tasks(tasks: int) -> None:
    env = Env(turn_tasks_max=10)
    env.client("alice")
    env.join("w0")
    env.submit({("x", i): [] for i in range(tasks)})
    env.turn(ReleaseAll())
    assert not env.state.tasks


def test_forgotten_dependency_is_recomputed_for_a_new_client(duo: Env) -> None:
    """On stock the key is never computed and the future never finishes."""
    duo.submit({"x": [], "y": ["x"]})
    duo.finish("x", "y")
    duo.take()
    duo.client("bob")
    duo.desire("x", client="bob")
    duo.expect("w0: compute-task x")
    duo.finish("x")
    duo.expect("bob: key-in-memory x")


@pytest.mark.parametrize("key", [(), ((), 1), "", b"\xff"], ids=repr)
def test_a_future_of_an_invalid_key_is_cancelled(duo: Env, key: object) -> None:
    duo.desire(key, "x")
    (report,) = duo.outbox.clients["alice"]
    assert report == m.CancelledKeys(keys=[key], reason="invalid key")
    assert list(duo.state.tasks) == ["x"]


def test_unknown_keys_with_equal_hashes_are_bounded(duo: Env) -> None:
    modulus = 2**61 - 1  # integers that differ by it have the same hash
    keys = [("x", i * modulus) for i in range(1, 5 * EQUAL_HASHES_MAX)]
    assert len(set(map(hash, keys))) == 1
    duo.desire(*keys, "y")
    assert list(duo.state.tasks) == [*keys[:EQUAL_HASHES_MAX], "y"]
    assert [key for message in duo.outbox.clients["alice"] for key in message.keys] == keys[
        EQUAL_HASHES_MAX:
    ]
