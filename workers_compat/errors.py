"""Errors in the form in which stock clients and workers deserialize them.

An exception is sent as its pickle, wrapped as ``bytes`` of distributed's "dask" family, with its
traceback in the same form, and both as text. If it cannot be pickled, its ``repr`` is sent.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback as traceback_module
import zlib
from types import TracebackType
from typing import Any

import dask
import tblib.pickling_support
from distributed.comm.core import CommClosedError
from distributed.core import Status
from distributed.protocol.pickle import dumps as stock_dumps
from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError, WorkerState
from paceline.protocol.payload import Payload, serialized_payload

#: Places whose frames at the start of a traceback are left out.
OUR_FRAMES = (
    os.path.dirname(__file__),
    "/scheduler/server/",
    "/dask/_task_spec",
    "/concurrent/futures",
)
#: Arguments of stock's ``WorkerState``, and their defaults.
WORKER_DEFAULTS: dict[str, Any] = {
    "address": "tcp://0.0.0.0:0",
    "status": "closed",
    "pid": 0,
    "name": "",
    "nthreads": 0,
    "memory_limit": 0,
    "local_directory": "",
    "nanny": None,
    "server_id": "",
    "services": None,
    "versions": None,
    "extra": None,
}

_BYTES_HEADER = {
    "sub-header": {},
    "type": "bytes",
    "type-serialized": pickle.dumps(bytes, protocol=4),
    "serializer": "dask",
}


def connection_lost(address: str, reason: str) -> OSError:
    """Return the error that stock raises when a connection is lost."""
    error: OSError = CommClosedError(f"lost the connection to {address}: {reason}")
    return error


def error_message(error: BaseException, status: str = "error") -> dict[str, Any]:
    """Return the reply from which stock peers raise `error`, which has its traceback.

    `status` is "error", or "uncaught-error" if the handler of a request did not expect it.
    """
    exception, traceback, _ = error_payloads(error)
    tb = shown_traceback(error.__traceback__)
    return {
        "status": status,
        "exception": exception,
        "traceback": traceback,
        "exception_text": repr(truncated(error, max_error_nbytes())),
        "traceback_text": "".join(traceback_module.format_tb(tb)),
    }


def error_payloads(error: BaseException) -> tuple[Payload, Payload | None, str]:
    """Return exception, traceback (None if it is too long), and text for the log."""
    limit = max_error_nbytes()
    error = known_to_peers(error)
    for each in (error, *causes(error)):
        if each.__cause__ is not None:
            each.__cause__ = known_to_peers(each.__cause__)
    tblib.pickling_support.install(error, *causes(error))
    tb = shown_traceback(error.__traceback__)
    exception = _pickled_error(truncated(error, limit))
    traceback = _pickled(tb) or pickle_in_band("".join(traceback_module.format_tb(tb)))
    payload = bytes_payload(traceback) if len(traceback) <= limit else None
    return bytes_payload(exception), payload, error_text(error)


def known_to_peers(error: BaseException) -> BaseException:
    """Return `error`, or one of its nearest base class that peers without paceline can import."""
    kinds = [each for each in type(error).__mro__ if each.__module__.split(".")[0] != "paceline"]
    if kinds[0] is type(error):
        return error
    known: BaseException = kinds[0](_text_of(error))
    known.__cause__ = error.__cause__
    return known.with_traceback(error.__traceback__)


def error_text(error: BaseException) -> str:
    """Return the text of `error` and its causes for the log."""
    texts = [f"{type(each).__name__}: {_text_of(each)}" for each in (error, *causes(error))]
    return "\ncaused by ".join(text.strip() for text in texts)


def causes(error: BaseException) -> list[BaseException]:
    """Return the chain of ``__cause__``, nearest first. A cycle ends the chain."""
    found: list[BaseException] = []
    cause = error.__cause__
    while cause is not None and cause is not error and cause not in found:
        found.append(cause)
        cause = cause.__cause__
    return found


def truncated(error: BaseException, limit: int) -> BaseException:
    """Return `error`, or one of its type with a text of `limit` characters if it is longer."""
    text = _text_of(error)
    if len(text) <= limit:
        return error
    try:
        return type(error)("Long error message", text[:limit])
    except Exception:
        return Exception("Long error message", type(error), text[:limit])


def max_error_nbytes() -> int:
    """Return dask's ``distributed.admin.max-error-length``."""
    return int(dask.config.get("distributed.admin.max-error-length", 10000))


