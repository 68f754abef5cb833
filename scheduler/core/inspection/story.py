"""Stories: the entries of the transition log that affect a key or a stimulus."""

from __future__ import annotations

from typing import Any

from paceline.protocol.keys import Key
from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState

#: (key, start, finish, {key: recommendation}, stimulus_id, seconds since the epoch), as stock logs it.
Transition = tuple[Key, str, str, dict[Key, str], str, float]


def story(state: SchedulerState, *keys_or_stimuli: Any) -> list[Transition]:
    """Return the logged transitions that match one of ``keys_or_stimuli``, oldest first.

    The log holds the last ``config.low_level_log_length`` transitions.

    Args:
        state: the scheduler's state.
        keys_or_stimuli: keys, tasks, or stimulus_ids. A transition matches by its own key, by the keys that it made
            recommendations for, and by the stimulus that caused it.
    """
    wanted = {k.key if isinstance(k, TaskState) else k for k in keys_or_stimuli}
    out = []
    for key, start, finish, recommended, stimulus_id, seconds in state.transition_log:
        if key in wanted or stimulus_id in wanted or any(ts.key in wanted for ts in recommended):
            by_key = {ts.key: to for ts, to in recommended.items()}
            out.append((key, start, finish, by_key, stimulus_id, seconds))
    return out
