"""Share groups: what is reported of them, and the accounts of their clients."""

from __future__ import annotations

from collections.abc import Callable

from paceline.protocol import messages as m
from paceline.protocol.keys import Key
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.inspection.share_report import share_report, waits_for_share
from paceline.scheduler.core.policy.admission import waiting_count
from paceline.scheduler.core.state.sharing.accounts import ABSENT_MAX
from paceline.scheduler.core.stimuli import DataPlaced, SetShare
from paceline.testing import Env

from tests.support.shares import contended, counts, restricted, share, tasks

ID = "123e4567-e89b-12d3-a456-426614174000"


# ------------------------------------------------------------------ explanations


def explained(env: Env, key: Key) -> str:
    return str(explain(env.state, key, env.now)["summary"])


def test_explain_names_groups_and_caps(four: Env) -> None:
    contended(four)
    four.feed(DataPlaced({"d0": ["w0"]}, {"d0": 10**9}))
    four.submit({"x": [], "y": ["d0"], "z": []}, annotations={"z": restricted("w1")})
    assert "its share group alice takes turns with bob" in explained(four, "x")
    assert "waits for a free slot" in explained(four, "x")
    assert "waits for a slot of w0, which has its data" in explained(four, "y")
    assert "slot or resources of a worker that may run it" in explained(four, "z")
    four.feed(SetShare("bob", {"class": 1}))
    assert "groups of a higher priority class than alice have work" in explained(four, "x")
    four.feed(SetShare("bob", {"tasks": 0}))
    assert "of a higher priority class" not in explained(four, "x")
    four.feed(SetShare("bob", {"tasks": -1}))
    four.feed(SetShare("alice", {"tasks": 0}))
    assert "alice has reached its cap of 0 tasks, with 0 tasks on workers" in explained(four, "x")
    four.feed(SetShare("alice", {"tasks": -1, "memory": 0.0}))
    assert "alice has reached its cap of 0 B in memory, with" in explained(four, "x")
    four.feed(SetShare("alice", {"memory": -1}))
    four.leave("bob")
    four.work()


def test_explain_a_group_that_is_alone_again(four: Env) -> None:
    contended(four)
    four.submit(tasks("a", 6))
    four.leave("bob")
    text = explained(four, ("a", 5))
    assert ": it waits for a free slot." in text and "share group" not in text


def test_explain_root_tasks_of_a_group_that_is_no_longer_alone(four: Env) -> None:
    four.submit(tasks("a", 20))
    four.submit(tasks("b", 20), client="bob")
    assert "alice takes turns with bob" in explained(four, ("a", 19))
    four.feed(SetShare("bob", {"class": 1}))
    assert "groups of a higher priority class than alice" in explained(four, ("a", 19))
    assert ": it waits for a free slot." in explained(four, ("b", 19))
    assert waits_for_share(four.state, share(four, "bob")) == "a slot"
    four.leave("bob")
    four.feed(SetShare("alice", {"tasks": 1}))
    assert "alice has reached its cap of 1 task, with 4 tasks" in explained(four, ("a", 19))


def test_explain_names_higher_user_priorities(four: Env) -> None:
    four.submit(tasks("a", 20), commit={"user_priority": 5})
    four.submit({"low": []})
    assert "queued tasks of its share group alice have a higher user" in explained(four, "low")


def test_explain_names_a_cap_before_the_lack_of_memory(env: Env) -> None:
    env.join("w0", nthreads=2, memory_limit=1000)
    env.submit(tasks("a", 30))
    env.finish(("a", 0), nbytes=600)
    env.heartbeat("w0", metrics={"memory": 700})
    assert "waits for memory" in explained(env, ("a", 29))
    assert waits_for_share(env.state, share(env, "alice")) == "memory"
    assert waiting_count(env.state) == len(env.state.queued)
    env.feed(SetShare("alice", {"tasks": 1}))
    assert waiting_count(env.state) == 0
    assert "alice has reached its cap of 1 task" in explained(env, ("a", 29))
    assert waits_for_share(env.state, share(env, "alice")) == "cap of tasks"


# ------------------------------------------------------------------ reports and accounts


def test_usage_is_counted_by_client(four: Env) -> None:
    four.tick()
    four.submit({"x": [], "y": ["x"]}, want=["x", "y"])
    four.finish("x", nbytes=100, seconds=2.0)
    four.fetched("w1", "x")
    four.tick(10.0)
    account = four.state.shares.account("alice")
    assert (account.n_tasks, account.n_finished, account.thread_seconds) == (2, 1, 2.0)
    assert (account.nbytes, account.moved_nbytes, account.byte_seconds) == (200, 100, 2000.0)
    four.finish("y", seconds=1.0)
    four.leave("alice")
    assert (account.n_tasks, account.nbytes, account.thread_seconds) == (0, 0, 3.0)


def test_seceded_tasks_are_charged_until_they_secede(four: Env) -> None:
    four.submit({"x": []})
    address, run_id = four.where("x"), four.task("x").run_id
    for _ in range(2):  # the worker repeats the message if the task is resumed
        four.feed(m.LongRunning(key="x", run_id=run_id, compute_duration=2.0), address)
    four.heartbeat(address, executing={"x": 3600.0})
    four.finish("x", seconds=7200.0)
    account = four.state.shares.account("alice")
    assert (account.n_finished, account.thread_seconds) == (1, 2.0)
    assert four.state.shares.recent_usage(account.share) == 2.0


