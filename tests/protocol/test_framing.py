"""Framing: pieces of any size, separate memory for large frames, and invalid preludes."""

from __future__ import annotations

import struct
import tracemalloc
import weakref
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import (
    HANDSHAKE_LIMITS,
    LARGE_FRAME_NBYTES,
    MAPPED_FRAME_NBYTES,
    FrameReader,
    Limits,
    pack_frames,
)

SMALLEST = bytes.fromhex(
    "2200000000000000 0100000000000000 1200000000000000 9181a26f70ac636c6f73652d73747265616d"
)


def prelude(first: int, *lengths: int, count: int | None = None) -> bytes:
    count = len(lengths) if count is None else count
    return struct.pack(f"<{len(lengths) + 2}Q", first, count, *lengths)


def read_all(data: bytes, size: int) -> list[list[bytes]]:
    reader = FrameReader()
    messages = [m for i in range(0, len(data), size) for m in reader.feed(data[i : i + size])]
    assert reader.is_idle
    return [[bytes(frame) for frame in frames] for frames in messages]


def test_the_smallest_message() -> None:
    assert FrameReader().feed(SMALLEST) == [[bytes.fromhex("9181a26f70ac636c6f73652d73747265616d")]]
    assert b"".join(pack_frames([SMALLEST[24:]])) == SMALLEST


def test_a_byte_at_a_time() -> None:
    reader = FrameReader()
    data = SMALLEST * 3 + b"".join(pack_frames([b"", b"abc", b""]))
    seen = [(i, m) for i in range(len(data)) for m in reader.feed(data[i : i + 1])]
    assert [i + 1 for i, _ in seen] == [42, 84, 126, len(data)]
    assert seen[-1][1] == [b"", b"abc", b""]
    assert reader.is_idle


sizes = st.one_of(
    st.integers(0, 40),
    st.integers(LARGE_FRAME_NBYTES - 2, LARGE_FRAME_NBYTES + 2),
    st.sampled_from([MAPPED_FRAME_NBYTES - 1, MAPPED_FRAME_NBYTES + 3]),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(sizes, max_size=4), max_size=4), st.integers(0, 10**6))
def test_any_frames_in_any_pieces(shapes: list[list[int]], seed: int) -> None:
    random = Random(seed)
    messages = [[random.randbytes(size) for size in shape] for shape in shapes]
    data = b"".join(b"".join(pack_frames(frames)) for frames in messages)
    reader, received, position = FrameReader(), [], 0
    while position < len(data):
        view = memoryview(data)
        chunk = view[position : position + random.choice([7, 5000, 65536, 10**7])]
        if random.random() < 0.5:
            received += reader.feed(chunk)
        else:  # as asyncio does it
            buffer = reader.get_buffer(-1)
            chunk = chunk[: len(buffer)]
            buffer[: len(chunk)] = chunk
            received += reader.buffer_updated(len(chunk))
        position += len(chunk)
    assert received == messages
    assert reader.is_idle


def test_received_frames_are_not_overwritten() -> None:
    scratch = memoryview(bytearray(1000))
    reader = FrameReader(scratch=scratch)
    data = b"".join(pack_frames([b"abc", b"defg"]))
    buffer = reader.get_buffer()
    buffer[: len(data)] = data
    (frames,) = reader.buffer_updated(len(data))
    scratch[:] = bytes(1000)
    assert frames == [b"abc", b"defg"]


def test_large_frames_are_received_in_place() -> None:
    size = 5 * MAPPED_FRAME_NBYTES
    reader = FrameReader()
    assert reader.feed(prelude(16, size)) == []
    buffer = reader.get_buffer(-1)
    assert len(buffer) == size
    buffer[:3] = b"abc"
    assert reader.buffer_updated(3) == []
    assert len(reader.get_buffer(-1)) == size - 3
    ((frame,),) = reader.buffer_updated(size - 3)
    assert bytes(frame[:4]) == b"abc\0"


def test_custom_memory_for_large_frames() -> None:
    given: list[bytearray] = []

    def allocate(nbytes: int) -> bytearray:
        given.append(bytearray(nbytes))
        return given[-1]

    reader = FrameReader()
    reader.allocate = allocate
    large = bytes(range(256)) * 300
    ((small, frame),) = reader.feed(b"".join(pack_frames([b"small", large])))
    assert given == [bytearray(large)]
    assert frame == large and frame.obj is given[0]
    assert small == b"small"


def test_returned_message_is_not_retained() -> None:
    """The reader keeps no frames alive: a connection may be silent for hours."""

    class Memory(bytearray):
        """Supports weak references."""

    given: list[weakref.ref[Memory]] = []

    def allocate(nbytes: int) -> Memory:
        memory = Memory(nbytes)
        given.append(weakref.ref(memory))
        return memory

    reader = FrameReader()
    reader.allocate = allocate
    messages = reader.feed(b"".join(pack_frames([b"small", bytes(LARGE_FRAME_NBYTES)])))
    assert len(messages) == 1 and given[0]() is not None
    del messages
    assert given[0]() is None


