"""All operations: their directions, message classes and replies.

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
        reply: class of the reply; None if the reply is a plain value or there is none.
        is_connection: whether the protocol handles it, because it closes the stream or connection.
    """

    name: str
    direction: Direction
    cls: type[Message]
    reply: type[Reply] | None = None
    is_connection: bool = False


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


#: Direction -> its classes.
_CLASSES: Mapping[Direction, Sequence[type[Message]]] = MappingProxyType(
    {
        "worker_to_scheduler": _classes(worker_to_scheduler),
        "scheduler_to_worker": [
            *_classes(scheduler_to_worker),
            worker_to_scheduler.WorkerStatusChange,
        ],
        "client_to_scheduler": _classes(client_to_scheduler),
        "scheduler_to_client": [*_classes(scheduler_to_client), scheduler_to_worker.Close],
        "scheduler_rpc": [
            *_classes(cluster_rpc), *_classes(inquiry_rpc), *_classes(extension_rpc)
        ],
        "worker_rpc": [*_classes(worker_rpc), *_EVERY_SERVER, inquiry_rpc.GetStory],
        "nanny_rpc": [
            *_classes(nanny_rpc), *_EVERY_SERVER, worker_rpc.Run, worker_rpc.WorkerGetLogs
        ],
    }
)  # fmt: skip


def _table(direction: Direction) -> Mapping[str, Op]:
    """Return the operations of `direction` by name."""
    closing = CloseStream if direction in STREAM_DIRECTIONS else CloseRequest
    ops: dict[str, Op] = {}
    for cls in (*_CLASSES[direction], closing):
        name = cls.op()
        if name in ops:
            raise ValueError(f"two classes for op {name!r} in direction {direction}")
        ops[name] = Op(name, direction, cls, _REPLIES.get(cls), cls is closing)
    return MappingProxyType(ops)


#: Direction -> name -> operation.
TABLES: Mapping[Direction, Mapping[str, Op]] = MappingProxyType(
    {direction: _table(direction) for direction in (*STREAM_DIRECTIONS, *RPC_DIRECTIONS)}
)
