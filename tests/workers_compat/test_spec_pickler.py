"""Stock workers can unpickle tasks, and large values are stored once."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import threading
import time

import cloudpickle
import msgpack
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Dict, List, Task, TaskRef
from distributed.protocol.core import loads as stock_loads
from distributed.shuffle._core import P2PBarrierTask, ShuffleId, p2p_barrier
from distributed.shuffle._shuffle import DataFrameShuffleSpec
from paceline.protocol.payload import pickled_header
from paceline.workers_compat.graphs.shared_buffers import IN_BAND_MIN_NBYTES, SharedBuffers
from paceline.workers_compat.graphs.spec_pickler import SpecPickler

BIG = 8_000_000


def add(*values):
    return sum(values)


@pytest.fixture
def by_value():
    """Pickle this module by value, like ``__main__``."""
    module = sys.modules[__name__]
    main = "__main__"
    functions = [add, Holder, closing_over]
    for function in functions:
        function.__module__ = main
    yield
    for function in functions:
        function.__module__ = module.__name__


class Holder:
    def __init__(self, data):
        self.data = data

    def size(self):
        return len(self.data)


def closing_over(array, data):
    def closure(i):
        return array.sum() + len(data) + i

    return closure


def send(tasks):
    """Pickle all tasks with one pickler, and read them with distributed's own reader."""
    pickler, shared = SpecPickler(), SharedBuffers()
    head = msgpack.packb({"run_spec": {"__Pickled__": 1}})
    sent = []
    for spec in tasks:
        data, buffers = pickler.dumps(spec)
        sent.append((pickled_header(data, len(buffers)), [shared.add(b) for b in buffers]))
    views = shared.take_new()
    got = [stock_loads([head, h, *(views[i] for i in ids)])["run_spec"] for h, ids in sent]
    return got, shared, sum(len(h) for h, _ in sent)


def test_all_kinds_of_nodes():
    tasks = [
        Task("a", add, 1, TaskRef("b"), kw=TaskRef("c")),
        Task(
            "b",
            add,
            List(TaskRef("a"), 3),
            Dict({"x": TaskRef("y")}),
            {"plain": [1]},
            _data_producer=True,
        ),
        Alias("c", "d"),
        DataNode("e", {1: 2}),
        Task(("f", 0), functools.partial(add, 1), "text", b"bytes", None, 2.5),
    ]
    got, _, _ = send(tasks)
    for before, after in zip(tasks, got, strict=True):
        assert type(after) is type(before)
        assert after.key == before.key
        assert after.dependencies == before.dependencies
        assert after.data_producer == before.data_producer
    assert got[0].kwargs["kw"] == TaskRef("c")
    assert got[1].args[2] == {"plain": [1]}


def test_functions_are_cloudpickled_once(by_value, monkeypatch):
    made = []
    original = cloudpickle.Pickler

    class Counting(original):
        def dump(self, obj):
            made.append(obj)
            return super().dump(obj)

    monkeypatch.setattr(cloudpickle, "Pickler", Counting)
    got, _, _ = send([Task(("x", i), add, i, 1) for i in range(100)])
    assert [task(()) for task in got] == [i + 1 for i in range(100)]
    assert made == [add]


