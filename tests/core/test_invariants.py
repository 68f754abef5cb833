"""Each invariant detects a state that was broken by hand, and reports its number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from paceline.scheduler.core.inspection.invariants import (
    INVARIANTS,
    InvariantBroken,
    validate_state,
    validate_tasks,
)
from paceline.scheduler.core.state.model import ClientState
from paceline.scheduler.core.state.task_policies import PendingRetry, SecondRun, TaskPolicies
from paceline.scheduler.core.state.task_states import STATE_NUMBERS
from paceline.scheduler.core.stimuli import AnnotationSet, RecallTask
from paceline.scheduler.core.task_policy import TaskPolicy
from paceline.testing import Env

Break = Callable[[Env], None]


def rich() -> Env:
    """Return an environment with a task in each state: a in memory, b processing on it, c waiting, q queued, n no-worker, e erred."""
    env = Env(worker_saturation=1.0)
    env.client("alice")
    env.join("w0", "w1", resources={"gpu": 1}, memory_limit=1000)
    env.submit({"e": [], "a": []}, annotations={"e": AnnotationSet(workers=["w1"])})
    env.fail("e")
    env.finish("a")
    env.submit({"a": [], "b": ["a"], "c": ["b"]}, want=["a", "c"])
    env.submit({"n": []}, annotations={"n": AnnotationSet(resources={"gpu": 9})})
    env.submit({("q", i): [] for i in range(9)})
    assert env.states("a", "b", "c", "e", "n", ("q", 8)) == [
        "memory", "processing", "waiting", "erred", "no-worker", "queued",
    ]  # fmt: skip
    return env


BREAKS: dict[str, tuple[int, Break]] = {}


def breaks(number: int) -> Callable[[Break], Break]:
    def mark(function: Break) -> Break:
        BREAKS[f"{number}-{function.__name__}"] = (number, function)
        return function

    return mark


@breaks(1)
def a_task_under_another_key(env: Env) -> None:
    env.task("a").key = "z"


@breaks(1)
def a_task_that_is_forgotten_and_known(env: Env) -> None:
    env.task("a").state = "forgotten"


@breaks(2)
def a_dependent_does_not_depend(env: Env) -> None:
    env.task("e").dependents = (env.task("n"),)


@breaks(2)
def a_dependency_is_not_known(env: Env) -> None:
    env.task("b").dependencies = ()


@breaks(3)
def a_wish_is_one_sided(env: Env) -> None:
    env.state.clients["alice"].wants_what.pop(env.task("n"))


@breaks(3)
def a_wish_of_nobody(env: Env) -> None:
    stranger = ClientState("stranger", wants_what={env.task("n"): None})
    env.task("n").who_wants = (stranger,)


@breaks(4)
def a_holder_does_not_hold(env: Env) -> None:
    env.worker("w0").has_what.pop(env.task("a"))


@breaks(4)
def replicas_are_miscounted(env: Env) -> None:
    env.state.replicated_tasks[env.task("a")] = None


@breaks(5)
def too_much_is_waited_for(env: Env) -> None:
    env.task("c").waiting_count += 1


@breaks(5)
def too_few_wait(env: Env) -> None:
    env.task("b").waiters_count -= 1


@breaks(6)
def a_task_runs_nowhere(env: Env) -> None:
    env.task("b").processing_on = None


@breaks(6)
def a_task_runs_on_a_worker_that_is_gone(env: Env) -> None:
    (holder,) = env.task("a").who_has
    env.state.workers = {holder.address: holder}
    assert env.task("b").processing_on is holder


@breaks(7)
def a_queued_task_is_not_in_the_queue(env: Env) -> None:
    env.state.queued.discard(env.task(("q", 8)))


@breaks(7)
def a_task_is_in_the_queue_and_elsewhere(env: Env) -> None:
    env.state.unrunnable[env.task("c")] = 1e9


@breaks(8)
def what_is_to_run_has_no_spec(env: Env) -> None:
    env.task("c").run_spec = None


@breaks(8)
def what_is_to_run_has_no_priority(env: Env) -> None:
    env.task("n").priority = None


@breaks(8)
def what_is_to_run_lost_a_dependency(env: Env) -> None:
    env.task("c").has_lost_dependencies = True


@breaks(10)
def nobody_is_to_blame(env: Env) -> None:
    env.task("e").ensure_details().exception_blame = None


@breaks(10)
def a_healthy_task_is_to_blame(env: Env) -> None:
    env.task("e").ensure_details().exception_blame = env.task("a")


@breaks(10)
def a_healthy_task_blames(env: Env) -> None:
    env.task("a").ensure_details().exception_blame = env.task("e")


@breaks(11)
def data_that_nobody_wants(env: Env) -> None:
    env.submit({"other": ["a"]})
    env.checks = False
    for key in ("a", "b", "c", "other"):
        ts = env.task(key)
        ts.who_wants = ()
        env.state.clients["alice"].wants_what.pop(ts, None)


@breaks(12)
def a_task_that_should_be_forgotten(env: Env) -> None:
    ts = env.task("e")
    ts.who_wants = ()
    env.state.clients["alice"].wants_what.pop(ts)


@breaks(13)
def a_wanted_task_is_left_alone(env: Env) -> None:
    env.state.unrunnable.pop(env.task("n"))
    env.task("n").state = "released"


@breaks(20)
def a_worker_without_alias(env: Env) -> None:
    env.state.aliases["w0"] = "elsewhere"


@breaks(21)
def a_worker_holds_more_than_it_says(env: Env) -> None:
    env.worker("w0").nbytes += 1


@breaks(21)
def a_seceded_task_that_does_not_run(env: Env) -> None:
    env.worker("w0").long_running[env.task("c")] = None


@breaks(22)
def occupancy_of_a_worker(env: Env) -> None:
    env.worker("w0").task_prefix_count.clear()
    env.worker("w0").unknown_duration_count.clear()


@breaks(22)
def a_transfer_that_nobody_needs(env: Env) -> None:
    env.worker("w0").needs_what[env.task("c")] = 1


@breaks(22)
def resources_that_nobody_uses(env: Env) -> None:
    env.worker("w0").used_resources["gpu"] = 1


@breaks(23)
def a_paused_worker_is_idle(env: Env) -> None:
    env.worker("w0").status = "paused"


@breaks(23)
def a_free_slot_is_not_offered(env: Env) -> None:
    env.state.config.worker_saturation = 9.0


@breaks(30)
def a_client_under_another_name(env: Env) -> None:
    env.state.clients["bob"] = env.state.clients.pop("fire-and-forget")


@breaks(40)
def a_group_that_counts_wrong(env: Env) -> None:
    env.task("a").group.n_added += 1


@breaks(41)
def a_prefix_with_a_group_that_is_gone(env: Env) -> None:
    group = env.task("a").group
    env.task("b").prefix.group_table[type(group)("ghost", group.prefix)] = None


@breaks(50)
def states_of_a_group(env: Env) -> None:
    counts = env.task("a").group.counts
    counts[STATE_NUMBERS["memory"]] -= 1
    counts[STATE_NUMBERS["erred"]] += 1


@breaks(51)
def occupancy_of_all(env: Env) -> None:
    env.state.compute_occupancy += 1


@breaks(52)
def threads_of_all(env: Env) -> None:
    env.state.total_nthreads += 1


@breaks(53)
def transfers_of_all(env: Env) -> None:
    env.state.network_occ += 1


@breaks(54)
def a_graph_of_nobody(env: Env) -> None:
    env.turn(env.rows({"z": []}, client="alice")[0], "alice")
    env.state.graphs[1_000] = env.state.graphs.popitem()[1]


def asked_back(env: Env) -> None:
    """Recall b from the worker that does not have it."""
    env.turn(RecallTask("b", "w1" if env.where("b") == "w0" else "w0"))


@breaks(60)
def a_steal_that_adds_nothing(env: Env) -> None:
    asked_back(env)
    env.state.stealing.occupancy.clear()


@breaks(60)
def a_steal_that_nobody_looks_at(env: Env) -> None:
    asked_back(env)
    env.state.stealing.timer = 0


@breaks(61)
def a_share_group_that_counts_a_task_too_many(env: Env) -> None:
    env.state.shares.account("alice").share.n_processing += 1


@breaks(61)
def an_account_with_bytes_of_no_task(env: Env) -> None:
    env.state.shares.account("alice").nbytes += 1


@breaks(61)
def more_tasks_on_workers_than_a_cap_allows(env: Env) -> None:
    share = env.state.shares.account("alice").share
    share.max_tasks = share.n_processing - 1
    share.is_capped = True


@breaks(62)
def a_hold_without_an_end(env: Env) -> None:
    wait_for_retry(env, "c")


@breaks(62)
def a_hold_of_a_task_that_runs(env: Env) -> None:
    wait_for_retry(env, "b")
    env.state.task_policies.set_alarm(2000.0, env.task("b"))


@breaks(63)
def a_second_run_on_the_same_worker(env: Env) -> None:
    ws = env.task("b").processing_on
    assert ws is not None
    second_run(env, "b", ws.address)


@breaks(63)
def a_second_run_without_a_thread(env: Env) -> None:
    second_run(env, "b", "w1" if env.where("b") == "w0" else "w0")


@breaks(63)
def a_second_run_of_a_task_that_waits(env: Env) -> None:
    second_run(env, "c", "w0")


@breaks(64)
def an_end_that_is_not_listed(env: Env) -> None:
    env.worker("w0").ends_at = 2000.0


@breaks(64)
def a_soonest_end_of_no_worker(env: Env) -> None:
    env.state.worker_ends.soonest = 2000.0


def second_run(env: Env, key: str, address: str) -> None:
    policies = TaskPolicies(TaskPolicy(), second=SecondRun(address, 99, 0.0))
    env.task(key).ensure_details().policies = policies
    env.state.task_policies.second_runs[env.task(key)] = None


def wait_for_retry(env: Env, key: str) -> None:
    policies = TaskPolicies(TaskPolicy(), pending_retry=PendingRetry("w0", 2000.0))
    env.task(key).ensure_details().policies = policies


@pytest.mark.parametrize("name", BREAKS)
def test_broken_state_is_detected(name: str) -> None:
    number, function = BREAKS[name]
    env = rich()
    validate_state(env.state)
    function(env)
    with pytest.raises(InvariantBroken) as caught:
        validate_state(env.state)
    assert caught.value.number == number, caught.value
    assert str(caught.value).startswith(f"invariant {number} is broken: ")


def test_one_task(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"]})
    validate_tasks(duo.state, [duo.task("x")])
    forgotten = duo.task("y")
    duo.task("x").waiters_count = 7
    with pytest.raises(InvariantBroken, match="waiters_count is 7, not 1"):
        validate_tasks(duo.state, [duo.task("x")])
    duo.task("x").waiters_count = 1
    duo.release("y")
    validate_tasks(duo.state, [forgotten])


def test_numbers_are_unique_and_in_order() -> None:
    numbers = [number for checks in INVARIANTS.values() for number in checks]
    assert numbers == sorted(set(numbers))


def test_all_other_invariants_are_covered() -> None:
    """9 and 14 cannot be broken without first breaking another with a more specific message."""
    broken = {number for number, _ in BREAKS.values()}
    assert {n for checks in INVARIANTS.values() for n in checks} - broken == {9, 14}


def test_validate_checks_after_each_turn() -> None:
    env = Env(validate=True)
    env.checks = False
    env.state.total_nthreads = 5
    with pytest.raises(InvariantBroken):
        env.client("alice")
