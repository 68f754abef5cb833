"""Messages that the scheduler sends on a worker's stream.

Stock sends them in ``scheduler.py`` and ``stealing.py``, batched every 5 ms. Workers handle them in
``worker_state_machine.py`` (classes ``...Event``, whose field names must match exactly). The
scheduler also sends ``worker-status-change``, whose class is in ``worker_to_scheduler``.
"""

from typing import Any

from paceline.protocol.payload import Payload

from .base import Key, Message


class ComputeTask(Message, frozen=True, kw_only=True, tag="compute-task"):
    """Run a task. Stock: ``Scheduler._task_to_msg``.

    Attributes:
        run_id: number of this attempt, repeated in the worker's answers.
        priority: tuple; the lowest runs first.
        run_spec: the task, pickled.
        resource_restrictions: resource -> required amount; None if the task requires none.
        actor: whether the result is an actor.
        annotations: annotations of the task; values that msgpack cannot encode are serialized.
        span_id: ID of the span that the task belongs to.
    """

    key: Key
    run_id: int
    priority: tuple[int | float, ...]
    stimulus_id: str
    who_has: dict[Key, tuple[str, ...]]
    nbytes: dict[Key, int]
    run_spec: Payload | None
    resource_restrictions: dict[str, float] | None = None
    actor: bool = False
    annotations: Any = {}
    span_id: str | None = None


class FreeKeys(Message, frozen=True, kw_only=True, tag="free-keys"):
    """Forget tasks and drop their data. There is no answer."""

    keys: list[Key]
    stimulus_id: str


class RemoveReplicas(Message, frozen=True, kw_only=True, tag="remove-replicas"):
    """Drop replicas that other workers hold too.

    The worker answers with ``add-keys`` for those that it must keep.
    """

    keys: list[Key]
    stimulus_id: str


class AcquireReplicas(Message, frozen=True, kw_only=True, tag="acquire-replicas"):
    """Fetch replicas from other workers, with low priority."""

    who_has: dict[Key, list[str]]
    nbytes: dict[Key, int]
    stimulus_id: str


class StealRequest(Message, frozen=True, kw_only=True, tag="steal-request"):
    """Ask the worker to give back a task that it has not started. Stock: ``stealing.py``.

    The worker answers with ``steal-response``.

    Attributes:
        stimulus_id: ID of the request, repeated in the answer.
    """

    key: Key
    stimulus_id: str


class RefreshWhoHas(Message, frozen=True, kw_only=True, tag="refresh-who-has"):
    """Answer ``request-refresh-who-has`` with the current holders of data.

    Attributes:
        who_has: key -> addresses of the workers that hold it; may be empty.
    """

    who_has: dict[Key, list[str]]
    stimulus_id: str


class CancelCompute(Message, frozen=True, kw_only=True, tag="cancel-compute"):
    """Cancel a task that has not started.

    Stock workers handle it; the stock scheduler no longer sends it.
    """

    key: Key
    stimulus_id: str


class Close(Message, frozen=True, kw_only=True, tag="close", omit_defaults=True):
    """Shut the worker down. Stock: ``Worker.close``."""

    timeout: float = 30
    executor_wait: bool = True
    nanny: bool = True
    reason: str = "worker-close"


class RemoveWorker(Message, frozen=True, kw_only=True, tag="remove-worker"):
    """Report that another worker has left the cluster."""

    worker: str
    stimulus_id: str


class ShuffleFail(Message, frozen=True, kw_only=True, tag="shuffle-fail"):
    """Fail a P2P shuffle. Stock: ``ShuffleSchedulerPlugin._fail_on_workers``.

    Attributes:
        message: reason of the failure.
    """

    shuffle_id: str
    run_id: int
    message: str
