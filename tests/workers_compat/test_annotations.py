"""Annotations of layers and of submissions: shared sets, interpreted as in stock."""

from __future__ import annotations

import pickle
import time
from datetime import UTC, date, datetime

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import Task
from dask.base import collections_to_expr
from dask.delayed import delayed
from distributed.protocol.core import loads as stock_loads
from paceline.protocol.payload import Payload
from paceline.workers_compat.graphs.annotations import annotation_set, is_plain
from paceline.workers_compat.graphs.plain_keys import plain_key
from paceline.workers_compat.graphs.policies import Configured
from paceline.workers_compat.security.unpickling import deserialize


def graph(n=6):
    return {("x", i): Task(("x", i), max, i, 0) for i in range(n)}


def test_annotations_of_a_submission(compile, close):
    value = {
        "workers": ["alice", "10.0.0.1"],
        "allow_other_workers": True,
        "retries": 2,
        "priority": 5,
    }
    c = compile(graph(), annotations=close(value))
    sets = {id(c.annotations(key)) for key in c.keys}
    assert len(sets) == 1
    one = c.annotations(("x", 0))
    assert one.workers == ["alice", "10.0.0.1"]
    assert one.allow_other_workers is True
    assert one.retries == 2
    assert one.priority == 5
    assert one.resources is None
    assert one.value == value
    assert c.commit.global_annotations == value


def test_one_worker_without_its_list_and_a_set_of_them(compile, close):
    one = compile(graph(), annotations=close({"workers": "alice"})).annotations(("x", 0))
    assert one.workers == ["alice"]
    assert one.value == {"workers": "alice"}
    many = compile(graph(), annotations=close({"workers": {"bob", "alice"}})).annotations(("x", 0))
    assert many.workers == ["alice", "bob"]
    assert isinstance(many.value, Payload)


def test_functions_of_the_key(compile, close):
    def resources(key):
        return {"GPU": key[1] % 2}

    c = compile(graph(), annotations=close_by_value({"resources": resources}))
    assert c.annotations(("x", 1)).resources == {"GPU": 1}
    assert c.annotations(("x", 2)).resources == {"GPU": 0}
    assert c.annotations(("x", 1)) is c.annotations(("x", 3))
    assert sum(len(chunk.new_annotations) for chunk in c.chunks) == 2


def test_classes_are_functions_of_the_key(compile, close):
    c = compile(graph(), annotations=close({"custom": list, "retries": 2, "retry_on": OSError}))
    assert deserialize(c.annotations(("x", 1)).value)["custom"] == ["x", 1]
    assert c.annotations(("x", 1)) is not c.annotations(("x", 2))


def close_by_value(value):
    import cloudpickle
    from paceline.protocol.payload import pickled_payload

    return pickled_payload(cloudpickle.dumps(value))


def test_layers_win_over_the_submission(compile, close):
    with dask.annotate(retries=7, custom="layer"):
        x = da.ones(8, chunks=2)
    y = x.sum()
    with dask.config.set({"optimization.fuse.active": False}):
        c = compile(y, annotations=close({"retries": 1, "owner": "me"}), chunk_size=2)
    of_layer = [k for k in c.keys if c.annotations(k).retries == 7]
    others = [k for k in c.keys if c.annotations(k).retries == 1]
    assert of_layer and others
    assert len(of_layer) + len(others) == len(c.keys)
    assert c.annotations(of_layer[0]).value == {"retries": 7, "owner": "me", "custom": "layer"}
    assert c.annotations(others[0]).value == {"retries": 1, "owner": "me"}


def test_none_in_a_layer_switches_off_a_policy(compile, close):
    with dask.annotate(timeout=None, custom=None):
        x = delayed(max)(1, 2)
    with dask.config.set({"paceline.scheduler.policies": {"max": {"timeout": 5}}}):
        assert compile(y := delayed(max)(1, 2)).annotations(y.key).policy.timeout_seconds == 5
        one = compile(x, annotations=close({"timeout": 7, "custom": 1})).annotations(x.key)
    assert one.policy is None
    assert one.value == {"timeout": None, "custom": 1}


@pytest.mark.parametrize("error", [OSError, UnicodeDecodeError])
def test_an_exception_class_of_a_layer_is_not_called(compile, error):
    with dask.annotate(retries=2, retry_on=error):
        x = delayed(max)(1, 2)
    for graph in (x, collections_to_expr([x, delayed(min)(3, 4)])):
        assert compile(graph).annotations(x.key).policy.retry_on == [f"builtins.{error.__name__}"]


def test_no_annotations(compile):
    c = compile(graph())
    assert all(c.annotations(key) is None for key in c.keys)
    assert all(not chunk.annotations and not chunk.new_annotations for chunk in c.chunks)


