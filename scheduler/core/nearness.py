"""Data that a worker reads where another worker holds it: shared memory of a host, a file system.

Workers with such a transfer say so in their heartbeats: the metric ``memory_domain`` names what they can read from. For a worker
of the same domain as a holder, data that it lacks costs less to fetch, and less again where two members have it, which share it
already. Where all workers read from one memory, near is what the bandwidth that they report is of, and nothing is far.

Costs nothing while no worker says so. Must not know: how data is read there.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .state import SchedulerState, TaskState, WorkerState

#: Where some workers are far, reading a byte in the same domain costs this part of fetching it over the network. The first to read it
#: pays for the copy that its holder lays where others can read it: into fresh memory, about half of a fetch over the loopback device.
NEAR_PART = 2
#: The same, further, where another member has read it already. Not less: each read costs something all the same, and whoever is
#: taken for next to nothing moves twice as much for nothing (``benchmarks.transfer``: 14.9 s with a 64th, 12.6 to 13.8 s with 1 to a 4th).
SHARED_PART = 4
#: Members of a domain that are looked at for one task: a host has a few dozen workers.
NEIGHBOURS_MAX = 256


class Domains:
    """Which workers read from which memory.

    Attributes:
        of: worker -> what it reads from; empty while none says so.
    """

    __slots__ = ("_members", "of")

    def __init__(self) -> None:
        self._members: dict[str, dict[WorkerState, None]] = {}
        self.of: dict[WorkerState, str] = {}

    def __bool__(self) -> bool:
        return bool(self.of)

    def some_are_far(self, workers_count: int) -> bool:
        """Whether there is more than one domain, or a worker outside of them.

        Args:
            workers_count: of all workers.
        """
        return len(self._members) > 1 or len(self.of) < workers_count

    def learn(self, ws: WorkerState, name: Any) -> None:
        """A heartbeat named the worker's domain; anything but a text is none."""
        known = self.of.get(ws)
        if known == name:
            return
        self.forget(ws)
        if isinstance(name, str) and name:
            self.of[ws] = name
            self._members.setdefault(name, {})[ws] = None

    def forget(self, ws: WorkerState) -> None:
        """The worker is gone, or reads nowhere any more."""
        name = self.of.pop(ws, None)
        if name is not None:
            members = self._members[name]
            del members[ws]
            if not members:
                del self._members[name]

    def name(self, ws: WorkerState) -> str | None:
        """What the worker reads from."""
        return self.of.get(ws)

    def members(self, name: str) -> dict[WorkerState, None]:
        """Who reads from it, in the order of their first word."""
        return self._members[name]


def add_neighbours(
    state: SchedulerState, local: dict[WorkerState, int], dependencies: Iterable[TaskState]
) -> None:
    """Give workers their share of data that they can read where it is.

    Args:
        local: worker -> bytes of ``dependencies`` that it has; those who can read them are added.
    """
    first = _first_part(state)
    for dts in dependencies:
        nbytes = dts.nbytes if dts.nbytes >= 0 else state.config.default_data_size_nbytes
        worth: dict[WorkerState, int] = {}
        for name, holders in _holders(state, dts).items():
            worth_here = nbytes - nbytes // _part(first, holders)
            for ws in islice(state.domains.members(name), NEIGHBOURS_MAX):
                worth[ws] = worth_here
        for ws, worth_here in worth.items():
            if ws not in dts.who_has:
                local[ws] = local.get(ws, 0) + worth_here


def read_nbytes(state: SchedulerState, dts: TaskState, ws: WorkerState, nbytes: int) -> int:
    """What fetching the data to the worker costs, in bytes over the network."""
    name = state.domains.name(ws)
    holders = _holders(state, dts).get(name, 0) if name is not None else 0
    return nbytes // _part(_first_part(state), holders) if holders else nbytes


def _holders(state: SchedulerState, dts: TaskState) -> dict[str, int]:
    """How many members of each domain have the data."""
    counts: dict[str, int] = {}
    for name in map(state.domains.name, dts.who_has):
        if name is not None:
            counts[name] = counts.get(name, 0) + 1
    return counts


def _first_part(state: SchedulerState) -> int:
    return NEAR_PART if state.domains.some_are_far(len(state.workers)) else 1


def _part(first: int, holders: int) -> int:
    return first * SHARED_PART if holders > 1 else first
