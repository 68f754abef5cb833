"""Workers on two hosts (network namespaces): memory is shared within a host, and values are sent directly between hosts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from paceline.transfer import Transfer

from tests.support.hosts import are_supported, hosts
from tests.support.real_cluster import Cluster, scheduler_command

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not are_supported(), reason="needs root and network namespaces"),
]
SIZE = 1_000_000


def test_same_host_and_other_host(tmp_path: Path) -> None:
    def traffic(dask_worker: object) -> dict[str, int]:
        backends = dask_worker.plugins["paceline-transfer"].transfer.health.backends  # type: ignore[attr-defined]
        return {name: backend.traffic.got_count for name, backend in backends.items()}

    with (
        hosts(2) as (here, made),
        Cluster(
            scheduler_command("paceline"), tmp_path / "c", [False] * 4, 1, host=here, hosts=made
        ) as cluster,
        Client(cluster.address) as client,
    ):
        client.register_plugin(Transfer("auto"))
        info = client.scheduler_info(n_workers=-1)["workers"]
        first, near, *far = (
            next(address for address, w in info.items() if w["name"] == f"worker-{number}")
            for number in (1, 3, 2, 4)
        )
        assert first.split(":")[1] == near.split(":")[1] != far[0].split(":")[1]
        assert len({far[0].split(":")[1], far[1].split(":")[1]}) == 1
        value = client.submit(np.arange, SIZE, workers=[first])
        value.result()  # one value in one place
        for reader, by in ((near, "shm"), (far[0], "direct")):
            before = client.run(traffic)[reader]
            last = client.submit(lambda x: int(x[-1]), value, workers=[reader], pure=False)
            assert last.result() == SIZE - 1
            after = client.run(traffic)[reader]
            assert {name for name in after if after[name] > before[name]} == {by}
        frame = client.submit(lambda: {"text": "x" * SIZE * 4, "list": [1, None]}, workers=[first])
        same = client.submit(lambda x: (len(x["text"]), x["list"]), frame, workers=[far[1]])
        assert same.result() == (SIZE * 4, [1, None])