def test_runs_without_a_result_are_charged(four: Env) -> None:
    """A run that failed is charged as reported, others as of the last heartbeat."""
    account = four.state.shares.account("alice")
    four.submit({"x": [], "y": [], "z": []})
    four.heartbeat(four.where("x"), executing={"x": 1.0})
    compute = m.StartStop(action="compute", start=four.now, stop=four.now + 2.0)
    four.fail("x", startstops=[compute])
    assert account.thread_seconds == 2.0
    four.heartbeat(four.where("y"), executing={"y": 4.0})
    four.cancel("y")
    assert account.thread_seconds == 6.0
    four.heartbeat(four.where("z"), executing={"z": 8.0})
    four.lose(four.where("z"))
    assert (account.thread_seconds, account.n_finished) == (14.0, 0)


def test_report_of_groups(four: Env) -> None:
    contended(four)
    four.feed(SetShare("alice", {"weight": 2}))
    share(four, "alice").usage = 8.0 * four.state.shares.scale
    four.submit(tasks("a", 2))
    four.finish(four.processing("w0")[0], nbytes=100, seconds=2.0)
    report = share_report(four.state)
    bob, alice = report["groups"][:2]
    assert (bob["name"], bob["processing"], bob["finished"], bob["thread_seconds"]) == (
        "bob",
        3,
        1,
        2.0,
    )
    assert bob["clients"][0] == {
        "client": "bob",
        **{"tasks": 4, "finished": 1, "thread_seconds": 2.0},
        **{"nbytes": 100, "byte_seconds": 0.0, "moved_nbytes": 0},
    }
    assert (alice["queued"], alice["waits_for"]) == (1, "its turn")
    assert alice["usage"] >= 8.0  # not relative to its weight
    four.feed(SetShare("alice", {"tasks": 1}))
    assert waits_for_share(four.state, share(four, "alice")) == "cap of tasks"
    four.feed(SetShare("alice", {"tasks": -1, "class": -1}))
    assert waits_for_share(four.state, share(four, "alice")) == "higher class"
    four.leave("bob")
    assert waits_for_share(four.state, share(four, "alice")) == ""


def test_configured_groups_are_reported_before_they_have_clients() -> None:
    env = Env(shares_groups={"batch": {"tasks": 3}})
    (batch,) = share_report(env.state)["groups"]
    assert (batch["name"], batch["settings"]["tasks"], batch["clients"]) == ("batch", 3, [])
    assert batch["settings"]["memory"] is None


def test_groups_wait_for_a_worker(make_env: Callable[..., Env]) -> None:
    env = make_env(shares_groups={"alice": {"tasks": 1}, "bob": {"class": 1}})
    env.client("bob")
    env.submit(tasks("a", 9))
    env.submit(tasks("b", 9), client="bob")
    assert waits_for_share(env.state, share(env, "alice")) == "a worker"
    env.client("carol")
    env.submit({"x": []}, client="carol", annotations={"x": restricted("w0")})
    assert env.states("x") == ["no-worker"]
    assert [each["waits_for"] for each in share_report(env.state)["groups"]] == ["a worker"] * 3


def test_groups_wait_for_a_worker_that_lasts(env: Env) -> None:
    env.client("bob")
    env.join("w0")
    env.submit({"long-0": []})
    env.finish("long-0", seconds=100.0)
    env.heartbeat("w0", metrics={"ends_in": 50.0})
    env.submit({"long-1": []})
    env.submit({"short-1": [], "short-2": [], "short-3": []}, client="bob")
    assert waits_for_share(env.state, share(env, "alice")) == "a worker that lasts"
    assert waits_for_share(env.state, share(env, "bob")) != "a worker that lasts"
    env.submit({"short-4": []})
    assert waits_for_share(env.state, share(env, "alice")) == "its turn"


def test_groups_at_a_cap_take_no_turns(four: Env) -> None:
    four.feed(SetShare("alice", {"tasks": 1}))
    four.submit(tasks("a", 5), client="alice")
    four.submit(tasks("b", 5), client="bob")
    assert counts(four) == {"a": 1, "b": 3}
    assert waits_for_share(four.state, share(four, "bob")) == "a slot"
    four.feed(SetShare("alice", {"tasks": 2}))
    assert waits_for_share(four.state, share(four, "bob")) == "its turn"


def test_accounts_of_clients_that_left_are_merged(four: Env) -> None:
    shares = four.state.shares
    for i in range(2 * ABSENT_MAX + 5):
        account = shares.account(f"Client-{i:08x}{ID[8:]}")
        account.thread_seconds = 1.0
    four.tick()
    four.tick()
    assert len(shares.accounts) <= ABSENT_MAX + 5
    assert len(shares.groups) <= 2 * ABSENT_MAX + 5
    rest = [*shares.accounts.values(), *(each.former for each in shares.groups.values())]
    assert sum(each.thread_seconds for each in rest) == 2 * ABSENT_MAX + 5
