"""What a worker sends on its stream, after ``register-worker``.

Stock writes these in ``worker_state_machine.py`` (classes ``...Msg``) and ``worker.py``, batched every 2 ms, and the
stock scheduler adds the worker's address to each. Here the address comes with the stimulus.

Must not know: what the scheduler makes of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..payload import Payload
from .base import Message, StartStop


class TaskFinished(Message, frozen=True, kw_only=True, tag="task-finished"):
    """A task is done and its result lies on the worker.

    Attributes:
        key: which task.
        stimulus_id: what caused it on the worker.
        run_id: from the ``compute-task`` that it answers; -1 where a peer does not say.
        nbytes: size of the result, bytes.
        type: pickled class of the result; a str with its name when it cannot be pickled.
        typename: name of that class, as ``typename`` of dask gives it.
        metadata: what the task or a plugin noted.
        thread: identifier of the thread that ran it.
        startstops: how its time was spent.
        status: always "OK".
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)
    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = ("type", "metadata")

    key: Any
    stimulus_id: str = ""
    run_id: int = -1
    nbytes: int | None = None
    type: Any = None
    typename: str | None = None
    metadata: dict[Any, Any] | None = None
    thread: int | None = None
    startstops: list[StartStop] = []
    status: str = "OK"


class TaskErred(Message, frozen=True, kw_only=True, tag="task-erred"):
    """A task raised.

    Attributes:
        key: which task.
        stimulus_id: what caused it on the worker.
        run_id: from the ``compute-task`` that it answers.
        exception: the exception, closed.
        traceback: its traceback, closed; None where it cannot be pickled.
        exception_text, traceback_text: the same in words, for logs.
        thread: identifier of the thread that ran it.
        startstops: how its time was spent.
        status: always "error".
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)

    key: Any
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
    """The worker has dropped a result that it was asked to drop, or has lost it.

    Attributes:
        key: which task.
        stimulus_id: what caused it.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)

    key: Any
    stimulus_id: str = ""


class AddKeys(Message, frozen=True, kw_only=True, tag="add-keys"):
    """The worker holds further copies: it has fetched dependencies, or refuses to drop replicas.

    Attributes:
        keys: which.
        stimulus_id: what caused it.
    """

    KEYS_FIELDS: ClassVar[tuple[str, ...]] = ("keys",)

    keys: list[Any] = []
    stimulus_id: str = ""


class LongRunning(Message, frozen=True, kw_only=True, tag="long-running"):
    """A task has seceded from the worker's thread pool.

    Attributes:
        key: which task.
        run_id: from the ``compute-task`` that it answers.
        compute_duration: seconds it has run until now; None where it secedes again.
        stimulus_id: what caused it.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)

    key: Any
    run_id: int = -1
    compute_duration: float | None = None
    stimulus_id: str = ""


class Reschedule(Message, frozen=True, kw_only=True, tag="reschedule"):
    """A task raised ``Reschedule``: it wants to run elsewhere.

    Attributes:
        key: which task.
        stimulus_id: what caused it.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)

    key: Any
    stimulus_id: str = ""


class KeepAlive(Message, frozen=True, kw_only=True, tag="keep-alive"):
    """Nothing new, sent every minute, so that nothing on the way thinks the connection dead."""


class LogEvent(Message, frozen=True, kw_only=True, tag="log-event"):
    """Log an event and tell those who subscribed to its topic. Stock: ``Worker.log_event``.

    Attributes:
        topic: a str, or several.
        msg: the event; anything.
    """

    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = ("topic", "msg")

    topic: Any
    msg: Any = None


class WorkerStatusChange(Message, frozen=True, kw_only=True, tag="worker-status-change"):
    """The worker's status changed; also sent by the scheduler to change it. Stock: ``Worker.status``.

    Attributes:
        status: "running", "paused", "closing_gracefully", ...
        stimulus_id: what caused it.
    """

    status: str
    stimulus_id: str = ""


class RequestRefreshWhoHas(Message, frozen=True, kw_only=True, tag="request-refresh-who-has"):
    """The worker does not find these keys where it was told they were.

    Attributes:
        keys: which.
        stimulus_id: what caused it.
    """

    KEYS_FIELDS: ClassVar[tuple[str, ...]] = ("keys",)

    keys: list[Any] = []
    stimulus_id: str = ""


class StealResponse(Message, frozen=True, kw_only=True, tag="steal-response"):
    """Answer to ``steal-request``.

    Attributes:
        key: which task.
        state: its state on the worker when the request came; None if unknown there.
        stimulus_id: that of the request.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)

    key: Any
    state: str | None = None
    stimulus_id: str = ""
