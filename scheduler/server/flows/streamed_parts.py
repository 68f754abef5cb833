"""Values on their way from workers to a client while they are still coming in: promised by their lengths, passed on byte by byte.

A worker's reply begins with the lengths of all its frames. Once the first frames of it are there, what it will bring can be
promised to the client (``Promise``); then it is held, by not reading on, until its turn comes (``Part``): for some seconds, since
stock's sockets give a peer up that takes nothing for half a minute; then the rest is read to a file. ``Passage`` keeps
account of what has gone out, so that a value whose worker is lost half-way can be taken from another holder: only if what went
out so far is the beginning of what the other one gives.

Must not know: who asks for what, in which order parts go out.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.protocol.compression import Buffer
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import Frames, frame_nbytes
from paceline.protocol.keys import Key
from paceline.protocol.messages import worker_rpc
from paceline.protocol.payload import (
    Kind,
    Payload,
    payload_header,
    serialized_payload,
)
from paceline.protocol.values import ValueReader

from ..outlet import Outlet
from .ports import FlowServer
from .shelf import Shelf
from .uncut import groups, uncut

#: A worker's connection is left unread for so long, seconds; stock gives it up after 30 (``comm.timeouts.tcp``).
HOLD_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class Promise:
    """A value that a client was told to get.

    Attributes:
        key: whose value.
        kind: how it is closed.
        lengths: of its header frame and of the frames behind it, bytes.
    """

    key: Key
    kind: Kind
    lengths: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return sum(self.lengths)


class Passage:
    """Where parts go, one after the other, and how much of what was promised has gone.

    Attributes:
        left: promises not yet kept, in order; of the first, ``sent`` bytes have gone out.
        changed: what should have come again was something else; nothing is written any more.
    """

    def __init__(self, outlet: Outlet, promises: Sequence[Promise]) -> None:
        self._outlet = outlet
        self._again_nbytes = 0
        self._again_sum = 0
        self._sum = 0
        self.left = deque(promises)
        self.sent = 0
        self.changed = False

    @property
    def full(self) -> bool:
        """The client has not taken what was written last."""
        return self._outlet.full

    def when_drained(self, action: Any) -> None:
        """Call ``action`` whenever the client has taken what was kept."""
        self._outlet.on_drained = action

    def write(self, data: Buffer) -> None:
        """Pass it on. It may be reused after the call."""
        view = memoryview(data)
        if self._again_nbytes and not self.changed:
            view = self._compare(view)
        if self.changed or not view:
            return
        self._outlet.write(view)
        self._account(view)

    def begin_again(self) -> None:
        """The first value left comes from its beginning: what of it has gone out is compared instead of sent."""
        self._again_nbytes, self._again_sum = self.sent, 0

    def _compare(self, view: memoryview) -> memoryview:
        """Takes what has gone out before. Returns the rest."""
        known, rest = view[: self._again_nbytes], view[self._again_nbytes :]
        self._again_sum = zlib.crc32(known, self._again_sum)
        self._again_nbytes -= len(known)
        self.changed = not self._again_nbytes and self._again_sum != self._sum
        return rest

    def _account(self, view: memoryview) -> None:
        while view and self.left:
            missing = self.left[0].nbytes - self.sent
            mine, view = view[:missing], view[missing:]
            if len(mine) < missing:
                self.sent += len(mine)
                self._sum = zlib.crc32(mine, self._sum)
            else:
                self.left.popleft()
                self.sent = self._sum = 0


class Part:
    """One request to one worker, whose reply is held once its first frames are there.

    Args:
        address: the worker.
        keys: what it is asked for.
        serializers: as the client said.

    Attributes:
        promises: what it will bring, in order; empty until ``promised`` returned True.
    """

    def __init__(
        self, server: FlowServer, address: str, keys: Sequence[Key], serializers: list[str] | None
    ) -> None:
        self.address = address
        self.keys = list(keys)
        self.promises: list[Promise] = []
        self._server = server
        self._serializers = serializers
        self._number = -1
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._frames: Frames = []
        self._begun = False
        self._passed = 0  # how many of the frames need no more passing on
        self._shelf = Shelf(server.flows.spool_directory)
        self._shelving = False  # it is read on though nobody takes it
        self._timer: asyncio.TimerHandle | None = None
        self._passage: Passage | None = None
        self._emptied = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._ask(), name="gather-part")
        self._task.add_done_callback(self._asked)

    async def promised(self) -> bool:
        """Wait until it is known what will come. Returns whether all keys will, and nothing stands against passing it on.

        Raises:
            OSError, TimeoutError: the worker is lost.
            RemoteError: it cannot give it.
        """
        await asyncio.shield(self._ready)
        if not self._begun:
            self._keep_whole(await self._task)
        return [promise.key for promise in self.promises] == self.keys

    async def pass_on(self, passage: Passage) -> None:
        """Pass it on to its end.

        Raises:
            OSError, TimeoutError: the worker is lost; ``passage`` says what has gone out.
        """
        self._passage = passage
        passage.when_drained(self._pump)
        try:
            self._pump()
            await self._task
            await self._emptied.wait()
            for frame in self._frames[self._passed :]:
                passage.write(frame)
        finally:
            passage.when_drained(None)

    def stop(self) -> None:
        """Nobody wants it any more: the connection is broken unless the reply has come."""
        self._task.cancel()
        self._stop_timer()
        self._shelf.close()

    async def _ask(self) -> Any:
        request = worker_rpc.GetData(keys=self.keys, who=None, serializers=self._serializers)
        return await self._server.rpc_call(
            self.address,
            request,
            acknowledge=_acknowledge,
            allocate=self._allocate,
            on_connection=self._connected,
        )

    def _asked(self, task: asyncio.Task[Any]) -> None:
        if not self._ready.done():
            self._ready.set_result(None)
        if not task.cancelled():
            task.exception()  # whoever waits for it hears of it

    def _connected(self, number: int) -> None:
        self._number = number

    def _keep_whole(self, reply: Any) -> None:
        """A reply without large frames came as a whole."""
        data = reply.get("data") if isinstance(reply, dict) else None
        if not isinstance(data, dict) or not all(isinstance(x, Payload) for x in data.values()):
            return
        for key in self.keys:
            if key in data:
                frames = [data[key].header, *data[key].frames]
                lengths = tuple(frame_nbytes(frame) for frame in frames)
                self.promises.append(Promise(key, data[key].kind, lengths))
                for frame in frames:
                    self._shelf.put(frame)

    def _allocate(self, nbytes: int) -> _Piece:
        """A large frame begins."""
        coming = self._server.transport.coming(self._number)
        if coming is None:
            raise OSError("the beginning of the reply is not known")
        lengths, frames = coming
        if not self._begun:
            self._begin(lengths, frames)
        else:
            for frame in frames[self._passed :]:
                self.take(frame)
        self._passed = len(frames) + 1
        return _Piece(self)

    def _begin(self, lengths: tuple[int, ...], frames: Frames) -> None:
        self._begun = True
        self._frames = frames
        try:
            self.promises, first = _promised(lengths, frames, self.keys)
        except (RemoteProtocolError, ValueError):
            first = []
        for frame in first:
            self.take(frame)
        self._ready.set_result(None)

    def take(self, data: Buffer) -> None:
        """The next bytes; they may be reused after the call."""
        if self._passage is not None and not self._shelf and not self._passage.full:
            self._passage.write(data)
            if self._passage.full:
                self._hold()
            return
        self._shelf.put(data)
        self._emptied.clear()
        if not self._shelving:
            self._hold()

    def _pump(self) -> None:
        """Pass on what waits, as far as the client takes it; then what comes."""
        passage = self._passage
        if passage is None:
            return
        while self._shelf and not passage.full:
            passage.write(self._shelf.take())
        if not self._shelf:
            self._emptied.set()
        if not passage.full:
            self._shelving = False
            self._read_on()

    def _hold(self) -> None:
        """Read no further for now."""
        self._server.transport.pause_reading(self._number)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._shelve)

    def _shelve(self) -> None:
        """Its turn does not come, or the client does not take it: the worker must not wait for ever."""
        self._timer = None
        self._shelving = True
        self._read_on()

    def _read_on(self) -> None:
        self._stop_timer()
        if self._begun and not self._task.done():
            self._server.transport.resume_reading(self._number)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Piece:
    """One large frame of a part. A ``FrameSink`` of ``protocol.framing``."""

    __slots__ = ("_part",)

    def __init__(self, part: Part) -> None:
        self._part = part

    def write(self, data: memoryview) -> None:
        """The next piece."""
        self._part.take(data)

    def finish(self) -> memoryview:
        """What stands for it in the reply: it has gone on."""
        return memoryview(b"")


def _promised(
    lengths: tuple[int, ...], frames: Frames, keys: Sequence[Key]
) -> tuple[list[Promise], list[Buffer]]:
    """What a reply will bring whose first frames are there, and which bytes of it go out first.

    Raises:
        RemoteProtocolError, ValueError: it is no reply that brings ``keys`` and nothing else.
    """
    if len(frames) < 2:
        raise ValueError("its header has not come")
    marks = [serialized_payload({"at": at}, ()).header for at in range(1, len(lengths))]
    reply = ValueReader([frames[0], *marks]).read(frames[0])
    if not isinstance(reply, dict) or reply.get("status") != "OK" or list(reply["data"]) != keys:
        raise ValueError("it does not bring what it was asked for")
    payloads = list(reply["data"].values())
    if not all(isinstance(payload, Payload) for payload in payloads):
        raise ValueError("not all of it is closed")
    starts = [int(payload_header(payload)["at"]) for payload in payloads]
    if starts[0] != 1 or starts != sorted(starts):
        raise ValueError("its values are not in order")
    stops = [*starts[1:], len(lengths)]
    if len(keys) == 1:
        return _alone(keys[0], payloads[0].kind, lengths[1:], frames[1:])
    return [
        Promise(key, payload.kind, lengths[start:stop])
        for key, payload, start, stop in zip(keys, payloads, starts, stops, strict=True)
    ], list(frames[1:])


def _alone(
    key: Key, kind: Kind, lengths: tuple[int, ...], frames: Frames
) -> tuple[list[Promise], list[Buffer]]:
    """As ``_promised``, for one value: without the cuts that dask makes in large buffers."""
    header: Buffer = frames[0]
    if kind == "serialized":
        whole = uncut(bytes(header), len(lengths) - 1)
        if whole is not None:
            header, counts = whole
            lengths = (len(header), *map(sum, groups(counts, lengths[1:])))
    return [Promise(key, kind, lengths)], [header, *frames[1:]]


def _acknowledge(reply: Any) -> str | None:
    """A worker that gave data waits for this word."""
    return "OK" if reply.get("status") == "OK" else None
