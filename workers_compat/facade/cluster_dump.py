"""Write a cluster dump as distributed does, so that ``DumpArtefact`` can read it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from distributed import cluster_dump

#: Open a URL with fsspec, then get the state and write it in a thread.
write_state: Callable[..., Awaitable[None]] = cluster_dump.write_state
