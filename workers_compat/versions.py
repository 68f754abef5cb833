"""Which releases of dask and distributed are spoken, and what peers are told about versions.

Must not know: connections, workers' states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed import versions as stock_versions

OLDEST_SPOKEN = (2026, 6, 0)
NEWEST_TESTED = (2026, 8, 0)


def get_versions(packages: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """What is installed here, as stock's ``versions`` RPC and its registrations tell it: host, packages."""
    return stock_versions.get_versions(packages=packages)


def version_warning(
    workers: Mapping[str, Any], source: Any, source_name: str = "Client"
) -> dict[str, str]:
    """What a peer is told when it registers: ``{"warning": text, "error": text}``, empty where all agree.

    Args:
        workers: address -> versions that the worker told, of those connected now.
        source: versions that the new peer told, or None.
        source_name: the peer's column in the table.

    Versions that are not of the shape that stock sends give a warning that says so, never an error.
    """
    try:
        told = {address: readable(versions) for address, versions in workers.items()}
        found = stock_versions.error_message(
            get_versions(), told, readable(source), source_name=source_name
        )
        return {"warning": found["warning"], "error": found["error"]}
    except Exception as error:
        return {"warning": f"versions of {source_name} are unreadable: {error!r}", "error": ""}


def readable(versions: Any) -> dict[str, Any] | None:
    """Versions as stock compares them, or None where a peer told something else."""
    if isinstance(versions, Mapping) and isinstance(versions.get("packages"), Mapping):
        return {"packages": dict(versions["packages"])}
    return None


def spoken(version: str) -> bool:
    """Whether this release of distributed is in the range that is spoken, as ``2026.8.0``."""
    try:
        parts = tuple(int(part) for part in version.split("+")[0].split(".")[:3])
    except ValueError:
        return False
    return OLDEST_SPOKEN <= parts <= NEWEST_TESTED
