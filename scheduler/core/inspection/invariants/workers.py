"""Checks of workers, of sums over them, of steal requests and reservations."""

from __future__ import annotations

from math import ceil, inf, isclose

from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.containers import add_up
from paceline.scheduler.core.state.model import TaskPrefix, TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.workers.loads import is_available, usable_threads

from .view import View, is_close


def check_known(view: View, ws: WorkerState) -> None:
    """Check that a worker is in workers, aliases and host_info."""
    state = view.state
    assert state.workers.get(ws.address) is ws, "not in state.workers under its address"
    assert state.aliases.get(ws.name) == ws.address, "its name is no alias of it"
    assert ws.status != "closed", "it is closed"
    addresses = state.host_info.get(ws.host, {}).get("addresses", ())
    assert ws.address in addresses, "host_info does not name it"


def check_tasks(view: View, ws: WorkerState) -> None:
    """Check that processing, has_what, long_running, actors and nbytes mirror its tasks."""
    for ts in ws.processing:
        assert ts.processing_on is ws, f"{ts!r} is not processing on it"
    for ts in ws.has_what:
        assert ws in ts.who_has, f"{ts!r} is not in its who_has"
    for ts in ws.long_running:
        assert ts in ws.processing, f"{ts!r} seceded and is not processing"
    for ts in ws.actors:
        there = ts.processing_on is ws or ws in ts.who_has
        assert ts.actor and there, f"{ts!r} is no actor of it"
    twice = [ts for ts in ws.processing if ts.key in ws.extra_runs]
    assert not twice, f"{twice} are processing and count as extra runs"
    nbytes = sum(estimates.data_nbytes(view.state, ts) for ts in ws.has_what)
    assert ws.nbytes == nbytes, f"nbytes is {ws.nbytes}, not {nbytes}"


def check_counts(view: View, ws: WorkerState) -> None:
    """Check that prefix_counts, needs_what, network_occ and resources follow from processing."""
    state = view.state
    counts: dict[TaskPrefix, int] = {}
    needs: dict[TaskState, int] = {}
    used: dict[str, float] = {}
    for ts in ws.processing:
        if ts not in ws.long_running:
            add_up(counts, {ts.prefix: 1})
        add_up(needs, dict.fromkeys(ts.dependencies, 1))
        add_up(used, ts.resource_restrictions or {})
    counted = {**ws.task_prefix_count, **ws.unknown_duration_count}
    assert counted == counts, f"its tasks by prefix are {counted}, not {counts}"
    unknown = ws.unknown_duration_count
    assert ws.unknown_duration_total == sum(unknown.values()), "unknown_duration_total differs"
    for is_known, found in ((True, ws.task_prefix_count), (False, unknown)):
        for prefix in found:
            known = estimates.is_duration_known(prefix)
            assert known is is_known, f"{prefix!r} is in the wrong table of durations"
    for dts, count in ws.needs_what.items():
        assert dts not in ws.has_what, f"needs_what holds {dts!r}, which it has"
        expected = needs.get(dts, 0)
        assert 0 < count <= expected, f"needs {dts!r} for {count} tasks, not {expected}"
    network = sum(estimates.data_nbytes(state, dts) for dts in ws.needs_what)
    assert ws.network_occ == network, f"network_occ is {ws.network_occ}, not {network}"
    for name in {**used, **ws.used_resources}:
        is_equal = isclose(used.get(name, 0), ws.used_resources.get(name, 0), abs_tol=1e-9)
        assert is_equal, f"used_resources is {ws.used_resources}, not {used}"
    for name, amount in ws.resources.items():
        supplied = state.resources.get(name, {}).get(ws.address)
        assert supplied == amount, f"state.resources has {supplied} of its {name}"


def check_load(view: View, ws: WorkerState) -> None:
    """Check that running, idle, idle_task_count and saturated follow from status and load."""
    loads = view.state.loads
    available = is_available(ws)
    assert (ws in view.state.running) == available, "state.running differs"
    has_load = ws in loads.idle or ws in loads.idle_task_count or ws in loads.saturated
    assert available or not has_load, "it accepts no tasks, and is idle or saturated"
    assert ws not in loads.idle or ws not in loads.saturated, "idle and saturated"
    if not available or loads.are_slots_dirty(ws):
        return
    idle = ws in loads.idle or loads.is_dirty(ws)
    n_threads = usable_threads(ws)
    assert idle or len(ws.processing) >= n_threads, "fewer tasks than threads, and not idle"
    saturation = view.state.config.worker_saturation
    full = inf if saturation == inf else max(ceil(saturation * ws.nthreads), 1)
    n_taken = len(ws.processing) - len(ws.long_running) + len(ws.extra_runs)
    expected = n_taken / ws.nthreads if n_taken < full else None
    assert loads.idle_task_count.loads.get(ws) == expected, f"idle_task_count is not {expected}"