class Sink:
    """Receives a large frame piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: memoryview) -> None:
        self.pieces.append(bytes(data))

    def finish(self) -> memoryview:
        return memoryview(b"".join(self.pieces))


@pytest.mark.parametrize("step", [1000, 65536, 10**6])
def test_large_frames_can_go_to_a_sink(step: int) -> None:
    reader = FrameReader()
    reader.allocate = lambda nbytes: Sink()
    larges = [bytes([i]) * 200_000 for i in range(3)]
    frames = [b"a", larges[0], b"", larges[1], larges[2], b"z"]
    data = b"".join(pack_frames(frames)) + b"".join(pack_frames([b"next"]))
    got = []
    for at in range(0, len(data), step):
        piece = data[at : at + step]
        while piece:  # as a socket does
            buffer = reader.get_buffer()
            count = min(len(buffer), len(piece))
            buffer[:count] = piece[:count]
            got += reader.buffer_updated(count)
            piece = piece[count:]
    assert got == [frames, [b"next"]]
    assert reader.is_idle


def test_failing_sink_ends_the_reader() -> None:
    class Full(Sink):
        def write(self, data: memoryview) -> None:
            raise OSError("disk full")

    reader = FrameReader()
    reader.allocate = lambda nbytes: Full()
    with pytest.raises(RemoteProtocolError, match="disk full"):
        reader.feed(b"".join(pack_frames([bytes(200_000)])))


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (prelude(8 * 10_000_001, count=10_000_000), "10000000 frames"),
        (prelude(2**63, count=2**61), "frames; the limit"),
        (prelude(8, 5), "less than the lengths"),
        (prelude(0, 0), "less than the lengths"),
        (prelude(16 + 6, 5), "more than its"),
        (prelude(24, 2**62, 0), "the limit is"),
        (prelude(24, 2**63, 2**63), "the limit is"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", "frames; the limit"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40), "the limit is"),
    ],
)
def test_invalid_preludes(data: bytes, word: str) -> None:
    for size in (1, 5, 1000):
        reader = FrameReader()
        with pytest.raises(RemoteProtocolError, match=word):
            for i in range(0, len(data), size):
                reader.feed(data[i : i + size])
        with pytest.raises(RemoteProtocolError):  # it remains unusable
            reader.feed(SMALLEST)


def test_messages_before_an_invalid_one_are_not_lost() -> None:
    with pytest.raises(RemoteProtocolError, match="less than the lengths") as caught:
        FrameReader().feed(b"".join(pack_frames([b"a", b"b"])) + SMALLEST + prelude(0, 0))
    assert caught.value.messages == [[b"a", b"b"], *FrameReader().feed(SMALLEST)]


def test_limits_can_be_raised_and_lowered() -> None:
    message = b"".join(pack_frames([b"abc"] * 5))
    assert FrameReader(Limits(max_frames=5)).feed(message)
    for limits in (Limits(max_frames=4), Limits(max_message_nbytes=14)):
        with pytest.raises(RemoteProtocolError):
            FrameReader(limits).feed(message)
    with pytest.raises(RemoteProtocolError):
        FrameReader().feed(prelude(8 * 5_000_001, count=5_000_000))
    assert FrameReader(Limits(max_frames=2**24)).feed(prelude(8 * 5_000_001, count=5_000_000)) == []


def test_announced_length_costs_no_memory() -> None:
    """Claimed frames that are never sent cost no memory: one of gigabytes, or a million small ones."""
    tracemalloc.start()
    try:
        readers = [FrameReader() for _ in range(20)]
        for reader in readers:
            reader.feed(prelude(16, 2**31) + b"x")
            FrameReader().feed(prelude(8 * 4_000_001, count=4_000_000))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_frame_larger_than_memory() -> None:
    reader = FrameReader(Limits(max_message_nbytes=2**60))
    with pytest.raises(RemoteProtocolError, match=f"^no memory for a frame of {2**59} bytes$"):
        reader.feed(prelude(16, 2**59))


def test_long_prelude_in_pieces_is_fast() -> None:
    """Collecting it is linear: 8 MB in pieces of 4 kB."""
    data = prelude(8 * 1_000_001, *([0] * 1_000_000))
    reader = FrameReader()
    messages = [m for i in range(0, len(data), 4096) for m in reader.feed(data[i : i + 4096])]
    assert len(messages) == 1 and len(messages[0]) == 1_000_000


def test_memoryviews_of_wide_items_are_sized_in_bytes() -> None:
    wide = memoryview(bytes(16)).cast("Q")
    assert FrameReader().feed(b"".join(pack_frames([b"a", wide]))) == [[b"a", bytes(16)]]
    wide = memoryview(bytes(LARGE_FRAME_NBYTES)).cast("Q")
    pieces = pack_frames([b"a", wide, b"b"])
    assert [len(piece) for piece in pieces] == [41, LARGE_FRAME_NBYTES, 1]


def test_the_first_message_has_limits_of_its_own() -> None:
    reader = FrameReader(first=HANDSHAKE_LIMITS)
    with pytest.raises(RemoteProtocolError, match="16384"):
        reader.feed(prelude(16, 2**34))
    with pytest.raises(RemoteProtocolError, match="frames"):
        FrameReader(first=HANDSHAKE_LIMITS).feed(prelude(8 * 101, *([0] * 100)))


def test_full_limits_apply_after_the_accepted_message() -> None:
    """A peer may send its first request together with its handshake."""
    large = b"x" * 2 * LARGE_FRAME_NBYTES
    data = b"".join(b"".join(pack_frames(f)) for f in ([b"hello"], [b"a", large], [b"b"]))
    for step in (1, 100, 2**14, len(data)):
        reader = FrameReader(first=HANDSHAKE_LIMITS)
        messages: list[Any] = []
        for at in range(0, len(data), step):
            found = reader.feed(data[at : at + step])
            if found and not messages:
                assert found == [[b"hello"]]
                found += reader.admit()
            messages += found
        assert messages == [[b"hello"], [b"a", large], [b"b"]]
        assert reader.is_idle and reader.admit() == []
