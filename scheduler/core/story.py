"""What happened to a task: the lines of the transition log that touch a key or a stimulus.

Must not know: how transitions are decided; who asks.
"""

from __future__ import annotations

from typing import Any

from paceline.protocol.keys import Key

from .state import SchedulerState, TaskState

#: (key, start, finish, {key: recommendation}, stimulus_id, seconds since the epoch), as stock logs it.
Transition = tuple[Key, str, str, dict[Key, str], str, float]


def story(state: SchedulerState, *keys_or_stimuli: Any) -> list[Transition]:
    """Logged transitions that one of these names touches, oldest first.

    Args:
        keys_or_stimuli: keys, tasks, or stimulus_ids. A transition is touched by its own key, by those that
            it recommended something for, and by the stimulus that caused it.

    The log holds the last ``config.low_level_log_length`` transitions; what is older is not told.
    """
    wanted = {k.key if isinstance(k, TaskState) else k for k in keys_or_stimuli}
    out = []
    for key, start, finish, recommended, stimulus_id, seconds in state.transition_log:
        if key in wanted or stimulus_id in wanted or any(ts.key in wanted for ts in recommended):
            by_key = {ts.key: to for ts, to in recommended.items()}
            out.append((key, start, finish, by_key, stimulus_id, seconds))
    return out
