"""Real dask objects, compiled: rows, order, dependencies, groups, and tasks that workers can run."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import Alias, DataNode, List, Task, TaskRef
from dask.delayed import delayed
from distributed.protocol.core import loads as stock_loads
from paceline.protocol.payload import serialized_payload
from paceline.scheduler.core.stimuli import GraphCommit
from paceline.workers_compat.graphs.compiler import UNREADABLE
from paceline.workers_compat.graphs.compiler_messages import CompileRequest, encode_request
from paceline.workers_compat.graphs.plain_keys import plain_key


def add(a, b):
    return a + b


def diamond() -> dict:
    return {
        "top-1": Task("top-1", add, TaskRef(("left", 0)), TaskRef(("right", 0))),
        ("left", 0): Task(("left", 0), add, TaskRef("root"), 10),
        ("right", 0): Task(("right", 0), add, TaskRef("root"), 20),
        "root": DataNode("root", 1),
        "unused": Task("unused", add, 1, 2),
    }


def assert_topological(compiled) -> None:
    for row, numbers in enumerate(compiled.dependencies):
        assert all(number < row for number in numbers)
        assert numbers == sorted(numbers, key=lambda n: (n < 0, abs(n)))


def test_a_diamond(compile):
    c = compile(diamond(), ["top-1"])
    assert set(c.keys) == {"top-1", ("left", 0), ("right", 0), "root"}
    assert_topological(c)
    assert c.needs("top-1") in ([("left", 0), ("right", 0)], [("right", 0), ("left", 0)])
    assert c.wanted == ["top-1"]
    assert c.commit.n_tasks == 4
    assert c.run()["top-1"] == 32
    assert c.group(("left", 0)) == ("left", "left")
    assert c.group("top-1") == ("top", "top")
    producers = [chunk.keys[row] for chunk in c.chunks for row in chunk.data_producers]
    assert producers == ["root"]
    assert c.priorities == sorted(c.priorities)


def test_rows_are_numbered_through_all_chunks(compile):
    graph = {("x", i): Task(("x", i), add, TaskRef(("x", i - 1)), 1) for i in range(1, 25)}
    graph[("x", 0)] = DataNode(("x", 0), 0)
    c = compile(graph, [("x", 24)], chunk_size=7)
    assert [len(chunk.keys) for chunk in c.chunks] == [7, 7, 7, 4]
    assert c.dependencies == [[], *([i] for i in range(24))]
    assert c.run()[("x", 24)] == 24
    assert len(c.group_names) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: (da.arange(60, chunks=10) + 1).sum(),
        lambda: da.ones((20, 20), chunks=(5, 5)) @ da.ones((20, 20), chunks=(5, 5)),
        lambda: da.random.default_rng(1).random((20, 20), chunks=5).rechunk((4, 10)),
        lambda: (
            dd.from_pandas(pd.DataFrame({"k": list("abab") * 5, "v": range(20)}), npartitions=4)
            .groupby("k")
            .v.mean()
        ),
        lambda: dask.datasets.timeseries("2000-01-01", "2000-01-05", seed=1)[["x", "y"]].max(),
        lambda: db.from_sequence(range(20), npartitions=4).map(lambda x: x * 2).filter(bool).sum(),
        lambda: delayed(sum)([delayed(add)(i, 1) for i in range(10)]),
    ],
    ids=["array", "matmul", "rechunk", "groupby", "timeseries", "bag", "delayed"],
)
def test_collections_give_dasks_results(compile, make):
    collection = make()
    expected = collection.compute(scheduler="sync")
    c = compile(collection, chunk_size=5)
    assert isinstance(c.commit, GraphCommit), c.last
    assert_topological(c)
    (key,) = c.wanted
    got = c.run()[key]
    if hasattr(expected, "equals"):
        assert expected.equals(got)
    else:
        np.testing.assert_array_equal(np.asarray(expected), np.asarray(got))


def test_futures_are_external_dependencies(compile):
    graph = {
        "sum": Task("sum", add, List(TaskRef("future-b"), TaskRef("future-a")), TaskRef(("f", 3))),
        "more": Task("more", add, TaskRef("future-a"), TaskRef("sum")),
    }
    c = compile(graph, ["sum", "more"])
    assert c.externals == ["future-b", "future-a", ("f", 3)] or set(c.externals) == {
        "future-a",
        "future-b",
        ("f", 3),
    }
    assert set(c.needs("sum")) == {"future-a", "future-b", ("f", 3)}
    assert set(c.needs("more")) == {"future-a", "sum"}


def test_desired_keys_outside_the_graph_come_last(compile):
    c = compile({"a": Alias("a", "b"), "x": Task("x", add, 1, 1)}, ["b", "a", "x"])
    assert set(c.keys) == {"a", "x"}
    assert c.wanted[-1] == "b"
    assert c.needs("a") == ["b"]


def test_legacy_tuples_become_tasks(compile):
    c = compile({"a": 1, "b": (add, "a", 2), "c": [(add, "b", 1), "a"]}, ["c"])
    assert c.run()["c"] == [4, 1]


def test_order_of_the_client_is_kept_even_if_invalid(compile):
    graph = {k: Task(k, add, 1, 1) for k in ("a", "b", "c")}
    graph["b"] = Task("b", add, TaskRef("c"), 1)
    c = compile(graph, internal_priority={"a": 2, "b": 0, "c": 1})
    assert c.keys == ["c", "b", "a"]
    assert c.priorities == [1, 0, 2]


def test_key_missing_in_the_order_comes_last(compile):
    c = compile(
        {"a": Task("a", add, TaskRef("b"), 1), "b": DataNode("b", 1)}, internal_priority={"a": 0}
    )
    assert c.keys == ["b", "a"]
    assert c.priorities == [1, 0]


@pytest.mark.parametrize("own_order", [None, {"a": 0, "b": 1, "c": 2}])
def test_a_cycle_is_an_error(compile, own_order):
    graph = {
        "a": Task("a", add, TaskRef("b"), 1),
        "b": Task("b", add, TaskRef("c"), 1),
        "c": Task("c", add, TaskRef("a"), 1),
    }
    c = compile(graph, internal_priority=own_order)
    assert isinstance(c.exception, RuntimeError)
    assert "Cycle detected" in str(c.exception)


def test_deep_chain_without_order(compile):
    n = 5000
    graph = {i: Task(i, add, TaskRef(i + 1), 1) for i in range(n)}
    graph[n] = DataNode(n, 0)
    c = compile(graph, [0], internal_priority=dict.fromkeys(graph, 0))
    assert c.keys == list(range(n, -1, -1))


def test_all_kinds_of_keys(compile):
    keys = [
        "s",
        b"bytes",
        1,
        2.5,
        ("t", 0),
        ("t", ("nested", (1, b"x"))),
        ("", ""),
        (1, 2),
        -(2**63),
    ]
    c = compile({k: Task(k, add, 1, i) for i, k in enumerate(keys)}, keys)
    assert set(c.wanted) == set(keys)
    assert set(c.keys) == set(keys)
    assert c.run() == {k: 1 + i for i, k in enumerate(keys)}


def test_numpy_scalars_in_keys_become_python_numbers(compile):
    key = ("x", np.int64(3), np.str_("a"))
    c = compile({key: Task(key, add, 1, 1)}, [key])
    assert c.keys == [("x", 3, "a")]
    assert [type(e) for e in c.keys[0]] == [str, int, str]
    assert c.wanted == c.keys
    assert plain_key(True) == 1


@pytest.mark.parametrize("key", [None, frozenset("a"), 2**64, -(2**63) - 1, object])
def test_keys_that_cannot_be_sent_are_errors(compile, key):
    c = compile({key: Task(key, add, 1, 1)}, [key])
    assert isinstance(c.exception, TypeError | OverflowError)


@pytest.mark.parametrize("key", [(), ((), 1), "", "<>"], ids=repr)
def test_keys_that_workers_fail_on_are_errors(compile, key):
    c = compile({"a": Task("a", add, 1, 1), key: Task(key, add, TaskRef("a"), 1)}, [key])
    assert isinstance(c.exception, IndexError)


def test_validate_checks_every_key(compile):
    graph = {frozenset("a"): Task(frozenset("a"), add, 1, 1), "b": Task("b", add, 1, 1)}
    assert compile(graph, ["b"]).commit
    assert isinstance(compile(graph, ["b"], validate=True).exception, TypeError)


def test_fields_of_the_commit(compile, close):
    c = compile(
        {"a": Task("a", add, 1, 1)},
        user_priority={"a": 3},
        submitting_task=("parent", 1),
        actors=["a"],
        fifo_timeout="100 ms",
        code=close(("source",)),
        span_metadata=close({"collections": [{"type": "array"}]}),
        annotations=close({"priority": 1, "f": len}),
        received_at=12.5,
    )
    commit = c.commit
    assert commit.graph_id == 7
    assert commit.client == "client-1"
    assert commit.user_priority == {"a": 3}
    assert commit.submitting_task == ("parent", 1)
    assert commit.actors == ["a"]
    assert commit.fifo_timeout_seconds == pytest.approx(0.1)
    assert commit.span_metadata == {"collections": [{"type": "array"}]}
    assert commit.global_annotations == {"priority": 1, "f": repr(len)}
    assert commit.received_at == 12.5
    assert commit.code == close(("source",))
    assert commit.materialized_seconds > 0


def test_fifo_timeout_of_zero(compile):
    commit = compile({"a": Task("a", add, 1, 1)}, fifo_timeout="0 ms").commit
    assert commit.fifo_timeout_seconds == 0


# ------------------------------------------------------------------ errors


def test_missing_module_gives_the_error_of_stock(compile):
    payload = serialized_payload(
        {"serializer": "pickle", "writeable": ()}, [b"\x80\x05cnosuch\nfoo\n."]
    )
    c = compile(CompileRequest(1, "c", payload, ["a", ("b", 1)]))
    assert c.failure.keys == ["a", ("b", 1)]
    error = c.exception
    assert type(error) is RuntimeError
    assert str(error) == UNREADABLE
    assert isinstance(error.__cause__, ModuleNotFoundError)
    assert "nosuch" in c.failure.text
    assert pickle.loads(c.failure.traceback.frames[0]) is None or c.failure.traceback.frames


def test_error_texts_of_stock_are_unchanged():
    import inspect

    from distributed.scheduler import Scheduler

    source = textwrap.dedent(inspect.getsource(Scheduler.update_graph))
    for line in UNREADABLE.splitlines():
        assert line in source


class Raises:
    def __init__(self, what):
        self.what = what

    def __reduce__(self):
        return exec, (f"raise {self.what}",)


@pytest.mark.parametrize(
    "what", ["SystemExit(3)", "KeyboardInterrupt", "MemoryError", "RecursionError"]
)
def test_all_exceptions_of_a_graph_are_caught(compile, what):
    payload = serialized_payload(
        {"serializer": "pickle", "writeable": ()}, [pickle.dumps(Raises(what))]
    )
    c = compile(CompileRequest(1, "c", payload, ["a"]))
    assert isinstance(c.exception, RuntimeError)
    assert what.split("(")[0] in c.failure.text


@pytest.mark.parametrize("data", [b"", b"\x80\x05.", b"garbage", b"\x80\x05cos\n"])
def test_broken_pickles(compile, data):
    payload = serialized_payload({"serializer": "pickle", "writeable": ()}, [data])
    assert str(compile(CompileRequest(1, "c", payload, ["a"])).exception) == UNREADABLE


def test_a_task_that_cannot_be_pickled_fails_its_graph(compile):
    class Made:
        """A class that exists only in this process."""

    Made.__reduce__ = lambda self: (make_unpicklable, ())
    c = compile({"a": Task("a", len, Made())}, ["a"])
    assert isinstance(c.exception, Exception)
    assert not c.keys


def make_unpicklable():
    import threading

    return threading.Lock()


# ------------------------------------------------------------------ determinism


SCRIPT = """
import dask.array as da, dask, pickle, sys, dask.dataframe as dd, pandas as pd
sys.path.insert(0, {here!r})
from conftest import request, Compiled
from paceline.workers_compat.graphs.compiler import compile_graph
from paceline.protocol.framing import FrameReader
from paceline.workers_compat.graphs.compiler_messages import decode_request
from dask._task_spec import Task, TaskRef, List
graph = {{"s-%d" % i: Task("s-%d" % i, sum, List(*[TaskRef("x-%d" % ((i * j) % 37)) for j in range(9)])) for i in range(50)}}
made = request(graph, list(graph), internal_priority={{k: 0 for k in graph}})
with open({path!r}, "rb") as file:
    stored = [decode_request(frames) for frames in FrameReader().feed(pickle.load(file))]
