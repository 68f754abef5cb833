"""Large maps are encoded as other maps are."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from paceline.protocol import messages as m
from paceline.protocol.codec import Codec
from paceline.protocol.flat_map import FlatMap
from paceline.protocol.payload import Payload

SIZES = [0, 1, 7, 8, 100, 40_000, 70_000]


def some(n: int) -> tuple[list[Any], list[Any]]:
    keys = [("x", i) if i % 3 else f"x-{i}" for i in range(n)]
    return keys, [("tcp://a:1", f"tcp://b:{i}") for i in range(n)]


def compute(who_has: Any, nbytes: Any) -> m.ComputeTask:
    return m.ComputeTask(
        key="k", run_id=1, priority=(1,), stimulus_id="s", who_has=who_has, nbytes=nbytes,
        run_spec=Payload("pickled", b"x", ()),
    )  # fmt: skip


@pytest.mark.parametrize("n", SIZES)
def test_it_is_a_map(n: int) -> None:
    keys, values = some(n)
    made = FlatMap.of(keys, values)
    plain = dict(zip(keys, values, strict=True))
    assert len(made) == n and bool(made) == bool(n)
    assert made.as_dict() == plain == dict(made.items())
    assert list(made.values()) == values
    if n:
        assert made[keys[-1]] == values[-1] and keys[0] in made
    read = msgpack.unpackb(made.packed(), use_list=False, strict_map_key=False)
    assert read == plain and list(read) == keys


@pytest.mark.parametrize("n", SIZES)
def test_in_a_message_it_equals_a_dict(n: int) -> None:
    """Decode as a stock worker does."""
    keys, values = some(n)
    sizes = list(range(n))
    flat = Codec().encode([compute(FlatMap.of(keys, values), FlatMap.of(keys, sizes))])
    plain = Codec().encode(
        [compute(dict(zip(keys, values, strict=True)), dict(zip(keys, sizes, strict=True)))]
    )
    said, expected = (
        msgpack.unpackb(frames[0], use_list=False, strict_map_key=False) for frames in (flat, plain)
    )
    assert said == expected
    assert list(said[0]["who_has"]) == keys
    assert flat[1:] == plain[1:]


def test_where_messages_are_dicts() -> None:
    """A batch that contains a plugin's message, and a value of a reply."""
    keys, values = some(10)
    plain = dict(zip(keys, values, strict=True))
    (frame,) = Codec().encode({"status": "OK", "found": FlatMap.of(keys, values)})
    assert msgpack.unpackb(frame, use_list=False, strict_map_key=False)["found"] == plain
    made = compute(FlatMap.of(keys, values), {})
    frames = Codec().encode([made, {"op": "mine"}])
    read = msgpack.unpackb(frames[0], use_list=False, strict_map_key=False)
    assert read[0]["who_has"] == plain
