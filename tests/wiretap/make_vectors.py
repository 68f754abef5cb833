"""Write ``docs/vectors/``: a message of each op as bytes and as JSON, captured between stock peers if possible.

Run it with ``make vectors``. The stock scheduler, workers, nannies and clients run all steps of ``features``, and the smallest
message of each kind is kept unchanged. An op that is only ever sent in batches with others is cut out of a batch. An op that
stock peers never send is made from the catalogue. Both are marked in the index.

``shapes/`` has whole batches, and values with several, compressed and sharded frames. To keep them small, stock peers are
configured to compress with zlib and to shard frames at ``SHARD`` bytes. They also assume different hosts, because peers on
one host do not compress. Messages of a few kB are not affected.

Names of this machine in the bytes are overwritten with others of the same length; nothing else is changed.
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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

SHARD = "12kB"
os.environ["DASK_DISTRIBUTED__COMM__SHARD"] = SHARD  # read when distributed is imported
os.environ["DASK_DISTRIBUTED__COMM__COMPRESSION"] = "zlib"

import msgspec
from distributed import Scheduler as StockScheduler
from distributed.comm.tcp import TCP
from paceline.protocol.catalogue import STREAM_DIRECTIONS, TABLES, Op
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.protocol.json_form import dumps, frames_to_json, json_to_frames, to_json
from paceline.protocol.message_fields import MESSAGE_FIELDS
from paceline.protocol.observer import ObservedMessage
from paceline.protocol.payload import Payload, payload_header

from tests.wiretap.features import STEPS, shapes
from tests.wiretap.tapped_cluster import Record, tapped_cluster

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "vectors"
#: Maximum size of a vector; larger ones are dropped.
VECTOR_MAX_NBYTES = 24_000
#: Values of a key, a number and a text in messages made from the catalogue.
SAMPLES: dict[str, Any] = {
    "key": "x-1",
    "keys": ["x-1"],
    "int": 1,
    "float": 0.5,
    "str": "text",
    "bool": True,
}


#: (direction, op, kind) of a vector.
Name = tuple[str, str, str]
#: Number of messages in the batch that is kept as one vector.
BATCH_LENGTH = 3


class Keeper(Record):
    """Keep the smallest message of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[Name, bytes] = {}
        self.cut: set[Name] = set()  # messages that were cut out of a batch

    def __call__(self, tapped: Any, when: float, seen: ObservedMessage) -> None:
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
        kind = "message" if seen.kind in ("stream", "request") else seen.kind
        cut = seen.n_messages > 1
        frames = json_to_frames(to_json([seen.value])) if cut else seen.frames
        self.keep((direction, seen.op or seen.kind, kind), frames or (), cut)
        if seen.frames is not None:
            for shape in shapes_of(seen):
                self.keep(("shapes", f"{direction}.{shape}", "shape"), seen.frames)

    def keep(self, name: Name, frames: Sequence[Any], cut: bool = False) -> None:
        """Return the smallest messages, preferring those that were not sent in a batch."""
        data = anonymous(b"".join(map(bytes, pack_frames(list(frames)))))
        old = (name in self.cut, len(self.kept.get(name, b"")))
        if len(data) <= VECTOR_MAX_NBYTES and (name not in self.kept or (cut, len(data)) < old):
            self.kept[name] = data
            (self.cut.add if cut else self.cut.discard)(name)


def payloads_in(value: Any) -> list[Payload]:
    """Yield the messages at any depth."""
    if isinstance(value, Payload):
        return [value]
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(inner, str | bytes) and isinstance(inner, Iterable):
        return [payload for x in inner for payload in payloads_in(x)]
    return []


