"""Locality: workers that share memory are as near to data as its holder."""

from __future__ import annotations

import pytest
from paceline.scheduler.core.policy import placement
from paceline.scheduler.core.state.workers import locality
from paceline.testing import Env

from tests.core.test_placement import on


@pytest.fixture
def trio(env: Env) -> Env:
    """Workers w0 and w1 share memory, w2 does not; x (100 MB) is on w0, which is busy."""
    env.join("w0", "w1", "w2")
    for address, name in (("w0", "host-a"), ("w1", "host-a"), ("w2", "host-b")):
        env.heartbeat(address, metrics={"memory_domain": name})
    env.submit({"x": []}, annotations=on("w0", "x"))
    env.finish("x", nbytes=10**8, seconds=0.5)
    return env


def test_task_goes_to_neighbour_of_busy_holder(trio: Env) -> None:
    slow = [f"slow{i}" for i in range(4)]
    trio.submit({key: [] for key in slow}, annotations=on("w0", *slow))
    trio.submit({"y": ["x"]})
    assert trio.where("y") == "w1"


def test_idle_holder_gets_the_task(trio: Env) -> None:
    trio.submit({"y": ["x"]})
    assert trio.where("y") == "w0"


def test_only_holders_count_without_domains(trio: Env) -> None:
    for address in ("w0", "w1", "w2"):
        trio.heartbeat(address, metrics={})
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
    assert ratio == pytest.approx(locality.LOCAL_READ_DISCOUNT)
    trio.join("w3")
    trio.heartbeat("w3", metrics={"memory_domain": "host-a"})
    trio.fetched("w3", "x")
    ratio = seconds(trio.state, y, far) / seconds(trio.state, y, near)
    assert ratio == pytest.approx(locality.LOCAL_READ_DISCOUNT * locality.SHARED_READ_DISCOUNT), (
        "two workers of the host share it"
    )
    assert placement.fetch_seconds(trio.state, y, trio.worker("w0")) == 0


def test_no_discount_for_the_first_read_within_the_only_domain(trio: Env) -> None:
    trio.lose("w2")
    trio.submit({"y": ["x"]})
    near, y = trio.worker("w1"), trio.task("y")
    assert placement.fetch_seconds(trio.state, y, near) == 10**8 / trio.state.bandwidth
    trio.join("w3")  # it has not reported yet what it reads
    ratio = placement.fetch_seconds(trio.state, y, trio.worker("w3")) / placement.fetch_seconds(
        trio.state, y, near
    )
    assert ratio == locality.LOCAL_READ_DISCOUNT
    trio.heartbeat("w3", metrics={"memory_domain": "host-a"})
    trio.fetched("w3", "x")
    shared = 10**8 // locality.SHARED_READ_DISCOUNT
    assert placement.fetch_seconds(trio.state, y, near) == shared / trio.state.bandwidth


def test_data_held_twice_in_a_domain_counts_once(trio: Env) -> None:
    trio.submit({"z": []}, annotations=on("w1", "z"))
    trio.finish("z", nbytes=10**9)
    local: dict = {}
    trio.fetched("w1", "x")
    sizes = [(ts, ts.nbytes) for ts in (trio.task("x"), trio.task("z"))]
    trio.state.domains.add_readable(local, sizes)
    worth = 10**9 - 10**9 // locality.LOCAL_READ_DISCOUNT
    assert local == {trio.worker("w0"): worth}, "w0 reads z from w1; both have x"


def test_removed_workers_leave_their_domain(trio: Env) -> None:
    trio.lose("w1")
    trio.lose("w2")
    assert list(trio.state.domains.of) == [trio.worker("w0")]
    trio.lose("w0")
    assert not trio.state.domains


@pytest.mark.parametrize("odd", [None, 5, "", ["host-a"], {"a": 1}])
def test_invalid_names_are_ignored(trio: Env, odd: object) -> None:
    trio.heartbeat("w1", metrics={"memory_domain": odd})
    assert trio.worker("w1") not in trio.state.domains.of
