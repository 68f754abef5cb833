"""Computations, and sums over task groups that were dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from paceline.protocol.payload import Payload
from paceline.scheduler.core.state.containers import add_up
from paceline.scheduler.core.state.model import TaskGroup
from paceline.scheduler.core.state.task_states import TASK_STATES


@dataclass(slots=True, eq=False)
class Computation:
    """Graphs that arrived while earlier ones of the same computation were still running.

    Attributes:
        start: seconds since the epoch.
        id: ``computation-`` and the number of transitions before its first graph.
        groups: task groups of the graphs.
        codes: source lines of clients as sent, without duplicates.
        annotations: global annotations of the graphs.
        dropped: sums over groups that were dropped.
    """

    start: float
    id: str
    groups: dict[TaskGroup, None] = field(default_factory=dict)
    codes: dict[bytes, Any] = field(default_factory=dict)
    annotations: dict[str, Any] = field(default_factory=dict)
    dropped: Totals | None = None

    @property
    def stop(self) -> float:
        """Time at which the last task finished in seconds since the epoch; -1 without tasks."""
        stop = -1.0 if self.dropped is None else self.dropped.stop
        return max([stop, *(group.stop for group in self.groups)])

    def drop_group(self, group: TaskGroup) -> bool:
        """Replace `group` by its sums. Return False if it is not in this computation."""
        if group not in self.groups:
            return False
        del self.groups[group]
        self.dropped = self.dropped or Totals()
        self.dropped.add_group(group)
        return True

    @property
    def states(self) -> dict[str, int]:
        """State -> number of tasks."""
        out = dict.fromkeys(TASK_STATES, 0)
        if self.dropped is not None:
            out.update(self.dropped.states)
        for group in self.groups:
            add_up(out, group.states)
        return out


#: Pieces of code that a span or computation keeps.
CODES_MAX: Final = 100


@dataclass(slots=True)
class Totals:
    """Sums over groups that were dropped.

    Attributes:
        states: state -> number of tasks.
        all_durations: action -> seconds.
        duration: seconds.
        nbytes: bytes.
        start, stop: seconds since the epoch; 0 if none.
    """

    states: dict[str, int] = field(default_factory=dict)
    all_durations: dict[str, float] = field(default_factory=dict)
    duration: float = 0.0
    nbytes: int = 0
    start: float = 0.0
    stop: float = 0.0

    def add_group(self, group: TaskGroup) -> None:
        """Add the figures of `group`; if it is empty, all its tasks count as forgotten."""
        states = {"forgotten": group.n_added} if group.empty else group.states
        times = group.start, group.stop
        self.add(Totals(states, group.all_durations, group.duration, group.nbytes_total, *times))

    def add(self, other: Totals) -> None:
        """Add the sums of `other`."""
        add_up(self.states, other.states)
        add_up(self.all_durations, other.all_durations)
        self.duration += other.duration
        self.nbytes += other.nbytes
        if other.start:
            self.start = min(self.start or other.start, other.start)
        self.stop = max(self.stop, other.stop)


def note_code(codes: dict[bytes, Any], code: Any) -> None:
    """Store `code`, plain or serialized, in `codes` under its bytes.

    Nothing is stored if it is known or `codes` is full.
    """
    if code and len(codes) < CODES_MAX:
        codes.setdefault(_identity(code), code)


def _identity(code: Any) -> bytes:
    if isinstance(code, Payload):
        return b"".join((code.header, *(bytes(frame) for frame in code.frames)))
    return repr(code).encode()