def test_workers_do_not_import_paceline(by_value, tmp_path):
    data, buffers = SpecPickler().dumps(Task("x", add, 1, 2))
    path = tmp_path / "task"
    path.write_bytes(pickle.dumps((data, [bytes(b) for b in buffers])))
    script = (
        "import sys, pickle; sys.modules['paceline'] = None\n"
        "data, buffers = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(pickle.loads(data, buffers=buffers)(()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "3"


def test_fifty_tasks_over_one_array():
    array = np.arange(BIG / 8)
    got, shared, inline = send([Task(i, functools.partial(np.add, array), i) for i in range(50)])
    assert shared.nbytes == array.nbytes
    assert inline < 50_000
    np.testing.assert_array_equal(got[49](()), array + 49)


def test_fifty_equal_arrays():
    got, shared, _ = send([Task(i, np.sum, np.ones(BIG // 64)) for i in range(50)])
    assert shared.nbytes == BIG // 8
    assert got[7](()) == BIG // 64


def test_arrays_of_equal_size_and_different_content():
    arrays = [np.zeros(100_000) for _ in range(4)]
    for i, array in enumerate(arrays):
        array[1000 + i] = 1
    got, shared, _ = send([Task(i, np.argmax, array) for i, array in enumerate([*arrays, *arrays])])
    assert len(shared) == 4
    assert [int(task(())) for task in got] == [1000, 1001, 1002, 1003] * 2


@pytest.mark.parametrize(
    "value",
    [
        bytes(BIG),
        "x" * BIG,
        "é\ud800" * 50_000,
        bytearray(BIG),
        bytes(IN_BAND_MIN_NBYTES),
        bytes(IN_BAND_MIN_NBYTES - 1),
        np.ones((2000, 500), order="F"),
        np.ones((1000, 1000))[::2, ::3],
    ],
    ids=["bytes", "str", "surrogates", "bytearray", "least", "one less", "fortran", "strided"],
)
def test_large_values_inside_tasks_are_stored_once(value):
    n = 8
    got, shared, inline = send(
        [Task(i, len, value, ["before", value, "after", i]) for i in range(n)]
    )
    size = len(value) if isinstance(value, bytes | bytearray) else 0
    if size >= IN_BAND_MIN_NBYTES:
        assert shared.nbytes == size
    if size != IN_BAND_MIN_NBYTES - 1:
        assert len(shared) == 1
        assert inline < 10_000
    for i, task in enumerate(got):
        first, rest = task.args
        assert type(first) is type(value)
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(first, value)
        else:
            assert first == value
        assert rest[0] == "before"
        assert rest[2:] == ["after", i]
        assert rest[1] is first


def test_many_large_values_in_one_task_keep_their_places():
    big = [bytes([i]) * (IN_BAND_MIN_NBYTES + i) for i in range(5)]
    text = ["abc" * 40_000, "d" * 70_000]
    array = np.arange(50_000)
    args = (
        big[0],
        array,
        text[0],
        big[1],
        [big[2], text[1], big[3]],
        array * 2,
        {"k": big[4]},
        big[0],
    )
    got, shared, _ = send([Task(i, len, *args, i) for i in range(3)])
    assert len(shared) == 9
    for task in got:
        for before, after in zip(args, task.args, strict=False):
            if isinstance(before, np.ndarray):
                np.testing.assert_array_equal(before, after)
            else:
                assert before == after


def test_an_object_that_holds_bytes(by_value):
    holder = Holder(bytes(BIG))
    got, shared, inline = send([Task(i, Holder.size, holder) for i in range(50)])
    assert shared.nbytes < BIG + 10_000
    assert inline < 100_000
    assert got[3](()) == BIG


def test_closures_over_large_values(by_value):
    array, data = np.ones(BIG // 8), bytes(BIG)
    closures = [closing_over(array, data) for _ in range(10)]
    got, shared, inline = send([Task(i, closures[i % 10], i) for i in range(50)])
    assert shared.nbytes < 2 * BIG + 10_000
    assert inline < 100_000
    assert got[49](()) == array.sum() + BIG + 49


def test_a_dataframe():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": np.arange(100_000), "s": [f"row {i}" for i in range(100_000)]})
    got, shared, inline = send([Task(i, len, frame) for i in range(20)])
    assert inline < 100_000
    assert shared.nbytes < 4_000_000
    pd.testing.assert_frame_equal(got[3].args[0], frame)


def test_scheduler_reads_a_shuffle_without_pandas(tmp_path):
    """Its dataframe stays pickled in the scheduler, which sends it on to workers."""
    pd = pytest.importorskip("pandas")
    meta = pd.DataFrame({"a": [1], "s": ["text"]})
    spec = DataFrameShuffleSpec(ShuffleId("id"), True, 4, "a", meta, [0, 3], True)
    barrier = P2PBarrierTask("shuffle-barrier-id", p2p_barrier, "id", spec=spec)
    ((received,), _, _) = send([barrier])
    pd.testing.assert_frame_equal(received.spec.meta, meta)
    data, buffers = SpecPickler().dumps(barrier)
    path = tmp_path / "task"
    path.write_bytes(pickle.dumps((data, [bytes(b) for b in buffers])))
    script = """
import pickle, sys
from paceline.protocol.payload import pickled_payload
from paceline.workers_compat.security.unpickling import deserialize_outer, serialize_value
spec = deserialize_outer(pickled_payload(*pickle.load(open(sys.argv[1], "rb"))), "a task").spec
run = spec.create_new_run({i: spec.pick_worker(i, ["x", "y"]) for i in spec.output_partitions}, None)
pickle.dump(bytes(serialize_value(run.run_spec).header), open(sys.argv[1], "wb"))
print(run.run_spec.worker_for, "pandas" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "{0: 'x', 3: 'y'} False"
    run_spec = stock_loads(
        [msgpack.packb({"r": {"__Pickled__": 1}}), pickle.loads(path.read_bytes())]
    )
    pd.testing.assert_frame_equal(run_spec["r"].spec.meta, meta)


def test_identity_within_a_task_is_kept():
    shared_list = [1]
    got, _, _ = send([Task("a", len, shared_list, {"again": shared_list})])
    assert got[0].args[1]["again"] is got[0].args[0]


def test_values_that_only_cloudpickle_can_pickle():
    got, _, _ = send([Task("a", len, {}.keys()), Task("b", add, 1, 2)])
    assert list(got[0].args[0]) == []
    assert got[1](()) == 3


def test_values_that_cannot_be_pickled_leave_the_pickler_intact():
    pickler = SpecPickler()
    with pytest.raises(TypeError):
        pickler.dumps(Task("a", len, bytes(100_000), threading.Lock()))
    data, buffers = pickler.dumps(Task("b", add, 1, 2))
    assert not buffers
    import pickle

    assert pickle.loads(data)(()) == 3


@pytest.mark.parametrize("where", ["importable", "by value"])
def test_speed(where, request):
    """The limit is several times the usual duration, so that a busy machine does not fail the test."""
    if where == "by value":
        request.getfixturevalue("by_value")
    tasks = [Task(("x", i), add if where == "by value" else max, i, 0) for i in range(5000)]
    best = float("inf")
    for _ in range(3):
        pickler = SpecPickler()
        started = time.perf_counter()
        for task in tasks:
            pickler.dumps(task)
        best = min(best, time.perf_counter() - started)
    assert best / len(tasks) < 30e-6


def test_tasks_with_one_function_share_a_prefix():
    tasks = [Task(("x", i), add, TaskRef(("y", i)), i, [f"text {i}"], kw=add) for i in range(4)]
    got, _, _ = send(tasks)
    assert got == tasks
    pickler = SpecPickler()
    first, second, third = [pickler.dumps(spec)[0] for spec in tasks[:3]]
    assert second[:60] == third[:60] != first[:60]


def test_function_without_shared_prefix_is_pickled_each_time(by_value):
    array = np.zeros(100_000)
    closure = closing_over(array, b"x" * 100_000)
    tasks = [Task(i, closure, i) for i in range(3)]
    got, shared, _ = send(tasks)
    assert [task() for task in got] == [100_000, 100_001, 100_002]
    assert shared.nbytes < 1_100_000
