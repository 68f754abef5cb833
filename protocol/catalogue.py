"""All operations: their directions, message classes, and the parts of paceline that handle them.

Decoders, documentation and checks are derived from these tables. A *direction* is one of the four
streams (``"worker_to_scheduler"``, ...) or the requests that a kind of server handles
(``"scheduler_rpc"``, ...).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Literal

from paceline.protocol.messages import (
    client_to_scheduler,
    cluster_rpc,
    extension_rpc,
    inquiry_rpc,
    nanny_rpc,
    scheduler_to_client,
    scheduler_to_worker,
    worker_rpc,
    worker_to_scheduler,
)
from paceline.protocol.messages.base import CloseRequest, CloseStream, Message
from paceline.protocol.messages.replies import (
    GatherReply,
    GetDataReply,
    HeartbeatWorkerReply,
    RegisterNannyReply,
    RegisterWorkerReply,
    Reply,
    ResultReply,
    StatusReply,
    UpdateDataReply,
    UploadFileReply,
)

Direction = Literal[
    "worker_to_scheduler",
    "scheduler_to_worker",
    "client_to_scheduler",
    "scheduler_to_client",
    "scheduler_rpc",
    "worker_rpc",
    "nanny_rpc",
]

#: What handles a message: "core" (a turn of the core), "server" (``scheduler/server/``),
#: "extension" (an extension of the core), "connection" (the protocol), or "peer" (a stock worker,
#: client or nanny, not paceline).
Handler = Literal["core", "server", "extension", "connection", "peer"]

STREAM_DIRECTIONS: tuple[Direction, ...] = (
    "worker_to_scheduler",
    "scheduler_to_worker",
    "client_to_scheduler",
    "scheduler_to_client",
)
RPC_DIRECTIONS: tuple[Direction, ...] = ("scheduler_rpc", "worker_rpc", "nanny_rpc")


@dataclass(frozen=True, slots=True)
class Op:
    """An operation in one direction.

    Attributes:
        name: name on the wire.
        direction: direction of the message.
        cls: class of the message.
        handler: the part of paceline that handles it.
        reply: class of the reply; None if the reply is a plain value or there is none.
    """

    name: str
    direction: Direction
    cls: type[Message]
    handler: Handler
    reply: type[Reply] | None = None


def _classes(module: ModuleType) -> list[type[Message]]:
    """Return the message classes defined in `module`, in order."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Message)
        and value.__module__ == module.__name__
        and value.__struct_config__.tag is not None
    ]


#: Request -> class of its reply, unless the reply is a plain value (``reply_values.VALUES``).
_REPLIES: Mapping[type[Message], type[Reply]] = MappingProxyType(
    {
        cluster_rpc.RegisterWorker: RegisterWorkerReply,
        cluster_rpc.RegisterNanny: RegisterNannyReply,
        cluster_rpc.HeartbeatWorker: HeartbeatWorkerReply,
        cluster_rpc.Gather: GatherReply,
        cluster_rpc.Rebalance: StatusReply,
        cluster_rpc.RunFunction: ResultReply,
        worker_rpc.GetData: GetDataReply,
        worker_rpc.WorkerGather: StatusReply,
        worker_rpc.WorkerUpdateData: UpdateDataReply,
        worker_rpc.Run: ResultReply,
        worker_rpc.RunCoroutine: ResultReply,
        worker_rpc.ActorExecute: ResultReply,
        worker_rpc.ActorAttribute: ResultReply,
        worker_rpc.UploadFile: UploadFileReply,
    }
)
#: Requests of the scheduler that workers and nannies handle, too.
_EVERY_SERVER = (cluster_rpc.ConnectionStream, inquiry_rpc.DumpState, inquiry_rpc.Echo)
#: Requests handled by the core; the server handles the others.
_CORE_REQUESTS = frozenset(
    ("register-worker", "register-client", "heartbeat_worker", "unregister", "add_keys")
)
#: Operations outside ``extension_rpc`` that extensions handle.
_EXTENSION_OPS = frozenset(
    (
        "publish_flush_batched_send",
        "queue-future-release",
        "queue_release",
        "variable-future-received-confirm",
        "variable_delete",
        "subscribe-topic",
        "unsubscribe-topic",
        "log-event",
        "log_event",
        "events",
        "steal-response",
    )
)


#: Direction -> its classes, and what handles most of its messages.
_CLASSES: Mapping[Direction, tuple[Sequence[type[Message]], Handler]] = MappingProxyType(
    {
        "worker_to_scheduler": (_classes(worker_to_scheduler), "core"),
        "scheduler_to_worker": (
            [*_classes(scheduler_to_worker), worker_to_scheduler.WorkerStatusChange], "peer"
        ),
        "client_to_scheduler": (_classes(client_to_scheduler), "core"),
        "scheduler_to_client": (
            [*_classes(scheduler_to_client), scheduler_to_worker.Close], "peer"
        ),
        "scheduler_rpc": (
            [*_classes(cluster_rpc), *_classes(inquiry_rpc), *_classes(extension_rpc)], "server"
        ),
        "worker_rpc": ([*_classes(worker_rpc), *_EVERY_SERVER, inquiry_rpc.GetStory], "peer"),
        "nanny_rpc": (
            [*_classes(nanny_rpc), *_EVERY_SERVER, worker_rpc.Run, worker_rpc.WorkerGetLogs],
            "peer",
        ),
    }
)  # fmt: skip


def _table(direction: Direction) -> Mapping[str, Op]:
    """Return the operations of `direction` by name."""
    extension = frozenset(_classes(extension_rpc))
    classes, default = _CLASSES[direction]
    ops: dict[str, Op] = {}
    for cls in (*classes, CloseStream if direction in STREAM_DIRECTIONS else CloseRequest):
        name = cls.op()
        handler = default
        if cls is CloseStream or cls is CloseRequest:
            handler = "connection"
        elif default != "peer" and (cls in extension or name in _EXTENSION_OPS):
            handler = "extension"
        elif direction == "scheduler_rpc" and name in _CORE_REQUESTS:
            handler = "core"
        if name in ops:
            raise ValueError(f"two classes for op {name!r} in direction {direction}")
        ops[name] = Op(name, direction, cls, handler, _REPLIES.get(cls))
    return MappingProxyType(ops)


#: Direction -> name -> operation.
TABLES: Mapping[Direction, Mapping[str, Op]] = MappingProxyType(
    {direction: _table(direction) for direction in (*STREAM_DIRECTIONS, *RPC_DIRECTIONS)}
)
