"""Writing a cluster dump as distributed does, for its own readers (``DumpArtefact``).

Must not know: what is in a dump.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


def write_state(
    get_state: Callable[[], Awaitable[dict[str, Any]]],
    url: str,
    format: str,
    storage_options: dict[str, Any],
) -> Awaitable[None]:
    """Open ``url`` with fsspec, then ask for the state and write it in a thread.

    Raises (when awaited):
        ValueError: ``format`` is neither "msgpack" nor "yaml".
    """
    from distributed import cluster_dump

    return cluster_dump.write_state(get_state, url, format, **storage_options)  # type: ignore[arg-type]