def test_values_of_other_types_stay_serialized(compile, close):
    c = compile(graph(), annotations=close({"meta": np.int64(3), "retries": 1}))
    one = c.annotations(("x", 0))
    assert one.retries == 1
    import msgpack

    head = msgpack.packb({"annotations": {"__Pickled__": 1}})
    frames = [head, one.value.header, *one.value.frames]
    assert stock_loads(frames)["annotations"] == {"meta": 3, "retries": 1}


@pytest.mark.parametrize(
    "value",
    [
        {"retries": "3"},
        {"resources": ["GPU"]},
        {"priority": "high"},
        {"group": 5},
        {"group": "\ud800"},
        {"workers": [["a"]]},
        {"workers": [{}]},
        {"workers": ["a", None]},
        {"workers": ""},
        {"workers": {"x": "alice"}},
        {"workers": [["alice", 1]]},
        {"workers": None},
    ],
)
def test_wrong_types_fail_the_graph(compile, close, value):
    c = compile(graph(), annotations=close(value))
    assert isinstance(c.exception, TypeError)
    assert next(iter(value)) in str(c.exception)


def test_numbers_of_other_types():
    found = annotation_set({"retries": np.int64(2), "priority": True})
    assert found.retries == 2
    assert found.priority == 1 and type(found.priority) is int
    value = {"retries": 1, "retry_delay": np.int64(1), "retry_backoff": np.int64(2)}
    policy = annotation_set(value).policy
    assert (policy.retry_delay_seconds, policy.retry_backoff) == (1, 2)
    policy = annotation_set({"speculative": np.True_, "pure": np.True_}).policy
    assert policy.speculative is True and policy.pure is True


def test_subclasses_of_builtin_types_become_builtin():
    """Graph compilers can send no others."""
    found = annotation_set(
        {
            "priority": np.float64(1.5),
            "group": np.str_("batch"),
            "workers": [np.int64(3), np.str_("alice"), ("10.0.0.1", np.int64(80))],
        }
    )
    assert (found.priority, type(found.priority)) == (1.5, float)
    assert (found.group, type(found.group)) == ("batch", str)
    assert found.workers == [3, "alice", ("10.0.0.1", 80)]
    assert [type(each) for each in (*found.workers[:2], found.workers[2][1])] == [int, str, int]


def test_workers_are_names_numbers_or_pairs():
    names = ["alice", 0, ("10.0.0.1", 8000)]
    assert annotation_set({"workers": names}).workers == names


def test_share_group():
    assert annotation_set({"group": "batch"}).group == "batch"
    with pytest.raises(TypeError, match=r"'group' must be the name of a group, .*, not ''"):
        annotation_set({"group": ""})
    with pytest.raises(TypeError, match="a text of 1 to 200 characters"):
        annotation_set({"group": "x" * 201})


def test_none_is_no_share_group_and_no_retries(compile, close):
    none = annotation_set({"group": None, "retries": None}, configured(retries=2))
    assert none.group is none.retries is None
    with dask.annotate(group=None):
        x = delayed(max)(1, 2)
    assert compile(x, annotations=close({"group": "batch"})).annotations(x.key).group is None


def configured(**options):
    return {name: Configured(value, "x*") for name, value in options.items()}


@pytest.mark.parametrize(
    ("options", "annotations"),
    [
        ({"retry_on": "OSError", "retry_delay": 1, "retry_elsewhere": True}, {}),
        ({"retry_on": "missing.Error", "retries": None}, {}),
        ({"retry_backoff": 2, "retry_delay_max": 5}, {"retries": 2}),
        ({"speculative": True}, {"pure": False}),
    ],
)
def test_configured_policies_without_effect(options, annotations):
    """Configure policies that need or contradict others."""
    found = annotation_set(annotations, configured(**options))
    assert found.policy == annotation_set(annotations).policy
    assert found.retries == annotations.get("retries")


def test_configured_policies_with_annotated_retries():
    policy = annotation_set({"retries": 2}, configured(retry_on="OSError", retry_delay=1)).policy
    assert (policy.retry_on, policy.retry_delay_seconds) == (["builtins.OSError"], 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retry_on": "missing.Error"}, "'retry_on' names 'missing.Error', which"),
        ({"deadline": "2020-01-31"}, "'deadline'='2020-01-31' had passed when the graph arrived"),
        ({"retry_delay": 2, "retry_delay_max": 1}, "'retry_delay_max'=1 is less than"),
    ],
)
def test_errors_about_configured_policies_name_the_setting(options, text):
    where = r"in `paceline\.scheduler\.policies`, pattern 'x\*': "
    with pytest.raises((ValueError, TimeoutError), match=f"^{where}{text}"):
        annotation_set({"retries": 2}, configured(**options), received_at=1e9 * 1.7)
    with pytest.raises((ValueError, TimeoutError), match=f"^the annotation {text}"):
        annotation_set({"retries": 2, **options}, received_at=1e9 * 1.7)


