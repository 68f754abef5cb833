"""Replies that are structures. A reply has no op: what it is, is known by the request that it answers.

Replies of other requests are plain values (a number, a dict by key or address); "Returns" in the request's docstring says
which. Any request may be answered with ``ErrorReply`` instead. ``Codec.decode_value(frames, ReplyClass)`` reads one typed.

Must not know: how a request is served.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..payload import Payload


class Reply(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """Base of replies.

    Attributes:
        status: "OK" where all went well.
    """

    status: str = "OK"


class ErrorReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """A request has failed. Stock: ``core.error_message``.

    Attributes:
        status: "error", or "uncaught-error" for what the handler did not foresee: stock's ``send_recv`` raises it.
        exception: closed.
        traceback: closed.
        exception_text, traceback_text: the same in words.
    """

    status: str = "error"
    exception: Payload | None = None
    traceback: Payload | None = None
    exception_text: str = ""
    traceback_text: str = ""


class StatusReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """All that there is to say, of ``rebalance``, ``replicate`` and a worker's ``gather``.

    Attributes:
        status: "OK", "partial-fail" or "error".
        keys: those that failed.
    """

    keys: list[Any] | None = None


class RegisterWorkerReply(
    Reply,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"heartbeat_interval": "heartbeat-interval", "worker_plugins": "worker-plugins"},
):
    """Answers ``register-worker``; batches follow it on the same connection.

    Attributes:
        status: "OK", or "error": the worker closes.
        time: the scheduler's clock, seconds since the epoch.
        heartbeat_interval: seconds.
        worker_plugins: name -> pickle.
        message: why not.
        warning, error: differing versions, in words.
    """

    time: float = 0.0
    heartbeat_interval: float | None = None
    worker_plugins: dict[str, Any] | None = None
    message: str | None = None
    warning: str | None = None
    error: str | None = None


class HeartbeatWorkerReply(
    Reply, frozen=True, kw_only=True, omit_defaults=True, rename={"heartbeat_interval": "heartbeat-interval"}
):  # fmt: skip
    """Answers ``heartbeat_worker``.

    Attributes:
        status: "OK", or "missing": the scheduler does not know the worker, which closes.
        time: the scheduler's clock, seconds since the epoch.
        heartbeat_interval: when to send the next, seconds.
    """

    time: float | None = None
    heartbeat_interval: float | None = None


class RegisterNannyReply(
    Reply, frozen=True, kw_only=True, rename={"nanny_plugins": "nanny-plugins"}
):
    """Answers ``register_nanny``; the nanny says {"status": "ok"} when it has started its plugins.

    Attributes:
        nanny_plugins: name -> pickle.
    """

    nanny_plugins: dict[str, Any] = {}


class GatherReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """Answers ``gather``.

    Attributes:
        status: "OK", or "error": some keys are nowhere.
        data: key -> result, closed.
        keys: those that are nowhere.
    """

    data: dict[Any, Any] | None = None
    keys: list[Any] | None = None


class GetDataReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """Answers ``get_data``; the asker acknowledges it with "OK" unless the worker is busy.

    Attributes:
        status: "OK", or "busy": ask again later.
        data: key -> result, closed. Keys that the worker does not hold are missing.
    """

    data: dict[Any, Any] | None = None


class UpdateDataReply(Reply, frozen=True, kw_only=True):
    """Answers a worker's ``update_data``.

    Attributes:
        nbytes: key -> size in bytes.
    """

    nbytes: dict[Any, int]


class ResultReply(Reply, frozen=True, kw_only=True):
    """Answers ``run``, ``run_coroutine``, ``run_function``, ``actor_execute`` and ``actor_attribute``.

    Attributes:
        result: closed.
    """

    result: Any


class UploadFileReply(Reply, frozen=True, kw_only=True):
    """Answers ``upload_file``.

    Attributes:
        nbytes: size of the file.
    """

    nbytes: int
