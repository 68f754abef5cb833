"""Workers that read each other's memory are as near to data as its holder."""

from __future__ import annotations

import pytest
from env import Env
from paceline.scheduler.core import nearness, placement
from test_placement import on


@pytest.fixture
def trio(env: Env) -> Env:
    """w0 and w1 share memory, w2 is far; x (100 MB) is on w0, which is busy."""
    env.join("w0", "w1", "w2")
    for address, name in (("w0", "host-a"), ("w1", "host-a"), ("w2", "host-b")):
        env.beat(address, metrics={"memory_domain": name})
    env.submit({"x": []}, annotations=on("w0", "x"))
    env.finish("x", nbytes=10**8, seconds=0.5)
    return env


def test_a_neighbour_of_a_busy_holder_gets_the_task(trio: Env) -> None:
    slow = [f"slow{i}" for i in range(4)]
    trio.submit({key: [] for key in slow}, annotations=on("w0", *slow))
    trio.submit({"y": ["x"]})
    assert trio.where("y") == "w1"


def test_with_nothing_else_to_do_the_holder_gets_it(trio: Env) -> None:
    trio.submit({"y": ["x"]})
    assert trio.where("y") == "w0"


def test_without_a_word_of_it_only_holders_count(trio: Env) -> None:
    for address in ("w0", "w1", "w2"):
        trio.beat(address, metrics={})
    assert not trio.state.domains
    trio.submit({f"slow{i}": [] for i in range(2)}, annotations=on("w0", "slow0", "slow1"))
    trio.submit({"y": ["x"]})
    assert trio.where("y") == "w0"


def test_fetching_is_weighed_accordingly(trio: Env) -> None:
    trio.submit({"y": ["x"]})
    near, far = trio.worker("w1"), trio.worker("w2")
    y = trio.task("y")
    seconds = placement.fetch_seconds
    ratio = seconds(trio.state, y, far) / seconds(trio.state, y, near)
    assert ratio == pytest.approx(nearness.NEAR_PART)
    trio.join("w3")
    trio.beat("w3", metrics={"memory_domain": "host-a"})
    trio.fetched("w3", "x")
    ratio = seconds(trio.state, y, far) / seconds(trio.state, y, near)
    assert ratio == pytest.approx(nearness.NEAR_PART * nearness.SHARED_PART), "two of the host share it"
    assert placement.fetch_seconds(trio.state, y, trio.worker("w0")) == 0


def test_where_all_are_near_the_first_read_costs_what_workers_measure(trio: Env) -> None:
    trio.lose("w2")
    trio.submit({"y": ["x"]})
    near, y = trio.worker("w1"), trio.task("y")
    assert placement.fetch_seconds(trio.state, y, near) == 10**8 / trio.state.bandwidth
    trio.join("w3")  # it has not said yet what it reads
    ratio = placement.fetch_seconds(trio.state, y, trio.worker("w3")) / placement.fetch_seconds(
        trio.state, y, near
    )
    assert ratio == nearness.NEAR_PART
    trio.beat("w3", metrics={"memory_domain": "host-a"})
    trio.fetched("w3", "x")
    shared = 10**8 // nearness.SHARED_PART
    assert placement.fetch_seconds(trio.state, y, near) == shared / trio.state.bandwidth


def test_data_of_both_hosts_counts_once_a_host(trio: Env) -> None:
    trio.submit({"z": []}, annotations=on("w1", "z"))
    trio.finish("z", nbytes=10**9)
    local: dict = {}
    trio.fetched("w1", "x")
    nearness.add_neighbours(trio.state, local, [trio.task("x"), trio.task("z")])
    worth = 10**9 - 10**9 // nearness.NEAR_PART
    assert local == {trio.worker("w0"): worth}, "w0 reads z from w1; both have x"


def test_who_is_gone_is_nobodys_neighbour(trio: Env) -> None:
    trio.lose("w1")
    trio.lose("w2")
    assert trio.state.domains.members("host-a") == {trio.worker("w0"): None}
    trio.lose("w0")
    assert not trio.state.domains


@pytest.mark.parametrize("odd", [None, 5, "", ["host-a"], {"a": 1}])
def test_odd_names_are_none(trio: Env, odd: object) -> None:
    trio.beat("w1", metrics={"memory_domain": odd})
    assert trio.state.domains.name(trio.worker("w1")) is None
