"""Errors in the shape in which stock clients and workers open them.

An exception goes over the wire as its pickle, wrapped as ``bytes`` of distributed's "dask" family; beside
it the traceback likewise, and both as text. What cannot be pickled is sent as its ``repr``.
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
from paceline.protocol.payload import Payload, serialized_payload
from paceline.workers_compat.graphs.spec_pickler import stock_pickle

OUR_FRAMES = (
    os.path.dirname(__file__),
    "/scheduler/server/",
    "/dask/_task_spec",
    "/concurrent/futures",
)
"""Leading frames of a traceback in these places tell the user nothing, and are left out."""

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
"""What stock's WorkerState is made of, where the facts do not say."""

_BYTES_HEADER = {
    "sub-header": {},
    "type": "bytes",
    "type-serialized": pickle.dumps(bytes, protocol=4),
    "serializer": "dask",
}


def connection_lost(address: str, reason: str) -> OSError:
    """A conversation with a peer broke off: what stock raises, since clients wait for it by name."""
    from distributed.comm.core import CommClosedError

    return CommClosedError(f"lost the connection to {address}: {reason}")


def error_message(error: BaseException, status: str = "error") -> dict[str, Any]:
    """A reply that says that something failed; stock peers raise the exception from it.

    Args:
        error: what was raised, with its traceback.
        status: "error", or "uncaught-error" when a handler of an RPC did not expect it.
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
    """(exception, traceback, text for the log). The traceback is None when it is too long, or there is none."""
    limit = max_error_nbytes()
    tblib.pickling_support.install(error, *causes(error))
    tb = shown_traceback(error.__traceback__)
    short = truncated(error, limit)
    exception = _pickled_error(short)
    traceback = _opens(tb) or pickle_in_band("".join(traceback_module.format_tb(tb)))
    closed = bytes_payload(traceback) if len(traceback) <= limit else None
    return bytes_payload(exception), closed, error_text(error)


def error_text(error: BaseException) -> str:
    """An error in words, with its causes, for the log."""
    texts = [f"{type(each).__name__}: {_text_of(each)}" for each in (error, *causes(error))]
    return "\ncaused by ".join(text.strip() for text in texts)


def causes(error: BaseException) -> list[BaseException]:
    """The chain of ``__cause__``, nearest first; a chain that bites its tail ends."""
    found: list[BaseException] = []
    cause = error.__cause__
    while cause is not None and cause is not error and cause not in found:
        found.append(cause)
        cause = cause.__cause__
    return found


def truncated(error: BaseException, limit: int) -> BaseException:
    """The error, or one of its kind with a shorter text when its text is longer than ``limit`` characters."""
    text = _text_of(error)
    if len(text) <= limit:
        return error
    try:
        return type(error)("Long error message", text[:limit])
    except Exception:
        return Exception("Long error message", type(error), text[:limit])


def max_error_nbytes() -> int:
    """dask's ``distributed.admin.max-error-length``."""
    return int(dask.config.get("distributed.admin.max-error-length", 10000))


