"""Record what stock peers send to each other, for ``test_golden.py``.

Run by hand, with the stock packages installed: ``python tests/protocol/capture.py``. It starts a stock scheduler, two workers and a
client on sockets of this host, puts a proxy before the scheduler and each worker, runs a program that uses most features, and
writes the bytes of both directions of each connection to ``captures/NAME.up.bin`` (from the end that dialled) and
``captures/NAME.down.bin``, whole messages only. A connection is named after its proxy and its first op.

Paths and names of this host are overwritten, at equal length. Connections that only repeat ops of others are left out.
"""

from __future__ import annotations

import asyncio
import getpass
import operator
import os
import socket
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import dask
import msgpack
from distributed import (
    Client,
    Event,
    Lock,
    MultiLock,
    Queue,
    Scheduler,
    Semaphore,
    Variable,
    Worker,
    get_worker,
    secede,
)
from paceline.protocol.framing import FrameReader, pack_frames

TARGET = Path(__file__).parent / "captures"
#: Larger messages are left out.
MESSAGE_MAX_NBYTES = 12_000


class Tap:
    """A connection through a proxy."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.up = bytearray()
        self.down = bytearray()


class Proxy:
    """Forwards connections to a port, and records what is sent."""

    def __init__(self, place: str, port: int, taps: list[Tap]) -> None:
        self.place = place
        self.port = port
        self.taps = taps
        self.tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tap = Tap(self.place)
        self.taps.append(tap)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        for source, sink, kept in ((reader, far_writer, tap.up), (far_reader, writer, tap.down)):
            task = asyncio.ensure_future(self._copy(source, sink, kept))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    @staticmethod
    async def _copy(
        source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray
    ) -> None:
        try:
            while data := await source.read(2**16):
                kept += data
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


# ------------------------------------------------------------------ functions of tasks


def leave_the_pool(seconds: float) -> int:
    secede()
    time.sleep(seconds)
    return 1


def note(value: int) -> int:
    get_worker().log_event("captured", {"value": value, "where": ("a", (1, 2))})
    return value


def slow_add(x: int, y: int) -> int:
    time.sleep(0.05)
    return x + y


class Counter:
    n = 0

    def add(self) -> int:
        self.n += 1
        return self.n


async def use_most_features(client: Client, scheduler: Scheduler, workers: list[Worker]) -> None:
    """Run the program that is recorded."""
    futures = client.map(operator.add, range(3), range(3), pure=False)
    await client.gather(futures, direct=False)
    nested = {("part", 0, ("deep", 1)): (operator.add, 1, 2), b"raw": 5}
    total = client.get(
        {**nested, ("sum", 0): (sum, [("part", 0, ("deep", 1))])}, [("sum", 0)], sync=False
    )
    await client.gather(total)
    bad = client.submit(operator.truediv, 1, 0, retries=1)
    await bad.exception()
    await client.retry([bad])
    await client.submit(leave_the_pool, 0.02)
    topics: list[object] = []
    client.subscribe_topic("captured", topics.append)
    await client.submit(note, 3)
    await asyncio.sleep(0.1)
    client.unsubscribe_topic("captured")
    with dask.annotate(priority=3, workers=[workers[0].address], custom={"a": (1, 2)}):
        await client.submit(operator.neg, 1)
    unwanted = client.submit(time.sleep, 0.2)
    await asyncio.sleep(0.05)
    await client.cancel([unwanted], reason="captured", msg="no longer wanted")
    # data that moves
    spread = await client.scatter({"x": 1, "y": 2})
    await client.scatter([3], direct=False, broadcast=True)
    await client.replicate([spread["x"]])
    await client.rebalance()
    many = client.map(slow_add, range(12), [1] * 12, workers=[workers[0].address],
                      allow_other_workers=True, pure=False)  # fmt: skip
    await client.gather(many, direct=False)
    joined = client.submit(
        sum, [*many, spread["y"]], workers=[workers[1].address], resources={"GPU": 1}
    )
    await joined
    # data shared between clients
    queue = await Queue("q", client=client)
    await queue.put(futures[0])
    await queue.put({"plain": (1, 2)})
    await queue.get()
    await queue.get()
    await queue.qsize()
    queue.close()
    variable = Variable("v", client=client)
    await variable.set(futures[1])
    await variable.get()
    variable.delete()
    lock = Lock("lock", scheduler_rpc=client.scheduler, loop=client.loop)
    await lock.acquire()
    await lock.release()
    semaphore = await Semaphore(
        2, name="semaphore", scheduler_rpc=client.scheduler, loop=client.loop
    )
    await semaphore.acquire()
    await semaphore.get_value()
    await semaphore.release()
    event = Event("event", client=client)
    await event.set()
    await event.wait()
    await event.is_set()
    await event.clear()
    multi = MultiLock(names=["a", "b"], client=client)
    await multi.acquire()
    await multi.release()
    await client.publish_dataset(futures[2], name=("published", 1))
    await client.list_datasets()
    await client.get_dataset(("published", 1))
    await client.unpublish_dataset(("published", 1))
    counter = await client.submit(Counter, actor=True)
    await counter.add()
    # queries
    for question in (client.who_has, client.has_what, client.nthreads, client.processing):
        await question()
    await client.nbytes(summary=False)
    await client.story(futures[0])
    await client.call_stack()
    await client.run(os.cpu_count)
    await client.run_on_scheduler(operator.add, 1, 2)
    await client.set_metadata(["a", "b"], {"c": (1,)})
    await client.get_metadata(["a", "b"])
    await client.log_event("captured", {"by": "client"})
    await client.get_events("captured")
    await client.scheduler.get_task_status(keys=[futures[0].key])
    await client.scheduler.get_task_prefix_states()
    await client.scheduler.check_idle()
    await client.scheduler.adaptive_target()
    await client.scheduler.set_resources(worker=workers[0].address, resources={"GPU": 2})
    await client.scheduler.workers_to_close(n=1)
    await client.scheduler.amm_handler(method="running")
    await client.scheduler.echo(data={"a": [1, (2, 3)]})
    await client.retire_workers([workers[1].address], close_workers=False)
    del futures, bad, many, joined, spread, counter
    await asyncio.sleep(0.3)
    await client.restart(wait_for_workers=False, timeout=2)


async def record() -> list[Tap]:
    """Run the program; return what was sent."""
    taps: list[Tap] = []
    settings = {
        "distributed.scheduler.work-stealing-interval": "20ms",
        "distributed.admin.system-monitor.gil.enabled": False,
        "distributed.scheduler.active-memory-manager.interval": "100ms",
    }
    with tempfile.TemporaryDirectory() as folder, dask.config.set(settings):
        async with Scheduler(protocol="tcp", port=0, dashboard_address=":0") as scheduler:
            front = Proxy("scheduler", scheduler.port, taps)
            address = await front.start()
            workers = []
            for name in ("alice", 7):
                # its port is known before it starts, so that the proxy exists when it registers
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", 0))
                    port = probe.getsockname()[1]
                contact = await Proxy("worker", port, taps).start()
                workers.append(
                    await Worker(
                        address, name=name, nthreads=2, host="127.0.0.1", port=port,
                        contact_address=contact, local_directory=folder,
                        resources={"GPU": 1}, heartbeat_interval="200ms",
                        memory_limit="1 GiB",
                    )
                )  # fmt: skip
            async with Client(address, asynchronous=True) as client:
                await use_most_features(client, scheduler, workers)
            for worker in workers:
                await worker.close()
    return taps


# ------------------------------------------------------------------ selection


def private_words() -> Iterator[bytes]:
    """Return paths and names of this host, longest first."""
    words = {
        *(sysconfig.get_paths().values()), sys.prefix, sys.base_prefix, str(Path.home()), os.getcwd(),
        str(Path(__file__).resolve().parents[2]), tempfile.gettempdir() + "/", socket.gethostname(),
        socket.getfqdn(), os.uname().nodename, os.uname().release, os.uname().version,
    }  # fmt: skip
    if len(getpass.getuser()) > 4:
        words.add(getpass.getuser())
    for word in sorted(words, key=len, reverse=True):
        if len(word) > 4 and word not in ("localhost", "127.0.0.1"):
            yield word.encode()


def without_private_words(data: bytes) -> bytes:
    for word in private_words():
        cover = b"/" + b"x" * (len(word) - 1) if word.startswith(b"/") else b"x" * len(word)
        data = data.replace(word, cover)
    return data


def whole_messages(data: bytes) -> list[bytes]:
    """Return the messages, without those that are too large."""
    kept = []
    for frames in FrameReader().feed(data):
        message = b"".join(pack_frames(frames))
        if len(message) <= MESSAGE_MAX_NBYTES:
            kept.append(message)
    return kept


def ops_in(data: bytes) -> list[str]:
    """Return the ops of all messages, in order."""
    ops = []
    for frames in FrameReader().feed(data):
        value = msgpack.unpackb(frames[0], use_list=False, strict_map_key=False)
        for part in value if isinstance(value, tuple) else [value]:
            if isinstance(part, dict) and isinstance(part.get("op"), str):
                ops.append(part["op"])
    return ops


def main() -> None:
    """Record and write."""
    taps = asyncio.run(record())
    for old in TARGET.glob("*.bin"):
        old.unlink()
    TARGET.mkdir(exist_ok=True)
    seen: set[str] = set()
    total = 0
    for tap in taps:
        up = without_private_words(b"".join(whole_messages(bytes(tap.up))))
        down = without_private_words(b"".join(whole_messages(bytes(tap.down))))
        ops = [
            f"{tap.place}:{way}:{op}" for way, d in (("up", up), ("down", down)) for op in ops_in(d)
        ]
        if not ops or seen.issuperset(ops):
            continue
        seen.update(ops)
        name = f"{tap.place}-{ops_in(up)[0]}"
        number = len(list(TARGET.glob(f"{name}*.up.bin")))
        (TARGET / f"{name}{f'-{number}' if number else ''}.up.bin").write_bytes(up)
        (TARGET / f"{name}{f'-{number}' if number else ''}.down.bin").write_bytes(down)
        total += len(up) + len(down)
        print(name, len(up), len(down), len(set(ops)))
    print(total, "bytes;", len(seen), "ops:", " ".join(sorted(seen)))


if __name__ == "__main__":
    main()
