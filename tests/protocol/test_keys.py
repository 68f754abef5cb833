"""Keys: prefixes and groups are those of dask."""

from __future__ import annotations

from typing import Any

import pytest
from dask.utils import key_split as dask_key_split
from distributed.utils import key_split_group
from hypothesis import given
from hypothesis import strategies as st
from paceline.protocol.keys import check_prefix, has_prefix, key_group, key_split, normalize_key

EXAMPLES = [
    *("x", "x-1", "x-1-2-3", ("x-2", 1), "('x-2', 1)", "('x', 1)", "hello-world-1"),
    *(b"hello-world-1", "ae05086432ca935f6eba409a8ecd4896", ("ae05086432ca935f6eba409a8ecd4896", 1)),
    *("<module.submodule.myclass object at 0xdaf372>", None, "x-abcdefab", "x-abcdefgh", "_(x)"),
    *("-a", "sum-part-0a1b2c", 5, 1.5, "((", "0-a", "('a-b-1', 0)", (("x-1", 2), 3), "shuffle-p2p-aa"),
]  # fmt: skip
words = st.text(st.sampled_from("abfgz019-_<>(),.' \"é"), min_size=1, max_size=40)


@pytest.mark.parametrize("key", EXAMPLES, ids=repr)
def test_names_are_dasks(key: object) -> None:
    assert key_split(key) == dask_key_split(key)
    assert key_group(key) == key_split_group(key)


@given(st.one_of(words, words.map(str.encode), st.tuples(words, st.integers())))
def test_names_are_dasks_for_any_key(key: object) -> None:
    assert key_split(key) == dask_key_split(key)
    try:
        expected = key_split_group(key)
    except Exception:  # dask's raises for "<"
        expected = "Other"
    assert key_group(key) == expected


@pytest.mark.parametrize("key", ["", b"", (), b"\xff\xfe", ("",), "<>", "< >"])
def test_names_of_unusual_keys(key: object) -> None:
    assert isinstance(key_split(key), str)
    key_group(key)


NAMELESS = [
    *("", b"", (), ((), 1), (((),),), b"\xff\xfe", (b"\xff", 1), "<>", "< >", b"<"),
    *(("x", ()), ("", 1), ("<", 1), "(", "-", None, 0, 1.5),
]


def raised(function: Any, *args: Any) -> type | None:
    try:
        function(*args)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("key", [*EXAMPLES, *NAMELESS], ids=repr)
def test_a_key_is_refused_as_by_dask(key: object) -> None:
    expected = raised(dask_key_split, key) or raised(key_split_group, key)
    assert raised(check_prefix, key) == expected
    assert has_prefix(key) == (expected is None)


@given(st.recursive(st.one_of(words, words.map(str.encode), st.binary(), st.integers()),
                    lambda inner: st.lists(inner, max_size=3).map(tuple)))  # fmt: skip
def test_any_key_is_refused_as_by_dask(key: object) -> None:
    expected = raised(dask_key_split, key) or raised(key_split_group, key)
    assert raised(check_prefix, key) == expected


def test_lists_become_tuples() -> None:
    assert normalize_key(["x", [1, [2, "y"]], 3.5]) == ("x", (1, (2, "y")), 3.5)
    assert normalize_key(("x", [1])) == ("x", (1,))
    assert normalize_key(b"x") == b"x"