def shown_traceback(tb: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is not ours."""
    while tb is not None and any(place in tb.tb_frame.f_code.co_filename for place in OUR_FRAMES):
        tb = tb.tb_next
    return tb


def bytes_payload(data: bytes) -> Payload:
    """Bytes as stock's ``to_serialize`` closes them: the peer gets ``bytes``."""
    return serialized_payload(dict(_BYTES_HEADER), [data])


def _text_of(error: BaseException) -> str:
    """Return the text of `error`, with surrogates escaped: neither pipes nor logs can encode them."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception as worse:
        return f"<{type(error).__name__}, whose text raises {type(worse).__name__}>"


def _pickled_error(error: BaseException) -> bytes:
    """An error with its causes; without their tracebacks if those are too deep; else its repr."""
    data = _opens(error)
    if data is not None:
        return data
    chain = [error, *causes(error)]
    tracebacks = [each.__traceback__ for each in chain]
    try:
        for each in chain:
            each.__traceback__ = None
        data = _opens(error)
    finally:
        for each, tb in zip(chain, tracebacks, strict=True):
            each.__traceback__ = tb
    return data if data is not None else pickle_in_band(Exception(repr(error)))


def _opens(value: Any) -> bytes | None:
    """The pickle of a value, if it also opens again."""
    try:
        data = pickle_in_band(value)
        pickle.loads(data)
    except Exception:
        return None
    return data


def pickle_in_band(value: Any) -> bytes:
    """Pickle a value by stock's rules into one frame."""
    data, buffers = stock_pickle(value)
    if buffers:
        import cloudpickle

        return bytes(cloudpickle.dumps(value))
    return data


class ErrorFactory:
    """The exceptions that the scheduler itself gives to clients, as payloads (``core.ports.ErrorPort``)."""

    def killed_worker(
        self, task_key: Any, worker_facts: dict[str, Any], allowed_failures: int
    ) -> Payload:
        """``KilledWorker``: workers died again and again while they ran the task."""
        from distributed.scheduler import KilledWorker

        worker = stock_worker_state(settled(worker_facts))
        return self._closed(KilledWorker(settled(task_key), worker, allowed_failures))

    def no_worker(self, task_key: Any, timeout: float) -> Payload:
        """``NoWorkerError``: there was no running worker for ``timeout`` seconds."""
        from distributed.scheduler import NoWorkerError

        return self._closed(NoWorkerError(task=settled(task_key), timeout=timeout))

    def no_valid_worker(
        self,
        task_key: Any,
        host_restrictions: Any,
        worker_restrictions: Any,
        resource_restrictions: Any,
        timeout: float,
    ) -> Payload:
        """``NoValidWorkerError``: no worker met the task's restrictions for ``timeout`` seconds."""
        from distributed.scheduler import NoValidWorkerError

        error = NoValidWorkerError(
            task=settled(task_key),
            host_restrictions=SettledSet(settled(list(host_restrictions or ()))),
            worker_restrictions=SettledSet(settled(list(worker_restrictions or ()))),
            resource_restrictions=settled(dict(resource_restrictions or {})),
            timeout=timeout,
        )
        return self._closed(error)

    def memory_error(self, text: str) -> Payload:
        """``MemoryError``: the task's inputs are larger than its worker's memory."""
        return self._closed(MemoryError(text))

    def actor_lost(self) -> Payload:
        """``RuntimeError``: the worker that held an actor is gone."""
        return self._closed(RuntimeError("Worker holding Actor was lost"))

    def _closed(self, error: Exception) -> Payload:
        return bytes_payload(pickle.dumps(error, protocol=pickle.HIGHEST_PROTOCOL))


class SettledSet(set[Any]):
    """A set that is pickled as a plain one, its elements in order, so that hash seeds do not show."""

    def __reduce__(self) -> tuple[Any, ...]:
        return set, (sorted(self, key=str),)


def settled(value: Any) -> Any:
    """An equal value whose pickle is the same in every process.

    A pickle depends on which of the equal strings in it are one object, and that differs between a run and its
    replay from a journal.
    """
    kind = type(value)
    if kind is str:
        return sys.intern(value)
    if kind is dict:
        return {settled(key): settled(inner) for key, inner in value.items()}
    if kind is list or kind is tuple:
        return kind([settled(inner) for inner in value])
    return value


def stock_worker_state(facts: dict[str, Any]) -> Any:
    """A stock ``WorkerState`` as its ``clean()`` gives it: facts without any scheduler behind them.

    Args:
        facts: what is known of the worker (``WORKER_DEFAULTS`` and ``occupancy``, ``executing``); more is ignored.
    """
    from distributed.core import Status
    from distributed.scheduler import WorkerState

    known = {name: facts.get(name, default) for name, default in WORKER_DEFAULTS.items()}
    status = getattr(known["status"], "name", known["status"])
    known["status"] = Status.lookup.get(status, Status.closed)
    known["server_id"] = str(known["server_id"] or known["address"])
    known["memory_limit"] = int(known["memory_limit"] or 0)
    worker = WorkerState(**known)
    # what stock takes from the clock and from the process's hash seed would differ in a replay
    worker.last_seen = float(facts.get("last_seen") or 0.0)
    worker._hash = zlib.crc32(known["server_id"].encode())
    worker._occupancy_cache = float(facts.get("occupancy", 0.0))
    worker.executing = dict(facts.get("executing") or {})
    return worker
