"""Measure the CPU time of the protocol's hot path, best of many: ``python tests/protocol/measure.py``."""

from __future__ import annotations

import pickle
import time
import timeit
from collections.abc import Callable
from typing import Any

from paceline.protocol.codec import Codec
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.protocol.messages import ComputeTask, FreeKeys, KeyInMemory, StartStop, TaskFinished
from paceline.protocol.payload import pickled_payload

COUNT = 100


def samples() -> dict[str, list[Any]]:
    """Return batches of messages as in an ordinary run."""
    keys = [("sum-partial-0123456789abcdef", i, 0) for i in range(COUNT)]
    span = StartStop(action="compute", start=1.7e9, stop=1.7e9 + 1)
    kind = pickle.dumps(int)
    spec = pickled_payload(pickle.dumps(b"x" * 500))
    return {
        "TaskFinished": [
            TaskFinished(
                key=key, stimulus_id="task-finished-1700000000.123", run_id=i, nbytes=28, type=kind,
                typename="int", metadata={}, thread=140_000_000_000, startstops=[span],
            )
            for i, key in enumerate(keys)
        ],
        "ComputeTask": [
            ComputeTask(
                key=key, run_id=i, priority=(0, 1, i), stimulus_id="compute-task-1700000000.123",
                who_has={("a", i): ("tcp://127.0.0.1:1234",)}, nbytes={("a", i): 28}, run_spec=spec,
                annotations={},
            )
            for i, key in enumerate(keys)
        ],
        "KeyInMemory": [KeyInMemory(key=key, type=kind) for key in keys],
        "FreeKeys": [FreeKeys(keys=keys, stimulus_id="free-keys-1700000000.123")],
    }  # fmt: skip


def cost(function: Callable[[], Any]) -> float:
    """Return the CPU time of one call in microseconds."""
    best = min(timeit.repeat(function, number=20, repeat=50, timer=time.process_time))
    return best / 20 * 1e6


def main() -> None:
    """Print a table."""
    codec = Codec()
    directions: dict[str, Any] = {
        "TaskFinished": "worker_to_scheduler",
        "KeyInMemory": "scheduler_to_client",
    }
    for name, messages in samples().items():
        direction = directions.get(name, "scheduler_to_worker")
        frames = codec.encode(messages)
        data = b"".join(pack_frames(frames))
        n = len(messages[0].keys) if name == "FreeKeys" else len(messages)
        rows: dict[str, Callable[[], Any]] = {
            "encode": lambda m=messages: codec.encode(m),
            "pack": lambda f=frames: pack_frames(f),
            "read": lambda d=data: FrameReader().feed(d),
            "decode": lambda f=frames, d=direction: codec.decode_batch(f, d),
        }
        try:
            from distributed.protocol import loads

            rows["decode (stock)"] = lambda f=frames: loads(f)
        except ImportError:
            pass
        for what, function in rows.items():
            print(f"{name:14s} x {n}  {what:15s} {cost(function):8.1f} us")


if __name__ == "__main__":
    main()
