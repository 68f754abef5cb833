"""What a client sends on its stream, after ``register-client``.

Stock writes these in ``client.py``, ``queues.py``, ``variable.py`` and ``publish.py``, batched every 10 ms, and the
stock scheduler adds the client's name where it is missing. Here the name comes with the stimulus; where a
message has one, it counts (a worker's client speaks for itself). A name of nil is one to stock, which knows no such client and
ends the stream: classes that a client here may send leave it out.

Must not know: what the scheduler makes of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..payload import Payload
from .base import Message


class UpdateGraph(Message, frozen=True, kw_only=True, tag="update-graph"):
    """Compute an expression. Stock: ``Client._graph_to_futures``.

    Attributes:
        expr_ser: the expression, closed ("serialized", family "pickle").
        keys: what the client wants of it (on the wire a set).
        internal_priority: key -> order, where the client has ordered itself.
        submitting_task: key of the task whose code sent this.
        user_priority: a number, or key -> number. Clients put it into the annotations now.
        fifo_timeout: graphs that follow within this time ("60s", or seconds) get the same generation.
        actors: True, or the keys that make actors.
        code: source lines of the caller, closed ("pickled").
        annotations: of the submission, closed ("pickled").
        span_metadata: closed ("pickled").
        client: who sent it, where it says so.
        stimulus_id: what to call it.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("submitting_task",)
    KEYS_FIELDS: ClassVar[tuple[str, ...]] = ("keys",)
    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = (
        "internal_priority", "user_priority", "actors", "code", "annotations", "span_metadata",
        "fifo_timeout",
    )  # fmt: skip

    expr_ser: Payload
    keys: Any
    internal_priority: Any = None
    submitting_task: Any = None
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
    """The client has futures of these keys.

    Attributes:
        keys: which; may come before the graph that makes them.
        client: who.
    """

    KEYS_FIELDS: ClassVar[tuple[str, ...]] = ("keys",)

    keys: list[Any]
    client: str | None = None


class ClientReleasesKeys(
    Message, frozen=True, kw_only=True, tag="client-releases-keys", omit_defaults=True
):
    """The client's last future of each of these keys is gone.

    Attributes:
        keys: which.
        client: who.
        stimulus_id: what to call it.
    """

    KEYS_FIELDS: ClassVar[tuple[str, ...]] = ("keys",)

    keys: list[Any]
    client: str | None = None
    stimulus_id: str | None = None


class UpdateData(Message, frozen=True, kw_only=True, tag="update-data"):
    """The client has put data onto workers.

    Attributes:
        who_has: key -> addresses.
        nbytes: key -> size in bytes.
        client: who wants it.
    """

    KEY_MAPS: ClassVar[tuple[str, ...]] = ("who_has", "nbytes")

    who_has: dict[Any, list[str]]
    nbytes: dict[Any, int]
    client: str | None = None


class ReportKey(Message, frozen=True, kw_only=True, tag="report-key"):
    """How is it with this key? The answer is ``key-in-memory``, ``task-erred``, ``cancelled-keys`` or nothing.

    Attributes:
        key: which.
        client: who.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)

    key: Any = None
    client: str | None = None


class HeartbeatClient(
    Message, frozen=True, kw_only=True, tag="heartbeat-client", omit_defaults=True
):
    """The client is alive; answered with ``adjust-heartbeat-interval``.

    Attributes:
        client: who.
    """

    client: str | None = None


class CloseClient(Message, frozen=True, kw_only=True, tag="close-client", omit_defaults=True):
    """The client goes; ``close-stream`` follows.

    Attributes:
        client: who.
        stimulus_id: what to call it.
    """

    client: str | None = None
    stimulus_id: str | None = None


class SubscribeTopic(Message, frozen=True, kw_only=True, tag="subscribe-topic", omit_defaults=True):
    """Send the client the events of a topic.

    Attributes:
        topic: its name.
        client: who.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("topic",)

    topic: Any
    client: str | None = None


class UnsubscribeTopic(
    Message, frozen=True, kw_only=True, tag="unsubscribe-topic", omit_defaults=True
):
    """Send the client no more events of a topic.

    Attributes:
        topic: its name.
        client: who.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("topic",)

    topic: Any
    client: str | None = None


class CancelKeys(Message, frozen=True, kw_only=True, tag="cancel-keys"):
    """The client does not want these keys any more; answered with ``cancelled-keys`` to all clients.

    Attributes:
        keys: which.
        force: cancel them for all other clients too.
        reason: a word, for clients.
        msg: a sentence, for people.
        client: who.
    """

    KEYS_FIELDS: ClassVar[tuple[str, ...]] = ("keys",)

    keys: list[Any]
    force: bool = False
    reason: str | None = None
    msg: str | None = None
    client: str | None = None


class PublishFlushBatchedSend(Message, frozen=True, kw_only=True, tag="publish_flush_batched_send"):
    """All that the client had sent before a ``publish_put`` or ``publish_delete`` has arrived with this.

    Attributes:
        uid: ties it to that request; a str, bytes in older releases.
        client: who.
    """

    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = ("uid",)

    uid: Any
    client: str | None = None


class QueueFutureRelease(Message, frozen=True, kw_only=True, tag="queue-future-release"):
    """The client has made a future of what it got from a queue.

    Attributes:
        name: of the queue.
        key: of the future.
        client: who.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)
    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = ("name",)

    name: Any = None
    key: Any = None
    client: str | None = None


class QueueRelease(Message, frozen=True, kw_only=True, tag="queue_release"):
    """The client closes its end of a queue.

    Attributes:
        name: of the queue.
        client: who.
    """

    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = ("name",)

    name: Any = None
    client: str | None = None


class VariableFutureReceivedConfirm(
    Message, frozen=True, kw_only=True, tag="variable-future-received-confirm"
):
    """The client has made a future of what it got from a variable.

    Attributes:
        name: of the variable.
        key: of the future.
        token: from the reply that it got.
        client: who.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)
    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = ("name",)

    name: Any = None
    key: Any = None
    token: str | None = None
    client: str | None = None


class VariableDelete(Message, frozen=True, kw_only=True, tag="variable_delete"):
    """Delete a variable.

    Attributes:
        name: which.
        client: who.
    """

    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = ("name",)

    name: Any = None
    client: str | None = None
