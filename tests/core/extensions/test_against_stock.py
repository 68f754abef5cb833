"""Random programs run step by step on paceline's and on stock's extensions: replies agree after each step.

stock's extensions run here without a scheduler: a stand-in has the parts that they use. Programs avoid steps in which
paceline differs on purpose (dead waiters, closed semaphores, locks of which only some are needed).
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.event import EventExtension
from distributed.multi_lock import MultiLockExtension
from distributed.queues import QueueExtension
from distributed.semaphore import SemaphoreExtension
from distributed.variable import VariableExtension
from paceline.protocol import messages as m
from paceline.scheduler.core.extension import ExtensionErrorReply

STEPS = 120
SEEDS = 8


class StandIn:
    """The parts of a scheduler that stock's extensions use."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}
        self.stream_handlers: dict[str, Any] = {}
        self.periodic_callbacks: dict[str, Any] = {}
        self.tasks: dict[str, Any] = {}
        self.clients: dict[str, Any] = {}
        self.wishes: dict[str, set[str]] = defaultdict(set)
        self.loop = SimpleNamespace(
            add_callback=lambda callback: asyncio.get_running_loop().call_soon(callback)
        )

    def client_desires_keys(self, keys: Any, client: str) -> None:
        self.wishes[client].update(keys)

    def client_releases_keys(self, keys: Any, client: str) -> None:
        self.wishes[client].difference_update(keys)

    def remove_client(self, client: str) -> None:
        self.wishes.pop(client, None)

    def holders(self, key: str) -> set[str]:
        return {client for client, keys in self.wishes.items() if key in keys}


