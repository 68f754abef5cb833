"""Writes ``docs/vectors/``: for each op a message as bytes and as JSON, captured between stock peers where one could be.

``make vectors`` runs it. The stock scheduler, stock workers, nannies and clients do all that ``features`` has; what passes
between them is kept, the smallest message of each kind. What they never say is made from the catalogue, and marked so.

Names of this machine in the bytes are overwritten with others of their length.

It must not know: how vectors are read.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
import sys
import sysconfig
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "support")]

import msgspec
from distributed import Scheduler as StockScheduler
from features import STEPS
from paceline.protocol.catalogue import STREAM_DIRECTIONS, TABLES, Op
from paceline.protocol.framing import pack_frames
from paceline.protocol.json_form import dumps, frames_to_json, json_to_frames, to_json
from paceline.protocol.onlooker import Seen
from tapped_cluster import Record, tapped_cluster

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "vectors"
#: A vector larger than this is not kept.
VECTOR_MAX_NBYTES = 24_000
#: What a key, a number, a text is in a message that nobody sent.
SAMPLES: dict[str, Any] = {
    "key": "x-1",
    "keys": ["x-1"],
    "int": 1,
    "float": 0.5,
    "str": "text",
    "bool": True,
}


class Keeper(Record):
    """Keeps the smallest message of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str, str], bytes] = {}

    def __call__(self, tapped: Any, when: float, seen: Seen) -> None:
        super().__call__(tapped, when, seen)
        if (
            seen.kind not in ("handshake", "request", "reply", "stream", "value")
            or seen.omitted
            or seen.violations
        ):
            return
        if seen.direction is None and seen.kind in ("request", "stream"):
            return
        direction = seen.direction or "connection"
        value = [seen.value] if seen.kind == "stream" else seen.value
        try:
            frames = json_to_frames(to_json(value))
        except Exception:
            return
        data = anonymous(b"".join(map(bytes, pack_frames(frames))))
        name = (
            direction,
            seen.op or seen.kind,
            "message" if seen.kind in ("stream", "request") else seen.kind,
        )
        old = self.kept.get(name)
        if len(data) <= VECTOR_MAX_NBYTES and (old is None or len(data) < len(old)):
            self.kept[name] = data


def anonymous(data: bytes) -> bytes:
    """The same bytes, with other words for where this machine keeps things."""
    places = {
        str(ROOT),
        sys.prefix,
        sys.base_prefix,
        sysconfig.get_paths()["purelib"],
        str(Path.home()),
        socket.gethostname(),
    }
    for place in sorted((p.encode() for p in places if len(p) > 4), key=len, reverse=True):
        stand_in = (b"/" if place.startswith(b"/") else b"") + b"somewhere-else-" * (
            len(place) // 15 + 1
        )
        data = data.replace(place, stand_in[: len(place)])
    return data


async def capture() -> Keeper:
    """All features, once, on the stock scheduler. A feature that fails here leaves its ops to the others."""
    keeper = Keeper()
    async with tapped_cluster(StockScheduler, keeper) as cluster:
        for step in STEPS:
            try:
                async with asyncio.timeout(90):
                    await step(cluster)
            except Exception as error:
                print(f"{step.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
    return keeper


def constructed(op: Op) -> bytes:
    """A message of an op that nobody said: each field with a value of its type."""
    fields = {}
    for field in msgspec.structs.fields(op.cls):
        if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
            fields[field.name] = _sample(op.cls, field)
    message = op.cls(**fields)
    value: Any = [message] if op.direction in STREAM_DIRECTIONS else message
    return b"".join(map(bytes, pack_frames(json_to_frames(to_json(value)))))


def _sample(cls: Any, field: Any) -> Any:
    if field.name in cls.KEY_FIELDS:
        return SAMPLES["key"]
    if field.name in cls.KEYS_FIELDS or "list" in str(field.type):
        return SAMPLES["keys"]
    if "dict" in str(field.type):
        return {}
    for name in ("str", "float", "int", "bool"):
        if name in str(field.type):
            return SAMPLES[name]
    return SAMPLES["key"]


def write(kept: dict[tuple[str, str, str], bytes]) -> None:
    """The files, and their index."""
    from paceline.protocol.framing import FrameReader

    shutil.rmtree(FOLDER, ignore_errors=True)
    captured = set(kept)
    for direction, table in TABLES.items():
        for op in table.values():
            if (direction, op.name, "message") not in kept:
                kept[direction, op.name, "message"] = constructed(op)
    entries = []
    for (direction, op_name, kind), data in sorted(kept.items()):
        stem = f"{direction}/{op_name}" + ("" if kind == "message" else f".{kind}")
        path = FOLDER / f"{stem}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        (frames,) = FrameReader().feed(data)
        path.write_bytes(data)
        path.with_name(path.name[:-4] + ".json").write_text(
            dumps(frames_to_json(frames), indent=1) + "\n"
        )
        entries.append({
            "direction": direction, "op": op_name, "kind": kind, "vector": stem, "nbytes": len(data),
            "source": "captured" if (direction, op_name, kind) in captured else "constructed",
        })  # fmt: skip
    index = {
        "about": "Messages of Dask's protocol: VECTOR.bin is one message as it is on a socket, VECTOR.json what is in it.",
        "release": "distributed 2026.8.0", "json": "docs/protocol.md, 'Messages as JSON'", "vectors": entries,
    }  # fmt: skip
    (FOLDER / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    n = sum(entry["source"] == "captured" for entry in entries)
    print(
        f"{len(entries)} vectors, {n} of them captured; {sum(e['nbytes'] for e in entries)} bytes"
    )


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    os.environ.setdefault("DASK_DISTRIBUTED__LOGGING__DISTRIBUTED", "critical")
    write(asyncio.run(capture()).kept)
