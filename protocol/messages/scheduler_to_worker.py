"""What the scheduler sends on a worker's stream.

Stock writes these in ``scheduler.py`` and ``stealing.py``, batched every 5 ms; workers read them with
``worker_state_machine.py`` (classes ``...Event``, whose field names must be matched exactly).
``worker-status-change`` is the class of the other direction.

Must not know: when they are sent.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..payload import Payload
from .base import Message


class ComputeTask(Message, frozen=True, kw_only=True, tag="compute-task"):
    """Run a task. Stock: ``Scheduler._task_to_msg``.

    Attributes:
        key: which task.
        run_id: number of this attempt; the answer repeats it.
        priority: lowest first.
        stimulus_id: what caused it.
        who_has: dependency -> addresses of the workers that hold it.
        nbytes: dependency -> size in bytes.
        run_spec: the task, closed ("pickled").
        resource_restrictions: resource -> amount needed; None for none.
        actor: the result is an actor.
        annotations: what the user noted; closed where it is not plain.
        span_id: the span it belongs to.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)
    KEY_MAPS: ClassVar[tuple[str, ...]] = ("who_has", "nbytes")
    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = ("annotations",)

    key: Any
    run_id: int
    priority: tuple[int | float, ...]
    stimulus_id: str
    who_has: dict[Any, tuple[str, ...]]
    nbytes: dict[Any, int]
    run_spec: Payload | None
    resource_restrictions: dict[str, float] | None = None
    actor: bool = False
    annotations: Any = {}
    span_id: str | None = None


class FreeKeys(Message, frozen=True, kw_only=True, tag="free-keys"):
    """Forget tasks and drop their data. No answer.

    Attributes:
        keys: which.
        stimulus_id: what caused it.
    """

    KEYS_FIELDS: ClassVar[tuple[str, ...]] = ("keys",)

    keys: list[Any]
    stimulus_id: str


class RemoveReplicas(Message, frozen=True, kw_only=True, tag="remove-replicas"):
    """Drop copies that others hold too; the worker answers with ``add-keys`` for those it must keep.

    Attributes:
        keys: which.
        stimulus_id: what caused it.
    """

    KEYS_FIELDS: ClassVar[tuple[str, ...]] = ("keys",)

    keys: list[Any]
    stimulus_id: str


class AcquireReplicas(Message, frozen=True, kw_only=True, tag="acquire-replicas"):
    """Fetch copies from other workers, when there is time.

    Attributes:
        who_has: key -> addresses of the workers that hold it.
        nbytes: key -> size in bytes.
        stimulus_id: what caused it.
    """

    KEY_MAPS: ClassVar[tuple[str, ...]] = ("who_has", "nbytes")

    who_has: dict[Any, list[str]]
    nbytes: dict[Any, int]
    stimulus_id: str


class StealRequest(Message, frozen=True, kw_only=True, tag="steal-request"):
    """Give a task back if it does not run yet; the answer is ``steal-response``. Stock: ``stealing.py``.

    Attributes:
        key: which task.
        stimulus_id: repeated in the answer.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)

    key: Any
    stimulus_id: str


class RefreshWhoHas(Message, frozen=True, kw_only=True, tag="refresh-who-has"):
    """Where data lies now; answers ``request-refresh-who-has``.

    Attributes:
        who_has: key -> addresses; may be empty.
        stimulus_id: what caused it.
    """

    KEY_MAPS: ClassVar[tuple[str, ...]] = ("who_has",)

    who_has: dict[Any, list[str]]
    stimulus_id: str


class CancelCompute(Message, frozen=True, kw_only=True, tag="cancel-compute"):
    """Do not run a task if it does not run yet. Stock workers read it; the stock scheduler no longer sends it.

    Attributes:
        key: which task.
        stimulus_id: what caused it.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)

    key: Any
    stimulus_id: str


class Close(Message, frozen=True, kw_only=True, tag="close", omit_defaults=True):
    """Shut the worker down. Stock: ``Worker.close``.

    Attributes:
        timeout: seconds for each step.
        executor_wait: wait for running tasks.
        nanny: close the nanny too.
        reason: for logs.
    """

    timeout: float = 30
    executor_wait: bool = True
    nanny: bool = True
    reason: str = "worker-close"


class RemoveWorker(Message, frozen=True, kw_only=True, tag="remove-worker"):
    """Another worker is gone.

    Attributes:
        worker: its address.
        stimulus_id: what caused it.
    """

    worker: str
    stimulus_id: str


class ShuffleFail(Message, frozen=True, kw_only=True, tag="shuffle-fail"):
    """A P2P shuffle has failed. Stock: ``ShuffleSchedulerPlugin._fail_on_workers``.

    Attributes:
        shuffle_id: which.
        run_id: which attempt.
        message: why.
    """

    shuffle_id: str
    run_id: int
    message: str
