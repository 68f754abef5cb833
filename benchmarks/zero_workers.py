"""Zero workers: one process that simulates N workers, which finish each task without computing it.

A run then costs only what the scheduler and the client need (Böhm and Beránek, 2020). Missing
dependencies count as fetched immediately. The protocol is implemented here without Dask.

usage: python -m benchmarks.zero_workers HOST PORT COUNT

The command prints `ready` when all workers are registered. For each line on its standard input it
prints a line with the counts of `Ledger` as JSON.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgpack
import uvloop

PICKLED_INT = pickle.dumps(int)
#: Registrations in progress at a time.
CONNECTING_MAX = 50
#: Workers register addresses from this port on. Nothing connects to them.
FIRST_PORT = 20_000


def to_wire(value: object) -> bytes:
    """Encode a message of one frame: bytes that follow, number of frames, frame length, frame."""
    body = msgpack.packb(value)
    return struct.pack("<QQQ", 16 + len(body), 1, len(body)) + body


def metrics(now: float) -> dict[str, Any]:
    """Return the metrics that a worker sends at registration."""
    counts = ("incoming_bytes", "incoming_count", "incoming_count_total")
    counts += ("outgoing_bytes", "outgoing_count", "outgoing_count_total")
    return {
        "task_counts": {},
        "bandwidth": {"total": 100_000_000, "workers": {}, "types": {}},
        "digests_total_since_heartbeat": {},
        "managed_bytes": 0,
        "spilled_bytes": {"memory": 0, "disk": 0},
        "transfer": dict.fromkeys(counts, 0),
        "event_loop_interval": 0.02,
        "cpu": 0.0,
        "memory": 100_000_000,
        "time": now,
        "host_net_io": {"read_bps": 0, "write_bps": 0},
        "host_disk_io": {"read_bps": 0, "write_bps": 0},
        "num_fds": 10,
    }


class Ledger:
    """Counts of the messages that all workers received."""

    def __init__(self) -> None:
        self.data: dict[str, set[object]] = {}
        self.computed: Counter[object] = Counter()
        self.n_missing = 0

    def compute(self, message: dict[str, Any]) -> None:
        """Note a task, and the dependencies that none of their holders has."""
        self.computed[message["key"]] += 1
        for key, holders in message["who_has"].items():
            self.n_missing += not any(key in self.data.get(holder, ()) for holder in holders)

    def counts(self) -> dict[str, int]:
        """Return the counts.

        `computed`: tasks that were sent to workers; `repeated`: those that were sent more than
        once; `missing`: dependencies that no holder had; `held`: results on workers.
        """
        return {
            "computed": len(self.computed),
            "repeated": sum(count > 1 for count in self.computed.values()),
            "missing": self.n_missing,
            "held": sum(map(len, self.data.values())),
        }


class ZeroWorker(asyncio.Protocol):
    """The stream of one worker: handshake, registration, batches."""

    def __init__(self, number: int, registered: asyncio.Future[None], ledger: Ledger) -> None:
        self.address = f"tcp://127.0.0.1:{FIRST_PORT + number}"
        self.number = number
        self.ledger = ledger
        self.registered = registered
        self.closed = registered.get_loop().create_future()
        self.buffer = bytearray()
        self.data: set[object] = set()
        ledger.data[self.address] = self.data
        self.handle = self.on_handshake

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        offer = {"compression": None, "python": sys.version_info[:3], "pickle-protocol": 5}
        transport.write(to_wire(offer))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.registered.done():
            self.registered.set_exception(
                exc or ConnectionError("The scheduler refused the registration")
            )
        self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        for frame in self.first_frames():
            value = msgpack.unpackb(frame, use_list=False, strict_map_key=False)
            self.handle(value)

    def first_frames(self) -> Iterator[bytes]:
        """Yield the first frame of each complete message; the others hold serialized values."""
        buffer, start = self.buffer, 0
        while len(buffer) - start >= 16:
            (count,) = struct.unpack_from("<Q", buffer, start + 8)
            head = start + 16 + 8 * count
            if len(buffer) < head:
                break
            lengths = struct.unpack_from(f"<{count}Q", buffer, start + 16)
            if len(buffer) < head + sum(lengths):
                break
            start = head + sum(lengths)
            if count:
                yield bytes(buffer[head : head + lengths[0]])
        del buffer[:start]

    def on_handshake(self, _offer: object) -> None:
        now = time.time()
        self.handle = self.on_registered
        request = {
            "op": "register-worker",
            "reply": False,
            "address": self.address,
            "status": "running",
            "nthreads": 1,
            "name": f"zero-{self.number}",
            "now": now,
            "resources": {},
            "memory_limit": 2**34,
            "local_directory": "",
            "services": {},
            "nanny": None,
            "pid": self.number + 1,
            "versions": {},
            "metrics": metrics(now),
            "extra": {},
            "stimulus_id": f"worker-connect-{now}",
            "server_id": f"Worker-zero-{self.number}",
        }
        self.transport.write(to_wire(request))

    def on_registered(self, reply: dict[str, Any]) -> None:
        if reply.get("status") != "OK":
            raise ConnectionError(str(reply))
        self.handle = self.on_batch
        self.registered.set_result(None)

    def on_batch(self, batch: Any) -> None:
        replies: list[dict[str, Any]] = []
        for message in batch if isinstance(batch, tuple) else (batch,):
            match message["op"]:
                case "compute-task":
                    self.ledger.compute(message)
                    replies += self.compute(message)
                case "free-keys":
                    self.data.difference_update(message["keys"])
                case "remove-replicas":
                    replies += map(self.released, message["keys"])
                case "acquire-replicas":
                    replies.append(self.fetched(list(message["who_has"])))
                case "steal-request":
                    # a task finishes immediately, so it cannot be stolen
                    refusal = {"key": message["key"], "stimulus_id": message["stimulus_id"]}
                    replies.append({"op": "steal-response", "state": None, **refusal})
                case "close" | "close-stream":
                    self.transport.close()
        if replies:
            self.transport.write(to_wire(replies))

    def compute(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        missing = [key for key in message["who_has"] if key not in self.data]
        if missing:
            yield self.fetched(missing)
        self.data.add(message["key"])
        now = time.time()
        yield {
            "op": "task-finished",
            "key": message["key"],
            "run_id": message["run_id"],
            "nbytes": 28,
            "type": PICKLED_INT,
            "typename": "int",
            "metadata": {},
            "thread": 1,
            "startstops": ({"action": "compute", "start": now, "stop": now + 1e-5},),
            "status": "OK",
            "stimulus_id": f"task-finished-{now}",
        }

    def fetched(self, keys: list[object]) -> dict[str, Any]:
        self.data.update(keys)
        return {"op": "add-keys", "keys": keys, "stimulus_id": f"add-keys-{time.time()}"}

    def released(self, key: object) -> dict[str, Any]:
        self.data.discard(key)
        return {"op": "release-worker-data", "key": key, "stimulus_id": f"drop-{time.time()}"}


def report(ledger: Ledger) -> None:
    """Print the counts for a line of the standard input."""
    if sys.stdin.readline():
        print(json.dumps(ledger.counts()), flush=True)
    else:
        asyncio.get_running_loop().remove_reader(sys.stdin)


async def main(host: str, port: int, count: int) -> None:
    """Connect `count` workers and run until all are closed."""
    loop = asyncio.get_running_loop()
    limit = asyncio.Semaphore(CONNECTING_MAX)
    ledger = Ledger()

    async def connect(number: int) -> ZeroWorker:
        async with limit:
            registered = loop.create_future()
            _, worker = await loop.create_connection(
                lambda: ZeroWorker(number, registered, ledger), host, port
            )
            await registered
            return worker

    workers = await asyncio.gather(*map(connect, range(count)))
    print("ready", flush=True)
    loop.add_reader(sys.stdin, report, ledger)
    await asyncio.gather(*(worker.closed for worker in workers))


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