for again in [made, *stored]:
    c = Compiled(compile_graph(again, chunk_size=11))
    for chunk in c.chunks:
        print(chunk.keys, chunk.dependencies, chunk.groups, chunk.new_groups, chunk.new_externals, chunk.priorities)
        print(chunk.spec_buffers, [len(s) for s in chunk.run_specs])
    print(c.commit.rows, c.commit.keys)
"""


def test_rows_do_not_depend_on_the_hash_seed(tmp_path, make_request):
    array = (da.ones((8, 8), chunks=2) + 1).sum()
    frame = dd.from_pandas(pd.DataFrame({"k": list("abab") * 5, "v": range(20)}), npartitions=4)
    path = str(tmp_path / "requests")
    made = [make_request(array), make_request(frame.groupby("k").v.mean())]
    with open(path, "wb") as file:
        pickle.dump(b"".join(piece for each in made for piece in encode_request(each)), file)
    script = SCRIPT.format(here=os.path.dirname(__file__), path=path)
    outputs = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 1000


def test_stock_workers_can_read_messages(compile):
    """Check all header fields that distributed's reader requires."""
    c = compile({"a": Task("a", np.add, np.arange(1000), np.arange(1000))}, ["a"])
    spec = stock_loads(c.frames("a"))["run_spec"]
    assert isinstance(spec, Task)
    assert spec.key == "a"
    np.testing.assert_array_equal(spec(()), np.arange(1000) * 2)
    assert len(c.buffers) == 1
