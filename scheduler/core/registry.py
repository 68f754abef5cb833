"""The table from message class to handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, get_args, get_type_hints

from .turn import Turn

#: Handles the messages of one class; the turn has source, stimulus_id, request_id and time.
Handler: TypeAlias = Callable[[Turn, Any], None]
#: Message class -> its handler.
Registry: TypeAlias = dict[type[Any], Handler]


def handlers_of(*owners: object) -> Registry:
    """Return the functions ``handle_...`` of `owners`, which are modules or objects.

    The annotation of the second parameter names the class of messages, or several as a union.
    """
    registry: Registry = {}
    for owner in owners:
        for name in dir(owner):
            if name.startswith("handle_"):
                handler = getattr(owner, name)
                _, kind, *_ = get_type_hints(handler).values()
                for each in get_args(kind) or (kind,):
                    assert each not in registry, each
                    registry[each] = handler
    return registry
