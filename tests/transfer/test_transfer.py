"""The plugin on stock workers: which values it moves, and that nothing else changes."""

from __future__ import annotations

import asyncio
import gc
import logging

import dask
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from distributed.protocol.serialize import Serialize
from distributed.worker import Worker
from paceline.transfer import BackendError, Rule, Transfer
from paceline.transfer.encoding import Unsuitable
from paceline.transfer.settings import configured, settings

from tests.support.transfer_cluster import transfer_cluster

SIZE = 1_000_000


async def until(condition: object) -> None:
    for _ in range(500):
        if condition():  # type: ignore[operator]
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come so")


async def test_array_is_shared_by_all_workers() -> None:
    async with transfer_cluster(Transfer("shm")) as cluster:
        client, (a, b, c) = cluster.client, cluster.workers
        made = client.submit(np.arange, SIZE, workers=["0"], key="made")
        others = [
            client.submit(lambda x: x.flags.writeable, made, workers=[n], pure=False) for n in "12"
        ]
        assert await client.gather(others) == [False, False]
        arrays = [worker.data["made"] for worker in (a, b, c)]
        assert all((each == np.arange(SIZE)).all() for each in arrays)
        assert cluster.traffic("shm")["put_count"] == 1
        assert cluster.traffic("shm")["got_count"] == 2
        assert {w.state.tasks["made"].nbytes for w in (a, b, c)} == {SIZE * 8}
        # a stock client gets ordinary data through either route
        assert (await client.gather(made) == np.arange(SIZE)).all()
        assert (await client.gather(made, direct=True) == np.arange(SIZE)).all()
        del arrays, made, others
        gc.collect()
        await until(lambda: not any(w.data for w in (a, b, c)))
        gc.collect()
        assert [len(cluster.transfer(i).published) for i in range(3)] == [0, 0, 0]
        assert cluster.transfer(0).health.backends["shm"]._segments == {}


async def test_value_taken_before_it_was_put_is_not_put_twice() -> None:
    """Two requests at once: the second reply takes the value, and the first puts it before the second checks its location."""
    async with transfer_cluster(Transfer("shm"), n_workers=2) as cluster:
        made = cluster.client.submit(np.arange, SIZE, workers=["0"], key="made")
        await made
        transfer = cluster.transfer(0)
        taken = {"made": Serialize(cluster.workers[0].data["made"])}
        names = []
        for _ in range(2):
            plain, stubs, used = await transfer.substitute(taken, transfer.health.places)
            names.append(stubs[0][1]["ref"]["name"])
            assert not plain
            transfer.published.remove_user(used[0])
        assert names[0] == names[1]
        assert cluster.traffic("shm")["put_count"] == 1


async def test_value_that_is_released_before_it_is_stored() -> None:
    """The key may be released after a backend was chosen and before the value is stored."""
    async with transfer_cluster(Transfer("shm"), n_workers=2) as cluster:
        made = cluster.client.submit(np.arange, SIZE, workers=["0"], key="made")
        await made
        worker, transfer = cluster.workers[0], cluster.transfer(0)
        value = worker.data["made"]
        ts = worker.state.tasks.pop("made")
        try:
            with pytest.raises(Unsuitable, match="released"):
                await transfer._publish("made", value, [transfer.health.usable("shm")])
        finally:
            worker.state.tasks["made"] = ts
        assert not transfer._storing


