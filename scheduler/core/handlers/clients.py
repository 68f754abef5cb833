"""Clients: register, leave, desire, release, cancel and retry keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from paceline.protocol import messages as m
from paceline.protocol.keys import Key, has_prefix
from paceline.scheduler.core.config import heartbeat_interval
from paceline.scheduler.core.graphs.commit import drop_graph
from paceline.scheduler.core.lifecycle import accounting
from paceline.scheduler.core.lifecycle.new_tasks import new_task
from paceline.scheduler.core.lifecycle.outgoing import report_to
from paceline.scheduler.core.lifecycle.recommendations import (
    end_fire_and_forget,
    is_failure_relevant,
    release_desire,
)
from paceline.scheduler.core.lifecycle.removal import begin_client_removal
from paceline.scheduler.core.lifecycle.restart import forget_everything
from paceline.scheduler.core.lifecycle.slots import fill_slots
from paceline.scheduler.core.lifecycle.transitions import run
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.model import ClientState, TaskState
from paceline.scheduler.core.state.scheduler_state import FIRE_AND_FORGET, SchedulerState
from paceline.scheduler.core.stimuli import ClientJoined, ClientRemoved, ReleaseAll, RetryKeys
from paceline.scheduler.core.turn import INFO, WARNING, Registry, Turn

#: Part of the names of clients inside tasks: ``Client-worker-...``.
WORKER_CLIENT = "-worker-"

#: Disconnected clients whose keys are retained; the one that left first is released first.
RETAINED_CLIENTS_MAX = 100

#: Characters of a client's name in a log line.
NAME_QUOTED_MAX = 80

#: Unknown keys with the same hash that one message may add. Each slows the look-up of the others,
#: and keys with equal hashes are easily made on purpose.
EQUAL_HASHES_MAX = 100

#: Factor between the heartbeat interval of clients and that of workers.
CLIENT_HEARTBEAT_FACTOR = 10


def handle_client_joined(turn: Turn, joined: ClientJoined) -> None:
    """Add a client that registered."""
    state = turn.state
    turn.log_event(["all", joined.client], {"action": "add-client", "client": joined.client})
    cs = state.clients.get(joined.client)
    if cs is None:
        state.clients[joined.client] = cs = ClientState(joined.client)
    cs.versions = joined.versions
    cs.last_seen = turn.now
    state.client_added_count += 1
    if state.plugins is not None:
        state.plugins.add_client(joined.client)


def handle_client_removed(turn: Turn, message: ClientRemoved) -> None:
    """Remove a client: drop its pending graphs; release its keys, now or after its grace period."""
    state = turn.state
    name = message.client
    turn.log_event(["all", name], {"action": "remove-client", "client": name})
    cs = state.clients.get(name)
    if cs is None:
        return
    for graph_id in [g.graph_id for g in state.graphs.values() if g.client == name]:
        drop_graph(turn, graph_id)
    del state.clients[name]
    if name == FIRE_AND_FORGET:
        state.clients[name] = ClientState(name)
    if _is_retained(turn, cs):
        retain_keys(turn, cs)
    else:
        begin_client_removal(turn, cs)
    state.client_removed_count += 1
    fill_slots(turn)
    if state.plugins is not None:
        state.plugins.remove_client(name)


def handle_close_client(turn: Turn, message: m.CloseClient) -> None:
    """Record that a client closes cleanly; its keys are released when its stream ends."""
    cs = turn.state.clients.get(message.client or turn.source)
    if cs is not None:
        cs.closed_cleanly = True


# ------------------------------------------------------------------ grace period


def _is_retained(turn: Turn, cs: ClientState) -> bool:
    """Return whether the keys of a client that left are retained for a while.

    A client that closed cleanly needs no keys any more. A client inside a task does not
    reconnect.
    """
    return bool(
        turn.state.config.client_grace_seconds > 0
        and cs.wants_what
        and not cs.closed_cleanly
        and not cs.grace_deadline
        and WORKER_CLIENT not in cs.client_key
        and cs.client_key != FIRE_AND_FORGET
    )


def retain_keys(turn: Turn, cs: ClientState) -> None:
    """Retain the keys of ``cs`` under another name for ``client-grace`` seconds.

    A client that reconnects has forgotten its futures, but the same program run again finds
    the results.
    """
    state = turn.state
    name = cs.client_key
    cs.client_key = f"retained-{name}-{state.client_removed_count}"
    cs.grace_deadline = turn.now + state.config.client_grace_seconds
    state.clients[cs.client_key] = cs
    turn.log(
        INFO,
        f"Client {name} disconnected without closing; keeping its {len(cs.wants_what)} keys for "
        f"{state.config.client_grace_seconds:g} s",
    )
    retained = [each for each in state.clients.values() if each.grace_deadline]
    for oldest in retained[: max(0, len(retained) - RETAINED_CLIENTS_MAX)]:
        release_retained(turn, oldest)


def release_retained(turn: Turn, cs: ClientState) -> None:
    """Release the keys retained for ``cs``."""
    turn.log(
        INFO,
        f"No client asked for the keys of {cs.client_key}; releasing {len(cs.wants_what)} keys",
    )
    del turn.state.clients[cs.client_key]
    begin_client_removal(turn, cs)
    fill_slots(turn)


def check_retained(turn: Turn) -> None:
    """Release retained keys after their grace period, and the oldest ones above the limit."""
    state = turn.state
    if state.config.client_grace_seconds <= 0:
        return
    was_idle = state.transition_counter == state.idle_transition_counter
    allowed = state.config.client_grace_nbytes
    for cs in [each for each in reversed(state.clients.values()) if each.grace_deadline]:
        if turn.now >= cs.grace_deadline:
            release_retained(turn, cs)
            continue
        nbytes = sum(max(ts.nbytes, 0) for ts in cs.wants_what if ts.state == "memory")
        allowed -= nbytes
        if allowed < 0:
            turn.log(
                WARNING,
                f"{cs.client_key} exceeds paceline.scheduler.client-grace-bytes; "
                "releasing its keys",
            )
            release_retained(turn, cs)
            allowed += nbytes
    if was_idle:  # releasing retained keys does not count as activity
        state.idle_transition_counter = state.transition_counter


def handle_client_desires_keys(turn: Turn, message: m.ClientDesiresKeys) -> None:
    """Keep the keys for which a client created futures.

    A message on behalf of a client that is not connected is ignored, because its keys would
    never be released.
    """
    client = message.client or turn.source
    if client != turn.source and client not in turn.state.clients:
        turn.log(
            WARNING,
            f"Client {turn.source} desires {len(message.keys)} keys for the client "
            f"{client[:NAME_QUOTED_MAX]!r}, which is not connected; ignoring it",
        )
        return
    client_desires_keys(turn, message.keys, client)


def client_desires_keys(turn: Turn, keys: Iterable[Key], client: str) -> None:
    """Add ``keys`` to those that ``client`` wants: report finished ones, recompute released ones.

    An unknown key becomes a task without a run_spec, because its graph may still arrive on another
    connection. ``client`` may be a placeholder, such as that of a published dataset.
    """
    state = turn.state
    cs = state.clients.get(client)
    if cs is None:
        state.clients[client] = cs = ClientState(client, last_seen=turn.now)
    recs: Recs = {}
    unknown_hashes: Counter[int] = Counter()
    for key in keys:
        ts = state.tasks.get(key)
        if ts is None:
            if client == FIRE_AND_FORGET and not state.graphs:
                continue  # no graph is pending, so the key would never be released
            unknown_hashes[hash(key)] += 1
            if not has_prefix(key) or unknown_hashes[hash(key)] > EQUAL_HASHES_MAX:
                turn.to_client(client, m.CancelledKeys(keys=[key], reason="invalid key"))
                continue
            ts = new_task(state, key, client)
        accounting.add_desire(ts, cs)
        report_to(turn, ts, client)
        if client == FIRE_AND_FORGET:
            _end_if_done(turn, ts)
        if ts.state == "released" and ts.run_spec is not None:
            recs[ts] = "waiting"
    if recs:
        run(turn, recs)
        fill_slots(turn)


def _end_if_done(turn: Turn, ts: TaskState) -> None:
    """Release a ``fire_and_forget`` task that has already finished."""
    if ts.state in ("memory", "erred"):
        recs: Recs = {}
        end_fire_and_forget(turn.state, ts, recs)
        run(turn, recs)


def handle_client_releases_keys(turn: Turn, message: m.ClientReleasesKeys) -> None:
    """Release keys for which a client dropped its futures."""
    client_releases_keys(turn, message.keys, message.client or turn.source)


def client_releases_keys(turn: Turn, keys: Collection[Key], client: str) -> None:
    """Remove ``keys`` from those that ``client`` wants; release tasks that are no longer needed."""
    state = turn.state
    cs = state.clients.get(client)
    if cs is None:
        return
    tasks = [ts for ts in map(state.tasks.get, keys) if ts is not None]
    _withdraw(state, client, keys)
    recs: Recs = {}
    for ts in tasks:
        release_desire(ts, cs, recs)
    if state.deferred.recommendations or state.deferred.releases:
        # a wake-up handles at least one message after a turn of deferred work, and with releases of
        # its own it would make twice as many transitions
        turn.budget = 0
    run(turn, recs)
    fill_slots(turn)


def _withdraw(state: SchedulerState, client: str, keys: Iterable[Key]) -> None:
    """Exclude ``keys`` from the client's pending graphs.

    Otherwise their *register* stage would add the keys again.
    """
    for graph in state.deferred.commits:
        if graph.client == client and graph.stage in ("insert", "register"):
            graph.cancelled_keys.update(dict.fromkeys(keys))


def handle_cancel_keys(turn: Turn, message: m.CancelKeys) -> None:
    """Release keys and their dependents for a client (``Client.cancel``).

    With ``force``, release them for all clients.
    """
    state = turn.state
    client = message.client or turn.source
    cs = state.clients.get(client)
    turn.log(INFO, f"Client {client} requests to cancel {len(message.keys)} keys")
    turn.log_event(client, {"action": "cancel", "count": len(message.keys), "force": message.force})
    if cs is None:
        return
    cancelled, holders = _collect_cancelled(turn, message.keys, cs, message.force)
    recs: Recs = {}
    for holder in holders:
        for ts in cancelled:
            release_desire(ts, holder, recs)
    _withdraw(state, client, message.keys)
    keys = [ts.key for ts in cancelled]
    run(turn, recs)
    fill_slots(turn)
    if keys:
        _to_all_clients(turn, m.CancelledKeys(keys=keys, reason=message.reason, msg=message.msg))


def _collect_cancelled(
    turn: Turn, keys: Collection[Key], cs: ClientState, force: bool
) -> tuple[dict[TaskState, None], dict[ClientState, None]]:
    """Return the tasks to cancel, dependents first, and the clients that lose them."""
    state = turn.state
    cancelled: dict[TaskState, None] = {}
    holders: dict[ClientState, None] = {}
    seen: set[int] = set()
    stack: list[tuple[TaskState, bool]] = []
    for key in keys:
        ts = state.tasks.get(key)
        if ts is not None:
            stack.append((ts, False))
        while stack:
            ts, children_done = stack.pop()
            if children_done:
                cancelled[ts] = None
                continue
            if id(ts) in seen:
                continue
            seen.add(id(ts))
            alone = len(ts.who_wants) == 1 and cs in ts.who_wants
            for holder in ts.who_wants if force else (cs,):
                holders[holder] = None
            if force or alone:
                turn.log(INFO, f"Scheduler cancels key {ts.key!s}.  Force={force}")
                stack.append((ts, True))
                stack.extend((dts, False) for dts in ts.dependents)
    return cancelled, holders


def _to_all_clients(turn: Turn, message: m.Message) -> None:
    for name in turn.state.clients:
        turn.to_client(name, message)


def handle_report_key(turn: Turn, message: m.ReportKey) -> None:
    """Report the state of a key to the client that requests it."""
    key = message.key
    client = message.client or turn.source
    ts = turn.state.tasks.get(key)
    if ts is None:
        turn.to_client(client, m.CancelledKeys(keys=[key]))
    else:
        report_to(turn, ts, client)


def handle_heartbeat_client(turn: Turn, message: m.HeartbeatClient) -> None:
    """Record a client's heartbeat and reply with the interval for the next ones."""
    state = turn.state
    cs = state.clients.get(turn.source)
    if cs is not None:
        if cs.heartbeat_overdue:
            cs.heartbeat_overdue = False
            seconds = turn.now - cs.last_seen
            turn.log(INFO, f"Client {turn.source} sent a heartbeat again after {seconds:.0f} s")
            turn.log_event(turn.source, {"action": "client-back", "seconds": seconds})
        cs.heartbeats += 1
        cs.last_seen = turn.now
        interval = heartbeat_interval(len(state.clients)) * CLIENT_HEARTBEAT_FACTOR
        turn.to_client(turn.source, m.AdjustHeartbeatInterval(interval=interval))


