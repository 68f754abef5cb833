"""Messages that a client sends on its stream after ``register-client``.

Stock sends them in ``client.py``, ``queues.py``, ``variable.py`` and ``publish.py``, batched every
10 ms. The stock scheduler adds the client's name if it is missing; here the stimulus carries it. A
``client`` in the message takes precedence, because a worker's client may speak for another one.
Stock treats a ``client`` of nil as the name of an unknown client and ends the stream, so messages
that a client written here sends omit the field.
"""

from typing import Any, ClassVar

from paceline.protocol.limits import Nbytes
from paceline.protocol.payload import Payload

from .base import Key, Keys, Message


class UpdateGraph(Message, frozen=True, kw_only=True, tag="update-graph"):
    """Submit a graph to be computed. Stock: ``Client._graph_to_futures``.

    Attributes:
        expr_ser: the expression ("serialized", family "pickle").
        keys: keys that the client wants (a set on the wire).
        internal_priority: key -> order, if the client has ordered the graph itself.
        submitting_task: key of the task whose code submitted the graph.
        user_priority: a number, or key -> number. Current clients use annotations instead.
        fifo_timeout: graphs submitted within this time ("60s", or seconds) of each other share a
            generation in task priorities.
        actors: True, or the keys of tasks that create actors.
        code: source code of the caller, pickled.
        annotations: annotations of the submission, pickled.
        span_metadata: metadata of spans, pickled.
    """

    expr_ser: Payload
    keys: Keys
    internal_priority: Any = None
    submitting_task: Key = None
    user_priority: Any = 0
    fifo_timeout: Any = 0.0
    actors: Any = None
    code: Any = ()
    annotations: Any = None
    span_metadata: Any = None
    client: str | None = None
    stimulus_id: str | None = None


class ClientDesiresKeys(
    Message, frozen=True, kw_only=True, tag="client-desires-keys", omit_defaults=True
):
    """Register that the client holds futures for keys.

    Attributes:
        keys: keys of the futures. They may arrive before the graph that defines them.
    """

    keys: list[Key]
    client: str | None = None


class ClientReleasesKeys(
    Message, frozen=True, kw_only=True, tag="client-releases-keys", omit_defaults=True
):
    """Register that the client has dropped its last future for each of the keys."""

    keys: list[Key]
    client: str | None = None
    stimulus_id: str | None = None


class UpdateData(Message, frozen=True, kw_only=True, tag="update-data"):
    """Register data that the client has written to workers directly."""

    LENIENT_FIELDS: ClassVar[tuple[str, ...]] = ("nbytes",)

    who_has: dict[Key, list[str]]
    nbytes: dict[Key, Nbytes] = {}
    client: str | None = None


class ReportKey(Message, frozen=True, kw_only=True, tag="report-key"):
    """Request the state of a key.

    The answer is ``key-in-memory``, ``task-erred``, ``cancelled-keys`` or nothing.
    """

    key: Key
    client: str | None = None


class HeartbeatClient(
    Message, frozen=True, kw_only=True, tag="heartbeat-client", omit_defaults=True
):
    """Signal that the client is alive. The scheduler answers with ``adjust-heartbeat-interval``."""

    client: str | None = None


class CloseClient(Message, frozen=True, kw_only=True, tag="close-client", omit_defaults=True):
    """Announce that the client closes; ``close-stream`` follows."""

    client: str | None = None
    stimulus_id: str | None = None


class SubscribeTopic(Message, frozen=True, kw_only=True, tag="subscribe-topic", omit_defaults=True):
    """Subscribe the client to the events of a topic."""

    topic: Key
    client: str | None = None


class UnsubscribeTopic(
    Message, frozen=True, kw_only=True, tag="unsubscribe-topic", omit_defaults=True
):
    """Unsubscribe the client from the events of a topic."""

    topic: Key
    client: str | None = None


class CancelKeys(Message, frozen=True, kw_only=True, tag="cancel-keys"):
    """Cancel the client's futures. All clients receive ``cancelled-keys``.

    Attributes:
        force: cancel them for all other clients too.
        reason: short reason, repeated in ``cancelled-keys``.
        msg: message for users, repeated in ``cancelled-keys``.
    """

    keys: list[Key]
    force: bool = False
    reason: str | None = None
    msg: str | None = None
    client: str | None = None


class PublishFlushBatchedSend(Message, frozen=True, kw_only=True, tag="publish_flush_batched_send"):
    """Mark the point up to which a ``publish_put`` or ``publish_delete`` waits for the stream.

    When it arrives, all messages that the client sent before the request have arrived too.

    Attributes:
        uid: identifier of that request; a str, bytes in older releases.
    """

    uid: Any
    client: str | None = None


class QueueFutureRelease(Message, frozen=True, kw_only=True, tag="queue-future-release"):
    """Confirm that the client has created a future for an element of a queue."""

    name: Any = None
    key: Key = None
    client: str | None = None


class QueueRelease(Message, frozen=True, kw_only=True, tag="queue_release"):
    """Close the client's end of a queue."""

    name: Any = None
    client: str | None = None


class VariableFutureReceivedConfirm(
    Message, frozen=True, kw_only=True, tag="variable-future-received-confirm"
):
    """Confirm that the client has created a future for the value of a variable.

    Attributes:
        token: ``token`` from the reply to ``variable_get``.
    """

    name: Any = None
    key: Key = None
    token: str | None = None
    client: str | None = None


class VariableDelete(Message, frozen=True, kw_only=True, tag="variable_delete"):
    """Delete a variable."""

    name: Any = None
    client: str | None = None
