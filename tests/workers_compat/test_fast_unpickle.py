"""``fast_unpickle`` gives the same tasks as dask's own unpickling."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from dask._task_spec import Dict, List, Task, TaskRef
from paceline.workers_compat.graphs.accelerators import fast_unpickle

TASKS = [
    Task("a", max, 1, TaskRef("b"), key=abs),
    Task(("c", 0), divmod, 7, 2, _data_producer=True),
    List(TaskRef("x"), 2),
    Dict({"y": TaskRef("z")}),
]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Task]]:
    """Return tasks unpickled by dask, and restore its method afterwards."""
    monkeypatch.setattr(Task, "__setstate__", Task.__setstate__)
    yield pickle.loads(pickle.dumps(TASKS))


def states(tasks: list[Task]) -> list[tuple[object, ...]]:
    return [task.__getstate__() for task in tasks]


def test_the_same_tasks(plain: list[Task]) -> None:
    before = Task.__setstate__
    assert fast_unpickle.install()
    assert Task.__setstate__ is not before
    fast = pickle.loads(pickle.dumps(TASKS))
    assert [type(task) for task in fast] == [type(task) for task in TASKS]
    assert repr(states(fast)) == repr(states(plain)) and fast == plain
    assert fast[0]({"b": -3}) == -3 and fast[0].dependencies == {"b"}


def test_a_state_of_another_length_uses_dasks_method(plain: list[Task]) -> None:
    assert fast_unpickle.install()
    task = Task.__new__(Task)
    task.__setstate__(TASKS[0].__getstate__()[:2])
    assert task._dependencies == {"b"} and not hasattr(task, "func")


def test_other_slots_are_not_replaced(plain: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    before = Task.__setstate__
    monkeypatch.setattr(fast_unpickle, "SLOTS", ("key",))
    assert not fast_unpickle.install()
    assert Task.__setstate__ is before
