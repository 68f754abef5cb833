"""All unpickling in the scheduler's process.

Unpickling runs code of the sender. ``distributed.scheduler.pickle: false`` (or
``paceline.security.unpickle: false``) disables it: requests to run functions raise
``UnpicklingDisabledError``, and values stay serialized, except plain data, which is read by an
unpickler without access to classes.
"""

from __future__ import annotations

import inspect
import io
import pickle
from typing import Any

import cloudpickle
import dask.config
from paceline.protocol.payload import Payload, payload_pickle, serialized_payload
from paceline.workers_compat.graphs.spec_pickler import stock_pickle


class UnpicklingDisabledError(ValueError):
    """The configuration disables unpickling in this process."""


def is_allowed() -> bool:
    """Return whether this process may unpickle data of peers."""
    keys = ("distributed.scheduler.pickle", "paceline.security.unpickle")
    return all(dask.config.get(key, default=True) is not False for key in keys)


def check_allowed(what: str) -> None:
    """Raise UnpicklingDisabledError if unpickling is disabled. Its text contains `what`."""
    if not is_allowed():
        raise UnpicklingDisabledError(
            f"Cannot unpickle {what}: the scheduler's configuration disables unpickling "
            f"(`distributed.scheduler.pickle: false` or `paceline.security.unpickle: false`)"
        )


def unpickle(data: bytes, what: str = "data of a client") -> Any:
    """Unpickle ``data``. This runs code of the sender and may raise any exception.

    Raises:
        UnpicklingDisabledError: unpickling is disabled; the text contains `what`.
    """
    check_allowed(what)
    return cloudpickle.loads(data)


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles numbers, texts and containers. Raises for other types, so that no code runs."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a persistent id is not plain data")


def deserialize(value: Any) -> Any:
    """Return ``value`` unpickled if it is a ``Payload``.

    If unpickling is disabled, a payload that is not plain data is returned as it is.
    """
    if not isinstance(value, Payload):
        return value
    data, buffers = payload_pickle(value)
    if is_allowed():
        return pickle.loads(data, buffers=buffers)
    try:
        return _PlainUnpickler(io.BytesIO(data), buffers=buffers).load()
    except Exception:
        return value


def deserialize_or_raise(value: Any, what: str) -> Any:
    """Return ``deserialize(value)``.

    Raises:
        UnpicklingDisabledError: the value stays serialized; the text contains `what`.
    """
    found = deserialize(value)
    if isinstance(found, Payload):
        check_allowed(what)
    return found


def serialize_result(value: Any) -> Payload:
    """Return ``value`` pickled, in the form of stock's ``to_serialize``; the peer deserializes it.

    Raises:
        Exception: ``value`` cannot be pickled.
    """
    data, buffers = stock_pickle(value)
    views = [memoryview(b) for b in buffers]
    header = {"serializer": "pickle", "writeable": tuple(not v.readonly for v in views)}
    return serialized_payload(header, [data, *(v.tobytes("A") for v in views)])


def is_coroutine_function(function: Any) -> bool:
    """Return whether calling ``function``, a partial or another callable, returns a coroutine."""
    while hasattr(function, "func"):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return True
    return inspect.iscoroutinefunction(vars(type(function)).get("__call__"))


def unpickle_plugin(data: Any) -> Any:
    """Return the scheduler plugin in ``data``, a pickle or a plugin.

    Raises:
        TypeError: the object is not a scheduler plugin.
    """
    from distributed.diagnostics.plugin import SchedulerPlugin

    plugin = data if isinstance(data, SchedulerPlugin) else unpickle(data, "a scheduler plugin")
    if not isinstance(plugin, SchedulerPlugin):
        raise TypeError(f"expected a SchedulerPlugin, got {type(plugin).__name__}")
    return plugin


def plugin_name(plugin: Any) -> str:
    """Return the name of a plugin; a new one if it has none, as in stock."""
    from distributed.diagnostics.plugin import _get_plugin_name

    return str(_get_plugin_name(plugin))
