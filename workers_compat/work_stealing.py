"""Work stealing as plugins, dashboard pages and ``run_on_scheduler`` functions know it from stock.

``scheduler.extensions["stealing"]`` shows what is on its way and what was; ``scheduler.periodic_callbacks["stealing"]``
stops and starts it (the recipe that users pass on). Both only look at the core and give it commands.

Must not know: what is moved, and why (``core/stealing.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Iterable
from typing import Any

from paceline.scheduler.core import stealing, steals, stimuli

NAME = "stealing"
"""Of the extension, the periodic callback, and the topic of its events."""


class Callback:
    """The periodic look at the balance, with the methods of tornado's ``PeriodicCallback``."""

    def __init__(self, extension: WorkStealing) -> None:
        self._extension = extension
        self.callback = extension.balance
        self.jitter = 0.0

    @property
    def callback_time(self) -> float:
        """Milliseconds between two looks; may be set, also while it runs."""
        return self._extension.steals.interval_seconds * 1000

    @callback_time.setter
    def callback_time(self, value: float) -> None:
        if value <= 0:
            raise ValueError("Periodic callback must have a positive callback_time")
        self._extension.tell(stimuli.SwitchStealing(self.is_running(), value / 1000))

    def is_running(self) -> bool:
        """Whether the balance is looked at."""
        return bool(self._extension.steals.running)

    def start(self) -> None:
        """Look from now on."""
        if not self.is_running():
            self._extension.tell(stimuli.SwitchStealing(True))

    def stop(self) -> None:
        """Look no more; what is on its way comes to its end."""
        if self.is_running():
            self._extension.tell(stimuli.SwitchStealing(False))


