"""Connect a worker and a scheduler in memory, from handshake to close.

A `Connection` does no I/O. Here a function carries the frames from one end to the other.
"""

from paceline.protocol.connection import PHASES, Connection
from paceline.protocol.errors import LocalProtocolError
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.protocol.messages import CloseStream, FreeKeys, RegisterWorker, TaskFinished

worker, scheduler = Connection("connector"), Connection("listener")
readers = {worker: FrameReader(), scheduler: FrameReader()}


def carry(frames, to: Connection) -> list:
    """Encode `frames` as bytes, decode them at the connection `to`, and return its events."""
    data = b"".join(bytes(buffer) for buffer in pack_frames(frames))
    return [event for got in readers[to].feed(data) for event in to.receive_frames(got)]


# both ends send their handshake; neither waits for the other
theirs, ours = worker.start(), scheduler.start()
(greeted,) = carry(theirs, to=scheduler)
carry(ours, to=worker)
print("agreed:", greeted.agreement)
assert worker.phase == scheduler.phase == "rpc"

# the end that connected sends a request; the scheduler decides whether to accept it
address = "tcp://10.0.0.1:40000"
registration = RegisterWorker(address=address, name="alice", nthreads=2, reply=False)
(request,) = carry(worker.send(registration), to=scheduler)
print("request:", type(request.message).__name__, request.message.name)
(reply,) = carry(scheduler.send({"status": "OK", "time": 0.0}), to=worker)
assert reply.value["status"] == "OK"
worker.become_stream("worker")
scheduler.become_stream("worker")

# from here on both ends send batches at any time
done = [TaskFinished(key=("x", i), run_id=i, nbytes=28) for i in range(3)]
(batch,) = carry(worker.send(done), to=scheduler)
print("finished:", [message.key for message in batch.messages])
(batch,) = carry(scheduler.send(FreeKeys(keys=[("x", 0)], stimulus_id="example")), to=worker)
print("received:", batch.messages)

# a message of the wrong direction is not sent
try:
    scheduler.send(done)
except LocalProtocolError as error:
    print("refused:", error)
else:
    raise SystemExit("a scheduler could send task-finished")

(batch,) = carry(worker.send([CloseStream()]), to=scheduler)
assert worker.phase == scheduler.phase == "closed"
assert ("worker-stream", "close") in PHASES, "the table of phases defines the connection"
print("closed")
