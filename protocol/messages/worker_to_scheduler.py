"""Messages that a worker sends on its stream after ``register-worker``.

Stock sends them in ``worker_state_machine.py`` (classes ``...Msg``) and ``worker.py``, batched
every 2 ms. The stock scheduler adds the worker's address to each; here the stimulus carries it.
"""

from typing import Any, ClassVar

from paceline.protocol.limits import Name, Nbytes, Seconds, WorkerStatus
from paceline.protocol.payload import Payload

from .base import Key, Message, StartStop


class TaskFinished(Message, frozen=True, kw_only=True, tag="task-finished"):
    """Report that a task finished and that the worker stores its result.

    Attributes:
        run_id: ``run_id`` of the ``compute-task`` that started it; -1 if the worker does not send
            one.
        nbytes: size of the result in bytes.
        type: pickled class of the result, or its name if the class cannot be pickled.
        typename: name of that class, as returned by ``dask.utils.typename``.
        metadata: metadata set by the task or by a plugin.
        status: always "OK".
    """

    LENIENT_FIELDS: ClassVar[tuple[str, ...]] = (
        "nbytes", "type", "typename", "metadata", "thread", "startstops", "status",
    )  # fmt: skip

    key: Key
    stimulus_id: str = ""
    run_id: int = -1
    nbytes: Nbytes | None = None
    type: Any = None
    typename: Name | None = None
    metadata: dict[Any, Any] | None = None
    thread: int | None = None
    startstops: list[StartStop] = []
    status: str = "OK"


class TaskErred(Message, frozen=True, kw_only=True, tag="task-erred"):
    """Report that a task raised an exception.

    Attributes:
        traceback: its serialized traceback; None if it cannot be pickled.
        status: always "error".
    """

    LENIENT_FIELDS: ClassVar[tuple[str, ...]] = (
        "exception", "traceback", "exception_text", "traceback_text", "thread", "startstops",
        "status",
    )  # fmt: skip

    key: Key
    stimulus_id: str = ""
    run_id: int = -1
    exception: Payload | None = None
    traceback: Payload | None = None
    exception_text: str = ""
    traceback_text: str = ""
    thread: int | None = None
    startstops: list[StartStop] = []
    status: str = "error"


class ReleaseWorkerData(Message, frozen=True, kw_only=True, tag="release-worker-data"):
    """Report that the worker no longer stores a result: dropped on request, or lost."""

    key: Key
    stimulus_id: str = ""


class AddKeys(Message, frozen=True, kw_only=True, tag="add-keys"):
    """Report additional replicas on the worker.

    The worker has fetched dependencies, or keeps replicas that ``remove-replicas`` named.
    """

    keys: list[Key] = []
    stimulus_id: str = ""


class LongRunning(Message, frozen=True, kw_only=True, tag="long-running"):
    """Report that a task has seceded from the worker's thread pool.

    Attributes:
        compute_duration: seconds since the task started; None if it had seceded before.
    """

    LENIENT_FIELDS: ClassVar[tuple[str, ...]] = ("compute_duration",)

    key: Key
    run_id: int = -1
    compute_duration: Seconds | None = None
    stimulus_id: str = ""


class Reschedule(Message, frozen=True, kw_only=True, tag="reschedule"):
    """Report that a task raised ``Reschedule``, so that it runs on another worker."""

    key: Key
    stimulus_id: str = ""


class KeepAlive(Message, frozen=True, kw_only=True, tag="keep-alive"):
    """Keep the connection open. Sent every minute.

    Without traffic, a proxy or firewall may close the connection.
    """


class LogEvent(Message, frozen=True, kw_only=True, tag="log-event"):
    """Log an event and send it to the subscribers of its topic. Stock: ``Worker.log_event``.

    Attributes:
        topic: name of the topic, or a list of names.
    """

    topic: Any
    msg: Any = None


class WorkerStatusChange(Message, frozen=True, kw_only=True, tag="worker-status-change"):
    """Report a new status of the worker. The scheduler also sends it to change the status.

    Stock: ``Worker.status``.

    Attributes:
        status: "running", "paused", "closing_gracefully", ...
    """

    status: WorkerStatus
    stimulus_id: str = ""


class RequestRefreshWhoHas(Message, frozen=True, kw_only=True, tag="request-refresh-who-has"):
    """Request the current holders of keys that the worker did not find on the known ones.

    The scheduler answers with ``refresh-who-has``.
    """

    keys: list[Key] = []
    stimulus_id: str = ""


class StealResponse(Message, frozen=True, kw_only=True, tag="steal-response"):
    """Answer ``steal-request``.

    Attributes:
        state: state of the task on the worker when the request arrived; None if it is unknown
            there.
        stimulus_id: ``stimulus_id`` of the request.
    """

    key: Key
    state: str | None = None
    stimulus_id: str = ""
