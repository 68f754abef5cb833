"""Run the core turn by turn and print each outbox: no socket, no clock, no thread.

A worker and a client join, a graph of two tasks arrives, the worker finishes both. The outbox
contains the messages to send; nothing is sent here.
"""

from paceline.protocol.messages import RegisterWorker, TaskFinished
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.stimuli import (
    ClientJoined,
    GraphChunk,
    GraphCommit,
    Stimulus,
    WorkerJoined,
)
from paceline.scheduler.server.build_core import build_core

ADDRESS = "tcp://10.0.0.1:40000"
core = build_core(SchedulerConfig())
clock = iter(range(1000))


def turn(source: str, message: object):
    """Handle one stimulus, print the messages in the outbox and return it."""
    now = float(next(clock))
    outbox = core.handle(Stimulus(source, message, f"turn-{now:.0f}"), now)
    print(f"\n{now:.0f}. {type(message).__name__} from {source or 'the driver'}")
    for peer, messages in (*outbox.clients.items(), *outbox.workers.items()):
        for sent in messages:
            print(f"   to {peer}: {type(sent).__name__} {getattr(sent, 'key', '')}")
    return outbox


registration = RegisterWorker(
    address=ADDRESS, status="running", nthreads=1, name="alice", now=0.0, server_id="w1"
)
turn("", WorkerJoined(address=ADDRESS, host="10.0.0.1", message=registration))
turn("", ClientJoined(client="me"))

# what the graph compiler returns for `y = inc(x)`: columns with one row per task; a run_spec is
# opaque bytes here
chunk = GraphChunk(
    graph_id=1,
    keys=["x", "y"],
    groups=[0, 1],
    new_groups=[("x", "x"), ("y", "y")],
    dependencies=[[], [0]],
    new_externals=[],
    run_specs=[b"specification of x", b"specification of y"],
    priorities=[0, 1],
)
assert not turn("me", chunk), "rows wait for their commit"
sent = turn("me", GraphCommit(graph_id=1, keys=["y"], client="me", received_at=2.0))
(compute_x,) = sent.workers[ADDRESS]
assert compute_x.key == "x" and core.state.tasks["y"].state == "waiting"

finished = TaskFinished(key="x", run_id=compute_x.run_id, nbytes=28, stimulus_id="finished-x")
sent = turn(ADDRESS, finished)
(compute_y,) = sent.workers[ADDRESS]
assert compute_y.key == "y" and compute_y.who_has == {"x": (ADDRESS,)}

sent = turn(ADDRESS, TaskFinished(key="y", run_id=compute_y.run_id, nbytes=28))
assert sent.clients["me"][0].key == "y", "the client is notified of its key"
assert core.state.tasks["x"].state == "released", "x is no longer needed"
print("\nx is", core.state.tasks["x"].state, "and y is in", core.state.tasks["y"].state)
