"""Frames, bytes and time of the same messages in both encodings.

usage: python -m benchmarks.encodings
"""

from __future__ import annotations

import pickle
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any

from paceline.protocol.codec import Codec
from paceline.protocol.framing import pack_frames
from paceline.protocol.handshake import Agreement
from paceline.protocol.messages import (
    ComputeTask,
    KeyInMemory,
    Message,
    StartStop,
    TaskErred,
    TaskFinished,
)
from paceline.protocol.payload import Payload, pickled_payload, serialized_payload

#: Messages of a batch.
COUNT = 100


def compute_task(index: int, spec: Payload) -> ComputeTask:
    """Return a message with the run spec `spec` and one dependency."""
    return ComputeTask(
        key=("sum-partial-0123456789abcdef", index), run_id=index, priority=(0, 1, index),
        stimulus_id="compute-task-1700000000.123", who_has={("a", index): ("tcp://127.0.0.1:1234",)},
        nbytes={("a", index): 28}, run_spec=spec,
    )  # fmt: skip


def samples() -> Iterator[tuple[str, str | None, Any]]:
    """Yield (name, direction of a batch or None for a reply, value)."""
    small = pickled_payload(pickle.dumps(b"x" * 500))
    shared = pickled_payload(pickle.dumps(b"x" * 500), [bytes(1000)] * 2)
    error = serialized_payload({"serializer": "pickle", "writeable": ()}, [bytes(900)])
    array = serialized_payload(
        {"serializer": "dask", "type": "numpy.ndarray", "compression": (None,)}, [bytes(8000)]
    )
    empty = pickled_payload(pickle.dumps(()))
    span = StartStop(action="compute", start=1.7e9, stop=1.7e9 + 1)
    numbers = range(COUNT)
    yield (
        f"{COUNT} compute-task, no buffers",
        "scheduler_to_worker",
        [compute_task(i, small) for i in numbers],
    )
    yield (
        f"{COUNT} compute-task, 2 buffers each",
        "scheduler_to_worker",
        [compute_task(i, shared) for i in numbers],
    )
    yield (
        f"{COUNT} task-finished",
        "worker_to_scheduler",
        [
            TaskFinished(
                key=("x", i),
                nbytes=28,
                type=pickle.dumps(int),
                typename="int",
                metadata={},
                startstops=[span],
            )
            for i in numbers
        ],
    )
    yield (
        f"{COUNT} task-erred",
        "worker_to_scheduler",
        [TaskErred(key=("x", i), exception=error, traceback=error) for i in numbers],
    )
    yield (
        f"{COUNT} key-in-memory",
        "scheduler_to_client",
        [KeyInMemory(key=("x", i)) for i in numbers],
    )
    yield (
        f"gather of {COUNT} arrays",
        None,
        {"status": "OK", "data": {("x", i): array for i in numbers}},
    )
    yield (
        f"gather of {COUNT} values without frames",
        None,
        {"data": {("x", i): empty for i in numbers}},
    )


def cost(function: Callable[[], Any], number: int = 20) -> float:
    """Return the CPU time of a call, in microseconds: the minimum of 30 measurements."""
    best = min(timeit.repeat(function, number=number, repeat=30, timer=time.process_time))
    return best / number * 1e6


def rows() -> Iterator[list[str]]:
    """Yield the cells of each row of the table."""
    for name, direction, value in samples():
        cells = [name]
        for codec in (Codec(), Codec(Agreement(encoding="in-place"))):
            frames = codec.encode(value)
            nbytes = sum(map(len, pack_frames(frames)))
            if direction is not None:
                decoded: Any = codec.decode_batch(frames, direction)  # type: ignore[arg-type]
                assert all(isinstance(message, Message) for message in decoded)
            encode = cost(lambda c=codec, v=value: c.encode(v))  # type: ignore[misc]
            decode = cost(
                (lambda c=codec, f=frames, d=direction: c.decode_batch(f, d))  # type: ignore[misc]
                if direction is not None
                else (lambda c=codec, f=frames: c.decode_value(f))  # type: ignore[misc]
            )
            cells += [str(len(frames)), str(nbytes), f"{encode:.0f}", f"{decode:.0f}"]
        yield cells


def main() -> None:
    """Print the table in Markdown."""
    print(
        "| messages | stock: frames | bytes | encode, us | decode, us "
        "| in place: frames | bytes | encode, us | decode, us |"
    )
    print("|---|" + "---|" * 8)
    for cells in rows():
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
