"""The tasks, imported by workers: each reads its inputs and returns a value of a given size."""

from __future__ import annotations

import pickle
import random
import zlib
from typing import Any

import numpy as np
import pandas as pd

KINDS = ("numpy", "pandas", "bytes", "nested")
#: Redis accepts values up to this size.
REDIS_NBYTES_MAX = 512_000_000
#: Numbers are repeated in blocks of this length.
BLOCK = 1 << 13
#: Of each page at least one number is read.
STRIDE = 512


def _filled(count: int, seed: int) -> np.ndarray:
    """Return `count` numbers that compress to about half their size, like measured data."""
    block = np.random.default_rng(seed).normal(size=min(count, BLOCK)).astype("f4").astype("f8")
    made = np.empty(count)
    whole = count // block.size * block.size
    made[:whole].reshape(-1, block.size)[:] = block
    made[whole:] = block[: count - whole]
    return made


def make(kind: str, size_nbytes: int, seed: int) -> Any:
    """Return a value of about `size_nbytes`, which costs no more than writing it to memory."""
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


def read(value: Any) -> int:
    """Return a number that depends on every page of `value`."""
    if isinstance(value, np.ndarray):
        flat = value.reshape(-1, order="A")
        return int(flat[::STRIDE].view("u8").sum() & 0xFFFFFFFF) + value.size
    if isinstance(value, pd.DataFrame):
        return sum(read(value[name].to_numpy()) for name in value) & 0xFFFFFFFF
    if isinstance(value, bytes):
        return read(np.frombuffer(value, "f8", count=len(value) // 8)) + len(value)
    return sum(read(part) for part in [*value["parts"], value["raw"]]) & 0xFFFFFFFF


def task(kind: str, size_nbytes: int, seed: int, *inputs: Any) -> Any:
    """Read `inputs` and return a value that depends on them."""
    return make(kind, size_nbytes, (seed + sum(map(read, inputs))) & 0xFFFFFFFF)


def total(*inputs: Any) -> list[int]:
    """Return a number for each of `inputs`: the result of the graph."""
    return [read(value) for value in inputs]


def store_in_redis(url: str, value: Any) -> str:
    """Store `value` in Redis and return a reference, which is passed through Dask."""
    import lz4.frame
    import redis

    server = redis.Redis.from_url(url, socket_timeout=None)
    key = f"task-{random.getrandbits(128):032x}"
    packed = lz4.frame.compress(pickle.dumps(value, protocol=5))
    parts = range(0, len(packed), REDIS_NBYTES_MAX)
    for i in parts:
        server.set(f"{key}-{i}", packed[i : i + REDIS_NBYTES_MAX])
    return f"{key} {len(packed)}"


def load_from_redis(url: str, reference: str) -> Any:
    """Return the value that `reference` refers to."""
    import lz4.frame
    import redis

    server = redis.Redis.from_url(url, socket_timeout=None)
    key, length = reference.split()
    parts = [server.get(f"{key}-{i}") for i in range(0, int(length), REDIS_NBYTES_MAX)]
    return pickle.loads(lz4.frame.decompress(parts[0] if len(parts) == 1 else b"".join(parts)))


def task_redis(url: str, kind: str, size_nbytes: int, seed: int, *inputs: str) -> str:
    """Do the same as `task`, with inputs and result in Redis."""
    values = (load_from_redis(url, reference) for reference in inputs)
    return store_in_redis(url, task(kind, size_nbytes, seed, *values))


def total_redis(url: str, *inputs: str) -> list[int]:
    """Do the same as `total`, with inputs in Redis."""
    return [read(load_from_redis(url, reference)) for reference in inputs]


def checksum(numbers: list[int]) -> int:
    """Return a checksum of the result of the graph."""
    return zlib.crc32(repr(numbers).encode())
