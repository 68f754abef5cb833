"""Base classes of messages, and messages of every direction.

A message is a frozen struct whose tag is the ``op`` on the wire and whose field names are those on
the wire. For msgspec, task keys and untyped values are ``Any``, because it has no type for a tuple
nested to any depth. The codec converts them after decoding (``message_fields.py``).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
from paceline.protocol.limits import Name, Seconds

#: A task key, which the codec checks and makes hashable.
Key: TypeAlias = Annotated[Any, "key"]
#: Several task keys: a list or, on the wire, a set. Those of a large graph are ``PackedKeys``.
Keys: TypeAlias = Annotated[Any, "keys"]

#: Meanings of fields that several messages have. The docstring of a message describes its other
#: fields, and those with another meaning. What None means applies to fields that may be None.
COMMON_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "actor": "key of the actor.",
        "address": "address of the worker.",
        "args": "pickled positional arguments.",
        "attribute": "name of the attribute.",
        "client": "name of the client; in a stream, default: the owner of the stream.",
        "data": "any value.",
        "exception": "the serialized exception.",
        "exception_text": "the exception as text, for logs.",
        "exclude": "attributes to omit.",
        "executor_wait": "whether to wait for running tasks.",
        "extra": "arguments to add to each message.",
        "extra_arguments": "further arguments, which are ignored.",
        "function": "pickled function.",
        "heartbeat_interval": "seconds until the next heartbeat.",
        "host_info": "information on the host.",
        "id": "ID of the shuffle.",
        "idempotent": "whether to keep a plugin that is already registered under this name.",
        "interval": "seconds.",
        "key": "key of the task.",
        "keys": "keys of the tasks; None for all.",
        "keys_or_stimuli": "keys and stimulus IDs.",
        "kwargs": "pickled keyword arguments.",
        "lease_id": "ID of the lease.",
        "lease_ids": "IDs of the leases.",
        "msg": "the event; any value.",
        "n": "maximum number of lines.",
        "name": "name of the plugin, queue, semaphore, variable, event or collection.",
        "names": "names of the datasets.",
        "nanny": "whether to close the nanny too.",
        "nbytes": "key -> size in bytes.",
        "now": "time on the worker's clock, in seconds since the epoch.",
        "packages": "further packages.",
        "plugin": "the pickled plugin.",
        "reason": "reason, for logs.",
        "resolve_address": "whether to resolve the host name in ``address``.",
        "resources": "resource -> amount.",
        "result": "the serialized result.",
        "run_id": "number of the attempt.",
        "shuffle_id": "ID of the shuffle.",
        "start": "seconds since the epoch.",
        "startstops": "time intervals spent on the task.",
        "stimulus_id": "ID of the stimulus, for the task stories.",
        "stop": "seconds since the epoch.",
        "thread": "identifier of the thread that ran the task.",
        "time": "time on the scheduler's clock, in seconds since the epoch.",
        "timeout": 'time limit in seconds, or a text such as "30 s" if allowed; None for no limit.',
        "timestamps": "whether to include the time of each line.",
        "topic": "name of the topic.",
        "traceback": "the serialized traceback.",
        "traceback_text": "the traceback as text, for logs.",
        "uid": "``uid`` of the ``publish_flush_batched_send`` to wait for.",
        "versions": "versions of Python and packages.",
        "wait": "whether to wait for a coroutine.",
        "wait_for_workers": "whether to wait until the workers have registered again.",
        "warning": "text on version differences.",
        "who_has": "key -> addresses of the workers that hold it.",
        "worker": "address of the worker.",
        "workers": "addresses of the workers; None for all.",
    }
)


class Message(
    msgspec.Struct, tag_field="op", kw_only=True, frozen=True, gc=False, omit_defaults=False
):
    """Base of all messages on streams and of all requests.

    Attributes:
        LENIENT_FIELDS: fields that get their default if their value does not fit their type, so
            that the rest of the message is still used.
        OPEN_MAPS: field -> a TypedDict of known members. Members with a wrong type are left out.
        EXTRA_FIELD: the field that collects arguments without a field of their own, or None if such
            arguments are an error.
    """

    LENIENT_FIELDS: ClassVar[tuple[str, ...]] = ()
    OPEN_MAPS: ClassVar[Mapping[str, type]] = MappingProxyType({})
    EXTRA_FIELD: ClassVar[str | None] = None

    @classmethod
    def op(cls) -> str:
        """Return the name of the operation on the wire."""
        return str(cls.__struct_config__.tag)


class Request(Message, frozen=True, kw_only=True):
    """Base of RPC requests. Stock: sent by ``core.send_recv``, handled by ``Server._handle_comm``.

    Attributes:
        reply: whether the sender waits for one reply message.
        close: whether to close the connection after the reply.
        serializers: serialization families allowed in the reply, in order of preference; None for
            the default.
    """

    reply: bool = True
    close: bool = False
    serializers: list[str] | None = None


#: Names of the fields of all requests.
REQUEST_FIELDS = frozenset(Request.__struct_fields__)


class _NamedRequest(Request, frozen=True, kw_only=True):
    """Base of requests for the object with a name, such as a lock, a queue or a variable."""

    name: Any = None


class StartStop(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A time interval that a worker spent on a task. Stock: ``worker_state_machine.StartStop``.

    Attributes:
        action: "compute", "transfer", "disk-read", "disk-write", "deserialize", ...
        start, stop: seconds since the epoch, by the worker's clock corrected to the scheduler's.
        source: for transfers, address of the worker that the data came from.
    """

    action: Name
    start: Seconds
    stop: Seconds
    source: str | None = None


class CloseStream(Message, frozen=True, kw_only=True, tag="close-stream"):
    """End a stream: no message follows. Either side sends it. Stock: ``Server.handle_stream``."""


class UnknownMessage(msgspec.Struct, frozen=True, gc=False):
    """A message whose operation is not in the catalogue. A plugin may have a handler for it.

    Attributes:
        op: name of the operation; "" if the message has none.
        raw: the whole message, ``op`` included, with arrays as tuples and serialized values as
            ``Payload`` objects.
    """

    op: str
    raw: dict[str, Any]


class InvalidMessage(msgspec.Struct, frozen=True, gc=False):
    """A message of a known operation with a missing field or a field of a wrong type.

    Attributes:
        op: name of the operation.
        path: path of the invalid field, such as ``$.nbytes``; "$" if a field is missing.
        error: text that describes the error.
        raw: the whole message, as in ``UnknownMessage``.
        cls: class of messages with this operation.
    """

    op: str
    path: str
    error: str
    raw: dict[str, Any]
    cls: type[Message] | None = None


class CloseRequest(Request, frozen=True, kw_only=True, tag="close"):
    """Close a connection in its RPC phase.

    Stock: handled by ``Server._handle_comm``, sent by ``core.rpc.close_rpc``.

    Returns: "OK".
    """