@pytest.fixture
def new_york(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def test_a_deadline_without_a_zone_is_local_time_of_the_scheduler(new_york):
    passed = r"2026-01-31 18:00:00-05:00 is before 2026-01-31 19:00:00-05:00"
    arrived = datetime(2026, 2, 1, 0, 0, tzinfo=UTC).timestamp()
    for value in (datetime(2026, 1, 31, 18), "2026-01-31 18:00"):
        assert annotation_set({"deadline": value}).policy.deadline == arrived - 3600
        local = r"\. A time without a zone is local time of the scheduler \(EST\)$"
        with pytest.raises(TimeoutError, match=passed + local):
            annotation_set({"deadline": value}, received_at=arrived)
    with pytest.raises(TimeoutError, match=f"{passed}$"):
        annotation_set({"deadline": "2026-01-31 23:00Z"}, received_at=arrived)
    with pytest.raises(ValueError, match="without a zone, local time of the scheduler"):
        annotation_set({"deadline": "tomorrow"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (pd.Timestamp("2030-01-31 18:00", tz="Europe/Berlin"), "2030-01-31 12:00:00-05:00"),
        (pd.Timestamp("2030-01-31 18:00"), "2030-01-31 18:00:00-05:00"),
        (np.datetime64("2030-01-31T18:00", "ns"), "2030-01-31 18:00:00-05:00"),
        (np.datetime64("2030-01-31"), "2030-01-31 00:00:00-05:00"),
        (date(2030, 1, 31), "2030-01-31 00:00:00-05:00"),
        (pd.Timedelta("1m"), "1969-12-31 19:01:00-05:00"),
    ],
)
def test_deadlines_of_other_types(new_york, value, text):
    assert annotation_set({"deadline": value}).policy.deadline_text == text


@pytest.mark.parametrize("value", ["5 min", "5mins", "1h30m", "1 year"])
@pytest.mark.parametrize("name", ["timeout", "deadline"])
def test_errors_about_durations_list_the_units(name, value):
    text = f"not '{value}'. A duration is a number and one unit: ns, us, ms, s, m, h, d, w, or"
    with pytest.raises(ValueError, match=text):
        annotation_set({name: value})


@pytest.mark.parametrize("value", [datetime.min, pd.NaT, np.datetime64("NaT")])
def test_values_that_are_no_deadlines(value):
    with pytest.raises((TypeError, ValueError), match=r"'deadline' must be .*a time.*, not "):
        annotation_set({"deadline": value})


def test_a_span_with_a_text_that_cannot_be_sent_is_ignored():
    assert annotation_set({"span": {"name": ("a",), "ids": ("1",)}}).span == (("a",), ("1",))
    assert annotation_set({"span": {"name": ("a",), "ids": ("\ud800",)}}).span is None


def test_annotations_with_tuples_are_pickled():
    """msgpack would make them lists, which hooks of plugins cannot use as keys."""
    for value in ((1, 2), [(1,)], {"a": (1,)}):
        one = annotation_set({"custom": value})
        assert type(one.value) is Payload and deserialize(one.value) == {"custom": value}
    plain = {"custom": [1], "span": {"name": ("a",), "ids": ("1",)}}
    assert annotation_set(plain).value == plain
    assert annotation_set(plain).value_less_span == {"custom": [1]}


def test_tasks_without_their_span_keep_other_annotations():
    span = {"name": ("a",), "ids": ("1",)}
    found = annotation_set({"span": span, "color": "red"}, options={"retries": Configured(2, "*")})
    assert found.value_less_span == {"color": "red"}


def test_former_names():
    one = annotation_set({"restrictions": ("a",), "loose_restrictions": 1})
    assert one.workers == ["a"]
    assert one.allow_other_workers is True


def test_plain_values():
    assert is_plain({"a": [1, 2.0, None, b"x", ("t",)]})
    deep = []
    for _ in range(100):
        deep = [deep]
    for value in ({1}, {1: 2}, np.float64(1), object(), 2**70, deep, "\ud800", {"\ud800": 1}):
        assert not is_plain(value)
    assert pickle.loads(pickle.dumps(deep)) == deep


def test_an_int_in_a_key_has_at_most_64_bits():
    assert plain_key(("x", 2**63)) == ("x", 2**63)
    with pytest.raises(OverflowError, match="more than 64 bits"):
        plain_key(("x", 2**70))
