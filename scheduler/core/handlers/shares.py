"""Share groups: change their weights, caps and priority classes while the scheduler runs."""

from __future__ import annotations

from itertools import islice

from paceline.scheduler.core.lifecycle.slots import fill_slots
from paceline.scheduler.core.lifecycle.transitions import run
from paceline.scheduler.core.policy import fairness
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.accounts import ShareGroup
from paceline.scheduler.core.stealing.recall import recall_capped
from paceline.scheduler.core.stimuli import SetShare
from paceline.scheduler.core.turn import WARNING, Registry, Turn

#: Number of queued tasks of a group that are searched for one that may free memory.
SEARCHED_MAX = 10_000


def handle_set_share(turn: Turn, command: SetShare) -> None:
    """Change settings of a share group.

    The group counts as configured afterwards, and is kept without clients. Ask workers to give
    back tasks if the group exceeds a cap, and send queued tasks that it now allows.
    """
    state = turn.state
    try:
        state.shares.check_change(command.group, command.settings)
    except ValueError as error:
        turn.log(WARNING, f"Ignoring the settings of a share group: {error}")
        return
    configured = state.config.shares_groups
    configured[command.group] = {**configured.get(command.group, {}), **command.settings}
    share = state.shares.group(command.group)
    state.shares.configure(share, command.settings)
    _count_threads(state, share)
    share.tasks_over, share.threads_over = share.n_on_workers, share.n_threads
    turn.log_event(
        "scheduler", {"action": "set-share", "group": share.name, "settings": share.settings}
    )
    if share.is_capped and share.cap_reached():
        recall_capped(turn, share)
    fill_slots(turn)


def check_memory_caps(turn: Turn) -> None:
    """Start a task that may free memory in each group at its cap of memory, if it runs none.

    Without this, such tasks wait for those before them in the queue that may not start.
    """
    state = turn.state
    for queue in list(state.queued.waiting):
        share = queue.share
        if share.n_processing or share.cap_reached() != "memory":
            continue
        for ts in islice(queue, SEARCHED_MAX):
            if fairness.worker_for(state, ts) is not None:
                run(turn, {ts: "processing"})
                break


def _count_threads(state: SchedulerState, share: ShareGroup) -> None:
    """Count the threads that the tasks and extra runs of `share` can occupy, if there is a cap."""
    share.tasks_on.clear()
    share.n_threads = 0
    if share.max_threads < 0:
        return
    workers = dict.fromkeys(state.workers.values())
    # removed workers, whose tasks later turns release
    workers.update({removal.ws: None for removal in state.deferred.worker_removals})
    assigned = (ts.processing_on for ts in state.deferred.recommendations)
    workers.update({ws: None for ws in assigned if ws is not None})
    for ws in workers:
        for ts in ws.processing:
            if ts.account.share is share and ts not in ws.long_running:
                share.enter_worker(ws)
        for account in ws.extra_runs.values():
            if account.share is share:
                share.enter_worker(ws)


#: Message class -> handler.
HANDLERS: Registry = {
    SetShare: handle_set_share,
}
