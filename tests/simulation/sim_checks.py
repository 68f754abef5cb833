"""Checks at the end of a simulation: all desired tasks settled, and nothing is left after their release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.scheduler.core.inspection.invariants import validate_state
from paceline.scheduler.core.policy.fairness import can_run

from tests.simulation.sim_client import ModelClient

if TYPE_CHECKING:
    from tests.simulation.sim_world import World


def check_settled(world: World) -> None:
    """Check that each desired task is in memory, failed or cannot run, and that clients and workers agree."""
    state = world.state
    validate_state(state)
    assert not state.deferred and not world.continue_pending
    assert not state.stealing.in_flight and not state.stealing.timer
    for ts in state.tasks.values():
        if ts.state in ("memory", "erred"):
            continue
        if ts.state == "no-worker":
            assert not can_run(state, ts), f"{ts} could run"
        elif ts.state == "waiting":
            assert any(d.state in ("waiting", "no-worker") for d in ts.dependencies), ts
        else:
            assert ts.state == "released", f"{ts} does not settle"
            assert ts.run_spec is None or not (ts.who_wants or ts.waiters_count), ts
    for client in world.clients.values():
        check_futures(world, client)
    for worker in world.workers.values():
        known = {ts.key for ts in state.workers[worker.address].has_what}
        assert known == set(worker.data), f"{worker.address} has not {known ^ set(worker.data)}"


def check_futures(world: World, client: ModelClient) -> None:
    """Check that the futures of `client` have the states that the core's tasks imply."""
    held = {ts.key for ts in world.state.clients[client.name].wants_what}
    released = held - client.futures.keys()
    assert not released, f"{client.name} released {released}"
    for key, status in client.futures.items():
        ts = world.state.tasks.get(key)
        if status == "cancelled":
            continue
        assert ts is not None, f"{client.name} waits for {key}, which is forgotten"
        if ts.state == "released" and ts.run_spec is None:
            continue  # desired after it was forgotten; a report of its former run may have come later
        expected = {"memory": "finished", "erred": "error"}.get(ts.state, "lost")
        found = "lost" if status == "pending" else status
        assert found == expected, f"{client.name} has {key} as {status}: {ts}"


def check_empty(world: World) -> None:
    """Check that no task, graph, load or data is left."""
    state = world.state
    validate_state(state)
    assert not state.tasks, list(state.tasks.values())[:5]
    assert not state.task_groups and not state.graphs and not state.deferred
    assert abs(state.compute_occupancy) < 1e-6 and state.network_occ == 0
    for worker in world.workers.values():
        assert not worker.data, f"{worker.address} keeps {list(worker.data)}"
        assert not worker.jobs, f"{worker.address} keeps {list(worker.jobs)}"
