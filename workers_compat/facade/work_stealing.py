"""Work stealing for plugins, dashboard pages and ``run_on_scheduler`` functions.

``scheduler.extensions["stealing"]`` shows current and past steals.
``scheduler.periodic_callbacks["stealing"]`` stops and starts balancing, as users do with stock's
scheduler. Both only read the core and send it commands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from paceline.scheduler.core import stimuli
from paceline.scheduler.core.state.workers import stealing
from paceline.scheduler.core.stealing import balancer

from .stock_calls import StockCoroutine

#: Name of the extension, of the periodic callback, and of the topic of events.
NAME = "stealing"


class Callback:
    """The periodic balancing, with the methods of tornado's ``PeriodicCallback``."""

    def __init__(self, extension: WorkStealing) -> None:
        self._extension = extension
        self.callback = extension.balance
        self.jitter = 0.0

    @property
    def callback_time(self) -> float:
        """Return the interval in milliseconds. It can be set while the callback runs."""
        return float(self._extension.stealing_state.interval_seconds * 1000)

    @callback_time.setter
    def callback_time(self, value: float) -> None:
        if value <= 0:
            raise ValueError("Periodic callback must have a positive callback_time")
        self._configure(self.is_running(), value / 1000)

    def is_running(self) -> bool:
        return bool(self._extension.stealing_state.running)

    def start(self) -> None:
        if not self.is_running():
            self._configure(True)

    def stop(self) -> None:
        """Turn balancing off. Steals in flight are completed."""
        if self.is_running():
            self._configure(False)

    def _configure(self, *options: Any) -> None:
        self._extension.scheduler.send_stimulus(stimuli.ConfigureStealing(*options))


class WorkStealing:
    """``extensions["stealing"]`` of the facade."""

    cost_multipliers = stealing.COST_MULTIPLIERS

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        scheduler.extensions[NAME] = self

    # Commands

    def begin(self, is_new: bool = True) -> None:
        """Start periodic balancing, unless it is running.

        The core's balancing stays as it is unless the scheduler ``is_new``.
        """
        callback = self.scheduler.periodic_callbacks.setdefault(NAME, Callback(self))
        if is_new:
            callback.start()

    def start(self, scheduler: Any = None) -> Awaitable[None]:
        """Call ``begin``. Await the result, as in stock."""
        self.begin()
        return StockCoroutine(None)

    def stop(self) -> Awaitable[Any]:
        """Stop periodic balancing. Await the result until no steal is in flight."""
        self.teardown()
        server = self.scheduler.server
        ended = server.wait_for(lambda: not self.in_flight)
        return server.spawn(ended, "end of work stealing")  # type: ignore[no-any-return]

    def teardown(self) -> None:
        callback = self.scheduler.periodic_callbacks.pop(NAME, None)
        if callback is not None:
            callback.stop()

    def balance(self) -> None:
        self.scheduler.send_stimulus(stimuli.BalanceWork())

    def move_task_request(self, ts: Any, victim: Any, thief: Any) -> str:
        """Ask the victim to give a task back. Return the request's name, or why there is none."""
        if ts in self.in_flight:
            return "in-flight"
        if ts.processing_on != victim:
            return "not-processing"
        name = f"steal-{self.stealing_state.request_count}"
        self.scheduler.send_stimulus(stimuli.RecallTask(ts.key, thief.address))
        return name

    def log(self, msg: Any) -> None:
        self.scheduler.log_event(NAME, msg)

    # State

    stealing_state = property(lambda self: self.scheduler.state.stealing)
    #: Number of rounds that moved a task.
    count = property(lambda self: self.stealing_state.rounds)
    _callback_time = property(lambda self: self.stealing_state.interval_seconds)
    _request_counter = property(lambda self: self.stealing_state.request_count)

    @property
    def metrics(self) -> dict[str, dict[int, float]]:
        """Return the number of requests, and the seconds of work requested, by cost level."""
        found = self.stealing_state
        return {
            "request_count_total": defaultdict(int, enumerate(found.level_counts)),
            "request_cost_total": defaultdict(int, enumerate(found.level_costs)),
        }

    def _live_steals(self) -> Iterable[tuple[Any, Any]]:
        for ts, steal in self.stealing_state.in_flight.items():
            if self.stealing_state.is_live(ts, steal):
                yield ts, steal

    @property
    def in_flight(self) -> dict[Any, dict[str, Any]]:
        """Return task -> the expected change of the load of both workers."""
        task, worker = self.scheduler.task_view, self.scheduler.worker_view
        return {
            task(ts): {
                "victim": worker(steal.victim),
                "thief": None if steal.thief is None else worker(steal.thief),
                "victim_duration": steal.victim_seconds,
                "thief_duration": steal.thief_seconds,
                "stimulus_id": steal.stimulus_id,
            }
            for ts, steal in self._live_steals()
        }

    #: Worker -> seconds of work that it gains (negative: loses).
    in_flight_occupancy = property(
        lambda self: self._gains(lambda steal: (steal.victim_seconds, steal.thief_seconds))
    )
    #: Worker -> number of tasks that it gains (negative: loses).
    in_flight_tasks = property(lambda self: self._gains(lambda steal: (1, 1)))

    def _gains(self, amounts: Callable[[Any], tuple[Any, Any]]) -> defaultdict[Any, Any]:
        """Return worker -> sum of what live steals take from a victim and give to a thief."""
        gains: defaultdict[Any, Any] = defaultdict(int)
        for _, steal in self._live_steals():
            lost, gained = amounts(steal)
            gains[self.scheduler.worker_view(steal.victim)] -= lost
            if steal.thief is not None:
                gains[self.scheduler.worker_view(steal.thief)] += gained
        return gains

    @property
    def stealable(self) -> dict[str, tuple[set[Any], ...]]:
        """Return worker -> its stealable tasks, by cost level."""
        state, task = self.scheduler.state, self.scheduler.task_view
        return {
            address: tuple(set(map(task, level)) for level in balancer.stealable(state, ws))
            for address, ws in state.workers.items()
        }

    @property
    def key_stealable(self) -> dict[Any, tuple[str, int]]:
        """Return task -> (worker, cost level)."""
        return {
            ts: (address, level)
            for address, levels in self.stealable.items()
            for level, tasks in enumerate(levels)
            for ts in tasks
        }

    @property
    def unknown_durations(self) -> dict[str, set[Any]]:
        """Return prefix -> processing tasks of unknown duration."""
        out: defaultdict[str, set[Any]] = defaultdict(set)
        for ws in self.scheduler.state.workers.values():
            for ts in ws.processing:
                if ts.group.prefix in ws.unknown_duration_count:
                    out[ts.group.prefix.name].add(self.scheduler.task_view(ts))
        return dict(out)

    def steal_time_ratio(self, ts: Any) -> tuple[float, int] | tuple[None, None]:
        """Return the ratio of transfer time to compute time of a task, and its cost level."""
        state = self.scheduler.state
        return balancer.cost_level(state, state.tasks[ts.key]) or (None, None)

    def story(self, *keys_or_ts: Any) -> list[Any]:
        """Return logged events about these tasks, oldest first."""
        keys = [getattr(key, "key", key) for key in keys_or_ts]  # parts may not be hashable
        out: list[Any] = []
        for _, event in self.scheduler.get_events(NAME):
            entries = event[1] if event[0] == "request" else [event]
            out += [entry for entry in entries if any(part in keys for part in entry)]
        return out
