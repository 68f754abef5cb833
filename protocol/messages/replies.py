"""Replies with fields of their own.

A reply has no ``op``; the request determines its class. Other replies are plain values (a number, a
dict by key or address), described by "Returns" in the docstring of the request. Any request may be
answered with ``ErrorReply`` instead. ``Codec.decode_value(frames, ReplyClass)`` decodes a reply.
"""

from typing import Any

import msgspec
from paceline.protocol.limits import Nbytes
from paceline.protocol.payload import Payload


class Reply(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """Base of replies.

    Attributes:
        status: "OK" if the request succeeded.
    """

    status: str = "OK"


class ErrorReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to a failed request. Stock: ``core.error_message``.

    Attributes:
        status: "error", or "uncaught-error" if the handler raised an unexpected exception, which
            stock's ``send_recv`` raises again.
    """

    status: str = "error"
    exception: Payload | None = None
    traceback: Payload | None = None
    exception_text: str = ""
    traceback_text: str = ""


class StatusReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to ``rebalance``, ``replicate`` and a worker's ``gather``.

    Attributes:
        status: "OK", "partial-fail" or "error".
        keys: keys for which the request failed.
    """

    keys: list[Any] | None = None


class RegisterWorkerReply(
    Reply,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"heartbeat_interval": "heartbeat-interval", "worker_plugins": "worker-plugins"},
):
    """Answer to ``register-worker``. The batches of the stream follow on the same connection.

    Attributes:
        status: "OK", or "error", upon which the worker closes.
        worker_plugins: name -> pickle.
        message: reason of an error.
        warning, error: text on version differences.
    """

    time: float = 0.0
    heartbeat_interval: float | None = None
    worker_plugins: dict[str, Any] | None = None
    message: str | None = None
    warning: str | None = None
    error: str | None = None


class HeartbeatWorkerReply(
    Reply,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"heartbeat_interval": "heartbeat-interval"},
):
    """Answer to ``heartbeat_worker``.

    Attributes:
        status: "OK", or "missing" if the scheduler does not know the worker, which then closes.
    """

    time: float | None = None
    heartbeat_interval: float | None = None


class RegisterNannyReply(
    Reply, frozen=True, kw_only=True, rename={"nanny_plugins": "nanny-plugins"}
):
    """Answer to ``register_nanny``.

    The nanny sends {"status": "ok"} when it has started its plugins.

    Attributes:
        nanny_plugins: name -> pickle.
    """

    nanny_plugins: dict[str, Any] = {}


class GatherReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to ``gather``.

    Attributes:
        status: "OK", or "error" if some keys were not found.
        data: key -> serialized result.
        keys: keys that were not found.
    """

    data: dict[Any, Any] | None = None
    keys: list[Any] | None = None


class GetDataReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to ``get_data``. The receiver confirms it with "OK" unless the worker is busy.

    Attributes:
        status: "OK", or "busy" if the request must be repeated later.
        data: key -> serialized result. Keys that the worker does not hold are missing.
    """

    data: dict[Any, Any] | None = None


class UpdateDataReply(Reply, frozen=True, kw_only=True):
    """Answer to a worker's ``update_data``."""

    nbytes: dict[Any, Nbytes]


class ResultReply(Reply, frozen=True, kw_only=True):
    """Answer to ``run``, ``run_coroutine``, ``run_function`` and the requests to actors."""

    result: Any


class UploadFileReply(Reply, frozen=True, kw_only=True):
    """Answer to ``upload_file``.

    Attributes:
        nbytes: size of the file in bytes.
    """

    nbytes: int
