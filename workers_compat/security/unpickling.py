"""All unpickling in the scheduler's process, and pickling of its replies.

Unpickling runs code of the sender. ``distributed.scheduler.pickle: false`` (or
``paceline.security.unpickle: false``) disables it: requests to run functions raise
``UnpicklingDisabledError``, and values stay serialized, except plain data, which is read by an
unpickler without access to classes.

Stock sends a ``np.int64`` as a pickle of its own in place of a number. It is read by an unpickler
with access to what numpy scalars need.
"""

from __future__ import annotations

import inspect
import io
import pickle
from typing import Any

import cloudpickle
from distributed.diagnostics.plugin import SchedulerPlugin, _get_plugin_name
from distributed.protocol.pickle import loads as stock_loads
from distributed.protocol.serialize import (
    Serialize,
    Serialized,
    ToPickle,
    serialize,
    to_serialize,
)
from paceline.protocol.payload import Payload, payload_pickle, serialized_payload
from paceline.workers_compat.config.settings import is_on
from paceline.workers_compat.graphs.plain_keys import is_encodable
from paceline.workers_compat.graphs.task_pickler import NestedPickle, stock_payload, stock_pickle


class UnpicklingDisabledError(ValueError):
    """The configuration disables unpickling in this process."""


def is_allowed() -> bool:
    """Return whether this process may unpickle data of peers."""
    keys = ("distributed.scheduler.pickle", "paceline.security.unpickle")
    return all(map(is_on, keys))


def check_allowed(what: str) -> None:
    """Raise UnpicklingDisabledError if unpickling is disabled. Its text contains `what`."""
    if not is_allowed():
        raise UnpicklingDisabledError(
            f"Cannot unpickle {what}: the scheduler's configuration disables unpickling "
            f"(`distributed.scheduler.pickle: false` or `paceline.security.unpickle: false`)"
        )


def unpickle(data: bytes, what: str = "data of a client") -> Any:
    """Unpickle `data`. This runs code of the sender and may raise any exception.

    Raise UnpicklingDisabledError, whose text contains `what`, if unpickling is disabled.
    """
    check_allowed(what)
    return cloudpickle.loads(data)


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles numbers, texts and containers. Raises for other globals than those in `allowed`."""

    allowed: frozenset[tuple[str, str]] = frozenset()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not plain data")
        return super().find_class(module, name)


class _ScalarUnpickler(_PlainUnpickler):
    """Unpickles numpy scalars too."""

    allowed = frozenset(
        {
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "scalar"),
            ("numpy._core.multiarray", "scalar"),
            ("_codecs", "encode"),
        }
    )


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
    """Return ``deserialize(value)``. Raise if the value stays serialized; see ``check_allowed``."""
    found = deserialize(value)
    if isinstance(found, Payload):
        check_allowed(what)
    return found


class _OuterUnpickler(pickle.Unpickler):
    """Unpickles all but the values that are pickled as ``NestedPickle``."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return NestedPickle if found is stock_loads else found


def deserialize_outer(value: Any, what: str) -> Any:
    """Return the unpickled ``Payload`` `value`, with each ``NestedPickle`` in it still pickled.

    Raise UnpicklingDisabledError, whose text contains `what`, if unpickling is disabled.
    """
    check_allowed(what)
    data, buffers = payload_pickle(value)
    return _OuterUnpickler(io.BytesIO(data), buffers=buffers).load()


def serialize_result(value: Any, serializers: list[str] | None = None) -> Payload:
    """Return `value` in the form of stock's ``to_serialize``; the peer deserializes it.

    It is pickled, unless the peer requests other `serializers`.
    """
    if serializers is not None:
        return serialized_payload(*serialize(to_serialize(value), serializers=serializers))
    data, buffers = stock_pickle(value)
    views = [memoryview(b) for b in buffers]
    header = {"serializer": "pickle", "writeable": tuple(not v.readonly for v in views)}
    return serialized_payload(header, [data, *(v.tobytes("A") for v in views)])


def serialize_value(value: Any) -> Payload:
    """Return a value of a reply in the form in which stock sends it.

    Values that plugins mark (``ToPickle``, ``to_serialize``) are serialized as marked.
    """
    if isinstance(value, Serialized):
        return serialized_payload(value.header, value.frames)
    if isinstance(value, Serialize):
        return serialize_result(value.data)
    if isinstance(value, ToPickle):
        value = value.data
    return stock_payload(value)


def read_scalar(payload: Payload) -> Any:
    """Return the number or text in a payload; `payload` if msgpack cannot encode it."""
    try:
        data, buffers = payload_pickle(payload)
        if buffers:
            return payload
        value = _ScalarUnpickler(io.BytesIO(data)).load()
    except Exception:
        return payload
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "shape", None) == ():
        value = item()
    if isinstance(value, bool | float) or value is None:
        return value
    return value if isinstance(value, int | str) and is_encodable(value) else payload


def is_coroutine_function(function: Any) -> bool:
    """Return whether calling ``function``, a partial or another callable, returns a coroutine."""
    while hasattr(function, "func"):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return True
    return inspect.iscoroutinefunction(vars(type(function)).get("__call__"))


def unpickle_plugin(data: Any) -> Any:
    """Return the scheduler plugin in `data`, a pickle or a plugin. Raise TypeError for others."""
    plugin = data if isinstance(data, SchedulerPlugin) else unpickle(data, "a scheduler plugin")
    if not isinstance(plugin, SchedulerPlugin):
        raise TypeError(f"expected a SchedulerPlugin, got {type(plugin).__name__}")
    return plugin


def plugin_name(plugin: Any) -> str:
    """Return the name of a plugin; a new one if it has none, as in stock."""
    return str(_get_plugin_name(plugin))
