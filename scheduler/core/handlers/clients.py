"""What clients want, give up, cancel and retry.

Must not know: connections.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from paceline.protocol.keys import Key
from paceline.protocol.messages import AdjustHeartbeatInterval, CancelledKeys, Message, Restart

from .. import mirrors
from ..departures import part_with_client
from ..needs import Recommendations, end_fire_and_forget, is_missed, release_wish
from ..outgoing import report_message
from ..queries import heartbeat_interval
from ..restarting import forget_everything
from ..state import ClientState, SchedulerState, TaskState
from ..stimuli import Stimulus
from ..transitions import fill_slots, run
from ..turn import Turn

#: The client that stands for futures whose results nobody waits for.
FIRE_AND_FORGET = "fire-and-forget"

#: Clients inside tasks are called ``Client-worker-...``.
WORKER_CLIENT = "-worker-"

#: Clients whose keys are held at a time; of more, the one longest gone is let go.
HELD_MAX = 100

#: Clients are asked to be heard of this many times more seldom than workers.
CLIENT_HEARTBEAT_FACTOR = 10


def handle_client_joined(turn: Turn, stimulus: Stimulus) -> None:
    """A client registered."""
    state = turn.state
    joined = stimulus.message
    turn.log_event(["all", joined.client], {"action": "add-client", "client": joined.client})
    cs = state.clients.get(joined.client)
    if cs is None:
        state.clients[joined.client] = cs = ClientState(joined.client)
    cs.versions = joined.versions
    cs.last_seen = turn.now
    state.client_added_count += 1
    if state.plugins is not None:
        state.plugins.add_client(joined.client)


def handle_client_gone(turn: Turn, stimulus: Stimulus) -> None:
    """A client left: nobody holds its futures any more."""
    state = turn.state
    name = stimulus.message.client
    turn.log_event(["all", name], {"action": "remove-client", "client": name})
    cs = state.clients.get(name)
    if cs is None:
        return
    from .graph import drop_graph

    for graph_id in [g.graph_id for g in state.graphs.values() if g.client == name]:
        drop_graph(turn, graph_id)
    del state.clients[name]
    if name == FIRE_AND_FORGET:
        state.clients[name] = ClientState(name)
    if _is_held(turn, cs):
        hold(turn, cs)
    else:
        part_with_client(turn, cs)
    state.client_removed_count += 1
    fill_slots(turn)
    if state.plugins is not None:
        state.plugins.remove_client(name)


def handle_close_client(turn: Turn, stimulus: Stimulus) -> None:
    """A client says goodbye; what it held is let go when its stream ends."""
    cs = turn.state.clients.get(stimulus.message.client or stimulus.source)
    if cs is not None:
        cs.said_goodbye = True


# ------------------------------------------------------------------ clients that may come again


def _is_held(turn: Turn, cs: ClientState) -> bool:
    """Whether what a client that is gone holds is kept for a while.

    A client that said goodbye wants nothing any more, and one of a task's (stock names it so) comes never again.
    """
    return bool(
        turn.state.config.client_grace_seconds > 0
        and cs.wants_what
        and not cs.said_goodbye
        and not cs.held_until
        and WORKER_CLIENT not in cs.client_key
        and cs.client_key != FIRE_AND_FORGET
    )


def hold(turn: Turn, cs: ClientState) -> None:
    """What a client held is held by nobody in particular for a while: a client that comes again has forgotten its futures, and
    the same program run again finds its keys."""
    state = turn.state
    name = cs.client_key
    cs.client_key = f"held-{name}-{state.client_removed_count}"
    cs.held_until = turn.now + state.config.client_grace_seconds
    state.clients[cs.client_key] = cs
    turn.log(
        20,
        f"Client {name} is gone without a goodbye: its {len(cs.wants_what)} keys are kept for "
        f"{state.config.client_grace_seconds:g} s",
    )
    held = [each for each in state.clients.values() if each.held_until]
    for oldest in held[: max(0, len(held) - HELD_MAX)]:
        let_go(turn, oldest)


def let_go(turn: Turn, cs: ClientState) -> None:
    """The time of what was held is over."""
    turn.log(20, f"Nobody came for {cs.client_key}: {len(cs.wants_what)} keys are let go")
    del turn.state.clients[cs.client_key]
    part_with_client(turn, cs)
    fill_slots(turn)


def check_held(turn: Turn) -> None:
    """Let go of what was held long enough, and of what takes more memory than may be held so; the oldest first."""
    state = turn.state
    if state.config.client_grace_seconds <= 0:
        return
    was_idle = state.transition_counter == state.idle_transition_counter
    allowed = state.config.client_grace_nbytes
    for cs in [each for each in reversed(state.clients.values()) if each.held_until]:
        if turn.now >= cs.held_until:
            let_go(turn, cs)
            continue
        nbytes = sum(max(ts.nbytes, 0) for ts in cs.wants_what if ts.state == "memory")
        allowed -= nbytes
        if allowed < 0:
            turn.log(
                30, f"{cs.client_key} holds more than paceline.scheduler.client-grace-bytes allows"
            )
            let_go(turn, cs)
            allowed += nbytes
    if was_idle:  # what nobody waits for keeps no cluster awake
        state.idle_transition_counter = state.transition_counter


def handle_client_desires_keys(turn: Turn, stimulus: Stimulus) -> None:
    """A client made futures of keys."""
    client_desires_keys(turn, stimulus.message.keys, stimulus.message.client or stimulus.source)


def client_desires_keys(turn: Turn, keys: Iterable[Key], client: str) -> None:
    """``client`` (or what holds keys as one) wants keys; it is told of those that are done, and those that were let
    go are made again.

    A key that nobody knows yet is kept as a task without a run_spec: its graph may be on its way on
    another connection.
    """
    state = turn.state
    cs = state.clients.get(client)
    if cs is None:
        state.clients[client] = cs = ClientState(client, last_seen=turn.now)
    recs: Recommendations = {}
    for key in keys:
        ts = state.tasks.get(key)
        if ts is None:
            from .graph import new_task

            if client == FIRE_AND_FORGET and not state.graphs:
                continue  # no graph is on its way, and nobody would ever let go of it
            ts = new_task(state, key)
        mirrors.add_wish(ts, cs)
        report_to(turn, ts, client)
        if client == FIRE_AND_FORGET:
            _end_if_done(turn, ts)
        if ts.state == "released" and ts.run_spec is not None:
            recs[ts] = "waiting"
    if recs:
        run(turn, recs)
        fill_slots(turn)


def _end_if_done(turn: Turn, ts: TaskState) -> None:
    """Fire and forget: a task that has had its run already is let go at once."""
    if ts.state in ("memory", "erred"):
        recs: Recommendations = {}
        end_fire_and_forget(turn.state, ts, recs)
        run(turn, recs)


def report_to(turn: Turn, ts: TaskState, client: str) -> None:
    """Tell a client of a task's state, where that is final."""
    if ts.state in ("memory", "erred"):
        message = report_message(ts)
        if message is not None:
            turn.to_client(client, message)