class Pair:
    """Send the same requests to both; record replies by request ID."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.stock = StandIn()
        self.extensions = [
            extension(self.stock)
            for extension in (
                EventExtension,
                MultiLockExtension,
                QueueExtension,
                SemaphoreExtension,
                VariableExtension,
            )
        ]
        self.asked: list[tuple[Any, asyncio.Future[Any]]] = []
        self.replies: list[Any] = []

    async def request(self, request: Any) -> None:
        ours = self.world.request(request)
        theirs = asyncio.ensure_future(self._ask_stock(request))
        self.asked.append((ours, theirs))
        await self.compare(request)

    async def _ask_stock(self, request: Any) -> Any:
        fields = set(request.__struct_fields__) - {"reply", "close", "serializers"}
        arguments = {name: getattr(request, name) for name in fields}
        handler = self.stock.handlers[request.op()]
        taken = inspect.signature(handler).parameters
        out = handler(**{name: value for name, value in arguments.items() if name in taken})
        return await out if inspect.isawaitable(out) else out

    async def send(self, message: Any, client: str) -> None:
        self.world.send(message, client)
        arguments = {name: getattr(message, name) for name in message.__struct_fields__}
        out = self.stock.stream_handlers[message.op()](**{**arguments, "client": client})
        if inspect.isawaitable(out):
            await out
        await self.compare(message)

    async def compare(self, cause: Any) -> None:
        for _ in range(12):  # let stock's coroutines finish
            await asyncio.sleep(0)
        for ours, theirs in self.asked:
            expected = as_reply(theirs) if theirs.done() else "still waiting"
            assert without_token(ours.reply) == without_token(expected), (cause, ours.request_id)
        for key in self.stock.tasks:
            assert self.world.holders(key) == self.stock.holders(key), (cause, key)

    def token_of(self, number: int) -> tuple[Any, Any]:
        """Return the replies of both to a request."""
        ours, theirs = self.asked[number]
        return ours.reply, theirs.result()

    async def close(self) -> None:
        for callback in self.stock.periodic_callbacks.values():
            callback.stop()
        for _, theirs in self.asked:
            theirs.cancel()
        await asyncio.gather(*(theirs for _, theirs in self.asked), return_exceptions=True)


def as_reply(done: asyncio.Future[Any]) -> Any:
    error = done.exception()
    if error is None:
        return done.result()
    text = str(error.args[0]) if error.args else ""
    return ExtensionErrorReply(type(error).__name__, text)


def without_token(reply: Any) -> Any:
    if isinstance(reply, dict) and "token" in reply:
        return {name: value for name, value in reply.items() if name != "token"}
    return reply


Step = Callable[[random.Random, int], Any]


def queue_step(rng: random.Random, number: int) -> Any:
    name = rng.choice("qr")
    kind = rng.random()
    if kind < 0.4:
        timeout = rng.choice([None, None, 0])
        return m.QueuePut(name=name, data=number, timeout=timeout)
    if kind < 0.5:
        return m.QueueQsize(name=name)
    if kind < 0.6:
        return m.QueueGet(name=name, batch=True, timeout=None)
    if kind < 0.75:
        return m.QueueGet(name=name, batch=rng.randint(1, 4), timeout=rng.choice([None, None, 5]))
    if kind < 0.98:
        return m.QueueGet(name=name, timeout=rng.choice([None, None, 0]), batch=False)
    return m.QueueGet(name="unknown", timeout=None, batch=False)


def semaphore_step(rng: random.Random, number: int) -> Any:
    name = rng.choice("st")
    lease = f"lease-{rng.randint(max(0, number - 12), number)}"
    kind = rng.random()
    if kind < 0.5:
        return m.SemaphoreAcquire(name=name, lease_id=lease, timeout=rng.choice([None, None, 0]))
    if kind < 0.8:
        return m.SemaphoreRelease(name=name, lease_id=lease)
    if kind < 0.9:
        return m.SemaphoreValue(name=name)
    if kind < 0.95:
        return m.SemaphoreRegister(name=name, max_leases=rng.choice([2, 3]), lease_timeout=None)
    return m.SemaphoreAcquire(name="unknown", lease_id=lease, timeout=None)


def event_step(rng: random.Random, number: int) -> Any:
    name = rng.choice("ef")
    kind = rng.random()
    if kind < 0.55:
        return m.EventWait(name=name, timeout=rng.choice([None, None, 0]))
    if kind < 0.7:
        return m.EventSet(name=name)
    return m.EventClear(name=name) if kind < 0.85 else m.EventIsSet(name=name)


def multi_lock_step(rng: random.Random, number: int) -> Any:
    if rng.random() < 0.55:
        locks = rng.sample("abcdef", rng.randint(1, 3))
        timeout = rng.choice([None, None, 0])
        return m.MultiLockAcquire(locks=locks, id=number, timeout=timeout, num_locks=len(locks))
    return m.MultiLockRelease(id=rng.randint(max(0, number - 8), number))


def variable_step(rng: random.Random, number: int) -> Any:
    name = rng.choice("vw")
    if rng.random() < 0.5:
        return m.VariableSet(name=name, data=number, timeout="30 s")
    return m.VariableGet(name=name, timeout=rng.choice([None, None, 0.0]), client="bob")


PREPARED = {
    queue_step: [m.QueueCreate(name="q", maxsize=3), m.QueueCreate(name="r")],
    semaphore_step: [
        m.SemaphoreRegister(name="s", max_leases=2, lease_timeout=30.0),
        m.SemaphoreRegister(name="t", max_leases=3, lease_timeout=None),
    ],
    event_step: [],
    multi_lock_step: [],
    variable_step: [],
}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("step", list(PREPARED), ids=lambda step: step.__name__)
async def test_random_program(world: Any, step: Step, seed: int) -> None:
    pair = Pair(world)
    rng = random.Random(seed)
    waiting: dict[Any, int] = {}
    try:
        for request in PREPARED[step]:
            await pair.request(request)
        for number in range(STEPS):
            request = step(rng, number)
            if not on_purpose_different(pair, request, waiting):
                await pair.request(request)
    finally:
        await pair.close()


def on_purpose_different(pair: Pair, request: Any, waiting: dict[Any, int]) -> bool:
    """Return whether paceline differs on purpose.

    This applies to releasing a MultiLock that is still waited for (stock hangs), and to acquiring a lease
    while the same lease waits.
    """
    number = len(pair.asked)
    if isinstance(request, m.MultiLockRelease):
        return request.id in waiting and pair.asked[waiting[request.id]][0].waits
    if isinstance(request, m.MultiLockAcquire):
        waiting[request.id] = number
    if isinstance(request, m.SemaphoreAcquire):
        key = (request.name, request.lease_id)
        if key in waiting and pair.asked[waiting[key]][0].waits:
            return True
        waiting[key] = number
    return False


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_futures_in_queues_and_variables(world: Any, seed: int) -> None:
    """The desired keys agree after each step; clients confirm received futures eventually."""
    pair = Pair(world)
    rng = random.Random(seed)
    for key in "xyz":
        world.make_task(key)
        pair.stock.tasks[key] = SimpleNamespace(state="released")
        pair.stock.client_desires_keys([key], "alice")
    unconfirmed: list[int] = []
    try:
        await pair.request(m.QueueCreate(name="q", maxsize=3))
        for _ in range(STEPS):
            key = rng.choice("xyz")
            request = rng.choice(
                [
                    m.QueuePut(name="q", key=key, timeout=None),
                    m.QueueGet(name="q", timeout=None, batch=False),
                    m.VariableSet(name="v", key=key, timeout="30 s"),
                    m.VariableSet(name="v", data=1, timeout="30 s"),
                    m.VariableGet(name="v", timeout=0, client="bob"),
                    None,
                ]
            )
            if request is not None:
                if not sets_what_is_let_go(world, request):
                    await pair.request(request)
                if isinstance(request, m.QueueGet | m.VariableGet):
                    unconfirmed.append(len(pair.asked) - 1)
            elif unconfirmed:
                number = unconfirmed.pop(rng.randrange(len(unconfirmed)))
                await confirm(pair, number)
    finally:
        await pair.close()


def sets_what_is_let_go(world: Any, request: Any) -> bool:
    """Return whether a replaced future that is kept for its getters is set again; stock releases it."""
    if not isinstance(request, m.VariableSet) or request.key is None:
        return False
    extension = world.core.extensions["variables"]
    now = extension.variables.get("v")
    return ("v", request.key) in extension._tokens and (now is None or now.value != request.key)


async def confirm(pair: Pair, number: int) -> None:
    """Confirm that the client has created a future."""
    ours, theirs = pair.asked[number]
    if ours.waits or not isinstance(ours.reply, dict) or ours.reply["type"] != "Future":
        return
    key = ours.reply["value"]
    if "token" not in ours.reply:
        await pair.send(m.QueueFutureRelease(name="q", key=key), "bob")
        return
    mine = m.VariableFutureReceivedConfirm(name="v", key=key, token=ours.reply["token"])
    pair.world.send(mine, "bob")
    handler = pair.stock.stream_handlers["variable-future-received-confirm"]
    await handler(name="v", key=key, token=theirs.result()["token"], client="bob")
    await pair.compare(mine)
