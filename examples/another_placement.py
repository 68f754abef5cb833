"""Replace the placement policy of the core.

`placement.py` contains functions of the state that choose a worker for a task. A function with
the same signature can replace one of them. Here every task goes to the first worker that may
run it, which keeps other machines free; the policy of the core distributes tasks over all
workers.

This works only if the core is not compiled, as in a checkout (`make test`).
"""

import sys
from collections import Counter
from unittest.mock import patch

from paceline.scheduler.core.policy import placement
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.server.runtime.build import COMPILED
from toy_cluster import ToyCluster, computes


def pack(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """Return the first worker that the restrictions of `ts` allow, or None."""
    allowed = placement.valid_workers(state, ts)
    return next(iter(state.running if allowed is None else allowed), None)


def share_of_workers() -> Counter[str]:
    """Return how many of twelve independent tasks each of four workers receives."""
    cluster = ToyCluster(n_workers=4)
    names = [f"task-{i}" for i in range(12)]
    sent = computes(cluster.submit({name: [] for name in names}, names))
    return Counter(address for address, _ in sent)


if COMPILED:
    print("The core is compiled: its functions cannot be replaced. Install with PACELINE_PURE=1.")
    sys.exit()

spread = share_of_workers()
with patch.object(placement, "place_non_rootish", pack):
    packed = share_of_workers()

print("policy of the core:", dict(spread))
print("packed:            ", dict(packed))
assert len(spread) == 4 and len(packed) == 1
