"""Supported releases of distributed, and warnings about versions that differ between peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed import versions as stock_versions

#: Oldest and newest supported release of distributed.
OLDEST_SUPPORTED = (2026, 6, 0)
NEWEST_TESTED = (2026, 8, 0)


def get_versions(packages: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Return host and packages of this process, in the form of stock's ``versions`` RPC."""
    return dict(stock_versions.get_versions(packages=packages))


def version_warning(
    workers: Mapping[str, Any], source: Any, source_name: str = "Client"
) -> dict[str, str]:
    """Return ``{"warning": text, "error": text}`` for a new peer; empty texts if versions match.

    Versions in an unknown form lead to a warning, never to an error. `workers` are the versions of
    connected workers by address; `source_name` is the column of the new peer in the table.
    """
    try:
        received = {address: _readable(versions) for address, versions in workers.items()}
        found = stock_versions.error_message(
            get_versions(), received, _readable(source), source_name=source_name
        )
        return {"warning": found["warning"], "error": found["error"]}
    except Exception as error:
        text = f"the versions of {source_name} cannot be compared: {error!r}"
        return {"warning": text, "error": ""}


def _readable(versions: Any) -> dict[str, Any] | None:
    """Return versions in the form that stock compares; None for any other form."""
    if isinstance(versions, Mapping) and isinstance(versions.get("packages"), Mapping):
        return {"packages": dict(versions["packages"])}
    return None


def is_supported(version: str) -> bool:
    """Return whether a release of distributed, for example ``2026.8.0``, is supported."""
    try:
        parts = tuple(int(part) for part in version.split("+", 1)[0].split(".")[:3])
    except ValueError:
        return False
    return OLDEST_SUPPORTED <= parts <= NEWEST_TESTED
