"""Compiled graphs of clients, and a scheduler with a worker and a client in this process."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import dask.config
import pytest
from dask._expr import Expr, FinalizeCompute, LLGExpr
from dask.base import collections_to_expr
from dask.core import flatten
from distributed import Client, Worker
from distributed.protocol.core import loads as stock_loads
from distributed.protocol.serialize import serialize, to_serialize
from paceline.protocol.payload import Payload, pickled_payload, serialized_payload
from paceline.scheduler.core.stimuli import AnnotationSet, GraphChunk, GraphCommit, GraphFailed
from paceline.scheduler.server.scheduler import Scheduler
from paceline.workers_compat.facade.scheduler_facade import SchedulerFacade
from paceline.workers_compat.graphs import ordering, spec_pickler
from paceline.workers_compat.graphs.accelerators.unimported import ReferenceLoader
from paceline.workers_compat.graphs.compiler import compile_graph
from paceline.workers_compat.graphs.compiler_messages import CompileRequest


def closed(value: Any) -> Payload:
    """Return the frames of ``ToPickle`` as a stock client sends it."""
    return pickled_payload(pickle.dumps(value))


def request(graph: Any, keys: Iterable[Any] | None = None, **more: Any) -> CompileRequest:
    """A graph (dict, expression or collection) as the stock client submits it."""
    if isinstance(graph, dict):
        keys = list(graph) if keys is None else keys
        expr = LLGExpr(graph)
    else:
        expr = graph if isinstance(graph, Expr) else FinalizeCompute(collections_to_expr((graph,)))
        expr = expr.optimize()
        keys = list(flatten(expr.__dask_keys__())) if keys is None else keys
    header, frames = serialize(to_serialize(expr), on_error="raise")
    return CompileRequest(
        graph_id=more.pop("graph_id", 7),
        client="client-1",
        expr_ser=serialized_payload(header, frames),
        keys=list(keys or ()),
        **more,
    )


class Compiled:
    """All replies for one graph."""

    def __init__(self, replies: Iterable[Any]) -> None:
        self.replies = list(replies)
        *chunks, self.last = self.replies
        self.chunks: list[GraphChunk] = chunks
        assert all(isinstance(chunk, GraphChunk) for chunk in chunks)
        self.keys = [key for chunk in chunks for key in chunk.keys]
        self.dependencies = [row for chunk in chunks for row in chunk.dependencies]
        self.priorities = [p for chunk in chunks for p in chunk.priorities]
        self.externals = [key for chunk in chunks for key in chunk.new_externals]
        self.group_names = [group for chunk in chunks for group in chunk.new_groups]
        self.buffers = [buffer for chunk in chunks for buffer in chunk.buffers]

    @property
    def commit(self) -> GraphCommit:
        assert isinstance(self.last, GraphCommit), self.last
        return self.last

    @property
    def wanted(self) -> list[Any]:
        """Return the desired keys in the order in which the client gets them."""
        return [self.keys[row] for row in self.commit.rows] + self.commit.keys

    @property
    def failure(self) -> GraphFailed:
        assert isinstance(self.last, GraphFailed), self.last
        return self.last

    @property
    def exception(self) -> BaseException:
        """Return the exception that the client's future raises."""
        return pickle.loads(self.failure.exception.frames[0])

    def needs(self, key: Any) -> list[Any]:
        """Return the keys of a task's dependencies."""
        numbers = self.dependencies[self.keys.index(key)]
        return [self.keys[n] if n >= 0 else self.externals[-1 - n] for n in numbers]

    def group(self, key: Any) -> tuple[str, str]:
        row = self.keys.index(key)
        groups = [number for chunk in self.chunks for number in chunk.groups]
        return self.group_names[groups[row]]

    def spec(self, key: Any) -> Any:
        """Return the task as a stock worker gets it, by distributed's own code."""
        return stock_loads(self.frames(key))["run_spec"]

    def frames(self, key: Any) -> list[Any]:
        """Return the frames of a message that contains this run_spec."""
        import msgpack

        for chunk in self.chunks:
            if key in chunk.keys:
                row = chunk.keys.index(key)
                ids = chunk.spec_buffers.get(row, [])
                head = msgpack.packb({"run_spec": {"__Pickled__": 1}})
                return [head, chunk.run_specs[row], *(self.buffers[i] for i in ids)]
        raise KeyError(key)

    def annotations(self, key: Any) -> AnnotationSet | None:
        known: list[AnnotationSet] = []
        for chunk in self.chunks:
            known += chunk.new_annotations
            if key in chunk.keys:
                number = chunk.annotations.get(chunk.keys.index(key))
                return None if number is None else known[number]
        raise KeyError(key)

    def run(self) -> dict[Any, Any]:
        """Compute all tasks in the order of their rows."""
        values: dict[Any, Any] = {}
        for key in self.keys:
            values[key] = self.spec(key)(values)
        return values


@pytest.fixture
def make_request():
    return request


@pytest.fixture(params=[True, False], ids=["accelerated", "plain"])
def accelerators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Enable the accelerators, or make calls of them fail."""

    def fail(*args: Any) -> None:
        raise AssertionError("an accelerator is used although they are switched off")

    with dask.config.set({"paceline.graph-compiler.accelerators": request.param}):
        if not request.param:
            monkeypatch.setattr(ordering, "task_order", fail)
            monkeypatch.setattr(spec_pickler, "SharedOpenings", fail)
        yield request.param


@pytest.fixture
def compile(accelerators):
    """Return compile(graph, keys=None, chunk_size=1000, **fields of the request) -> Compiled."""

    def compile_it(graph: Any, keys: Any = None, chunk_size: int = 1000, **more: Any) -> Compiled:
        made = graph if isinstance(graph, CompileRequest) else request(graph, keys, **more)
        loader = ReferenceLoader() if accelerators else None
        return Compiled(compile_graph(made, loader, chunk_size))

    return compile_it


@pytest.fixture
def as_compiled():
    return Compiled


@pytest.fixture
def close():
    return closed


class World:
    def __init__(self, scheduler, facade, client, worker):
        self.scheduler, self.facade, self.client, self.worker = scheduler, facade, client, worker


def attach(scheduler) -> SchedulerFacade:
    """Return the facade of a running scheduler."""
    return scheduler.server.plugins.facade


@pytest.fixture
async def world():
    async with (
        Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler,
        Worker(scheduler.address, nthreads=2, name="alice") as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        yield World(scheduler, attach(scheduler), client, worker)
