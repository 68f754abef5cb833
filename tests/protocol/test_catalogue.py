"""The catalogue matches a newly started stock scheduler, worker and nanny: ops, and argument names."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from distributed import Client, Nanny, Scheduler, Worker
from distributed import worker_state_machine as wsm
from paceline.protocol import messages
from paceline.protocol.catalogue import (
    RPC_DIRECTIONS,
    STREAM_DIRECTIONS,
    TABLES,
    Direction,
)
from paceline.protocol.message_fields import MESSAGE_FIELDS
from paceline.protocol.messages import Message, Request
from paceline.protocol.messages.base import COMMON_FIELDS
from paceline.protocol.reply_values import VALUES

#: Arguments that the connection itself uses.
CONNECTION_OPS = {"close", "close-stream"}
#: Ops that stock does not have.
OUR_OPS = {"explain", "shares"}
#: Arguments that the server adds to a message.
ADDED = {"comm", "worker", "client", "ts"}


@pytest.fixture(scope="module")
def stock() -> dict[str, Mapping[str, Any]]:
    """Return the tables of handlers after everything has started."""
    return asyncio.run(start_stock())


async def start_stock() -> dict[str, Mapping[str, Any]]:
    async with (
        Scheduler(port=0, dashboard_address=":0") as scheduler,
        Worker(scheduler.address, dashboard_address=":0") as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        nanny = Nanny(scheduler.address)
        return {
            "scheduler_rpc": dict(scheduler.handlers),
            "scheduler_streams": dict(scheduler.stream_handlers),
            "worker_rpc": dict(worker.handlers),
            "scheduler_to_worker": dict(worker.stream_handlers),
            "nanny_rpc": dict(nanny.handlers),
            "scheduler_to_client": dict(client._stream_handlers),
        }


def test_every_request_is_listed(stock: dict[str, Mapping[str, Any]]) -> None:
    assert len(stock["scheduler_rpc"]) == 94
    for direction in ("scheduler_rpc", "worker_rpc", "nanny_rpc"):
        assert set(TABLES[direction]) - CONNECTION_OPS - OUR_OPS == set(stock[direction])  # type: ignore[index]


def test_every_stream_op_is_listed(stock: dict[str, Mapping[str, Any]]) -> None:
    up = set(TABLES["worker_to_scheduler"]) | set(TABLES["client_to_scheduler"])
    assert up - CONNECTION_OPS == set(stock["scheduler_streams"])
    assert set(TABLES["scheduler_to_worker"]) - {"close-stream"} == set(
        stock["scheduler_to_worker"]
    )
    to_client = set(TABLES["scheduler_to_client"]) - CONNECTION_OPS
    assert to_client - {"stream-start", "stream-closed"} == set(stock["scheduler_to_client"])


def arguments(handler: Callable[..., Any]) -> tuple[set[str], bool]:
    """Return the names of a handler's arguments, and whether it takes any other."""
    parameters = inspect.signature(handler).parameters.values()
    open_ended = any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
    return {
        p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }, open_ended


#: Arguments of stock's handlers that are never sent.
NOT_SENT = {("unregister", "close")}  # taken by the connection, which closes after the reply


@pytest.mark.parametrize("direction", ["scheduler_rpc", "worker_rpc", "nanny_rpc"])
def test_requests_have_the_arguments_of_stocks_handlers(
    direction: Direction, stock: dict[str, Mapping[str, Any]]
) -> None:
    for name, handler in stock[direction].items():
        cls = TABLES[direction][name].cls
        ours = {f.encode_name for f in msgspec.structs.fields(cls)}
        assert issubclass(cls, Request)
        ours -= set(Request.__struct_fields__)
        ours.discard(cls.EXTRA_FIELD or "")
        theirs, open_ended = arguments(handler)
        theirs -= {"comm", "serializers"} | {a for op, a in NOT_SENT if op == name}
        if open_ended and not theirs:  # the real arguments are elsewhere
            continue
        assert ours == theirs, (name, ours ^ theirs)
        if direction == "scheduler_rpc":
            assert (cls.EXTRA_FIELD is not None) == open_ended, name


def test_what_stock_requires_or_leaves_out_matches(
    stock: dict[str, Mapping[str, Any]],
) -> None:
    """Defaults equal stock's; a field may also have a default where stock has none."""
    for name, handler in stock["scheduler_rpc"].items():
        cls = TABLES["scheduler_rpc"][name].cls
        parameters = inspect.signature(handler).parameters
        for field in msgspec.structs.fields(cls):
            parameter = parameters.get(field.encode_name)
            if parameter is None or parameter.default is inspect.Parameter.empty:
                continue
            if field.name in Request.__struct_fields__:
                continue
            assert not field.required, (name, field.name)
            if field.default is not msgspec.NODEFAULT and name != "get_metadata":
                same = field.default == parameter.default
                assert same or not parameter.default, (name, field.name)


def test_stream_messages_have_the_arguments_of_stocks_handlers(
    stock: dict[str, Mapping[str, Any]],
) -> None:
    tables: dict[Direction, str] = {
        "worker_to_scheduler": "scheduler_streams",
        "client_to_scheduler": "scheduler_streams",
        "scheduler_to_client": "scheduler_to_client",
    }
    for direction, table in tables.items():
        for name, op in TABLES[direction].items():
            handler = stock[table].get(name)
            if handler is None:
                continue
            ours = {f.encode_name for f in msgspec.structs.fields(op.cls)}
            theirs, open_ended = arguments(handler)
            if open_ended:
                assert theirs - ADDED <= ours, name
            else:
                assert ours - ADDED == theirs - ADDED, (name, ours ^ theirs)


