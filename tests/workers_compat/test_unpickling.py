"""What is opened where the configuration says that nothing is."""

from __future__ import annotations

import collections
import pickle
from typing import Any

import dask.config
import pytest
from paceline.protocol.payload import Payload, pickled_payload
from paceline.workers_compat.unpickling import (
    PickleForbidden,
    check_allowed,
    is_allowed,
    opened,
    opened_or_refused,
    unpickle,
)


@pytest.fixture(params=["distributed.scheduler.pickle", "paceline.security.unpickle"])
def shut(request: Any) -> Any:
    with dask.config.set({request.param: False}):
        yield


def closed(value: Any) -> Payload:
    return pickled_payload(pickle.dumps(value, protocol=5), [])


PLAIN = {"a": [1, 2.5, None, True, "x", b"y", ("t", {3}), frozenset([4])]}


def test_plain_data_is_read_all_the_same(shut: None) -> None:
    assert not is_allowed()
    assert opened(closed(PLAIN)) == PLAIN


@pytest.mark.parametrize("value", [collections.OrderedDict(), len, ValueError(1), [range(3)]])
def test_what_names_a_class_stays_closed(shut: None, value: Any) -> None:
    payload = closed(value)
    assert opened(payload) is payload
    with pytest.raises(PickleForbidden, match=r"opens no pickles.*to open a thing"):
        opened_or_refused(payload, "a thing")
    with pytest.raises(PickleForbidden, match="to open a thing"):
        unpickle(pickle.dumps(value), "a thing")


def test_damaged_ones_stay_closed(shut: None) -> None:
    payload = pickled_payload(b"\x80\x05no pickle", [])
    assert opened(payload) is payload


def test_by_default_all_is_opened() -> None:
    check_allowed("a thing")
    assert opened(closed(len)) is len
    assert opened(5) == 5
    assert opened_or_refused(closed(PLAIN), "x") == PLAIN
