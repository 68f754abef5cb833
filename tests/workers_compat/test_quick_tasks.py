"""Tasks unpickled quickly are those that dask unpickles."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from dask._task_spec import Dict, List, Task, TaskRef
from paceline.workers_compat import quick_tasks

TASKS = [
    Task("a", max, 1, TaskRef("b"), key=abs),
    Task(("c", 0), divmod, 7, 2, _data_producer=True),
    List(TaskRef("x"), 2),
    Dict({"y": TaskRef("z")}),
]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Task]]:
    """The tasks as dask unpickles them; its own way is back in place afterwards."""
    monkeypatch.setattr(Task, "__setstate__", Task.__setstate__)
    yield pickle.loads(pickle.dumps(TASKS))


def states(tasks: list[Task]) -> list[tuple[object, ...]]:
    return [task.__getstate__() for task in tasks]


def test_the_same_tasks(plain: list[Task]) -> None:
    before = Task.__setstate__
    assert quick_tasks.quicken()
    assert Task.__setstate__ is not before
    quick = pickle.loads(pickle.dumps(TASKS))
    assert [type(task) for task in quick] == [type(task) for task in TASKS]
    assert repr(states(quick)) == repr(states(plain)) and quick == plain
    assert quick[0]({"b": -3}) == -3 and quick[0].dependencies == {"b"}


def test_a_state_of_another_length_goes_the_usual_way(plain: list[Task]) -> None:
    assert quick_tasks.quicken()
    task = Task.__new__(Task)
    task.__setstate__(TASKS[0].__getstate__()[:2])
    assert task._dependencies == {"b"} and not hasattr(task, "func")


def test_other_slots_are_left_alone(plain: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    before = Task.__setstate__
    monkeypatch.setattr(quick_tasks, "_SLOTS", ("key",))
    assert not quick_tasks.quicken()
    assert Task.__setstate__ is before