def test_workers_accept_what_we_send() -> None:
    """Return the fields of stock's event classes, which are called with all fields of a message."""
    pairs = {
        messages.ComputeTask: wsm.ComputeTaskEvent,
        messages.FreeKeys: wsm.FreeKeysEvent,
        messages.RemoveReplicas: wsm.RemoveReplicasEvent,
        messages.AcquireReplicas: wsm.AcquireReplicasEvent,
        messages.StealRequest: wsm.StealRequestEvent,
        messages.RefreshWhoHas: wsm.RefreshWhoHasEvent,
        messages.CancelCompute: wsm.CancelComputeEvent,
    }
    for ours, theirs in pairs.items():
        names = {f.name for f in msgspec.structs.fields(ours)}
        assert names == set(inspect.signature(theirs).parameters), ours


def test_workers_send_what_we_accept() -> None:
    pairs = {
        messages.TaskFinished: wsm.TaskFinishedMsg,
        messages.TaskErred: wsm.TaskErredMsg,
        messages.ReleaseWorkerData: wsm.ReleaseWorkerDataMsg,
        messages.AddKeys: wsm.AddKeysMsg,
        messages.LongRunning: wsm.LongRunningMsg,
        messages.Reschedule: wsm.RescheduleMsg,
        messages.RequestRefreshWhoHas: wsm.RequestRefreshWhoHasMsg,
        messages.StealResponse: wsm.StealResponseMsg,
    }
    for ours, theirs in pairs.items():
        names = {f.name for f in msgspec.structs.fields(ours)} - {"status"}
        assert names == set(inspect.signature(theirs).parameters), ours
        assert ours.op() == theirs.op


# ------------------------------------------------------------------ the classes


def all_classes() -> list[type[Message]]:
    return sorted({op.cls for table in TABLES.values() for op in table.values()}, key=str)


def test_all_classes_are_exported() -> None:
    for cls in all_classes():
        assert getattr(messages, cls.__name__) is cls
    for name, value in vars(messages).items():
        if isinstance(value, type) and issubclass(value, Message):
            assert value in (*all_classes(), Message, Request), f"{name} is in no direction"


@pytest.mark.parametrize("cls", all_classes(), ids=lambda cls: cls.__name__)
def test_classes_follow_the_rules(cls: type[Message]) -> None:
    """Frozen, not tracked by the collector, described; named after its op; special fields exist."""
    config = cls.__struct_config__
    assert config.frozen and not config.gc and config.tag_field == "op"
    camel = "".join(word.capitalize() for word in cls.op().replace("-", "_").split("_"))
    prefixes, suffixes = ("Worker", "Nanny"), ("Rpc", "Report", "Request", "ToClient")
    names = {camel} | {prefix + camel for prefix in prefixes} | {camel + s for s in suffixes}
    assert cls.__name__ in names
    text = " ".join(base.__doc__ or "" for base in cls.__mro__)
    for name in cls.__struct_fields__:
        if name not in Request.__struct_fields__ or not issubclass(cls, Request):
            described = f"{name}:" in text or f"{name}," in text or name in COMMON_FIELDS
            assert described, f"{name} is not described"
    assert cls.EXTRA_FIELD is None or cls.EXTRA_FIELD in cls.__struct_fields__


def test_untyped_fields_of_stream_messages_are_declared() -> None:
    """A field that is ``Any`` is a key, keys, or an untyped value: the codec must know which."""
    for direction in STREAM_DIRECTIONS:
        for op in TABLES[direction].values():
            known = MESSAGE_FIELDS[op.cls]
            declared = {known.key_field, *known.keys_fields, *known.key_maps, *known.untyped_fields}
            for field in msgspec.structs.fields(op.cls):
                if "Any" in str(field.type):
                    assert field.name in declared, f"{op.name}.{field.name}"


def test_ops_by_name() -> None:
    assert [direction for direction in TABLES if "task-erred" in TABLES[direction]] == [
        "worker_to_scheduler",
        "scheduler_to_client",
    ]
    with pytest.raises(TypeError):
        TABLES["scheduler_rpc"] = {}  # type: ignore[index]


#: Requests whose reply may be any value, or that have none.
UNTYPED_REPLIES = {
    "close": "nothing: the connection ends",
    "connection_stream": "a stream",
    "register-client": "a stream",
    "subscribe_worker_status": "a stream of dicts",
    "feed": "a stream of what a function gives",
    "echo": "what was said",
    "proxy": "what the worker answers",
    "get_metadata": "what was set",
    "unregister": "stock says OK, or already-removed, or nothing",
    "terminate": "stock says OK, or the connection ends",
    "close_gracefully": "stock says OK, or the connection ends",
}


def test_each_reply_has_a_type_or_a_reason_to_have_none() -> None:
    untyped = {
        op.name
        for direction in RPC_DIRECTIONS
        for op in TABLES[direction].values()
        if op.reply is None and op.cls not in VALUES
    }
    assert untyped == set(UNTYPED_REPLIES)
