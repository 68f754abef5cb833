"""Pickles that a client asks the scheduler to open: functions, plugins; and results that go back.

Must not know: what is done with them.
"""

from __future__ import annotations

import inspect
from typing import Any

import cloudpickle
from paceline.protocol.payload import Payload, serialized_payload

from .spec_pickler import as_stock


def unpickle(data: bytes) -> Any:
    """What stock's ``pickle.dumps`` made. Runs code of its sender; raises whatever that raises."""
    return cloudpickle.loads(data)


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

    plugin = data if isinstance(data, SchedulerPlugin) else unpickle(data)
    if not isinstance(plugin, SchedulerPlugin):
        raise TypeError(f"expected a SchedulerPlugin, got {type(plugin).__name__}")
    return plugin


def plugin_name(plugin: Any) -> str:
    """The name a plugin has, or one made for it, as stock does."""
    from distributed.diagnostics.plugin import _get_plugin_name

    return str(_get_plugin_name(plugin))
