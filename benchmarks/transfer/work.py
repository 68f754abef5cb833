"""The tasks: each takes some results, reads all of them, and makes one of a given size. Imported by workers."""

from __future__ import annotations

import pickle
import random
import zlib
from typing import Any

import numpy as np
import pandas as pd

KINDS = ("numpy", "pandas", "bytes", "nested")
BY_HAND_NBYTES_MAX = 512_000_000  # what Redis takes as one value


BLOCK = 1 << 13  # numbers


def _filled(count: int, seed: int) -> np.ndarray:
    """Numbers that compress to about a half, as measured data do; written once."""
    block = np.random.default_rng(seed).normal(size=min(count, BLOCK)).astype("f4").astype("f8")
    made = np.empty(count)
    whole = count // block.size * block.size
    made[:whole].reshape(-1, block.size)[:] = block
    made[whole:] = block[: count - whole]
    return made


def make(kind: str, size_nbytes: int, seed: int) -> Any:
    """A value of about this size, at the cost of writing it: the tasks are there to move data, not to compute."""
    if kind == "numpy":
        return _filled(max(1, size_nbytes // 8), seed)
    if kind == "pandas":
        rows = max(1, size_nbytes // 32)
        return pd.DataFrame(
            _filled(rows * 4, seed).reshape(4, rows).T, columns=list("abcd"), copy=False
        )
    if kind == "bytes":
        block = _filled(min(BLOCK, max(1, size_nbytes // 8)), seed).tobytes()
        return block * max(1, size_nbytes // len(block))
    parts = 4
    each = max(1, size_nbytes // (8 * (parts + 1)))
    arrays = [_filled(each, seed + i) for i in range(parts)]
    raw = make("bytes", each * 8, seed)
    return {"parts": arrays, "raw": raw, "names": ["x", "y"], "meta": {"seed": seed}}


STRIDE = 512  # numbers: every page


def read(value: Any) -> int:
    """A number that depends on every page of a value."""
    if isinstance(value, np.ndarray):
        flat = value.reshape(-1, order="A")
        return int(flat[::STRIDE].view("u8").sum() & 0xFFFFFFFF) + value.size
    if isinstance(value, pd.DataFrame):
        return sum(read(value[name].to_numpy()) for name in value) & 0xFFFFFFFF
    if isinstance(value, bytes):
        return read(np.frombuffer(value, "f8", count=len(value) // 8)) + len(value)
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

    server = redis.Redis.from_url(url, socket_timeout=None)
    key = f"by-hand-{random.getrandbits(128):032x}"
    packed = lz4.frame.compress(pickle.dumps(value, protocol=5))
    parts = range(0, len(packed), BY_HAND_NBYTES_MAX)
    for i in parts:
        server.set(f"{key}-{i}", packed[i : i + BY_HAND_NBYTES_MAX])
    return f"{key} {len(packed)}"


def by_hand_get(url: str, found: str) -> Any:
    import lz4.frame
    import redis

    server = redis.Redis.from_url(url, socket_timeout=None)
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
