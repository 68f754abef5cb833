"""dask's tasks, unpickled with quicker hands.

A task's own ``__setstate__`` asks its class for the names of its slots, and sets them one by one by name. In the process that
compiles graphs, where each task is unpickled once, that is a third of the unpickling; here they are set in one go.
Where the installed dask has other slots, its own way stays.

Must not know: graphs, pipes.
"""

from __future__ import annotations

from typing import Any

from dask._task_spec import Task

_SLOTS = ("_data_producer", "_dependencies", "_is_coro", "_repr", "_token", "args", "func", "key", "kwargs")  # fmt: skip


def quicken() -> bool:
    """Have tasks of this process unpickled so. Returns whether the installed dask's tasks are such."""
    if tuple(Task.get_all_slots()) != _SLOTS:
        return False
    plain = Task.__setstate__

    def set_state(self: Any, state: Any) -> None:
        if type(self) is not Task or len(state) != len(_SLOTS):
            plain(self, state)
            return
        (
            self._data_producer, self._dependencies, self._is_coro, self._repr, self._token,
            self.args, self.func, self.key, self.kwargs,
        ) = state  # fmt: skip

    Task.__setstate__ = set_state  # type: ignore[method-assign]
    return True