async def test_reader_serves_others_after_the_owner_is_gone() -> None:
    async with transfer_cluster(Transfer("shm")) as cluster:
        client, (a, _, c) = cluster.client, cluster.workers
        made = client.submit(np.arange, SIZE, workers=["0"], key="made")
        await client.submit(len, made, workers=["1"])
        await client.retire_workers([a.address])
        assert await client.submit(lambda x: int(x[-1]), made, workers=["2"]) == SIZE - 1
        assert np.shares_memory(c.data["made"], c.data["made"])
        assert cluster.transfer(2).health.backends["shm"].traffic.got_count == 1
        assert cluster.transfer(1).health.backends["shm"].traffic.put_count == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: pd.DataFrame({"a": np.arange(SIZE), "b": ["x", "y"] * (SIZE // 2)}),
        lambda: b"x" * SIZE,
        lambda: [{"a": np.ones(SIZE), "b": "text"}, b"y" * 1000, None],
        lambda: np.broadcast_to(np.ones(1), (1000, 1000)),
        lambda: np.ma.masked_array(np.ones(SIZE), mask=np.zeros(SIZE, dtype=bool)),
    ],
    ids=["frame", "bytes", "nested", "broadcast", "masked"],
)
async def test_values_are_unchanged(make: object) -> None:
    async with transfer_cluster(Transfer("auto"), n_workers=2) as cluster:
        made = cluster.client.submit(make, workers=["0"])
        same = cluster.client.submit(lambda x: repr(x), made, workers=["1"])
        assert await same == repr(make())  # type: ignore[operator]


async def test_workers_without_plugin_get_ordinary_data() -> None:
    async with transfer_cluster(Transfer("shm"), n_workers=2) as cluster:
        address = cluster.client.scheduler.address
        await cluster.workers[1].plugin_remove(name="paceline-transfer")
        x = cluster.client.submit(np.arange, SIZE, workers=["0"])
        y = cluster.client.submit(np.arange, SIZE, workers=["1"], pure=False)
        assert await cluster.client.submit(lambda x: x.flags.writeable, x, workers=["1"])
        assert await cluster.client.submit(len, y, workers=["0"]) == SIZE
        assert cluster.transfer(0).health.backends["shm"].traffic.put_count == 0
        async with Worker(address, name="2", dashboard_address=":0") as late:
            assert "paceline-transfer" in late.plugins  # workers that join later have it too
            z = cluster.client.submit(np.arange, SIZE, workers=["0"], pure=False)
            await cluster.client.submit(len, z, workers=["2"], pure=False)
            assert cluster.transfer(0).health.backends["shm"].traffic.put_count == 1


async def test_small_values_are_sent_by_dask() -> None:
    async with transfer_cluster(Transfer("shm", shm={"cache_nbytes": 0}), n_workers=2) as cluster:
        x = cluster.client.submit(np.arange, 1000, workers=["0"])
        assert await cluster.client.submit(len, x, workers=["1"]) == 1000
        assert cluster.traffic("shm")["put_count"] == 0


async def test_annotations_and_rules_select_values() -> None:
    rules = [Rule(use=("dask",), types=("pandas.*",)), {"use": "dask", "prefixes": "plain*"}]
    async with transfer_cluster(Transfer("shm", rules=rules), n_workers=2) as cluster:
        client = cluster.client

        async def moves(make: object, *args: object, **options: object) -> bool:
            before = cluster.traffic("shm")["put_count"]
            made = client.submit(make, *args, workers=["0"], pure=False, **options)
            await client.submit(len, made, workers=["1"], pure=False)
            return cluster.traffic("shm")["put_count"] > before or (
                made.key in cluster.transfer(0).shm_cache
            )

        assert await moves(np.arange, SIZE)
        assert not await moves(lambda: pd.Series(np.arange(SIZE)))
        assert not await moves(np.arange, SIZE, key="plain-1")
        for dask_transfer in ("dask", "", []):
            with dask.annotate(transfer=dask_transfer):
                assert not await moves(np.arange, SIZE)
        with dask.annotate(transfer="shm"):
            assert await moves(lambda: pd.Series(np.arange(SIZE)))
            assert await moves(np.arange, 2000)  # a request for it succeeds at any size


@pytest.mark.parametrize("annotated", [True, "shn", ["shn"]])
async def test_unknown_annotation_is_ignored(
    annotated: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with transfer_cluster(Transfer("shm"), n_workers=2) as cluster:
        with dask.annotate(transfer=annotated):
            made = cluster.client.submit(np.arange, SIZE, workers=["0"])
        for _ in range(2):
            assert await cluster.client.submit(len, made, workers=["1"], pure=False) == SIZE
        assert cluster.traffic("shm")["put_count"] == 1
    ignored = [r for r in caplog.records if "in an annotation is ignored" in r.getMessage()]
    assert len(ignored) == 1


class Broken(Exception):
    """The error of a broken backend."""


@pytest.mark.parametrize("where", ["put", "get"])
async def test_broken_backend_costs_a_warning(
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with transfer_cluster(Transfer("shm"), n_workers=2) as cluster:

        def fail(*args: object) -> None:
            raise BackendError("out of order")

        for i in range(2):
            monkeypatch.setattr(cluster.transfer(i).health.backends["shm"], where, fail)
        with caplog.at_level(logging.WARNING, "distributed.worker.transfer"):
            for _ in range(3):
                x = cluster.client.submit(np.arange, SIZE, workers=["0"], pure=False)
                y = cluster.client.submit(lambda x: int(x[-1]), x, workers=["1"], pure=False)
                assert await y == SIZE - 1
        mine = [r.getMessage() for r in caplog.records if r.name == "distributed.worker.transfer"]
        mine = [text for text in mine if not text.startswith("Transfer enabled")]
        assert len(mine) == 1 and "Dask's own transfer is used" in mine[0]


async def test_spilled_values_free_their_memory() -> None:
    async with transfer_cluster(Transfer("shm"), n_workers=2) as cluster:
        a = cluster.workers[0]
        x = cluster.client.submit(np.arange, SIZE, workers=["0"], key="x")
        await cluster.client.submit(len, x, workers=["1"])
        shm = cluster.transfer(0).health.backends["shm"]
        assert len(shm._segments) == 1
        assert a.data.evict() == SIZE * 8 + 112 or "x" in a.data.slow
        gc.collect()
        assert shm._segments == {} and len(cluster.transfer(0).published) == 0
        assert (a.data["x"] == np.arange(SIZE)).all()  # restored from disk
        assert int((await cluster.client.gather(x))[-1]) == SIZE - 1


async def test_transfer_can_be_disabled_again() -> None:
    async with transfer_cluster(Transfer("shm"), n_workers=2) as cluster:
        said = [(await worker.get_metrics())["memory_domain"] for worker in cluster.workers]
        assert said[0] == said[1] == cluster.transfer(0).health.places["shm"]
        client: Client = cluster.client
        x = client.submit(np.arange, SIZE, workers=["0"], key="x")
        await client.submit(len, x, workers=["1"])
        await client.unregister_worker_plugin("paceline-transfer")
        for worker in cluster.workers:
            assert worker.handlers["get_data"] == worker.get_data
            assert "memory_domain" not in await worker.get_metrics()
            assert not hasattr(worker.rpc, "paceline_transfer")
        y = client.submit(lambda x: int(x[-1]) + 1, x, workers=["1"])
        assert await y == SIZE
        z = client.submit(np.arange, SIZE, workers=["0"], pure=False)
        assert await client.submit(lambda x: x.flags.writeable, z, workers=["1"])


async def test_preload() -> None:
    options = {"preload": ["paceline.transfer"]}
    with dask.config.set({"paceline.transfer": {"backends": "shm", "min-nbytes": "4 MiB"}}):
        async with transfer_cluster(None, n_workers=1, **options) as cluster:
            assert cluster.transfer(0).settings.backends == ("shm",)
            assert cluster.transfer(0).health.backends["shm"].min_nbytes == 4 << 20


def test_settings() -> None:
    assert settings().backends == ("shm", "vm", "direct")
    assert settings("auto", file="/x").backends == ("shm", "vm", "file", "direct")
    assert "vm" in settings().automatic and "vm" not in settings("vm").automatic
    assert settings("a.b:C").classes["C"] == "a.b:C"
    for words, options in [(("smh",), {}), (("file",), {}), ((), {"files": "/x"})]:
        with pytest.raises(ValueError):
            settings(*words, **options)
    with pytest.raises(ValueError, match="cannot be"):
        settings(rules=[{"use": "shm", "sizes": 3}])
    for use in ("shn", "auto", ("shm", "shn")):
        for rule in ({"use": use}, Rule(use=use)):
            with pytest.raises(ValueError, match="a rule uses the unknown transfer"):
                settings(rules=[rule])
    for option, bad in (("cache_nbytes", "x"), ("limit_nbytes", -1), ("lease_seconds", [1])):
        with pytest.raises(ValueError, match=f"option '{option}' of transfer 'shm' must be a "):
            settings(shm={option: bad})
    for name, has in (("shm", "cache_nbytes, idle_nbytes"), ("vm", "none")):
        with pytest.raises(ValueError, match=f"transfer '{name}' has no option 'sizes': .* {has}"):
            settings(**{name: {"sizes": 1}})
    assert settings("a.b:vm", vm={"sizes": 1}).options["vm"] == {"sizes": 1}  # not the built-in one
    sizes = settings(shm={"cache-nbytes": "1 MiB"}, file={"directory": "/x", "lease_seconds": "1m"})
    assert sizes.options["shm"] == {"cache_nbytes": 1 << 20}
    assert sizes.options["file"] == {"directory": "/x", "lease_seconds": 60}
    rule = Rule(use="shm", types="pandas.*", prefixes="sum,mean", min_nbytes="1 MiB")
    checked = Rule(("shm",), ("pandas.*",), ("sum", "mean"), 1 << 20)
    assert settings(rules=[rule]).rules == (checked,)
    with dask.config.set({"paceline.transfer": "shm, direct"}):
        assert configured() == settings("shm", "direct")
    assert configured() is None
    for value, text in (
        (5, "`paceline.transfer`: it must be a mapping, not int"),
        ({"rules": 5}, "rules must be a list of mappings, not int"),
        ({"rules": ["shm"]}, "a rule must be a mapping, not str"),
        ({"backend": ["shm"]}, "options of transfer 'backend' must be a mapping, not list"),
        ({"min-nbytes": [1]}, "invalid setting `paceline.transfer`: "),
    ):
        with dask.config.set({"paceline.transfer": value}), pytest.raises(ValueError, match=text):
            configured()