def handle_retry_keys(turn: Turn, message: RetryKeys) -> None:
    """Run erred tasks and the tasks that failed because of them again (``Client.retry``).

    Reply with the keys. The client sets their futures to pending, so a released task, which may
    have no run_spec, is not among them.
    """
    state = turn.state
    client = message.client
    turn.log(INFO, f"Client {client} requests to retry {len(message.keys)} keys")
    if client:
        turn.log_event(client, {"action": "retry", "count": len(message.keys)})
    seen: dict[Key, None] = {}
    roots: list[TaskState] = []
    stack = [state.tasks[key] for key in message.keys if key in state.tasks]
    while stack:
        ts = stack.pop()
        if ts.key in seen or ts.state == "released":
            continue
        seen[ts.key] = None
        erred = [d for d in ts.dependencies if d.state == "erred"]
        if erred:
            stack.extend(erred)
        elif ts.state == "memory" or (ts.state == "erred" and is_failure_relevant(ts)):
            # tasks in memory too, because their futures are pending now
            if ts.run_spec is not None:
                roots.append(ts)
            elif client:
                report_to(turn, ts, client)
    run(turn, dict.fromkeys(roots, "waiting"))
    fill_slots(turn)
    turn.reply(turn.request_id, tuple(seen))


def handle_release_all(turn: Turn, message: ReleaseAll) -> None:
    """First step of a restart: release all keys, forget all tasks, clear histories."""
    state = turn.state
    for graph_id in list(state.graphs):
        drop_graph(turn, graph_id)
    forget_everything(turn)
    _to_all_clients(turn, m.Restart())
    if state.plugins is not None:
        state.plugins.restart()


#: Message class -> handler.
HANDLERS: Registry = {
    ClientJoined: handle_client_joined,
    m.CloseClient: handle_close_client,
    m.ClientDesiresKeys: handle_client_desires_keys,
    m.ClientReleasesKeys: handle_client_releases_keys,
    m.CancelKeys: handle_cancel_keys,
    m.ReportKey: handle_report_key,
    m.HeartbeatClient: handle_heartbeat_client,
    RetryKeys: handle_retry_keys,
}