def handle_client_releases_keys(turn: Turn, stimulus: Stimulus) -> None:
    """A client gave up futures."""
    message = stimulus.message
    client_releases_keys(turn, message.keys, message.client or stimulus.source)


def client_releases_keys(turn: Turn, keys: Collection[Key], client: str) -> None:
    """``client`` no longer wants keys; what nobody needs is let go."""
    state = turn.state
    cs = state.clients.get(client)
    if cs is None:
        return
    tasks = [ts for ts in map(state.tasks.get, keys) if ts is not None]
    _withdraw(state, client, keys)
    recs: Recommendations = {}
    for ts in tasks:
        release_wish(ts, cs, recs)
    run(turn, recs)
    fill_slots(turn)


def _withdraw(state: SchedulerState, client: str, keys: Iterable[Key]) -> None:
    """Graphs of the client that it has not claimed its keys of yet do not bring the wish back."""
    for graph in state.commits:
        if graph.client == client and graph.stage in ("insert", "claim"):
            graph.withdrawn.update(dict.fromkeys(keys))


def handle_cancel_keys(turn: Turn, stimulus: Stimulus) -> None:
    """``Client.cancel``: give up futures, with all that depends on them; of all clients where forced."""
    state = turn.state
    message = stimulus.message
    client = message.client or stimulus.source
    cs = state.clients.get(client)
    turn.log(20, f"Client {client} requests to cancel {len(message.keys)} keys")
    turn.log_event(client, {"action": "cancel", "count": len(message.keys), "force": message.force})
    if cs is None:
        return
    cancelled, holders = _collect_cancelled(turn, message.keys, cs, message.force)
    recs: Recommendations = {}
    for holder in holders:
        for ts in cancelled:
            release_wish(ts, holder, recs)
    _withdraw(state, client, message.keys)
    # what runs for nobody is stopped; dependents first
    keys = [ts.key for ts in cancelled]
    run(turn, recs)
    fill_slots(turn)
    report = CancelledKeys(keys=keys, reason=message.reason, msg=message.msg)
    if keys:
        _to_all_clients(turn, report)


