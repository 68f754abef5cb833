"""Two connections talking in memory: a worker and a scheduler, from handshake to goodbye.

A Connection does no I/O. Here a "wire" hands what one end sends to the other.
"""

from paceline.protocol.connection import PHASES, Connection
from paceline.protocol.errors import LocalProtocolError
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.protocol.messages import CloseStream, FreeKeys, RegisterWorker, TaskFinished

worker, scheduler = Connection("connector"), Connection("listener")
readers = {worker: FrameReader(), scheduler: FrameReader()}


def carry(frames, to: Connection) -> list:
    """The wire: frames to bytes, bytes to frames, and what they mean at the other end."""
    data = b"".join(bytes(buffer) for buffer in pack_frames(frames))
    return [event for got in readers[to].feed(data) for event in to.receive_frames(got)]


# both ends say what they can; neither waits for the other
theirs, ours = worker.start(), scheduler.start()
(greeted,) = carry(theirs, to=scheduler)
carry(ours, to=worker)
print("agreed:", greeted.agreement)
assert worker.phase == scheduler.phase == "rpc"

# the end that connected asks; only the scheduler knows whether it agrees
address = "tcp://10.0.0.1:40000"
registration = RegisterWorker(address=address, name="alice", nthreads=2, reply=False)
(request,) = carry(worker.send(registration), to=scheduler)
print("asked:", type(request.message).__name__, request.message.name)
(reply,) = carry(scheduler.send({"status": "OK", "time": 0.0}), to=worker)
assert reply.value["status"] == "OK"
worker.become_stream("worker")
scheduler.become_stream("worker")

# from here on both send batches, whenever they like
done = [TaskFinished(key=("x", i), run_id=i, nbytes=28) for i in range(3)]
(batch,) = carry(worker.send(done), to=scheduler)
print("heard:", [message.key for message in batch.messages])
(batch,) = carry(scheduler.send(FreeKeys(keys=[("x", 0)], stimulus_id="example")), to=worker)
print("told: ", batch.messages)

# what may not go this way does not leave
try:
    scheduler.send(done)
except LocalProtocolError as error:
    print("refused:", error)
else:
    raise SystemExit("a scheduler finished a task")

(batch,) = carry(worker.send([CloseStream()]), to=scheduler)
assert worker.phase == scheduler.phase == "closed"
assert ("worker-stream", "goodbye") in PHASES, "the table is the program"
print("closed")
