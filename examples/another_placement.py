"""Replacing the placement policy: same core, another opinion on where tasks go.

`placement.py` holds pure functions of the state. The core looks them up when it places a task, so one of the same
signature takes another's place. Here every task goes to the first worker that may run it, as somebody who pays per
machine may wish; the core's own policy spreads them.
"""

from collections import Counter
from unittest.mock import patch

from paceline.scheduler.core import placement
from paceline.scheduler.core.state import SchedulerState, TaskState, WorkerState
from toy_cluster import ToyCluster, computes


def pack(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """The first worker that the task's restrictions allow; None where there is none."""
    allowed = placement.valid_workers(state, ts)
    return next(iter(state.running if allowed is None else allowed), None)


def share_of_workers() -> Counter[str]:
    """How many of twelve unrelated tasks each of four workers gets."""
    cluster = ToyCluster(n_workers=4)
    names = [f"task-{i}" for i in range(12)]
    sent = computes(cluster.submit({name: [] for name in names}, names))
    return Counter(address for address, _ in sent)


spread = share_of_workers()
with patch.object(placement, "place_non_rootish", pack):
    packed = share_of_workers()

print("the core's own policy:", dict(spread))
print("packed:               ", dict(packed))
assert len(spread) == 4 and len(packed) == 1