def shown_traceback(tb: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the leading frames in ``OUR_FRAMES``."""
    while tb is not None and any(place in tb.tb_frame.f_code.co_filename for place in OUR_FRAMES):
        tb = tb.tb_next
    return tb


def bytes_payload(data: bytes) -> Payload:
    """Return `data` in the form of stock's ``to_serialize``; the peer deserializes ``bytes``."""
    return serialized_payload(dict(_BYTES_HEADER), [data])


def _text_of(error: BaseException) -> str:
    """Return the text of `error`, with surrogates escaped, which logs cannot encode."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception as worse:
        return f"<{type(error).__name__}, whose text raises {type(worse).__name__}>"


def _pickled_error(error: BaseException) -> bytes:
    """Pickle an error with its causes; without tracebacks if they are too deep; else its repr."""
    data = _pickled(error)
    if data is not None:
        return data
    chain = [error, *causes(error)]
    tracebacks = [each.__traceback__ for each in chain]
    try:
        for each in chain:
            each.__traceback__ = None
        data = _pickled(error)
    finally:
        for each, tb in zip(chain, tracebacks, strict=True):
            each.__traceback__ = tb
    return data if data is not None else pickle_in_band(Exception(repr(error)))


def _pickled(value: Any) -> bytes | None:
    """Return the pickle of `value`, or None if it cannot be pickled and unpickled."""
    try:
        data = pickle_in_band(value)
        pickle.loads(data)
    except Exception:
        return None
    return data


def pickle_in_band(value: Any) -> bytes:
    """Pickle a value by stock's rules into one frame."""
    return bytes(stock_dumps(value))


class ErrorFactory:
    """Creates the payloads of the scheduler's own exceptions (``core.ports.ErrorPort``)."""

    def killed_worker(
        self, task_key: Any, worker_facts: dict[str, Any], allowed_failures: int
    ) -> Payload:
        worker = stock_worker_state(canonical(worker_facts))
        return _error_payload(KilledWorker(canonical(task_key), worker, allowed_failures))

    def no_worker(self, task_key: Any, timeout: float) -> Payload:
        return _error_payload(NoWorkerError(task=canonical(task_key), timeout=timeout))

    def no_valid_worker(
        self,
        task_key: Any,
        host_restrictions: Any,
        worker_restrictions: Any,
        resource_restrictions: Any,
        timeout: float,
    ) -> Payload:
        error = NoValidWorkerError(
            task=canonical(task_key),
            host_restrictions=CanonicalSet(map(canonical, host_restrictions or ())),
            worker_restrictions=CanonicalSet(map(canonical, worker_restrictions or ())),
            resource_restrictions=canonical(dict(resource_restrictions or {})),
            timeout=timeout,
        )
        return _error_payload(error)

    def memory_error(self, text: str) -> Payload:
        return _error_payload(MemoryError(text))

    def timeout_error(self, text: str) -> Payload:
        return _error_payload(TimeoutError(text))

    def actor_lost(self) -> Payload:
        return _error_payload(RuntimeError("Worker holding Actor was lost"))


def _error_payload(error: Exception) -> Payload:
    return bytes_payload(pickle.dumps(error, protocol=pickle.HIGHEST_PROTOCOL))


class CanonicalSet(set[Any]):
    """A set whose pickle is that of a sorted ``set``, so that it does not depend on hash seeds."""

    def __reduce__(self) -> tuple[Any, ...]:
        return set, (sorted(self, key=str),)


def canonical(value: Any) -> Any:
    """Return an equal value whose pickle is the same in every process.

    A pickle depends on which of its equal strings are one object. That differs between a run and
    its replay from a journal.
    """
    kind = type(value)
    if kind is str:
        return sys.intern(value)
    if kind is dict:
        return {canonical(key): canonical(inner) for key, inner in value.items()}
    if kind is list or kind is tuple:
        return kind([canonical(inner) for inner in value])
    return value


def stock_worker_state(facts: dict[str, Any]) -> Any:
    """Return what ``clean()`` of stock's ``WorkerState`` returns: a worker without a scheduler.

    `facts` are any of ``WORKER_DEFAULTS``, "occupancy", "executing" and "last_seen".
    """
    known = {name: facts.get(name, default) for name, default in WORKER_DEFAULTS.items()}
    status = getattr(known["status"], "name", known["status"])
    known["status"] = Status.lookup.get(status, Status.closed)
    known["server_id"] = str(known["server_id"] or known["address"])
    known["memory_limit"] = int(known["memory_limit"] or 0)
    worker = WorkerState(**known)
    # stock uses the clock and the hash seed of the process, which differ in a replay
    fixed = {
        "last_seen": float(facts.get("last_seen") or 0.0),
        "_hash": zlib.crc32(known["server_id"].encode()),
        "_occupancy_cache": float(facts.get("occupancy", 0.0)),
        "executing": dict(facts.get("executing") or {}),
    }
    for name, value in fixed.items():
        setattr(worker, name, value)
    return worker
