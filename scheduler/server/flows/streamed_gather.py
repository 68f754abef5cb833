"""Gather of much data: passed from the workers' sockets to the client's as it comes, with nothing kept in between.

The reply is one message whose first bytes announce the length of everything that follows. So all workers are asked at once, each
holds its reply when the first frames of it have come, and when all lengths are known the reply begins; then the parts
follow one after the other, as fast as the client takes them. What stands against it (a worker that is busy or has lost the
data, too many requests, an encrypted connection, another gather that streams) leaves it to ``gather.py``, which collects first.

From its first byte on the reply cannot be taken back. A worker that is lost after that is replaced by another holder, or by one that
has computed the value anew, if its bytes are the same; else the client's connection is broken, with a line in the log.

Must not know: frames of sockets, what results are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from paceline.protocol.keys import Key
from paceline.protocol.payload import Payload, serialized_payload
from paceline.scheduler.core import queries
from paceline.scheduler.core.stimuli import LogEventCommand

from ..outlet import Outlet
from ..rpc.base import RemoteError
from .ports import FlowServer, StreamingPeer
from .spool import FILE_FRAME_NBYTES
from .streamed_parts import Part, Passage, Promise

logger = logging.getLogger("distributed.scheduler")

#: A value from this size on is asked for alone, so that the cuts in it can be undone.
ALONE_NBYTES = FILE_FRAME_NBYTES
#: Requests to one worker, and in all, that are held at the same time.
ALONE_PER_WORKER_MAX = 6
PARTS_MAX = 48
#: How long to wait for another holder of a value whose worker was lost half-way, seconds; and how often to look.
AGAIN_SECONDS = 60.0
LOOK_SECONDS = 0.1


async def streamed_gather(
    server: FlowServer, peer: StreamingPeer, keys: Sequence[Key], serializers: list[str] | None
) -> bool:
    """Answer ``peer`` with the results of ``keys``, if they are large enough for it and nothing stands against it.

    Returns: whether the reply has been written (or its connection broken).
    """
    keys = list(dict.fromkeys(keys))
    plan = _plan(server, keys)
    if plan is None or server.flows.streaming or not peer.can_reply_in_parts:
        return False
    server.flows.streaming = True
    flow = _Streamed(server, peer, serializers)
    try:
        return await flow.run(plan)
    finally:
        server.flows.streaming = False
        flow.stop()


def _plan(server: FlowServer, keys: list[Key]) -> list[tuple[str, list[Key]]] | None:
    """Whom to ask for what, if it is much and somebody has each; None else."""
    tasks = server.state.tasks
    if (
        sum(tasks[key].nbytes or 0 for key in keys if key in tasks)
        <= server.flows.gather_memory_nbytes
    ):
        return None
    alone: dict[str, list[list[Key]]] = {}
    together: dict[str, list[Key]] = {}
    for key, holders in queries.who_has(server.state, keys).items():
        if not holders:
            return None
        choice = holders[0] if len(holders) == 1 else server.flows.random.choice(holders)
        mine = alone.setdefault(choice, [])
        if (tasks[key].nbytes or 0) >= ALONE_NBYTES and len(mine) < ALONE_PER_WORKER_MAX:
            mine.append([key])
        else:
            together.setdefault(choice, []).append(key)
    plan = [(address, some) for address, lists in alone.items() for some in lists]
    plan += together.items()
    return plan if len(plan) <= PARTS_MAX else None


class _Streamed:
    """One gather under way."""

    def __init__(
        self, server: FlowServer, peer: StreamingPeer, serializers: list[str] | None
    ) -> None:
        self._server = server
        self._peer = peer
        self._serializers = serializers
        self._parts: list[Part] = []
        self._lost: set[str] = set()
        self._outlet: Outlet | None = None

    def stop(self) -> None:
        """Whatever became of it: no request is left, and the client's connection is written to as before."""
        for part in self._parts:
            part.stop()
        if self._outlet is not None:
            self._outlet.close()

    async def run(self, plan: list[tuple[str, list[Key]]]) -> bool:
        """Ask, promise, pass on. Returns False where it did not come to promises."""
        parts = [self._ask(address, keys) for address, keys in plan]
        asked = await asyncio.gather(*(part.promised() for part in parts), return_exceptions=True)
        if not all(outcome is True for outcome in asked):
            return False
        promises = [promise for part in parts for promise in part.promises]
        self._outlet = self._begin(promises)
        if self._outlet is None:
            return False
        passage = Passage(self._outlet, promises)
        try:
            for part in parts:
                await self._pass_on(part, passage)
        except _Broken as error:
            logger.error("A gather that had begun to answer cannot go on: %s", error)
            self._peer.abort("its results were lost while they were sent")
            return True
        count = len(promises)
        self._server.tell(LogEventCommand(["all"], {"action": "gather", "count": count}))
        return True

    def _ask(self, address: str, keys: list[Key]) -> Part:
        part = Part(self._server, address, keys, self._serializers)
        self._parts.append(part)
        return part

    def _begin(self, promises: list[Promise]) -> Outlet | None:
        """Write the reply's beginning: which frames come, and how long they are."""
        data: dict[Key, Any] = {}
        lengths: dict[int, int] = {}
        for promise in promises:
            # empty buffers stand for frames that come later; each is known by its identity
            frames = tuple(bytearray() for _ in promise.lengths[1:])
            payload = serialized_payload({}, frames)
            data[promise.key] = Payload(promise.kind, payload.header, frames)
            for stand_in, nbytes in zip((payload.header, *frames), promise.lengths, strict=True):
                lengths[id(stand_in)] = nbytes
        return self._peer.reply_in_parts({"status": "OK", "data": data}, lengths)

    async def _pass_on(self, part: Part, passage: Passage) -> None:
        """Pass on one part; what its worker does not give, others are asked for.

        Raises:
            _Broken: nobody gives it.
        """
        left_after = len(passage.left) - len(part.promises)
        try:
            await part.pass_on(passage)
        except (OSError, TimeoutError, RemoteError) as error:
            logger.warning("Lost %s while its results were passed on: %s", part.address, error)
            self._lost.add(part.address)
            while len(passage.left) > left_after:
                await self._again(passage)
        if len(passage.left) != left_after or passage.sent:
            raise _Broken(f"{part.address} gave less than it promised")

    async def _again(self, passage: Passage) -> None:
        """Take the first value left from another holder, from where it broke off.

        Raises:
            _Broken: nobody has it for too long, or has the same.
        """
        promise = passage.left[0]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AGAIN_SECONDS
        while promise.key in self._server.state.tasks and loop.time() < deadline:
            holders = queries.who_has(self._server.state, [promise.key])[promise.key]
            address = next((a for a in holders if a not in self._lost), None)
            if address is None:
                await asyncio.sleep(LOOK_SECONDS)
                self._lost.clear()  # a connection may be lost without its worker: who still has it is asked again
                continue
            part = self._ask(address, [promise.key])
            try:
                if not await part.promised():  # busy, or it has just let go of it
                    await asyncio.sleep(LOOK_SECONDS)
                    continue
                if part.promises != [promise]:
                    raise _Broken(f"{promise.key!r} is not the same on {address}")
                passage.begin_again()
                await part.pass_on(passage)
            except (OSError, TimeoutError, RemoteError):
                self._lost.add(address)
                continue
            if passage.changed:
                raise _Broken(f"{promise.key!r} is not the same on {address}")
            return
        raise _Broken(f"nobody else has {promise.key!r}")


class _Broken(Exception):
    """What was promised cannot be kept."""
