"""Gather: results travel from workers through the scheduler to a client, and are never opened.

The reply is one message whose first bytes announce the length of everything that follows, so all results are
collected before it begins: in memory up to a limit, then in a temporary file (``spool.py``).

Must not know: frames, what results are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Any

from paceline.protocol.compression import Buffer
from paceline.protocol.keys import Key
from paceline.protocol.messages import worker_rpc
from paceline.protocol.payload import Payload
from paceline.scheduler.core import queries
from paceline.scheduler.core.stimuli import LogEventCommand, ReplicasLost

from ..rpc.base import RemoteError
from .ports import FlowServer
from .spool import FILE_FRAME_NBYTES, Spool, trim_while_used
from .uncut import groups, uncut

logger = logging.getLogger("distributed.scheduler")

#: How long to leave workers alone that have too many transfers under way, seconds.
BUSY_PAUSE_SECONDS = 0.15
#: How many workers one gather asks at the same time.
CONCURRENT_WORKERS_MAX = 50


async def gather(
    server: FlowServer, keys: Sequence[Key], serializers: list[str] | None = None
) -> dict[str, Any]:
    """Results of ``keys``: ``{"status": "OK", "data": {key: payload}}``, or
    ``{"status": "error", "keys": [...]}`` with the keys that nobody could give.
    """
    state = server.state
    flow = _Gather(server, keys, serializers)
    try:
        await flow.run()
    finally:
        flow.spool.seal()
    server.tell(LogEventCommand(["all"], {"action": "gather", "count": len(keys)}))
    if not flow.failed:
        return {"status": "OK", "data": flow.data}
    states = {k: s or "forgotten" for k, s in queries.get_task_status(state, flow.failed).items()}
    logger.error("Couldn't gather keys: %s", states)
    return {"status": "error", "keys": list(flow.failed)}


class _Gather:
    """One gather under way.

    Attributes:
        spool: where large frames go.
        data: what came.
        failed: keys that nobody could give.
    """

    def __init__(
        self, server: FlowServer, keys: Sequence[Key], serializers: list[str] | None
    ) -> None:
        flows = server.flows
        self.spool = Spool(
            flows.gather_memory_nbytes,
            flows.spool_directory,
            on_first_file=lambda: server.spawn(trim_while_used(self.spool), "gather-trim"),
        )
        self.data: dict[Key, Any] = {}
        self.failed: dict[Key, None] = {}
        self._server = server
        self._serializers = serializers
        self._missing = dict.fromkeys(keys)
        self._lost_workers: set[str] = set()
        self._busy_workers: set[str] = set()
        self._without: dict[Key, set[str]] = {}
        self._slots = asyncio.Semaphore(CONCURRENT_WORKERS_MAX)

    async def run(self) -> None:
        """Ask, round by round, until every key came or has nobody left to ask."""
        while self._missing:
            plan = self._plan()
            if len(plan) == 1:  # most gathers: no tasks of their own
                ((address, keys),) = plan.items()
                await self._ask(address, keys)
            elif plan:
                await asyncio.gather(*(self._ask(a, ks) for a, ks in plan.items()))
            elif self._missing:
                await asyncio.sleep(BUSY_PAUSE_SECONDS)
                self._busy_workers.clear()

    def _plan(self) -> dict[str, list[Key]]:
        """Whom to ask for what now; keys that nobody has are failed, those of busy workers wait."""
        plan: dict[str, list[Key]] = {}
        for key, holders in queries.who_has(self._server.state, list(self._missing)).items():
            without = self._without.get(key) or ()
            usable = [a for a in holders if a not in self._lost_workers and a not in without]
            if not usable:
                del self._missing[key]
                self.failed[key] = None
                continue
            ready = [a for a in usable if a not in self._busy_workers]
            if ready:
                choice = ready[0] if len(ready) == 1 else self._server.flows.random.choice(ready)
                plan.setdefault(choice, []).append(key)
        return plan

    async def _ask(self, address: str, keys: list[Key]) -> None:
        """Ask one worker, and note what came of it."""
        request = worker_rpc.GetData(keys=keys, who=None, serializers=self._serializers)
        try:
            async with self._slots:
                reply = await self._server.rpc_call(
                    address, request, acknowledge=_acknowledge, allocate=self.spool.lane().allocate
                )
        except (OSError, TimeoutError):  # gone, or as good as gone: others may have it
            self._lost_workers.add(address)
            return
        except RemoteError as error:  # e.g. it cannot serialize a result
            logger.error(
                "Unexpected error while collecting tasks %s from %s: %s", keys, address, error
            )
            self._fail(keys)
            return
        if reply["status"] == "busy":
            self._busy_workers.add(address)
            return
        self._take(address, keys, reply["data"])

    def _fail(self, keys: Collection[Key]) -> None:
        for key in keys:
            self._missing.pop(key, None)
            self.failed[key] = None

    def _take(self, address: str, keys: list[Key], data: dict[Key, Any]) -> None:
        """Keep what a worker gave; what it said not to have, the core hears of."""
        absent = []
        for key in keys:
            if key in data:
                self.data[key] = whole(data[key], self.spool)
                self._missing.pop(key, None)
            else:
                self._without.setdefault(key, set()).add(address)
                absent.append(key)
        if absent:
            self._server.tell(ReplicasLost(address, absent))


def whole(payload: Any, spool: Spool) -> Any:
    """A value without the cuts in it (see ``uncut.py``), where the pieces lie together in the spool's file."""
    if not isinstance(payload, Payload) or payload.nbytes < FILE_FRAME_NBYTES:
        return payload
    known = uncut(payload.header, len(payload.frames)) if payload.kind == "serialized" else None
    if known is None:
        return payload
    header, counts = known
    frames: list[Buffer] = []
    for pieces in groups(counts, payload.frames):
        joined = pieces[0] if len(pieces) == 1 else spool.joined(pieces)
        if joined is None:
            return payload
        frames.append(joined)
    return Payload("serialized", header, tuple(frames))


def _acknowledge(reply: Any) -> str | None:
    """A worker that gave data waits for this word."""
    return "OK" if reply.get("status") == "OK" else None
