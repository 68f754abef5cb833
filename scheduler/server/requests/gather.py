"""Gather: send results from workers through the scheduler to a client, without deserializing them.

A message begins with the lengths of all its frames, so all results are collected before the reply
starts: in memory up to a limit, then in a temporary file (``peers/spool.py``).
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Coroutine, Sequence
from itertools import accumulate
from typing import Any

from paceline.protocol import messages as m
from paceline.protocol.compression import Buffer
from paceline.protocol.keys import Key
from paceline.protocol.payload import Payload, payload_header, serialized_payload
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.core.stimuli import ReplicasLost
from paceline.scheduler.server.peers.peer import Peer
from paceline.scheduler.server.peers.spool import FILE_FRAME_NBYTES, Spool, trim_while_used
from paceline.scheduler.server.server_api import Handler, RemoteError, ServerApi

from .handler_parts import checked_reply

logger = logging.getLogger("distributed.scheduler")

#: Pause before the next request to workers with too many outgoing transfers, in seconds.
BUSY_PAUSE_SECONDS = 0.15
#: Workers that one gather requests data from at the same time.
CONCURRENT_WORKERS_MAX = 50


def handle_gather(
    server: ServerApi, request: m.Gather, peer: Peer
) -> Coroutine[Any, Any, dict[str, Any]]:
    """Call ``gather``. Frames over websockets are limited, so large ones stay split."""
    merges = not peer.address.startswith(("ws://", "wss://"))
    return gather(server, request.keys, request.serializers, merges=merges)


async def gather(
    server: ServerApi,
    keys: Sequence[Key],
    serializers: list[str] | None = None,
    *,
    merges: bool = True,
) -> dict[str, Any]:
    """Collect the results of ``keys``, with ``merge_shards`` if ``merges`` is set.

    Returns:
        ``{"status": "OK", "data": {key: payload}}``, or ``{"status": "error", "keys": [...]}``
        with the keys that no worker could send.

    Raises:
        MemoryError: there is no memory or disk space for a result.
    """
    state = server.state
    run = _Gather(server, keys, serializers, merges)
    try:
        await run.run()
    finally:
        run.spool.seal()
    server.log_event(["all"], {"action": "gather", "count": len(keys)})
    if not run.failed:
        return {"status": "OK", "data": run.data}
    states = {k: s or "forgotten" for k, s in queries.get_task_status(state, run.failed).items()}
    logger.error("Couldn't gather keys: %s", states)
    return {"status": "error", "keys": list(run.failed)}


class _Gather:
    """A gather.

    Attributes:
        spool: allocates memory for large frames.
        data: the results received so far.
        failed: keys that no worker could send.
    """

    def __init__(
        self,
        server: ServerApi,
        keys: Sequence[Key],
        serializers: list[str] | None,
        merges: bool,
    ) -> None:
        state = server.request_state
        self.spool = Spool(
            state.gather_memory_nbytes,
            state.spool_directory,
            on_first_file=lambda spool: server.spawn(trim_while_used(spool), "gather-trim"),
        )
        self.data: dict[Key, Any] = {}
        self.failed: dict[Key, None] = {}
        self._server = server
        self._serializers = serializers
        self._merges = merges
        self._missing = dict.fromkeys(keys)
        self._lost_workers: set[str] = set()
        self._busy_workers: set[str] = set()
        self._memory_error = ""
        self._without: dict[Key, set[str]] = {}
        self._slots = asyncio.Semaphore(CONCURRENT_WORKERS_MAX)

    async def run(self) -> None:
        """Request data in rounds until every key has arrived or failed."""
        while self._missing:
            plan = self._plan()
            if len(plan) == 1:  # most gathers; needs no further tasks
                ((address, keys),) = plan.items()
                await self._fetch(address, keys)
            elif plan:
                await asyncio.gather(*(self._fetch(a, ks) for a, ks in plan.items()))
            elif self._missing:
                await asyncio.sleep(BUSY_PAUSE_SECONDS)
                self._busy_workers.clear()
            if self._memory_error:  # the client would repeat a gather that reports lost keys
                raise MemoryError(f"The scheduler cannot receive results: {self._memory_error}")

    def _plan(self) -> dict[str, list[Key]]:
        """Return worker -> keys to request now.

        Keys without a holder fail. Keys held only by busy workers are left for later.
        """
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
                choose = self._server.request_state.random.choice
                choice = ready[0] if len(ready) == 1 else choose(ready)
                plan.setdefault(choice, []).append(key)
        return plan

    async def _fetch(self, address: str, keys: list[Key]) -> None:
        """Request ``keys`` from one worker and record the outcome."""
        request = m.GetData(keys=keys, who=None, serializers=self._serializers)
        try:
            async with self._slots:
                reply = await self._server.rpc_call(
                    address,
                    request,
                    acknowledge=_acknowledge,
                    allocate=self.spool.allocator().allocate,
                )
            checked_reply(address, request, reply, status=str)
            if reply["status"] != "busy":
                checked_reply(address, request, reply, data=dict)
        except OSError as error:  # other workers may hold the keys
            if error.errno == errno.ENOMEM:
                self._memory_error = str(error)
            self._lost_workers.add(address)
            return
        except RemoteError as error:  # e.g. it cannot serialize a result
            logger.error(
                "Unexpected error while collecting tasks %s from %s: %s", keys, address, error
            )
            for key in keys:
                self._missing.pop(key, None)
                self.failed[key] = None
            return
        if reply["status"] == "busy":
            self._busy_workers.add(address)
            return
        self._store(address, keys, reply["data"])

    def _store(self, address: str, keys: list[Key], data: dict[Key, Any]) -> None:
        """Store the results of one worker, and report missing keys to the core."""
        absent = []
        for key in keys:
            if key in data:
                value = data[key]
                self.data[key] = merge_shards(value, self.spool) if self._merges else value
                self._missing.pop(key, None)
            else:
                self._without.setdefault(key, set()).add(address)
                absent.append(key)
        if absent:
            self._server.send_stimulus(ReplicasLost(address, absent))


def merge_shards(payload: Any, spool: Spool) -> Any:
    """Return ``payload`` with the shards of each large buffer merged into one frame.

    They are merged if they are adjacent in a file of ``spool``, so that the client does not have to
    copy them. Only the fields about the split are removed from the value's header.
    """
    if not isinstance(payload, Payload) or payload.nbytes < FILE_FRAME_NBYTES:
        return payload
    if payload.kind != "serialized":
        return payload
    fields = payload_header(payload)
    counts = fields.pop("split-num-sub-frames", ())
    offsets = fields.pop("split-offsets", ())
    if not counts or any(fields.pop("compression", None) or ()):
        return payload
    stops = list(accumulate(counts))
    starts = [stop - count for count, stop in zip(counts, stops, strict=True)]
    if list(offsets) != starts or min(counts) < 1 or stops[-1] != len(payload.frames):
        return payload
    frames: list[Buffer] = []
    for start, stop in zip(starts, stops, strict=True):
        shards = payload.frames[start:stop]
        merged = shards[0] if len(shards) == 1 else spool.joined(shards)
        if merged is None:
            return payload
        frames.append(merged)
    header = serialized_payload(fields, [b""] * len(counts)).header
    return Payload("serialized", header, tuple(frames))


def _acknowledge(reply: Any) -> str | None:
    """Return the message that a worker waits for after it sent data."""
    return "OK" if isinstance(reply, dict) and reply.get("status") == "OK" else None


HANDLERS: dict[type, Handler] = {m.Gather: handle_gather}
