"""Scenarios: text files of stimuli, each followed by the messages that the core must send.

A line that begins with ``>`` is a command. The indented lines after it are all messages that the
core sent. ``#`` begins a comment. The command ``> worker dies w0`` calls ``do_worker_dies``.

Keys are written as ``x``, or ``x.3`` for ``("x", 3)``. ``x*3`` stands for ``x.0 x.1 x.2``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from paceline.protocol import messages as m
from paceline.protocol.keys import Key
from paceline.protocol.limits import WorkerStatus
from paceline.scheduler.core.stimuli import (
    AnnotationSet,
    BalanceWork,
    ClientRemoved,
    ConfigureStealing,
    Continue,
    DataPlaced,
    GraphChunk,
    GraphCommit,
    RecallTask,
    ReleaseAll,
    RestrictionsSet,
    RetryKeys,
    SetWorkerStatus,
    WorkerBackpressured,
    WorkerRemoved,
)

from .env import Env

ANNOTATIONS: dict[str, Callable[[list[str]], AnnotationSet]] = {
    "on": lambda words: AnnotationSet(workers=words),
    "preferably-on": lambda words: AnnotationSet(workers=words, allow_other_workers=True),
    "retries": lambda words: AnnotationSet(retries=int(words[0])),
    "priority": lambda words: AnnotationSet(priority=float(words[0])),
    "using": lambda words: AnnotationSet(resources=parse_options(words)[1]),
}


def parse_key(word: str) -> Key:
    """Return the key written as `word`."""
    name, _, number = word.partition(".")
    return (name, int(number)) if number else name


def parse_keys(words: Sequence[str]) -> list[Key]:
    """Return the keys written as `words`, with ``x*3`` expanded."""
    out: list[Key] = []
    for word in words:
        name, _, count = word.partition("*")
        out += [(name, i) for i in range(int(count))] if count else [parse_key(word)]
    return out


def format_key(key: Key) -> str:
    """Return `key` as it is written in scenarios."""
    return f"{key[0]!s}.{key[1]!s}" if isinstance(key, tuple) else str(key)


def parse_options(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the words without ``=``, and those with it as a dict, numbers converted."""
    named = dict(word.split("=") for word in words if "=" in word)
    options = {name.replace("-", "_"): _number(text) for name, text in named.items()}
    return [word for word in words if "=" not in word], options


