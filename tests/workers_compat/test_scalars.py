"""Pickled numbers are deserialized; other values are not."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from paceline.protocol.payload import pickled_payload
from paceline.workers_compat.security.unpickling import read_scalar, serialize_value


@pytest.mark.parametrize(
    ("value", "expected"),
    [(np.int64(7), 7), (np.float32(0.5), 0.5), (np.bool_(True), True), (3, 3), ("s", "s")],
)
def test_numbers_are_deserialized(value: object, expected: object) -> None:
    found = read_scalar(pickled_payload(pickle.dumps(value)))
    assert found == expected
    assert type(found) is type(expected)


class Hostile:
    def __reduce__(self) -> object:
        return os.system, ("true",)


@pytest.mark.parametrize("value", [Hostile(), [1, 2], np.arange(3), os.path.join, {"a": 1}])
def test_other_pickles_are_not_deserialized(value: object) -> None:
    payload = pickled_payload(pickle.dumps(value))
    assert read_scalar(payload) is payload
    broken = pickled_payload(b"nonsense")
    assert read_scalar(broken) is broken


def test_scalars_serialized_here_are_deserialized() -> None:
    assert read_scalar(serialize_value(np.int32(4))) == 4
