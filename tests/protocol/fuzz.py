"""Feed invalid messages to all decoders of peers' input: ``make fuzz``.

    python -m tests.protocol.fuzz --inputs 100000 --seed 1        number of inputs, mutated from ``corpus/``
    python -m tests.protocol.fuzz --seconds 600                   run for some time

A finding is any exception but ``RemoteProtocolError``, and an input that takes longer than ``HANG_SECONDS``. Each kind is printed
once, with the bytes that caused it; the exit code is 1. If atheris is installed, it makes the inputs, by coverage.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any
from zlib import crc32

from msgpack import ExtType, Timestamp, packb, unpackb
from paceline.protocol.catalogue import STREAM_DIRECTIONS, TABLES
from paceline.protocol.codec import Codec
from paceline.protocol.connection import Batch, Connection
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import FrameReader, Limits, pack_frames
from paceline.protocol.handshake import IN_PLACE, Agreement, local_offer
from paceline.protocol.json_form import frames_to_json, json_to_frames
from paceline.protocol.messages import GatherReply, GetDataReply, RegisterWorkerReply

from tests.protocol.requests import decode_rpc
from tests.protocol.test_fuzz import mutated

CORPUS = Path(__file__).parent / "corpus"
HANG_SECONDS = 5.0
INPUT_NBYTES_MAX = 16_384
FINDINGS_MAX = 50
FRAME_LIMITS = Limits(max_message_nbytes=2**24)  # a prelude may claim as much, and get it
CODECS = (Codec(), Codec(Agreement(encoding="in-place")))
RPC_DIRECTIONS = tuple(direction for direction in TABLES if direction not in STREAM_DIRECTIONS)
REPLIES = (None, GatherReply, GetDataReply, RegisterWorkerReply)
PHASES = ("handshake", "rpc", "worker", "client")
Frames = list[Any]
STRANGE: tuple[Any, ...] = (
    None, True, -1, 2**64 - 1, -(2**63), float("nan"), float("inf"), "", "$bytes", b"", (), {}, {(): ()}, {1: 2},
    {"__Set__": 5, "as-list": 5}, {"__Set__": True, "as-list": ({},)}, {"__Enum__": True}, {"__Pickled__": (1,)},
    {"__Serialized__": 0}, {"__Serialized__": -1}, {"__Serialized__": 2**40}, {"__Pickled__": (b"", 1, 1)},
    {"__Serialized__": (b"\x81\xaenum-sub-frames\x00", 0, 0)}, {"op": {}}, ExtType(5, b"5"), Timestamp(5),
)  # fmt: skip


class Hang(BaseException):
    """Raised if one input takes too long."""


# ------------------------------------------------------------------ targets


def batch(frames: Frames, random: Random) -> None:
    for message in random.choice(CODECS).decode_batch(frames, random.choice(STREAM_DIRECTIONS)):
        repr(message)[:0]


def rpc(frames: Frames, random: Random) -> None:
    decode_rpc(random.choice(CODECS), frames, random.choice(RPC_DIRECTIONS))


def value(frames: Frames, random: Random) -> None:
    random.choice(CODECS).decode_value(frames, random.choice(REPLIES))


def connection(frames: Frames, random: Random) -> None:
    """Return a connection in some phase, whose next message is the first or second after its handshake."""
    offer = local_offer(in_place=random.random() < 0.5)
    end = Connection(random.choice(("listener", "connector")), offer)
    hello, phase = end.start(), random.choice(PHASES)
    if phase != "handshake":
        end.receive_frames(hello)
    if phase in ("worker", "client"):
        end.become_stream(phase)
    for _ in range(2):
        for event in end.receive_frames(frames):
            if isinstance(event, Batch):
                for _ in event.more or ():
                    pass


def to_json(frames: Frames, random: Random) -> None:
    json.dumps(frames_to_json(frames, random.choice(("stock", IN_PLACE))))


def wire(frames: Frames, random: Random) -> None:
    """Feed the frames as bytes, mutated once more, in pieces, to a connection before its handshake."""
    end = Connection("listener")
    data = b"".join(pack_frames(end.start())) + mutated(b"".join(pack_frames(frames)), random)
    reader, step = FrameReader(FRAME_LIMITS), random.choice((7, 64, 100_000))
    for at in range(0, len(data), step):
        for message in reader.feed(data[at : at + step]):
            end.receive_frames(message)


TARGETS: tuple[Callable[[Frames, Random], None], ...] = (
    batch, batch, rpc, value, connection, connection, to_json, wire,
)  # fmt: skip


# ------------------------------------------------------------------ inputs


def seeds() -> list[list[bytes]]:
    """Return the corpus, in both encodings."""
    found = []
    for path in sorted(CORPUS.glob("*.bin")):
        (frames,) = FrameReader().feed(path.read_bytes())
        form = frames_to_json(frames)
        found += [list(map(bytes, f)) for f in (frames, json_to_frames(form, IN_PLACE))]
    return found


def parts_of(value: Any) -> list[Any]:
    """Yield all members of a value, at any depth."""
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    if not isinstance(inner, list | tuple):
        return [value]
    return [value, *(part for x in inner for part in parts_of(x))]


def altered(value: Any, parts: Sequence[Any], random: Random) -> Any:
    """Return the value with one member replaced, corrupted or removed."""
    if random.random() < 0.8 and value and isinstance(value, dict):
        key, changed = random.choice(list(value)), dict(value)
        inner = changed.pop(key)
        if random.random() < 0.9:
            changed[key] = altered(inner, parts, random)
        return changed
    if random.random() < 0.9 and value and isinstance(value, tuple):
        at = random.randrange(len(value))
        return (*value[:at], altered(value[at], parts, random), *value[at + 1 :])
    return random.choice(STRANGE if random.random() < 0.3 else parts)


class Maker:
    """Return messages from the corpus with a few changes each."""

    def __init__(self) -> None:
        self.corpus = seeds()
        self.opened = [
            (f, unpackb(f[0], use_list=False, strict_map_key=False)) for f in self.corpus
        ]
        self.parts = [part for _, opened in self.opened for part in parts_of(opened)]

    def make(self, random: Random) -> list[bytes]:
        if random.random() < 0.4:
            return made(self.corpus, random)
        frames, value = random.choice(self.opened)
        for _ in range(random.choice((1, 1, 2, 4))):
            value = altered(value, self.parts, random)
        return [packb(value), *frames[1:]]


def made(corpus: list[list[bytes]], random: Random) -> list[bytes]:
    """Return a message with a few changes: bytes, frames, a part of another message."""
    frames = list(random.choice(corpus))
    which = random.randrange(len(frames)) if random.random() < 0.3 else 0
    data = frames[which]
    if random.random() < 0.2:
        other = random.choice(random.choice(corpus))
        start, at = random.randrange(len(other) + 1), random.randrange(len(data) + 1)
        data = data[:at] + other[start : start + random.choice((4, 30, 300))] + data[at:]
    for _ in range(random.choice((1, 1, 1, 3))):
        data = mutated(data, random)
    frames[which] = data
    if random.random() < 0.1:
        del frames[random.randrange(len(frames))]
    elif random.random() < 0.1:
        frames.append(random.choice(random.choice(corpus)))
    return frames


# ------------------------------------------------------------------ rounds


def rss_mb() -> float:
    """Return the memory of this process in MiB; its peak if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Rounds:
    """Run inputs one after the other, and collect failures.

    Attributes:
        number: of the input that is tried.
        accepted: how many could be read in spite of all.
        findings: (what was fed, the error's class, where) -> what to print.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.number = seed, 0
        self.accepted = 0
        self.findings: dict[tuple[str, str, str], str] = {}
        self._seen_at_tick = -1
        signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS, HANG_SECONDS)

    def _tick(self, *_: object) -> None:
        if self.number == self._seen_at_tick:
            raise Hang
        self._seen_at_tick = self.number

    def try_out(self, frames: list[bytes], random: Random) -> None:
        target = random.choice(TARGETS)
        try:
            target(frames, random)
            self.accepted += 1
        except RemoteProtocolError:
            pass
        except (Exception, Hang) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            kind = (target.__name__, type(error).__name__, f"{where.filename}:{where.lineno}")
            if kind not in self.findings and len(self.findings) < FINDINGS_MAX:
                hexes = [frame.hex()[: 2 * INPUT_NBYTES_MAX] for frame in frames]
                lines = "".join(traceback.format_exception(error, limit=-6))
                self.findings[kind] = f"input {self.number} of seed {self.seed}: {hexes}\n{lines}"
                print(f"FOUND by {target.__name__}: {self.findings[kind]}", flush=True)

    def run(self, inputs: int | None, seconds: float | None) -> None:
        """The inputs are the same for a seed, wherever the run stops."""
        maker, started = Maker(), time.monotonic()
        for self.number in count():
            if inputs is not None and self.number >= inputs:
                break
            if self.number % 100 == 0 and seconds and time.monotonic() - started > seconds:
                break
            if self.number and self.number % 500_000 == 0:
                self.report(time.monotonic() - started)
            random = Random(self.seed * 2**40 + self.number)
            self.try_out(maker.make(random), random)
        self.report(time.monotonic() - started)

    def report(self, spent: float) -> None:
        rate = self.number / max(spent, 1e-9)
        told = f"{self.number} inputs in {spent:.0f} s, {rate:.0f}/s, {len(self.findings)} findings"
        told += f", {self.accepted} could be read"
        print(f"{told}, {rss_mb():.0f} MiB", flush=True)


def with_atheris(atheris: Any, rounds: Rounds, inputs: int | None, seconds: float | None) -> None:
    """An input is a message as on the wire, or its only frame; its checksum selects the target."""

    def one(data: bytes) -> None:
        rounds.number += 1
        try:
            frames = FrameReader(FRAME_LIMITS).feed(data) or [[data]]
        except RemoteProtocolError:
            frames = [[data]]
        rounds.try_out([bytes(frame) for frame in frames[0]], Random(crc32(data)))
        if rounds.findings:
            raise SystemExit(1)

    options = [f"-runs={inputs}"] if inputs else []
    options += [f"-max_total_time={int(seconds)}"] if seconds else []
    options += [f"-timeout={int(HANG_SECONDS)}", f"-seed={rounds.seed + 1}"]  # its 0 means no limit
    for function in functions():
        atheris.instrument_func(function)
    signal.setitimer(signal.ITIMER_REAL, 0)  # it has its own timeout
    with TemporaryDirectory() as learned:  # it writes interesting inputs to the first folder
        atheris.Setup([sys.argv[0], *options, learned, str(CORPUS)], one)
        atheris.Fuzz()


def functions() -> list[FunctionType]:
    """Yield the functions and methods of paceline's protocol."""
    found: dict[int, FunctionType] = {}
    for name in [name for name in sys.modules if name.startswith("paceline.protocol")]:
        for thing in list(vars(sys.modules[name]).values()):
            inner = vars(thing).values() if isinstance(thing, type) else (thing,)
            for x in inner:
                x = getattr(x, "__func__", x)
                if isinstance(x, FunctionType) and x.__module__ == name:
                    found[id(x)] = x
    return list(found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, help="stop after this number of inputs")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--own", action="store_true", help="own mutations, even where atheris is")
    options = parser.parse_args()
    inputs = options.inputs if options.inputs or options.seconds else 200_000
    rounds = Rounds(options.seed)
    print(f"{rss_mb():.0f} MiB at the start", flush=True)
    try:
        import atheris
    except ImportError:
        atheris = None
    if atheris is not None and not options.own:
        with_atheris(atheris, rounds, inputs, options.seconds)
    else:
        rounds.run(inputs, options.seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)  # its handler does not outlive the interpreter
    return 1 if rounds.findings else 0


if __name__ == "__main__":
    sys.exit(main())