def check_totals(view: View, state: SchedulerState) -> None:
    """Check that totals, aliases, host_info and collections follow from workers and tasks."""
    workers = list(state.workers.values())
    assert state.total_nthreads == sum(ws.nthreads for ws in workers), "total_nthreads differs"
    assert state.total_memory == sum(ws.memory_limit for ws in workers), "total_memory differs"
    assert len(state.aliases) == len(workers), "aliases of unknown workers"
    loads = state.loads
    for table in (state.running, loads.idle, loads.idle_task_count, loads.saturated):
        unknown = [ws for ws in table if state.workers.get(ws.address) is not ws]
        assert not unknown, f"{unknown} are listed by load, and unknown"
    for host, info in state.host_info.items():
        nthreads = sum(state.workers[a].nthreads for a in info["addresses"])
        assert info["nthreads"] == nthreads, f"{host} has {info['nthreads']} threads: {nthreads=}"
    for members in (state.queued, state.unrunnable, state.replicated_tasks):
        for ts in members:
            assert view.is_known(ts), f"{ts!r} is in a collection, and unknown"
    since = list(state.unrunnable.values())
    assert since == sorted(since), "unrunnable is not in order of time"


def check_network(view: View, state: SchedulerState) -> None:
    """Check that network_occ is the sum of the workers'."""
    removed = [ts.processing_on for ts in view.pending if ts.processing_on is not None]
    network = sum(ws.network_occ for ws in dict.fromkeys((*state.workers.values(), *removed)))
    assert state.network_occ == network, f"network_occ is {state.network_occ}, not {network}"


def check_steals(view: View, state: SchedulerState) -> None:
    """Check that tasks asked back are on their victims, or requests void, and sums add up."""
    stealing_state = state.stealing
    in_flight = stealing_state.in_flight
    seconds: dict[WorkerState, float] = {}
    tasks: dict[WorkerState, int] = {}
    for ts, steal in in_flight.items():
        add_up(seconds, {steal.victim: -steal.victim_seconds})
        add_up(tasks, {steal.victim: -1})
        if steal.thief is not None:
            add_up(seconds, {steal.thief: steal.thief_seconds})
            add_up(tasks, {steal.thief: 1})
        assert steal.victim is not steal.thief, f"{ts!r} is asked back for its own worker"
        runs = ts.state == "processing" and ts in steal.victim.processing
        assert runs or not stealing_state.is_live(ts, steal), f"{ts!r} is not on {steal.victim!r}"
    names = [steal.stimulus_id for steal in in_flight.values()]
    assert len(set(names)) == len(names), f"two requests have the same id: {names}"
    for ws in {**seconds, **stealing_state.occupancy}:
        found, expected = stealing_state.occupancy.get(ws, 0.0), seconds.get(ws, 0.0)
        assert is_close(found, expected), f"{ws!r} gains {expected} seconds, not {found}"
        assert stealing_state.tasks.get(ws, 0) == tasks.get(ws, 0), f"tasks gained by {ws!r} differ"
    timer = stealing_state.timer or not (in_flight or stealing_state.running)
    assert timer, "no timer is set for the requests in flight or the next round"


def check_ends(_view: object, state: SchedulerState) -> None:
    """Check that the workers that end, and those that are reserved, are listed."""
    found = [ws for ws in state.workers.values() if ws.ends_at]
    known = state.worker_ends.workers
    assert all(ws in known for ws in found) and len(found) == len(known), f"{found}, not {known}"
    soonest = min([ws.ends_at for ws in found], default=inf)
    assert state.worker_ends.soonest == soonest, (
        f"the soonest end is {soonest}, not {state.worker_ends.soonest}"
    )
    reserved = state.whole_workers.reserved
    for ws in state.workers.values():
        assert ws.reserved_for is reserved.get(ws), f"{ws!r} is reserved for {ws.reserved_for!r}"
        task = ws.reserved_for
        if task is not None and task in ws.processing:
            later = [ts for ts in ws.processing if ts.run_id > task.run_id]
            assert not later, f"{later} were sent after {task!r}"
    assert all(state.workers.get(ws.address) is ws for ws in reserved), f"{reserved}"
    for ts in state.whole_workers.due:
        assert ts.state != "queued", f"{ts!r} waits for a whole worker in the queue"
