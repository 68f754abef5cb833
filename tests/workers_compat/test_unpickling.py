"""Unpickling that the configuration disables."""

from __future__ import annotations

import collections
import pickle
from typing import Any

import dask.config
import pytest
from paceline.protocol.payload import Payload, pickled_payload
from paceline.workers_compat.security.unpickling import (
    UnpicklingDisabledError,
    check_allowed,
    deserialize,
    deserialize_or_raise,
    is_allowed,
    unpickle,
)


@pytest.fixture(params=["distributed.scheduler.pickle", "paceline.security.unpickle"])
def shut(request: Any) -> Any:
    with dask.config.set({request.param: False}):
        yield


@pytest.mark.parametrize("value", ["off", "No", "false", "0", 0])  # as dask reads variables
def test_all_forms_of_false_disable_unpickling(value: Any) -> None:
    with dask.config.set({"paceline.security.unpickle": value}):
        assert not is_allowed()


def closed(value: Any) -> Payload:
    return pickled_payload(pickle.dumps(value, protocol=5), [])


PLAIN = {"a": [1, 2.5, None, True, "x", b"y", ("t", {3}), frozenset([4])]}


def test_plain_data_is_still_deserialized(shut: None) -> None:
    assert not is_allowed()
    assert deserialize(closed(PLAIN)) == PLAIN


@pytest.mark.parametrize("value", [collections.OrderedDict(), len, ValueError(1), [range(3)]])
def test_pickles_with_classes_stay_serialized(shut: None, value: Any) -> None:
    payload = closed(value)
    assert deserialize(payload) is payload
    with pytest.raises(
        UnpicklingDisabledError, match=r"Cannot unpickle a thing: .*disables unpickling"
    ):
        deserialize_or_raise(payload, "a thing")
    with pytest.raises(UnpicklingDisabledError, match="Cannot unpickle a thing"):
        unpickle(pickle.dumps(value), "a thing")


def test_damaged_pickles_stay_serialized(shut: None) -> None:
    payload = pickled_payload(b"\x80\x05no pickle", [])
    assert deserialize(payload) is payload


def test_everything_is_deserialized_by_default() -> None:
    check_allowed("a thing")
    assert deserialize(closed(len)) is len
    assert deserialize(5) == 5
    assert deserialize_or_raise(closed(PLAIN), "x") == PLAIN
