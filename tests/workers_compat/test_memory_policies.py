"""The active memory manager with real workers: the core's policy, and a policy written for stock."""

from __future__ import annotations

import asyncio
import contextlib

import dask
import pytest
from distributed import Client, SchedulerPlugin, Worker
from distributed.active_memory_manager import (
    ActiveMemoryManagerExtension,
    ActiveMemoryManagerPolicy,
    Suggestion,
)
from paceline.scheduler.server.scheduler import Scheduler

KEY = "distributed.scheduler.active-memory-manager."


class TwoCopies(ActiveMemoryManagerPolicy):
    """Keep two replicas of keys that begin with "precious"."""

    def __init__(self, prefix="precious"):
        self.prefix = prefix

    def run(self):
        for ts in self.manager.scheduler.tasks.values():
            if str(ts.key).startswith(self.prefix) and ts.state == "memory":
                if len(ts.who_has) < 2:
                    yield Suggestion("replicate", ts)


@contextlib.asynccontextmanager
async def cluster(plugins=(), preload=(), **config):
    with dask.config.set({KEY + name: value for name, value in config.items()}):
        async with (
            Scheduler(
                port=0,
                host="127.0.0.1",
                dashboard=False,
                validate=True,
                plugins=plugins,
                preload=preload,
            ) as scheduler,
            Worker(scheduler.address),
            Worker(scheduler.address),
            Worker(scheduler.address),
            Client(scheduler.address, asynchronous=True) as client,
        ):
            yield scheduler, client


async def until(predicate):
    async with asyncio.timeout(20):
        while not await predicate():
            await asyncio.sleep(0.02)


async def test_surplus_replicas_are_dropped():
    async with cluster(interval="50ms") as (_, client):
        assert await client.amm.running()
        (x,) = await client.scatter([1], broadcast=True)

        async def one_copy():
            return len((await client.who_has([x]))[x.key]) == 1

        await until(one_copy)
        await client.amm.stop()
        assert not await client.amm.running()
        await client.replicate([x])
        await asyncio.sleep(0.3)
        assert not await one_copy()
        await client.amm.run_once()
        await until(one_copy)


async def test_off_by_configuration():
    async with cluster(start=False) as (_, client):
        assert not await client.amm.running()
        await client.amm.start()
        assert await client.amm.running()


async def test_policy_of_a_user():
    policies = [{"class": f"{__name__}.TwoCopies", "prefix": "gold"}]
    async with cluster(interval="50ms", policies=policies) as (scheduler, client):
        assert isinstance(scheduler.facade.extensions["amm"], ActiveMemoryManagerExtension)
        gold = client.submit(int, 1, key="gold-1")
        lead = client.submit(int, 1, key="lead-1")

        async def two_copies():
            return len((await client.who_has([gold]))["gold-1"]) == 2

        await until(two_copies)
        await lead
        assert len((await client.who_has([lead]))["lead-1"]) == 1
        assert await client.amm.running()


async def test_added_policy():
    """The core's manager runs until a policy is added; then stock's runs all of them."""
    async with cluster(interval="50ms") as (scheduler, client):
        manager = scheduler.extensions["amm"]
        core = scheduler.server.core.extensions["amm"]
        assert [type(policy).__name__ for policy in manager.policies] == ["ReduceReplicas"]
        assert manager.running and core.running
        manager.stop()
        assert not manager.running and not core.running
        manager.start()
        with pytest.raises(TypeError):
            manager.add_policy("ReduceReplicas")
        manager.add_policy(TwoCopies("gold"))
        assert manager.running and not core.running
        gold = client.submit(int, 1, key="gold-1")

        async def two_copies():
            return len((await client.who_has([gold]))["gold-1"]) == 2

        await until(two_copies)
        await client.amm.stop()
        assert not manager.running and not await client.amm.running()
        await client.amm.run_once()


async def test_policy_added_within_a_hook():
    class Adds(SchedulerPlugin):
        def update_graph(self, scheduler, **_):
            scheduler.extensions["amm"].add_policy(TwoCopies("gold"))

    async with cluster(interval="50ms") as (scheduler, client):
        scheduler.add_plugin(Adds())
        gold = client.submit(int, 1, key="gold-1")

        async def two_copies():
            return len((await client.who_has([gold]))["gold-1"]) == 2

        await until(two_copies)
        assert await client.amm.running()
        assert not scheduler.server.core.extensions["amm"].running


async def test_policies_added_at_the_start():
    class Adds(SchedulerPlugin):
        async def start(self, scheduler):
            scheduler.extensions["amm"].add_policy(TwoCopies("gold"))

    preload = f"from {__name__} import TwoCopies\n" + (
        "def dask_setup(scheduler):\n"
        "    scheduler.extensions['amm'].add_policy(TwoCopies('lead'))\n"
    )
    async with cluster(plugins=[Adds()], preload=[preload]) as (scheduler, client):
        manager = scheduler.extensions["amm"]
        prefixes = {getattr(policy, "prefix", None) for policy in manager.policies}
        assert prefixes == {"gold", "lead", None}
        assert await client.amm.running()
        assert not scheduler.server.core.extensions["amm"].running


async def test_no_policies():
    async with cluster(policies=[]) as (scheduler, client):
        core = scheduler.server.core.extensions["amm"]
        assert await client.amm.running() and scheduler.extensions["amm"].running
        (x,) = await client.scatter([1], broadcast=True)
        await client.amm.run_once()
        assert len((await client.who_has([x]))[x.key]) == 3
        await client.amm.stop()
        assert not await client.amm.running() and not core.running
        await client.amm.start()
        assert await client.amm.running() and not core.running


async def test_temporary_manager():
    """The example of distributed's documentation: a policy that runs once, through ``run_on_scheduler``."""
    async with cluster(start=False) as (_, client):
        gold = client.submit(int, 1, key="gold-1")
        await gold

        def once(dask_scheduler):
            manager = ActiveMemoryManagerExtension(
                dask_scheduler, policies={TwoCopies("gold")}, register=False, start=False
            )
            manager.run_once()

        await client.run_on_scheduler(once)

        async def two_copies():
            return len((await client.who_has([gold]))["gold-1"]) == 2

        await until(two_copies)


async def test_rebalance_and_retire_lose_nothing():
    config = {"distributed.worker.memory.rebalance.measure": "managed"}
    config["distributed.worker.memory.rebalance.sender-min"] = 0.0
    config["distributed.worker.memory.rebalance.sender-recipient-gap"] = 0.0
    with dask.config.set(config):
        async with cluster() as (scheduler, client):
            first = next(iter(scheduler.workers))
            data = await client.scatter({f"x{i}": bytes(10_000) for i in range(9)}, workers=[first])
            await asyncio.gather(
                *(w.heartbeat() for w in Worker._instances if w.status.name == "running")
            )
            await client.rebalance()
            has_what = await client.has_what()
            assert sorted(len(keys) for keys in has_what.values()) == [3, 3, 3]
            await client.retire_workers([first])
            assert len(scheduler.workers) == 2
            assert len(await client.gather(data)) == 9