def _collect_cancelled(
    turn: Turn, keys: Collection[Key], cs: ClientState, force: bool
) -> tuple[dict[TaskState, None], dict[ClientState, None]]:
    """Tasks that are cancelled (dependents before what they depend on), and clients that lose them."""
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
                turn.log(20, f"Scheduler cancels key {ts.key!s}.  Force={force}")
                stack.append((ts, True))
                stack.extend((dts, False) for dts in ts.dependents)
    return cancelled, holders


def _to_all_clients(turn: Turn, message: Message) -> None:
    for name in turn.state.clients:
        turn.to_client(name, message)


def handle_report_key(turn: Turn, stimulus: Stimulus) -> None:
    """A client asks how a key is."""
    key = stimulus.message.key
    client = stimulus.message.client or stimulus.source
    ts = turn.state.tasks.get(key)
    if ts is None:
        turn.to_client(client, CancelledKeys(keys=[key]))
    else:
        report_to(turn, ts, client)


def handle_heartbeat_client(turn: Turn, stimulus: Stimulus) -> None:
    """The client lives."""
    state = turn.state
    cs = state.clients.get(stimulus.source)
    if cs is not None:
        if cs.lapsed:
            cs.lapsed = False
            seconds = turn.now - cs.last_seen
            turn.log(20, f"Client {stimulus.source} is heard of again, after {seconds:.0f}s")
            turn.log_event(stimulus.source, {"action": "client-back", "seconds": seconds})
        cs.heartbeats += 1
        cs.last_seen = turn.now
        interval = heartbeat_interval(len(state.clients)) * CLIENT_HEARTBEAT_FACTOR
        turn.to_client(stimulus.source, AdjustHeartbeatInterval(interval=interval))


def handle_retry_keys(turn: Turn, stimulus: Stimulus) -> None:
    """``Client.retry``: the tasks that failed run again, and what failed because of them."""
    state = turn.state
    message = stimulus.message
    client = getattr(message, "client", None)
    turn.log(20, f"Client {client} requests to retry {len(message.keys)} keys")
    if client:
        turn.log_event(client, {"action": "retry", "count": len(message.keys)})
    seen: dict[Key, None] = {}
    roots: list[TaskState] = []
    stack = [state.tasks[key] for key in message.keys if key in state.tasks]
    while stack:
        ts = stack.pop()
        if ts.key in seen:
            continue
        seen[ts.key] = None
        erred = [d for d in ts.dependencies if d.state == "erred"]
        if erred:
            stack.extend(erred)
        elif ts.state == "memory" or (ts.state == "erred" and is_missed(ts)):
            # also what is in memory: the client takes all that it is answered for pending again
            if ts.run_spec is not None:
                roots.append(ts)
            elif client:
                report_to(turn, ts, client)
    run(turn, dict.fromkeys(roots, "waiting"))
    fill_slots(turn)
    turn.reply(stimulus.request_id, tuple(seen))


def handle_release_all(turn: Turn, stimulus: Stimulus) -> None:
    """The first act of a restart: all wishes end, all tasks are forgotten, histories are cleared."""
    from .graph import drop_graph

    state = turn.state
    for graph_id in list(state.graphs):
        drop_graph(turn, graph_id)
    forget_everything(turn)
    _to_all_clients(turn, Restart())
    if state.plugins is not None:
        state.plugins.restart()
