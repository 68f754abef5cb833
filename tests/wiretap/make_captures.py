"""Write ``tests/protocol/captures/``: what stock peers send to each other, for ``test_golden.py``.

Run by hand, with the stock packages installed: ``python -m tests.wiretap.make_captures``. Stock peers run some steps of
``features``. Both directions of each connection are written to ``NAME.up.bin`` (from the end that dialled) and
``NAME.down.bin``, whole messages only. A connection is named after its server and its first op. Connections that only repeat
ops of others are left out.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

from distributed import Scheduler as StockScheduler
from paceline.protocol.framing import pack_frames
from paceline.protocol.observer import ObservedMessage, Way
from paceline.scheduler.server.wiretap.proxy import TappedConnection

from tests.wiretap.features import coordination, data, stealing, tasks, topics
from tests.wiretap.private_words import ROOT, overwrite_private_words
from tests.wiretap.tapped_cluster import Record, tapped_cluster

FOLDER = ROOT / "tests" / "protocol" / "captures"
#: Larger messages are left out. They must be none that a reply follows, which would have no request then.
MESSAGE_MAX_NBYTES = 8_000
STEPS = (tasks, data, stealing, coordination, topics)


@dataclass
class Capture:
    """What was sent on a connection.

    Attributes:
        name: its server and its first op.
        ops: the direction and name of each op.
        sent: the bytes of each direction.
    """

    name: str = ""
    ops: set[tuple[str, str]] = field(default_factory=set)
    sent: dict[Way, bytes] = field(default_factory=lambda: {"up": b"", "down": b""})


class Captures(Record):
    """Keep the messages of each connection, in order of the connections."""

    def __init__(self) -> None:
        super().__init__()
        self.by_connection: defaultdict[TappedConnection, Capture] = defaultdict(Capture)

    def __call__(self, tapped: TappedConnection, when: float, seen: ObservedMessage) -> None:
        super().__call__(tapped, when, seen)
        capture = self.by_connection[tapped]
        if seen.direction is not None and not seen.omitted:
            server = seen.direction.removesuffix("_rpc")
            capture.name = capture.name or f"{server}-{seen.op}"
            capture.ops.add((seen.direction, seen.op))
        if seen.frames is not None and not seen.omitted:
            message = b"".join(map(bytes, pack_frames(list(seen.frames))))
            if len(message) <= MESSAGE_MAX_NBYTES:
                capture.sent[seen.way] += overwrite_private_words(message)


async def record() -> list[Capture]:
    """Run the program; return what was sent on each connection."""
    captures = Captures()
    async with tapped_cluster(StockScheduler, captures) as cluster:
        for step in STEPS:
            await step(cluster)
    return list(captures.by_connection.values())


def main() -> None:
    """Record and write."""
    captures = asyncio.run(record())
    for old in FOLDER.glob("*.bin"):
        old.unlink()
    seen: set[tuple[str, str]] = set()
    for capture in captures:
        if capture.ops <= seen:
            continue
        seen |= capture.ops
        number = len(list(FOLDER.glob(f"{capture.name}*.up.bin")))
        stem = f"{capture.name}-{number}" if number else capture.name
        for way, sent in capture.sent.items():
            (FOLDER / f"{stem}.{way}.bin").write_bytes(sent)
        print(stem, *map(len, capture.sent.values()), len(capture.ops))
    print(len(seen), "ops:", *sorted(seen))


if __name__ == "__main__":
    main()
