"""The tasks: each takes some results, reads all of them, and makes one of a given size. Imported by workers.

It must not know how results travel, but for the way by hand, which is the very question.
"""

from __future__ import annotations

import pickle
import random
import zlib
from typing import Any

import numpy as np
import pandas as pd

KINDS = ("numpy", "pandas", "bytes", "nested")
BY_HAND_NBYTES_MAX = 512_000_000  # what Redis takes as one value


def _filled(count: int, seed: int) -> np.ndarray:
    """Numbers that compress to about a half, as measured data do."""
    block = np.random.default_rng(seed).normal(size=min(count, 1 << 15)).astype("f4").astype("f8")
    return np.resize(block, count)


def make(kind: str, size_nbytes: int, seed: int) -> Any:
    """A value of about this size."""
    if kind == "numpy":
        return _filled(max(1, size_nbytes // 8), seed)
    if kind == "pandas":
        column = _filled(max(1, size_nbytes // 32), seed)
        whole = np.arange(column.size)
        return pd.DataFrame({"a": column, "b": column * 2, "c": whole, "d": whole % 7})
    if kind == "bytes":
        return _filled(max(1, size_nbytes // 8), seed).tobytes()
    parts = 4
    each = _filled(max(1, size_nbytes // (8 * (parts + 1))), seed)
    arrays = [each + i for i in range(parts)]
    return {"parts": arrays, "raw": each.tobytes(), "names": ["x", "y"], "meta": {"seed": seed}}


def read(value: Any) -> int:
    """A number that depends on every byte of a value."""
    if isinstance(value, np.ndarray):
        return int(value.view("u8").sum() & 0xFFFFFFFF)
    if isinstance(value, pd.DataFrame):
        return sum(read(np.ascontiguousarray(value[name])) for name in value) & 0xFFFFFFFF
    if isinstance(value, bytes):
        return read(np.frombuffer(value, "u1")[: len(value) // 8 * 8])
    return sum(read(part) for part in [*value["parts"], value["raw"]]) & 0xFFFFFFFF


def task(kind: str, size_nbytes: int, seed: int, *taken: Any) -> Any:
    """Read what was taken, and make one."""
    return make(kind, size_nbytes, (seed + sum(map(read, taken))) & 0xFFFFFFFF)


def total(*taken: Any) -> list[int]:
    """What the whole graph gives: a number for each of its last results."""
    return [read(value) for value in taken]


# the way by hand: keys go through Dask, values through Redis, in the task's own code


def by_hand_put(url: str, value: Any) -> str:
    import lz4.frame
    import redis

    server = redis.Redis.from_url(url)
    key = f"by-hand-{random.getrandbits(128):032x}"
    packed = lz4.frame.compress(pickle.dumps(value, protocol=5))
    parts = range(0, len(packed), BY_HAND_NBYTES_MAX)
    for i in parts:
        server.set(f"{key}-{i}", packed[i : i + BY_HAND_NBYTES_MAX])
    return f"{key} {len(packed)}"


def by_hand_get(url: str, found: str) -> Any:
    import lz4.frame
    import redis

    server = redis.Redis.from_url(url)
    key, length = found.split()
    parts = [server.get(f"{key}-{i}") for i in range(0, int(length), BY_HAND_NBYTES_MAX)]
    return pickle.loads(lz4.frame.decompress(parts[0] if len(parts) == 1 else b"".join(parts)))


def task_by_hand(url: str, kind: str, size_nbytes: int, seed: int, *taken: str) -> str:
    return by_hand_put(
        url, task(kind, size_nbytes, seed, *(by_hand_get(url, key) for key in taken))
    )


def total_by_hand(url: str, *taken: str) -> list[int]:
    return [read(by_hand_get(url, key)) for key in taken]


def checksum(numbers: list[int]) -> int:
    return zlib.crc32(repr(numbers).encode())
