"""Share groups: held tasks wait near their data, or move away from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from paceline.scheduler.core.stimuli import DataPlaced, TimerDue
from paceline.testing import Env

from tests.support.shares import contended, counts, give_up, restricted, tasks

MakeEnv = Callable[..., Env]


def free_threads(four: Env) -> None:
    """Finish long tasks of all workers but w0, until one task of bob is left."""
    while counts(four)["b"] > 1:
        w = next(w for w in ("w1", "w2", "w3") if four.processing(w))
        four.finish(four.processing(w)[0], seconds=100.0)


def test_task_follows_its_data(four: Env) -> None:
    four.feed(DataPlaced({"d0": ["w0"], "d1": ["w1"]}, {"d0": 10**9, "d1": 10**9}))
    contended(four)
    four.submit({"x0": ["d0"], "x1": ["d1"]})
    assert four.states("x0", "x1") == ["queued", "queued"]
    on_w1 = four.processing("w1")[0]
    four.finish(on_w1)
    assert four.processing("w1") == ["x1"]
    assert four.states("x0") == ["queued"]
    four.finish(four.processing("w0")[0])
    assert four.processing("w0") == ["x0"]


def test_task_goes_to_the_one_of_two_holders_with_a_free_slot(four: Env) -> None:
    four.feed(DataPlaced({"d0": ["w0"], "d1": ["w1"]}, {"d0": 10**9, "d1": 10**9}))
    four.submit({"a": ["d0"]})
    four.submit({"b": []}, client="bob", annotations={"b": restricted("w2")})
    assert (four.where("a"), four.where("b")) == ("w0", "w2")
    four.submit({"x": ["d0", "d1"]})
    assert four.where("x") == "w1"


@pytest.mark.parametrize("is_short", [False, True])
def test_task_moves_if_it_would_start_sooner_elsewhere(four: Env, is_short: bool) -> None:
    four.feed(DataPlaced({"d0": ["w0"]}, {"d0": 8}))
    contended(four)
    four.submit({"x0": ["d0"]})
    four.state.admission.is_short = is_short
    four.finish(four.processing("w3")[0], seconds=100.0)
    assert four.where("x0") == "w3"


@pytest.mark.parametrize(("n_given_up", "state"), [(0, "queued"), (3, "processing")])
def test_task_moves_if_given_up_runs_leave_few_threads(
    make_env: MakeEnv, n_given_up: int, state: str
) -> None:
    env = make_env(worker_saturation=1.0)
    env.client("bob")
    env.join("w0", nthreads=4)
    env.join("w1")
    env.feed(DataPlaced({"d": ["w0"]}, {"d": 8}))
    known = [("b", 9), ("x", 9)]
    env.submit({key: [] for key in known})
    env.finish(*known, seconds=0.06)
    give_up(env, "w0", n_given_up)
    on_w0 = tasks("b", 4 - n_given_up)
    env.submit(on_w0, client="bob", annotations=dict.fromkeys(on_w0, restricted("w0")))
    env.submit({"last": []}, client="bob", annotations={"last": restricted("w1")})
    env.submit({("x", 0): ["d"]})
    assert env.states(("x", 0)) == ["queued"]
    env.finish("last")
    assert env.states(("x", 0)) == [state]


def test_tasks_of_several_groups_move_from_time_to_time(four: Env) -> None:
    four.feed(DataPlaced({"d": ["w0"], "e": ["w0"]}, {"d": 8, "e": 8}))
    contended(four)
    four.submit({"x": ["d"]})
    four.submit({"y": ["e"]}, client="bob")
    free_threads(four)
    assert four.states("x", "y") == ["queued", "queued"]
    four.feed(TimerDue(four.state.queued.move_timer))
    assert four.states("x", "y") == ["processing", "processing"]


def test_tasks_of_several_groups_move_whenever_slots_are_free(four: Env) -> None:
    four.feed(DataPlaced({"d": ["w0"], "e": ["w0"]}, {"d": 8, "e": 8}))
    contended(four)
    four.submit({("x", i): ["d"] for i in range(6)})
    four.submit({("y", i): ["e"] for i in range(6)}, client="bob")
    free_threads(four)
    four.feed(TimerDue(four.state.queued.move_timer))
    assert sum(counts(four).values()) == 4
    four.finish(four.processing("w3")[0])
    assert four.processing("w3")


def test_tasks_near_every_full_worker_may_move(make_env: MakeEnv) -> None:
    """Data is large on 25 workers, so that their tasks stay, and small on the last one."""
    n = 26
    env = make_env(worker_saturation=1.0, shares_groups={"alice": {"tasks": 1000}})
    env.join(*(f"w{i}" for i in range(n)))
    data = {f"d{i}": [f"w{i}"] for i in range(n)}
    env.feed(DataPlaced(data, dict.fromkeys(data, 20 * 10**9) | {f"d{n - 1}": 100}))
    env.submit({("x", 1000): []})
    env.finish(("x", 1000), seconds=30.0)
    env.submit({("x", 10 * i + j): [f"d{i}"] for j in range(3) for i in range(n)})
    env.join("idle")
    for _ in range(8):
        env.tick(0.5)
    (key,) = env.processing("idle")
    assert env.task(key).dependencies[0].key == f"d{n - 1}"


def test_group_whose_tasks_have_to_wait_lets_others_move(four: Env) -> None:
    four.feed(DataPlaced({"d": ["w0"]}, {"d": 8}))
    contended(four)
    four.submit({"x": []}, annotations={"x": restricted("w0")})
    four.submit({"y": ["d"]}, client="bob")
    free_threads(four)
    assert four.states("x", "y") == ["queued", "queued"]
    four.feed(TimerDue(four.state.queued.move_timer))
    assert four.states("x", "y") == ["queued", "processing"]


def test_task_moves_if_the_worker_with_its_data_pauses(four: Env) -> None:
    four.feed(DataPlaced({"d0": ["w0"]}, {"d0": 10**12}))
    contended(four)
    four.submit({"x0": ["d0"]})
    four.finish(four.processing("w3")[0])
    assert four.states("x0") == ["queued"]
    four.status("w0", "paused")
    assert four.where("x0") == "w3"