def _number(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def parse_tasks(text: str) -> dict[Key, list[Key]]:
    """Return the graph written as `text`, for example ``a, x*3 <- a, y*3 <- x``.

    In the last task ``x`` has no number but is a row of tasks, so ``y.i`` depends on ``x.i``.
    """
    out: dict[Key, list[Key]] = {}
    for task in filter(None, (part.strip() for part in text.split(","))):
        name, _, dependencies = task.partition("<-")
        for made in parse_keys([name.strip()]):
            out[made] = [
                (word, made[1]) if isinstance(made, tuple) and (word, 0) in out else key
                for word in dependencies.split()
                for key in parse_keys([word])
            ]
    return out


class Scenario:
    """Runs scenarios in an environment.

    After each command the core continues until nothing is deferred. After ``> single-turns`` it
    makes one turn per command, and ``...`` in the output means that it requests ``> continue``.

    Attributes:
        env: the environment.
        held: (client, part) of graphs that wait for ``> send``.
        single_turns: whether turns are made by ``> continue`` only.
    """

    def __init__(self) -> None:
        self.env = Env()
        self.held: list[tuple[str, GraphChunk | GraphCommit]] = []
        self.single_turns = False

    def play(self, text: str) -> str:
        """Run the commands in `text` and return it with the messages that the core sent.

        The result equals `text` if the scenario passes.
        """
        out: list[str] = []
        for line in text.splitlines():
            if line.startswith(">"):
                out.append(line)
                out += [f"  {sent}" for sent in self._run(line[1:].split("#")[0].split())]
            elif not line.startswith(" "):
                out.append(line)
        return "\n".join(out) + "\n"

    def _run(self, words: list[str]) -> list[str]:
        lines = self._call(words)
        if not self.single_turns:
            self.env.run_deferred()
        out = [*(lines or []), *self.env.take()]
        if self.env.wants_continue:
            out.append("...")
        return out

    def _call(self, words: list[str]) -> list[str] | None:
        for n_words in (2, 1):
            name = "_".join(words[:n_words]).replace("-", "_")
            method = getattr(self, f"do_{name}", None)
            if method is not None:
                lines: list[str] | None = method(words[n_words:])
                return lines
        raise ValueError(f"Unknown command: {' '.join(words)}")

    def turn(self, message: Any, source: str = "") -> None:
        """Handle one stimulus in one turn."""
        self.env.turn(message, source)

    # -- cluster

    def do_config(self, words: list[str]) -> None:
        """``config worker-saturation=1.0``: start with a new core with these settings."""
        self.env = Env(**parse_options(words)[1])

    def do_single_turns(self, words: list[str]) -> None:
        self.single_turns = True

    def do_continue(self, words: list[str]) -> None:
        self.turn(Continue())

    def do_run_deferred(self, words: list[str]) -> None:
        self.env.run_deferred()

    def do_client(self, words: list[str]) -> None:
        self.env.client(*words)

    def do_client_leaves(self, words: list[str]) -> None:
        self.turn(ClientRemoved(words[0]), words[0])

    def do_worker(self, words: list[str]) -> None:
        """``worker w0 w1 nthreads=2 gpu=1``."""
        addresses, facts = parse_options(words)
        resources = {name: facts.pop(name) for name in list(facts) if name in ("gpu", "disk")}
        self.env.join(*addresses, resources=resources or None, **facts)

    def do_worker_dies(self, words: list[str]) -> None:
        self.turn(WorkerRemoved(words[0]))

    def do_worker_leaves(self, words: list[str]) -> None:
        self.turn(WorkerRemoved(words[0], expected=True))

    def do_status(self, words: list[str]) -> None:
        """``status w0 paused``."""
        self.env.status(words[0], cast(WorkerStatus, words[1]))

    def do_retire(self, words: list[str]) -> None:
        """``retire w0``: the scheduler sets its status to closing_gracefully."""
        self.turn(SetWorkerStatus(words[0], "closing_gracefully"))

    def do_heartbeat(self, words: list[str]) -> None:
        """``heartbeat w0 x=1.5``: a heartbeat; the task x has been executing for 1.5 seconds."""
        (address,), executing = parse_options(words)
        seconds = {parse_key(name): value for name, value in executing.items()}
        self.env.heartbeat(address, executing=seconds)

    def do_backpressured(self, words: list[str]) -> None:
        """``backpressured w0``, ``backpressured w0 off``."""
        self.turn(WorkerBackpressured(words[0], words[1:] != ["off"]))

    def do_wait(self, words: list[str]) -> None:
        """``wait 30``: advance the clock by 30 seconds and send a tick."""
        self.env.tick(float(words[0]))

    def do_restart(self, words: list[str]) -> None:
        self.turn(ReleaseAll())

    # -- graphs and desired keys

    def do_graph(self, words: list[str]) -> None:
        """``graph alice: a, b*3, c*3 <- b, d <- c*3 a; want d; on w1: a``: submit a graph."""
        self.do_hold(words)
        while self.held:
            self.do_send([])

    def do_hold(self, words: list[str]) -> None:
        """Prepare a graph, written as for ``graph``, of which ``send`` sends one part each."""
        client, _, text = " ".join(words).partition(":")
        tasks, *clauses = text.split(";")
        annotations: dict[Key, AnnotationSet] = {}
        want: list[Key] | None = None
        commit: dict[str, Any] = {}
        chunk_size = 10_000
        for clause in clauses:
            head, _, tail = clause.strip().partition(":")
            what, *arguments = head.split()
            if what == "want":
                want = parse_keys(arguments)
            elif what == "actors":
                commit["actors"] = parse_keys(arguments)
            elif what == "chunks":
                chunk_size = int(arguments[0])
            else:
                keys = parse_keys(tail.split())
                annotations.update(dict.fromkeys(keys, ANNOTATIONS[what](arguments)))
        graph = parse_tasks(tasks)
        parts = self.env.rows(
            graph, want, client, chunk_size, annotations=annotations, commit=commit
        )
        self.held += [(client, part) for part in parts]

    def do_send(self, words: list[str]) -> None:
        client, part = self.held.pop(0)
        self.turn(part, client)

    def do_desire(self, words: list[str]) -> None:
        """``desire alice x``."""
        keys = parse_keys(words[1:])
        self.turn(m.ClientDesiresKeys(keys=keys, client=words[0]), words[0])

    def do_release(self, words: list[str]) -> None:
        """``release alice x``."""
        keys = parse_keys(words[1:])
        self.turn(m.ClientReleasesKeys(keys=keys, client=words[0]), words[0])

    def do_cancel(self, words: list[str]) -> None:
        """``cancel alice x``, ``cancel alice x force``."""
        force = words[-1] == "force"
        keys = parse_keys(words[1:-1] if force else words[1:])
        message = m.CancelKeys(keys=keys, force=force, reason="cancelled", client=words[0])
        self.turn(message, words[0])

    def do_retry(self, words: list[str]) -> None:
        """``retry alice x``."""
        self.turn(RetryKeys(parse_keys(words[1:]), words[0]), words[0])

    def do_scatter(self, words: list[str]) -> None:
        """``scatter alice d w0 w1``: the client placed the data d on these workers."""
        key = parse_key(words[1])
        self.turn(DataPlaced({key: words[2:]}, {key: 100}, client=words[0]), words[0])

    # -- messages of workers

    def do_finish(self, words: list[str]) -> None:
        """``finish x y nbytes=100 seconds=2``."""
        names, fields = parse_options(words)
        for key in parse_keys(names):
            self.turn(self.env.finished(key, **fields), self.env.where(key))

    def do_fail(self, words: list[str]) -> None:
        self.env.fail(*parse_keys(words))

    def do_fetched(self, words: list[str]) -> None:
        """Add a replica: ``fetched w1 x``."""
        self.turn(m.AddKeys(keys=parse_keys(words[1:])), words[0])

    def do_dropped(self, words: list[str]) -> None:
        """Remove a replica: ``dropped w1 x``."""
        for key in parse_keys(words[1:]):
            self.turn(m.ReleaseWorkerData(key=key), words[0])

    def do_secede(self, words: list[str]) -> None:
        for key in parse_keys(words):
            run_id = self.env.task(key).run_id
            message = m.LongRunning(key=key, run_id=run_id, compute_duration=1.0)
            self.turn(message, self.env.where(key))

    def do_reschedule(self, words: list[str]) -> None:
        for key in parse_keys(words):
            self.turn(m.Reschedule(key=key), self.env.where(key))

    def do_where_is(self, words: list[str]) -> None:
        """``where is w1 x``: the worker w1 requests the location of x."""
        self.turn(m.RequestRefreshWhoHas(keys=parse_keys(words[1:])), words[0])

    # -- stealing

    def do_balance(self, words: list[str]) -> None:
        self.turn(BalanceWork())

    def do_recall(self, words: list[str]) -> None:
        """``recall x w1``: recall the task x from its worker, to run it on w1."""
        self.turn(RecallTask(parse_key(words[0]), words[1]))

    def do_restrict(self, words: list[str]) -> None:
        """``restrict x w0``: the task x may run on w0 only."""
        self.turn(RestrictionsSet({parse_key(words[0]): words[1:]}))

    def do_stealing(self, words: list[str]) -> None:
        """``stealing on``, ``stealing off``."""
        self.turn(ConfigureStealing(words[0] == "on"))

    def do_steal_response(self, words: list[str]) -> None:
        """``steal-response w0 x ready steal-0``: reply to a request; ``none`` for unknown tasks."""
        address, name, found, request = words
        state = None if found == "none" else found
        self.turn(m.StealResponse(key=parse_key(name), state=state, stimulus_id=request), address)

    def do_stolen(self, words: list[str]) -> list[str]:
        """Show the last event of the topic "stealing", without times and loads."""
        what, *rest = self.env.state.events.get("stealing")[-1][1]
        if what == "request":
            return [f"request {format_key(r[2])} {r[4]} -> {r[6]} at level {r[1]}" for r in rest[0]]
        return [" ".join([str(what), *(format_key(r) for r in rest)])]

    def do_in_flight(self, words: list[str]) -> list[str]:
        """Show the tasks of open steal requests, and how many tasks each worker gains by them."""
        stealing = self.env.state.stealing
        gains = " ".join(f"{ws.address}{n:+d}" for ws, n in stealing.tasks.items() if n)
        return [format_key(ts.key) for ts in stealing.in_flight] + ([gains] if gains else [])

    # -- state

    def do_states(self, words: list[str]) -> list[str]:
        keys = parse_keys(words)
        return [f"{format_key(key)} {state}" for key, state in zip(keys, self.env.states(*keys))]
