"""Test kit for the scheduling core, without sockets, processes or clock.

``Env`` is a core with methods that feed it as workers and clients do. ``Scenario`` runs a text of
such stimuli and the messages that they must cause. Neither needs pytest.
"""

from .env import Env, FakeErrors, fake_error
from .graph_rows import Graph, Rows, compile_rows
from .message_text import message_text
from .scenario import Scenario

__all__ = [
    "Env",
    "FakeErrors",
    "Graph",
    "Rows",
    "Scenario",
    "compile_rows",
    "fake_error",
    "message_text",
]
