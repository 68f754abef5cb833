"""Stock's method calls inside the scheduler work here: by position, by name, with ``comm``, and awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import dask
import msgspec
import pytest
from distributed import Client, Nanny, Worker
from distributed.comm.core import CommClosedError
from distributed.protocol.pickle import dumps
from distributed.protocol.serialize import Serialized
from distributed.scheduler import Scheduler as Stock
from paceline.scheduler.server.scheduler import Scheduler

CONNECTION = "it takes over a connection, which a caller within the scheduler does not have"
REPLAY = (
    "stock's handlers of Client.recreate_error_locally take any positional arguments, and use none"
)
KINDS = "its further arguments belong to transitions that programs cannot recommend here (COMMANDED_STATES)"
#: Method, or op of a handler -> why it does not take the same arguments as in stock.
OTHER_CALLS = {
    **dict.fromkeys(("connection_stream", "register-client", "register-worker"), CONNECTION),
    "register_nanny": CONNECTION,
    **dict.fromkeys(("get_runspec", "get_error_cause"), REPLAY),
    "transition": KINDS,
}
Call = tuple[str, Any, Any]


@pytest.fixture
async def calls() -> AsyncIterator[list[Call]]:
    """Yield (name, stock's function, the function here) of each public method and each handler."""
    quick = {"distributed.comm.timeouts.connect": "100ms"}  # some calls are to a closed port
    with dask.config.set(quick):
        async with (
            Stock(port=0, host="127.0.0.1", dashboard_address=":0") as stock,
            Scheduler(port=0, host="127.0.0.1", dashboard=False) as here,
        ):
            public = [name for name in dir(stock) if not name.startswith("_")]
            methods = [name for name in public if inspect.ismethod(getattr(stock, name))]
            found = [
                (name, getattr(stock, name), getattr(here, name))
                for name in methods
                # test_facade_is_whole tests the others
                if hasattr(here, name) and name not in OTHER_CALLS
            ]
            for op in set(stock.handlers).difference(OTHER_CALLS):
                found.append((f"handlers[{op!r}]", stock.handlers[op], here.handlers[op]))
            yield found


def refusals(theirs: inspect.Signature, ours: inspect.Signature) -> Iterator[str]:
    """Return the differences between two signatures."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = ours.parameters
    extra = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    places = [name for name, p in taken.items() if p.kind in positional]
    for place, (name, parameter) in enumerate(theirs.parameters.items()):
        if parameter.kind is parameter.VAR_KEYWORD:
            if not extra:
                yield "further keyword arguments"
        elif name not in taken:
            yield f"{name}="
        elif parameter.kind in positional and places[place : place + 1] != [name]:
            yield f"{name} at position {place}"
        elif parameter.default is not parameter.empty and taken[name].default is parameter.empty:
            yield f"a call without {name}"
    for name, parameter in taken.items():
        optional = parameter.default is not parameter.empty
        variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if name not in theirs.parameters and not optional and not variadic:
            yield f"a call without {name}"


async def test_arguments_are_accepted_as_in_stock(calls: list[Call]) -> None:
    problems = {
        name: list(refusals(inspect.signature(stock), inspect.signature(here)))
        for name, stock, here in calls
    }
    assert len(problems) > 150  # methods and handlers
    assert {name: found for name, found in problems.items() if found} == {}


async def test_signatures_show_the_values_of_defaults(calls: list[Call]) -> None:
    defaults = {
        name: [p.default for p in inspect.signature(here).parameters.values()]
        for name, _, here in calls
    }
    assert defaults["handlers['add_keys']"][1] == []
    assert [name for name, found in defaults.items() if msgspec.NODEFAULT in found] == []


def test_the_comparison_sees_differences() -> None:
    def stock(comm: Any, a: Any, b: Any = 1, *, c: Any = 2) -> None: ...

    def swapped(comm: Any, b: Any = 1, a: Any = 2, *, c: Any = 2) -> None: ...

    def wanting(comm: Any, a: Any, b: Any, *, d: Any) -> None: ...

    def more(comm: Any, a: Any, b: Any = 1, *, c: Any = 2, **kwargs: Any) -> None: ...

    def found(theirs: Any, ours: Any) -> list[str]:
        return list(refusals(inspect.signature(theirs), inspect.signature(ours)))

    assert found(stock, swapped) == ["a at position 1", "b at position 2"]
    assert found(stock, wanting) == ["a call without b", "c=", "a call without d"]
    assert found(stock, more) == []
    assert found(more, stock) == ["further keyword arguments"]


#: A harmless call of each coroutine method -> positional and keyword arguments.
AWAITED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "broadcast": ((), {"msg": {"op": "identity"}}),
    "delete_worker_data": (("tcp://127.0.0.1:1", [], "test"), {}),
    "gather": (([], None), {}),
    "gather_on_worker": (("tcp://127.0.0.1:1", {}), {}),
    "get_call_stack": ((), {}),
    "get_cluster_state": (([],), {}),
    "get_profile": ((None,), {}),
    "get_profile_metadata": ((), {}),
    "get_story": ((["x"],), {}),
    "get_worker_logs": ((), {}),
    "performance_report": ((0, 0), {}),
    "rebalance": ((), {}),
    "register_nanny_plugin": ((None, b"", "nobody's", True), {}),
    "register_worker_plugin": ((None, b"", "nobody's"), {"idempotent": True}),
    "remove_worker": (("tcp://127.0.0.1:1",), {"stimulus_id": "test"}),
    "restart_workers": (([],), {"stimulus_id": "test"}),
    "retire_workers": (([],), {}),
    "upload_file": (("nothing.txt", b"", False), {}),
}
#: Coroutine methods that need a cluster, a connection, or a scheduler that ends.
NOT_AWAITED = frozenset(
    (
        "benchmark_hardware",
        "close",
        "dump_cluster_state_to_url",
        "feed",
        "finished",
        "proxy",
        "register_scheduler_plugin",
        "replicate",
        "restart",
        "scatter",
        "start",
        "unregister_nanny_plugin",
        "unregister_scheduler_plugin",
        "unregister_worker_plugin",
    )
)


async def test_coroutine_methods_return_coroutines(calls: list[Call]) -> None:
    """A coroutine can be awaited, and passed to ``create_task``, which takes no future."""
    theirs = {
        name: here
        for name, stock, here in calls
        if inspect.iscoroutinefunction(stock) and not name.startswith("handlers[")
    }
    assert set(theirs) == set(AWAITED) | NOT_AWAITED
    for name, (args, kwargs) in AWAITED.items():
        await asyncio.create_task(theirs[name](*args, **kwargs))


async def test_replies_of_plugins() -> None:
    """A plugin that registers others gets their errors as distributed's own serialized values."""
    from distributed.core import clean_exception
    from distributed.diagnostics.plugin import NannyPlugin, SchedulerPlugin, WorkerPlugin
    from distributed.protocol.serialize import deserialize

    class Fails(WorkerPlugin, NannyPlugin):
        name = "fails"

        def setup(self, worker: Any = None, nanny: Any = None) -> None:
            raise ValueError("at its setup")

    async with (
        Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler,
        Nanny(scheduler.address, nthreads=1) as _,
    ):
        for kind in ("worker", "nanny"):
            register = getattr(scheduler, f"register_{kind}_plugin")
            replies = await register(comm=None, plugin=dumps(Fails()), name="f", idempotent=False)
            (reply,) = replies.values()
            assert reply["status"] == "error"
            closed = {k: v for k, v in reply.items() if isinstance(v, Serialized)}
            opened = {k: deserialize(v.header, v.frames) for k, v in closed.items()}
            _, error, _ = clean_exception(**opened)
            assert (type(error), str(error)) == (ValueError, "at its setup")
            unregister = getattr(scheduler, f"unregister_{kind}_plugin")
            assert len(await unregister(comm=None, name="f")) == 1
            with pytest.raises(ValueError, match="does not exist"):
                await unregister(None, "f")
        plugin = SchedulerPlugin()
        await scheduler.register_scheduler_plugin(plugin, "given", idempotent=False)
        assert scheduler.plugins["given"] is plugin
        await scheduler.unregister_scheduler_plugin("given")
        assert "given" not in scheduler.plugins


async def test_feeds_write_to_the_connection_that_is_passed() -> None:
    class Comm:
        def __init__(self) -> None:
            self.written: list[Any] = []
            self.aborted = False

        async def write(self, value: Any) -> None:
            if len(self.written) == 2:
                raise CommClosedError("gone")
            self.written.append(value)

        def closed(self) -> bool:
            return self.aborted

        def abort(self) -> None:
            self.aborted = True

    async with Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler:
        comm = Comm()
        await scheduler.feed(comm, dumps(lambda dask_scheduler: 7), interval="10ms")
        assert comm.aborted and comm.written == [7, 7]


async def test_worker_that_does_not_exist_is_already_removed() -> None:
    async with (
        Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler,
        Worker(scheduler.address, name="alice") as worker,
        Client(scheduler.address, asynchronous=True) as _,
    ):
        remove = scheduler.handlers["unregister"]
        assert await remove("alice", stimulus_id="test", close=False) == "OK"
        assert worker.address not in scheduler.workers
        assert await remove(worker.address, stimulus_id="test") == "already-removed"
