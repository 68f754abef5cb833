"""A core with simulated workers, for other examples. Each stimulus advances the time by one second.

`one_turn.py` shows the same step by step.
"""

from paceline.protocol.messages import ComputeTask, RegisterWorker, TaskFinished
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.stimuli import (
    ClientJoined,
    GraphChunk,
    GraphCommit,
    Stimulus,
    WorkerJoined,
)
from paceline.scheduler.core.turn import Outbox
from paceline.scheduler.server.build_core import build_core


class ToyCluster:
    """`n_workers` workers with one thread each, and a client called "me"."""

    def __init__(self, n_workers: int = 2, **config: object) -> None:
        self.core = build_core(SchedulerConfig(**config))
        self.now = 0.0
        self.n_graphs = 0
        self.send("", ClientJoined(client="me"))
        for i in range(n_workers):
            host, name = f"10.0.0.{i}", f"worker-{i}"
            joined = RegisterWorker(address=f"tcp://{host}:40000", name=name, server_id=name)
            self.send("", WorkerJoined(address=joined.address, host=host, message=joined))

    def send(self, source: str, message: object) -> Outbox:
        """Handle one stimulus and return the outbox."""
        self.now += 1.0
        name = f"{type(message).__name__}-{self.now:.0f}"
        return self.core.handle(Stimulus(source, message, name), self.now)

    def submit(self, graph: dict[str, list[str]], wanted: list[str]) -> Outbox:
        """Submit `graph` and return the outbox.

        `graph` is a dict from key to dependencies, with dependencies first.
        """
        self.n_graphs += 1
        keys = list(graph)
        chunk = GraphChunk(
            graph_id=self.n_graphs,
            keys=keys,
            groups=list(range(len(keys))),
            new_groups=[(key, key) for key in keys],
            dependencies=[[keys.index(d) for d in graph[key]] for key in keys],
            new_externals=[],
            run_specs=[b"specification" for _ in keys],
            priorities=list(range(len(keys))),
        )
        self.send("me", chunk)
        commit = GraphCommit(self.n_graphs, keys=wanted, client="me", received_at=self.now)
        return self.send("me", commit)

    def finish(self, address: str, compute: ComputeTask, nbytes: int = 100) -> Outbox:
        """Report the task of `compute` as finished on `address`, and return the outbox."""
        return self.send(
            address, TaskFinished(key=compute.key, run_id=compute.run_id, nbytes=nbytes)
        )


def computes(outbox: Outbox) -> list[tuple[str, ComputeTask]]:
    """Return (address, message) of each `ComputeTask` in `outbox`."""
    return [
        (address, message)
        for address, messages in outbox.workers.items()
        for message in messages
        if isinstance(message, ComputeTask)
    ]
