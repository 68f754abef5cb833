"""Plain tasks written without a pickler equal those that were sent."""

from __future__ import annotations

import functools
import math
import pickle

import pytest
from dask._task_spec import List, Task, TaskRef, Tuple
from paceline.workers_compat.graphs.accelerators.plain_tasks import (
    SLOTS,
    PlainTaskWriter,
    is_supported,
)
from paceline.workers_compat.graphs.accelerators.shared_openings import SharedOpenings
from paceline.workers_compat.graphs.task_pickler import ByValue, TaskPickler


def by_value(x, **kwargs):
    return x


by_value.__module__ = "__main__"

INTS = [0, 255, 256, 65535, 65536, -1, 2**31 - 1, -(2**31)]
PLAIN = [
    Task(("x-1", 0), max, TaskRef(("y-1", 3)), TaskRef(("y-1", 4)), TaskRef(("y-1", 3))),
    Task(("x-1", 1, 2), max, TaskRef(("z-1", 3, "x-1")), TaskRef("text"), TaskRef(5)),
    Task("x", max, *INTS, True, False, None, 2.5, -0.0, math.nan, b"bytes", "text", "é\ud800\n"),
    Task(("x-1", -7), max, (), (1,), (1, (2, "x-1", (None,))), (TaskRef("y"), 1, 2)),
    Task(("x-1", 3), functools.partial(max, 1), 1, key=TaskRef("key"), default="y", other=()),
    Task(("x-1", 4), max, _data_producer=True),
    Task((("x", 1), 2), by_value, 1, more=2.0),
    Task(b"x", max, "x" * 255, b"x" * 255),
    Task(3.5, max, 1),
    Task((), max, 1),
    Task("x", max, List(TaskRef(("y", 1)), TaskRef("z"), 2)),
    Task("x", max, List(TaskRef(("y", 1)), List(TaskRef("z"))), List(), (List(1),), TaskRef("w")),
]
OTHER = [
    Task("x", max, [1]),
    Task("x", max, 2**31),
    Task("x", max, -(2**31) - 1),
    Task("x", max, "x" * 256),
    Task("x", max, b"x" * 256),
    Task("x" * 256, max, 1),
    Task("x", max, (1, {})),
    Task("x", max, List([TaskRef("y")], {})),
    Task("x", max, Tuple(TaskRef("y"))),
    Task("x", max, List(1, key=2)),
    Task("x", max, functools.reduce(lambda nested, _: List(nested), range(20), 1)),
    Task("x", max, 1, other=[TaskRef]),
    Task("x", max, functools.reduce(lambda nested, _: (nested,), range(20), 1)),
]


def write(task, writer=None):
    openings = SharedOpenings(lambda sink: TaskPickler(sink, ByValue()))
    assert openings.get(task.func) is None
    opening = openings.get(task.func)
    return (writer or PlainTaskWriter()).dumps(task, opening)


def state(task):
    """Return all of a task but its function in a comparable form, also of NaN."""
    assert type(task) is Task
    assert type(task.dependencies) is frozenset
    others = [getattr(task, name) for name in SLOTS if name not in ("_dependencies", "func")]
    return sorted(map(repr, task.dependencies)), repr(others)


def nested(node):
    """Return the state of all lists in the arguments of a task."""
    lists = [item for item in node.args if isinstance(item, List)]
    return [(each.dependencies, each.func, each.kwargs, nested(each)) for each in lists]


def test_the_installed_dask_is_supported():
    assert is_supported()


@pytest.mark.parametrize("task", PLAIN, ids=range(len(PLAIN)))
def test_plain_tasks(task):
    received = pickle.loads(write(task))
    assert state(received) == state(task)
    assert type(received.func) is type(task.func)
    assert nested(received) == nested(task)


@pytest.mark.parametrize("task", OTHER, ids=range(len(OTHER)))
def test_other_tasks_are_left_to_the_pickler(task):
    assert write(task) is None


def test_computed_state_is_sent():
    task = Task("x", max, 1, TaskRef("y"))
    repr(task), hash(task)
    assert not task.is_coro
    assert state(pickle.loads(write(task))) == state(task)


def test_tasks_of_several_layers():
    """Names of one layer are in the memo of its pickles, and those of others are not."""
    writer = PlainTaskWriter()
    tasks = [
        Task(
            (f"x-{i % 3}", i), (max, min)[i % 2], i, *[TaskRef((f"x-{j}", i)) for j in range(i % 5)]
        )
        for i in range(100)
    ]
    openings = SharedOpenings(lambda sink: TaskPickler(sink, ByValue()))
    for task in tasks:
        opening = openings.get(task.func)
        if opening is not None:
            received = pickle.loads(writer.dumps(task, opening))
            assert state(received) == state(task) and received.func is task.func


def test_a_function_with_a_large_memo():
    """Its opening fills more of the memo than opcodes with one byte can address."""
    function = functools.partial(max, *[(f"text {i}",) for i in range(200)])
    task = Task(("x", 0), function, TaskRef(("y", 1)), 2)
    received = pickle.loads(write(task))
    assert state(received) == state(task)
    assert received.func.args == function.args


def test_a_name_is_written_once():
    name = "name-of-a-collection"
    task = Task((name, 0), max, *[TaskRef((name, i)) for i in range(1, 9)])
    assert write(task).count(name.encode()) == 1
