"""Random peers that send requests, wait, die and return.

No request is answered twice, no state is left, and the same program gives the same results.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from paceline.protocol import messages as m

STEPS = 400


def request(rng: random.Random, number: int, client: str) -> Any:
    """Return a random request that may wait."""
    name = rng.choice("ab")
    timeout = rng.choice([None, 0, 0.5, 5.0])
    key = rng.choice(["x", "y", "never"])
    lease = f"{number}"
    return rng.choice(
        [
            m.QueuePut(name=name, data=number, timeout=timeout),
            m.QueuePut(name=name, key=key, timeout=timeout),
            m.QueueGet(name=name, timeout=timeout, batch=False),
            m.QueueGet(name=name, timeout=None, batch=rng.choice([True, 2, 3])),
            m.VariableSet(name=name, key=key, timeout=timeout),
            m.VariableSet(name=name, data=number, timeout=timeout),
            m.VariableGet(name=name, timeout=timeout, client=client),
            m.SemaphoreRegister(name=name, max_leases=2, lease_timeout=rng.choice([None, 30.0])),
            m.SemaphoreAcquire(name=name, lease_id=lease, timeout=timeout),
            m.SemaphoreRelease(name=name, lease_id=f"{rng.randint(0, number)}"),
            m.SemaphoreRefreshLeases(name=name, lease_ids=[f"{rng.randint(0, number)}"]),
            m.SemaphoreClose(name=name) if rng.random() < 0.1 else m.SemaphoreValue(name=name),
            m.EventWait(name=name, timeout=timeout),
            m.EventSet(name=name),
            m.EventClear(name=name),
            m.MultiLockAcquire(
                locks=rng.sample("klmn", 3), id=lease, timeout=timeout, num_locks=rng.randint(1, 3)
            ),
            m.MultiLockRelease(id=f"{rng.randint(0, number)}"),
            m.PublishPut(
                names=[name],
                keys=[[key]],
                data=[number],
                override=rng.random() < 0.5,
                client=client,
                uid=lease,
            ),
            m.PublishDelete(names=[name], client=client, uid=lease),
            m.LogEventRpc(topic=[name, client], msg=number),
        ]
    )


def news(rng: random.Random, number: int, world: Any, client: str) -> None:
    """Send a random message on a stream, or let a client join or leave."""
    kind = rng.random()
    key = rng.choice("xy")
    if kind < 0.2:
        world.send(m.PublishFlushBatchedSend(uid=f"{rng.randint(0, number)}"), client)
    elif kind < 0.4:
        world.send(m.QueueFutureRelease(name=rng.choice("ab"), key=key), client)
    elif kind < 0.5:
        world.send(m.VariableDelete(name=rng.choice("ab")), client)
    elif kind < 0.6:
        world.make_task(key, client)
    elif kind < 0.7:
        world.release(key, client)
    elif kind < 0.75:
        world.send(m.QueueRelease(name="a"), client)
        world.request(m.QueueCreate(name="a", maxsize=2))
    elif kind < 0.85:
        world.leave(client)
        world.join(client)
    elif kind < 0.87:
        world.restart()
    else:
        world.advance(rng.choice([0.01, 0.3, 3.0, 40.0]))


def confirm_some(rng: random.Random, world: Any, client: str) -> None:
    """Confirm that futures from variables were received."""
    extension = world.core.extensions["variables"]
    for name, key in list(extension._tokens):
        for token in list(extension._tokens.get((name, key), ())):
            if rng.random() < 0.5:
                message = m.VariableFutureReceivedConfirm(name=name, key=key, token=token)
                world.send(message, client)


def run(world: Any, seed: int) -> Any:
    """Run a random program and return all its requests."""
    rng = random.Random(seed)
    clients = ("alice", "bob", "carol")
    world.join("carol")
    asked = [
        world.request(m.QueueCreate(name="a", maxsize=2)),
        world.request(m.QueueCreate(name="b")),
    ]
    for number in range(STEPS):
        client = rng.choice(clients)
        if rng.random() < 0.75:
            asked.append(world.request(request(rng, number, client)))
        else:
            news(rng, number, world, client)
        if rng.random() < 0.1:
            confirm_some(rng, world, client)
        if rng.random() < 0.1:
            gone = rng.choice(asked)
            if gone.waits:
                world.disconnect(gone)
    return asked


def wait_queues_of(world: Any) -> list[Any]:
    """Return the wait queues of all extensions."""
    extensions = world.core.extensions
    found = [extensions[name]._waiting for name in ("queues", "variables", "semaphores", "events")]
    found += [extensions["multi_locks"]._waiting, extensions["publish"]._waiting]
    return [
        *found,
        extensions["queues"]._key_watch._waiting,
        extensions["variables"]._key_watch._waiting,
    ]


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_left_after_close(world: Any, seed: int) -> None:
    asked = run(world, seed)
    for one in asked:
        if one.waits:
            world.disconnect(one)
    assert [len(queues) for queues in wait_queues_of(world)] == [0] * 8
    assert all(not queues._queues and not queues._by_request for queues in wait_queues_of(world))
    extensions = world.core.extensions
    for user in list(extensions["multi_locks"]._requests):
        world.request(m.MultiLockRelease(id=user))
    for name in "ab":
        world.request(m.SemaphoreClose(name=name))
        world.request(m.EventClear(name=name))
        world.send(m.VariableDelete(name=name))
        world.send(m.PublishFlushBatchedSend(uid=name))
        world.request(m.PublishDelete(names=[name], client="alice", uid=name))
        for _ in range(3):
            world.send(m.QueueRelease(name=name))
    for key in ("x", "y", "never"):
        for name in "ab":
            for _ in range(STEPS):  # futures that were never confirmed
                world.send(m.QueueFutureRelease(name=name, key=key))
    for client in ("alice", "bob", "carol"):
        world.leave(client)
    assert set(world.state.clients) == {"fire-and-forget"}
    assert not world.state.tasks
    assert not extensions["queues"]._future_counts and not extensions["queues"].queues
    assert not extensions["variables"]._tokens and not extensions["variables"].variables
    assert not extensions["multi_locks"]._queues
    assert not extensions["semaphores"].leases and not extensions["semaphores"].max_leases
    assert not any(extensions["semaphores"].metrics.values())
    assert not extensions["events"]._set
    assert not extensions["publish"].datasets
    world.advance(4000)
    assert world.pending_timers() == 0


def test_reruns_are_equal(new_world: Any) -> None:
    """The same stimuli give the same replies in the same order, as the journal requires."""
    one, two = new_world(), new_world()
    asked, again = run(one, 5), run(two, 5)
    assert one.answered == two.answered
    assert [a.reply for a in asked] == [a.reply for a in again]
    assert one.lines == two.lines
    assert repr(one.sent) == repr(two.sent)
