"""Decode bytes to frames and typed messages, and reject an invalid header.

The bytes are a batch of messages from a stock worker. They arrive one at a time, as they may
from a socket.
"""

import struct

import msgpack
from paceline.protocol.codec import Codec
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import FrameReader, Limits, pack_frames
from paceline.protocol.messages import ComputeTask, TaskFinished
from paceline.protocol.payload import pickled_payload

# the worker's side, by hand: total length, number of frames, their lengths, the frames
batch = [
    {"op": "task-finished", "key": ("x", 0), "run_id": 7, "nbytes": 28, "stimulus_id": "a"},
    {"op": "made-up", "anything": 1},
    {"op": "long-running", "key": "y", "run_id": "seven", "compute_duration": 0.5},
]
frame = msgpack.packb(batch)
data = struct.pack("<QQQ", 16 + len(frame), 1, len(frame)) + frame
print(f"{len(data)} bytes: {data[:24].hex(' ', 8)} ...")

reader = FrameReader()
whole = []
for i in range(len(data)):
    whole += reader.feed(data[i : i + 1])
(frames,) = whole
assert [bytes(f) for f in frames] == [frame]

codec = Codec()
for message in codec.decode_batch(frames, "worker_to_scheduler"):
    print("  ", message)
finished, unknown, invalid = codec.decode_batch(frames, "worker_to_scheduler")
assert isinstance(finished, TaskFinished) and finished.key == ("x", 0), "keys are hashable again"
assert unknown.op == "made-up", "an unknown operation is returned undecoded"
assert invalid.op == "long-running" and "run_id" in str(invalid), (
    "a field of a wrong type invalidates only its message"
)

# the other direction: values that the scheduler forwards stay serialized, in their own frames
spec = pickled_payload(b"a pickle, not deserialized here")
compute = ComputeTask(
    key="z", run_id=8, priority=(0, 1, 2), stimulus_id="b", who_has={}, nbytes={}, run_spec=spec
)
out = codec.encode([compute])
wire = b"".join(bytes(buffer) for buffer in pack_frames(out))
(received,) = FrameReader().feed(wire)
(again,) = codec.decode_batch(received, "scheduler_to_worker")
assert again.run_spec == spec, "the same header, the same frames"
print(f"a ComputeTask is {len(wire)} bytes in {len(out)} frames")

# a header that claims ten million frames is refused before anything is allocated for them
header = struct.pack("<QQ", 8 * 10_000_001, 10_000_000)
try:
    FrameReader(Limits(max_frames=1_000_000)).feed(header)
except RemoteProtocolError as error:
    print("refused:", error)
else:
    raise SystemExit("the invalid header was accepted")
