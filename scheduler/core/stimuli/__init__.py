"""Inputs of the core: ``Stimulus``, and the messages in it that are not wire messages.

Wire messages (``paceline.protocol.messages``) are used unchanged. The classes here come from the
server: compiled graphs, peers that connected or left, timers, results of coroutines, commands. They
are re-exported from the modules of their subjects.
"""

from __future__ import annotations

from typing import NamedTuple

from .commands import *
from .graphs import *
from .peers import *
from .timers import *


class Stimulus(NamedTuple):
    """An input of the core, handled in one turn.

    Attributes:
        source: the worker's address, the client's name, or ``""`` for the server.
        message: a wire message, or one of this package's dataclasses.
        stimulus_id: name of the cause in stories and logs.
        request_id: > 0 when ``message`` is an RPC request whose reply goes out through
            ``Outbox.replies`` under this number, in this turn or a later one.
    """

    source: str
    message: object
    stimulus_id: str
    request_id: int = 0


def stimulus_name(message: object) -> str:
    """Return the name of a message in stories: its op, or its class in kebab case."""
    config = getattr(type(message), "__struct_config__", None)
    if config is not None and config.tag:
        return str(config.tag)
    name = type(message).__name__
    return "".join("-" + c.lower() if c.isupper() else c for c in name).lstrip("-")
