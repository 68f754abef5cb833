"""The codec: requests, and their fields that are converted, dropped or refused."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from paceline.protocol.codec import Codec
from paceline.protocol.messages import (
    HeartbeatWorker,
    InvalidMessage,
    RegisterWorker,
    RetireWorkers,
    UnknownMessage,
)

from tests.protocol.requests import decode_rpc, stock_frames

HEARTBEAT = {
    "op": "heartbeat_worker", "address": "tcp://127.0.0.1:1", "now": 5.0, "executing": {"x": 1.0},
    "metrics": {"memory": 5, "cpu": 1.5, "mine": math.nan, "bandwidth": {"total": 1e8}},
    "extensions": {"spans": {("execute", "id"): 1.0}, "mine": math.nan},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("now", math.nan, None),
        ("executing", {"x": math.nan}, None),
        ("resources", {"GPU": math.nan}, None),
        ("metrics", 5, {}),
        ("metrics", {"mine": math.nan, "memory": math.nan, "cpu": 1}, {"mine": math.nan, "cpu": 1}),
        ("metrics", {"bandwidth": {"workers": {"tcp://a:1": (math.inf, 1)}}, "cpu": 1}, {"cpu": 1}),
        ("metrics", {"bandwidth": 5, "spilled_bytes": {"disk": "x"}, "transfer": []}, {}),
        ("metrics", {"digests_total_since_heartbeat": {("a", "b"): "x"}, "cpu": 1}, {"cpu": 1}),
        ("extensions", {"spans": {"x": "y"}, "mine": 1}, {"mine": 1}),
    ],
)
def test_invalid_field_of_a_heartbeat_is_dropped(name: str, change: Any, expected: Any) -> None:
    codec = Codec()
    valid = decode_rpc(codec, codec.encode(HEARTBEAT))
    assert repr(valid.metrics) == repr(HEARTBEAT["metrics"]) and valid.executing == {"x": 1.0}
    message = decode_rpc(codec, codec.encode({**HEARTBEAT, name: change}))
    assert repr(message) == repr(msgspec.structs.replace(valid, **{name: expected}))


def test_requests() -> None:
    request = {"op": "heartbeat_worker", "address": "tcp://a:1", "reply": True, "now": 1.5}
    metrics = {("execute", "x", "seconds"): 0.5, "task_counts": {"memory": 1}, "l": [1, [2]]}
    request |= {"metrics": metrics, "executing": {("x", 1): 0.25}, "extensions": {}}
    message = decode_rpc(Codec(), stock_frames(request))
    assert type(message) is HeartbeatWorker
    assert message.metrics == {**metrics, "l": (1, (2,))}
    assert message.executing == {("x", 1): 0.25}


def test_invalid_arguments() -> None:
    codec = Codec()
    invalid = decode_rpc(codec, stock_frames({"op": "who_has", "keys": ["x"], "workers": 5}))
    assert type(invalid) is InvalidMessage and invalid.path == "$.workers"
    assert invalid.error == "got an unexpected keyword argument 'workers'"
    invalid = decode_rpc(codec, stock_frames({"op": "gather"}))
    assert type(invalid) is InvalidMessage and "keys" in invalid.error
    invalid = decode_rpc(codec, stock_frames({"op": "replicate", "keys": ["x"], "n": "two"}))
    assert type(invalid) is InvalidMessage and invalid.path == "$.n"
    assert type(decode_rpc(codec, stock_frames({"op": "nope", "x": 1}))) is UnknownMessage


def test_requests_that_take_any_argument() -> None:
    message = decode_rpc(Codec(), stock_frames({"op": "retire_workers", "n": 3, "remove": False}))
    assert message == RetireWorkers(remove=False, extra_arguments={"n": 3})
    assert decode_rpc(Codec(), Codec().encode(message)) == message


def test_register_worker_with_few_fields() -> None:
    """A worker in another language does not need all of stock's fields."""
    message = decode_rpc(Codec(), stock_frames({"op": "register-worker", "address": "tcp://a:1"}))
    assert type(message) is RegisterWorker and message.nthreads == 1
