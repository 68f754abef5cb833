"""Workers that can read each other's data in place, through shared memory or files.

Workers with such a transfer name their domain in the heartbeat metric ``memory_domain``. For a
worker in the domain of a holder, data that it lacks costs less to fetch, and less again once two
members hold it, because they share one copy. If all workers are in one domain, the bandwidth they
report is already that of the domain, so the first discount does not apply.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from paceline.scheduler.core.state.model import TaskState, WorkerState

#: Fetching within a domain costs one over this of fetching over the network, if some workers are
#: outside of the domain. The first reader pays for the copy into shared memory: into fresh memory,
#: about half of a fetch over loopback.
LOCAL_READ_DISCOUNT = 2
#: The further discount if another member has read the data already. It is not larger because a read
#: is never free: workers that count as nearly free are sent twice as much (``benchmarks.transfer``:
#: 14.9 s with 64, 12.6 to 13.8 s with 1 to 4).
SHARED_READ_DISCOUNT = 4
#: Members of a domain that are considered for one task; a host has a few dozen workers.
DOMAIN_MEMBERS_MAX = 256


class SharedMemoryDomains:
    """The domain of each worker; false while no worker has named one.

    Attributes:
        of: worker -> name of its domain.
    """

    def __init__(self, workers: dict[str, WorkerState]) -> None:
        """Hold the domains of `workers`, the table of registered workers."""
        self._workers = workers
        self._members: dict[str, dict[WorkerState, None]] = {}
        self.of: dict[WorkerState, str] = {}

    def __bool__(self) -> bool:
        return bool(self.of)

    def learn(self, ws: WorkerState, name: Any) -> None:
        """Set the domain of `ws` to `name`, a metric of its heartbeat.

        Anything but a non-empty string is no domain.
        """
        known = self.of.get(ws)
        if known == name:
            return
        self.forget(ws)
        if isinstance(name, str) and name:
            self.of[ws] = name
            self._members.setdefault(name, {})[ws] = None

    def forget(self, ws: WorkerState) -> None:
        """Remove `ws` from its domain."""
        name = self.of.pop(ws, None)
        if name is not None:
            members = self._members[name]
            del members[ws]
            if not members:
                del self._members[name]

    def add_readable(
        self, local: dict[WorkerState, int], sizes: Iterable[tuple[TaskState, int]]
    ) -> None:
        """Add to `local`, worker -> bytes that it need not fetch, what workers read in place.

        `sizes` has (dependency, size of its data in bytes).
        """
        for dts, nbytes in sizes:
            readable: dict[WorkerState, int] = {}
            for name, n_holders in self._holders(dts).items():
                saved = nbytes - nbytes // self._discount(n_holders)
                for ws in islice(self._members[name], DOMAIN_MEMBERS_MAX):
                    readable[ws] = saved
            for ws, saved in readable.items():
                if ws not in dts.who_has:
                    local[ws] = local.get(ws, 0) + saved

    def read_nbytes(self, dts: TaskState, ws: WorkerState, nbytes: int) -> int:
        """Return what fetching `dts`, of `nbytes`, to `ws` costs, in bytes over the network."""
        name = self.of.get(ws)
        n_holders = self._holders(dts).get(name, 0) if name is not None else 0
        return nbytes // self._discount(n_holders) if n_holders else nbytes

    def _holders(self, dts: TaskState) -> dict[str, int]:
        """Return domain -> number of its members that hold the data of `dts`."""
        counts: dict[str, int] = {}
        for ws in dts.who_has:
            name = self.of.get(ws)
            if name is not None:
                counts[name] = counts.get(name, 0) + 1
        return counts

    def _discount(self, n_holders: int) -> int:
        some_are_outside = len(self._members) > 1 or len(self.of) < len(self._workers)
        first = LOCAL_READ_DISCOUNT if some_are_outside else 1
        return first * SHARED_READ_DISCOUNT if n_holders > 1 else first