class WorkStealing:
    """``extensions["stealing"]``.

    Args:
        scheduler: the facade.

    Attributes:
        cost_multipliers: by level.
    """

    cost_multipliers = steals.COST_MULTIPLIERS

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        scheduler.extensions[NAME] = self

    # what it does

    def tell(self, command: Any) -> None:
        """Give the core a command: now, or right after the turn that calls a hook."""
        self.scheduler._port.tell(command)

    def begin(self) -> None:
        """Look at the balance every so often. Nothing where it does so already."""
        if NAME not in self.scheduler.periodic_callbacks:
            self.scheduler.periodic_callbacks[NAME] = callback = Callback(self)
            callback.start()

    def start(self, scheduler: Any = None) -> Awaitable[None]:
        """See ``begin``; to be awaited, as in stock."""
        self.begin()
        return self.scheduler._finished(None)  # type: ignore[no-any-return]

    def stop(self) -> Awaitable[Any]:
        """Look no more; to be awaited until what is on its way has come to its end."""
        self.teardown()
        server = self.scheduler._server
        ended = server.wait_for(lambda: not self.in_flight)
        return server.spawn(ended, "end of work stealing")  # type: ignore[no-any-return]

    def teardown(self) -> None:
        """Look no more."""
        callback = self.scheduler.periodic_callbacks.pop(NAME, None)
        if callback is not None:
            callback.stop()

    def balance(self) -> None:
        """Look once, now."""
        self.tell(stimuli.BalanceWork())

    def move_task_request(self, ts: Any, victim: Any, thief: Any) -> str:
        """Ask the worker that has a task for it. Returns the request's name, or why there is none."""
        if ts in self.in_flight:
            return "in-flight"
        if ts.processing_on != victim:
            return "not-processing"
        name = f"steal-{self.steals.request_count}"
        self.tell(stimuli.AskBack(ts.key, thief.address))
        return name

    def log(self, msg: Any) -> None:
        """Log an event under the topic of stealing."""
        self.scheduler.log_event(NAME, msg)

    # what it shows

    @property
    def steals(self) -> Any:
        """The core's table."""
        return self.scheduler._server.state.steals

    @property
    def _callback_time(self) -> float:
        """Seconds between two looks."""
        return float(self.steals.interval_seconds)

    @property
    def count(self) -> int:
        """Looks that moved something."""
        return int(self.steals.rounds)

    @property
    def _request_counter(self) -> int:
        return int(self.steals.request_count)

    @property
    def metrics(self) -> dict[str, dict[int, float]]:
        """Requests, and seconds of work that was to move, by level of cost."""
        counts: defaultdict[int, float] = defaultdict(int, enumerate(self.steals.level_counts))
        costs: defaultdict[int, float] = defaultdict(int, enumerate(self.steals.level_costs))
        return {"request_count_total": counts, "request_cost_total": costs}

    def _live(self) -> Iterable[tuple[Any, Any]]:
        state = self.scheduler._server.state
        for ts, steal in self.steals.in_flight.items():
            if steals.is_live(state, ts, steal):
                yield ts, steal

    @property
    def in_flight(self) -> dict[Any, dict[str, Any]]:
        """Task -> what its move will make of the two workers' load."""
        task, worker = self.scheduler._task, self.scheduler._worker
        return {
            task(ts): {
                "victim": worker(steal.victim),
                "thief": None if steal.thief is None else worker(steal.thief),
                "victim_duration": steal.victim_seconds,
                "thief_duration": steal.thief_seconds,
                "stimulus_id": steal.stimulus_id,
            }
            for ts, steal in self._live()
        }

    @property
    def in_flight_occupancy(self) -> defaultdict[Any, float]:
        """Worker -> seconds of work that it gains; negative where it loses."""
        gains: defaultdict[Any, float] = defaultdict(float)
        for _, steal in self._live():
            gains[self.scheduler._worker(steal.victim)] -= steal.victim_seconds
            if steal.thief is not None:
                gains[self.scheduler._worker(steal.thief)] += steal.thief_seconds
        return gains

    @property
    def in_flight_tasks(self) -> defaultdict[Any, int]:
        """Worker -> tasks that it gains."""
        gains: defaultdict[Any, int] = defaultdict(int)
        for _, steal in self._live():
            gains[self.scheduler._worker(steal.victim)] -= 1
            if steal.thief is not None:
                gains[self.scheduler._worker(steal.thief)] += 1
        return gains

    @property
    def stealable(self) -> dict[str, tuple[set[Any], ...]]:
        """Worker -> its tasks that could move, by level of cost. Computed now: nothing of it is kept."""
        state, task = self.scheduler._server.state, self.scheduler._task
        return {
            address: tuple(set(map(task, level)) for level in stealing.stealable(state, ws))
            for address, ws in state.workers.items()
        }

    @property
    def key_stealable(self) -> dict[Any, tuple[str, int]]:
        """Task -> (worker, level of cost)."""
        return {
            ts: (address, level)
            for address, levels in self.stealable.items()
            for level, tasks in enumerate(levels)
            for ts in tasks
        }

    @property
    def unknown_durations(self) -> dict[str, set[Any]]:
        """Prefix -> tasks that are processing, of which it is not known how long they take."""
        out: dict[str, set[Any]] = {}
        for ws in self.scheduler._server.state.workers.values():
            if ws.unknown_total:
                for ts in ws.processing:
                    prefix = ts.group.prefix
                    if prefix in ws.unknown_counts:
                        out.setdefault(prefix.name, set()).add(self.scheduler._task(ts))
        return out

    def steal_time_ratio(self, ts: Any) -> tuple[float, int] | tuple[None, None]:
        """What moving a task costs against what it costs itself, and the level of that."""
        state = self.scheduler._server.state
        found = stealing.cost_level(state, state.tasks[ts.key])
        return found or (None, None)

    def story(self, *keys_or_ts: Any) -> list[Any]:
        """Logged events about these tasks, oldest first."""
        keys = {getattr(key, "key", key) for key in keys_or_ts}
        out: list[Any] = []
        for _, event in self.scheduler.get_events(NAME):
            entries = event[1] if event[0] == "request" else [event]
            out += [entry for entry in entries if any(_is_one_of(part, keys) for part in entry)]
        return out


def _is_one_of(part: Any, keys: set[Any]) -> bool:
    try:
        return part in keys
    except TypeError:
        return False
