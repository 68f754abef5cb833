"""The request ``explain``: why does a task not run? Stock has none.

Must not know: how it is found out (``core/explain.py``).
"""

from __future__ import annotations

from typing import Any

from paceline.protocol.messages import scheduler_rpc as r
from paceline.scheduler.core.explain import explain, explain_all

from .base import Handler, PeerPort, ServerPort


def handle_explain(server: ServerPort, request: r.Explain, peer: PeerPort) -> dict[str, Any]:
    """One task, or the cluster as a whole."""
    if request.key is None:
        return explain_all(server.state, server.now())
    streams = server.driver.client_streams.values()
    compiling = sum(stream.n_graphs for stream in streams)
    return explain(server.state, request.key, server.now(), compiling)


HANDLERS: dict[type, Handler] = {r.Explain: handle_explain}
