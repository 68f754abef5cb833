"""The one door to pickles in the scheduler's process: what is opened, and whether it may be.

To open a pickle is to run what its sender wrote. ``distributed.scheduler.pickle: false`` (or ``paceline.security.unpickle: false``)
shuts the door: what clients ask to run here is refused in words, and values that pass through stay closed, except those made of
plain data alone, which a reader opens that knows no classes and so runs nothing.

Must not know: what is done with what was opened.
"""

from __future__ import annotations

import inspect
import io
import pickle
from typing import Any

import cloudpickle
import dask.config
from paceline.protocol.payload import Payload, payload_pickle, serialized_payload

from .spec_pickler import as_stock


class PickleForbidden(ValueError):
    """The configuration says that this process opens no pickles."""


def is_allowed() -> bool:
    """Whether this process opens pickles that peers sent."""
    keys = ("distributed.scheduler.pickle", "paceline.security.unpickle")
    return all(dask.config.get(key, default=True) is not False for key in keys)


def check_allowed(what: str) -> None:
    """Refuse, where pickles stay closed.

    Args:
        what: would have to be opened.

    Raises:
        PickleForbidden: they do.
    """
    if not is_allowed():
        raise PickleForbidden(
            f"This scheduler opens no pickles (its configuration says `distributed.scheduler.pickle: false` or "
            f"`paceline.security.unpickle: false`), and to serve this it would have to open {what}"
        )


def unpickle(data: bytes, what: str = "what a client pickled") -> Any:
    """What stock's ``pickle.dumps`` made. Runs code of its sender; raises whatever that raises.

    Args:
        what: it is, for who is refused.

    Raises:
        PickleForbidden: not here.
    """
    check_allowed(what)
    return cloudpickle.loads(data)


class _PlainUnpickler(pickle.Unpickler):
    """Opens numbers, texts and containers: a pickle that names anything else does not open, so none runs code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a persistent id is no plain data")


def opened(value: Any) -> Any:
    """A closed value unpickled, as this process can and may; a plain one as it is. What may not be opened stays closed."""
    if not isinstance(value, Payload):
        return value
    data, buffers = payload_pickle(value)
    if is_allowed():
        return pickle.loads(data, buffers=buffers)
    try:
        return _PlainUnpickler(io.BytesIO(data), buffers=buffers).load()
    except Exception:
        return value


def opened_or_refused(value: Any, what: str) -> Any:
    """The same, where a closed value is of no use.

    Raises:
        PickleForbidden: it stays closed.
    """
    found = opened(value)
    if isinstance(found, Payload):
        check_allowed(what)
    return found


def closed_result(value: Any) -> Payload:
    """A value as stock's ``to_serialize`` closes it (its "pickle" family): the peer gets it opened.

    Raises:
        Exception: it cannot be pickled.
    """
    data, buffers = as_stock(value)
    views = [memoryview(b) for b in buffers]
    header = {"serializer": "pickle", "writeable": tuple(not v.readonly for v in views)}
    return serialized_payload(header, [data, *(v.tobytes("A") for v in views)])


def is_coroutine_function(function: Any) -> bool:
    """Whether a call gives something to await: also for objects and partials over such functions."""
    while hasattr(function, "func"):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return True
    call = vars(type(function)).get("__call__")
    return inspect.iscoroutinefunction(call)


def unpickle_plugin(data: Any) -> Any:
    """A scheduler plugin.

    Raises:
        TypeError: it is something else.
    """
    from distributed.diagnostics.plugin import SchedulerPlugin

    plugin = data if isinstance(data, SchedulerPlugin) else unpickle(data, "a scheduler plugin")
    if not isinstance(plugin, SchedulerPlugin):
        raise TypeError(f"expected a SchedulerPlugin, got {type(plugin).__name__}")
    return plugin


def plugin_name(plugin: Any) -> str:
    """The name a plugin has, or one made for it, as stock does."""
    from distributed.diagnostics.plugin import _get_plugin_name

    return str(_get_plugin_name(plugin))