def shapes_of(seen: ObservedMessage) -> list[str]:
    """Return the properties of the frames of a message, or of a batch for its first message."""
    found = []
    if seen.n_messages >= BATCH_LENGTH:
        assert seen.frames is not None
        found.append("batch-of-values" if len(seen.frames) >= 2 * BATCH_LENGTH else "batch")
    headers = [payload_header(payload) for payload in payloads_in(seen.value)]
    tests = {
        "several-values": len(headers) > 2,
        "several-frames": any(len(h.get("split-num-sub-frames") or ()) > 2 for h in headers),
        "compressed": any(any(h.get("compression") or ()) for h in headers),
        "sharded": any(any(n > 1 for n in h.get("split-num-sub-frames") or ()) for h in headers),
        "empty-frame": any(0 in map(len, p.frames) for p in payloads_in(seen.value)),
    }
    return found + [name for name, is_so in tests.items() if is_so]


def anonymous(data: bytes) -> bytes:
    """Return the same bytes without paths and names of this machine."""
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
    """Run all features on the stock scheduler. If a feature fails, its ops are made from the catalogue."""
    keeper = Keeper()
    TCP.same_host = property(lambda _: False)
    async with tapped_cluster(StockScheduler, keeper) as cluster:
        for step in (shapes, *STEPS):
            try:
                async with asyncio.timeout(90):
                    await step(cluster)
            except Exception as error:
                print(f"{step.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
    return keeper


def constructed(op: Op) -> bytes:
    """Make a message of an op that was not captured: each field with a value of its type."""
    fields = {}
    for field in msgspec.structs.fields(op.cls):
        if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
            fields[field.name] = _sample(op.cls, field)
    message = op.cls(**fields)
    value: Any = [message] if op.direction in STREAM_DIRECTIONS else message
    return b"".join(map(bytes, pack_frames(json_to_frames(to_json(value)))))


def _sample(cls: Any, field: Any) -> Any:
    if field.name == MESSAGE_FIELDS[cls].key_field:
        return SAMPLES["key"]
    if field.name in MESSAGE_FIELDS[cls].keys_fields or "list" in str(field.type):
        return SAMPLES["keys"]
    if "dict" in str(field.type):
        return {}
    for name in ("str", "float", "int", "bool"):
        if name in str(field.type):
            return SAMPLES[name]
    return SAMPLES["key"]


def write(kept: dict[Name, bytes], cut: set[Name]) -> None:
    """Write the files and their index."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    captured = set(kept)
    for direction, table in TABLES.items():
        for op in table.values():
            if (direction, op.name, "message") not in kept:
                kept[direction, op.name, "message"] = constructed(op)
    entries = []
    for (direction, op_name, kind), data in sorted(kept.items()):
        stem = f"{direction}/{op_name}" + ("" if kind in ("message", "shape") else f".{kind}")
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
        if (direction, op_name, kind) in cut:
            entries[-1]["cut_from_batch"] = True
    index = {
        "about": "Messages of Dask's protocol: VECTOR.bin is one message as it is on a socket, VECTOR.json what is in it.",
        "source": "captured: these bytes passed between stock peers; only names of the machine were overwritten, with others of "
        "the same length. cut_from_batch: it passed in a batch with others, and has been encoded again alone. constructed: not "
        "captured; encoded from the catalogue.",
        "shapes": "shapes/DIRECTION.SHAPE: whole batches; compressed, sharded and empty frames, values of several; stock peers "
        f"were told to compress with zlib, to cut frames at {SHARD}, and that they are on different hosts.",
        "release": "distributed 2026.8.0", "json": "docs/protocol.md, 'Messages as JSON'", "vectors": entries,
    }  # fmt: skip
    (FOLDER / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    n = sum(entry["source"] == "captured" for entry in entries)
    print(
        f"{len(entries)} vectors, {n} of them captured ({len(cut)} cut out of batches); "
        f"{sum(e['nbytes'] for e in entries)} bytes"
    )


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    os.environ.setdefault("DASK_DISTRIBUTED__LOGGING__DISTRIBUTED", "critical")
    keeper = asyncio.run(capture())
    write(keeper.kept, keeper.cut)
