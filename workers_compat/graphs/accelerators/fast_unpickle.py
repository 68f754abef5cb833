"""A faster ``Task.__setstate__`` for the process that compiles graphs.

dask's method reads the names of the slots from the class and sets them one by one by name. That is
a third of the time to unpickle a graph. The replacement assigns them directly.
"""

from __future__ import annotations

from typing import Any

from dask._task_spec import Task

from .plain_tasks import SLOTS


def install() -> bool:
    """Replace ``Task.__setstate__`` in this process. Return False if dask has other slots."""
    if tuple(Task.get_all_slots()) != SLOTS:
        return False
    original = Task.__setstate__

    def set_state(self: Any, state: Any) -> None:
        if type(self) is not Task or len(state) != len(SLOTS):
            original(self, state)
            return
        (
            self._data_producer, self._dependencies, self._is_coro, self._repr, self._token,
            self.args, self.func, self.key, self.kwargs,
        ) = state  # fmt: skip

    Task.__setstate__ = set_state
    return True
