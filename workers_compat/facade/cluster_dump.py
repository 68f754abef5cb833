"""Write a cluster dump as distributed does, so that ``DumpArtefact`` can read it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


def write_state(
    get_state: Callable[[], Awaitable[dict[str, Any]]],
    url: str,
    format: str,
    storage_options: dict[str, Any],
) -> Awaitable[None]:
    """Open `url` with fsspec, then get the state and write it in a thread.

    Raises (when awaited):
        ValueError: `format` is neither "msgpack" nor "yaml".
    """
    from distributed import cluster_dump

    return cluster_dump.write_state(get_state, url, format, **storage_options)  # type: ignore[no-any-return]
