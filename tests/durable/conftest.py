"""Clusters whose scheduler is durable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.real_cluster import IMPORTABLE, Cluster

StartDurable = Callable[..., Cluster]


@pytest.fixture
def start_durable(start_cluster: Callable[..., Cluster], tmp_path: Path) -> StartDurable:
    """Start a cluster whose scheduler is durable."""

    def start(*, nanny: bool = False, **config: str) -> Cluster:
        return start_cluster(
            nannies=(nanny, False),
            nthreads=2,
            options=["--durable", str(tmp_path / "log")],
            # a connection that is continued has no record of what was sent before
            config={**IMPORTABLE, "PACELINE_CHECK_MESSAGES": "", **config},
        )

    return start
