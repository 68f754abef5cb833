"""Scenarios: text files with stimuli in and the outbox out.

A line that begins with ``>`` is a command; what follows it, indented, is all that the core sent. ``#`` comments.
``pytest tests/scenarios --record`` (or ``RECORD=1``) writes what comes out now into the files: read the diff.

After each command the core goes on until it has nothing more to do, except after ``> by hand``: then each turn
is asked for with ``> continue``, and ``...`` says that the core wants one. The commands are in ``COMMANDS``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.stimuli import (
    AnnotationSet,
    BalanceWork,
    ClientRemoved,
    ConfigureStealing,
    Continue,
    DataPlaced,
    RecallTask,
    ReleaseAll,
    RestrictionsSet,
    RetryKeys,
    SetWorkerStatus,
    WorkerBackpressured,
    WorkerRemoved,
)

from tests.core.env import Env

FOLDER = Path(__file__).parent
FILES = sorted(path.stem for path in FOLDER.glob("*.txt"))


class Scenario:
    """One file being played: an environment, graphs that wait to be sent, and whether turns go by hand."""

    def __init__(self) -> None:
        self.env = Env()
        self.held: list[tuple[str, Any]] = []
        self.by_hand = False

    def play(self, text: str) -> str:
        """The file as it should be."""
        out: list[str] = []
        for line in text.splitlines():
            if line.startswith(">"):
                out.append(line)
                out += [f"  {said}" for said in self._command(line[1:].split("#")[0].split())]
            elif not line.startswith(" "):
                out.append(line)
        return "\n".join(out) + "\n"

    def _command(self, words: list[str]) -> list[str]:
        command = COMMANDS.get(" ".join(words[:2]))
        if command is not None and len(words) > 1:
            said = command(self, words[2:])
        else:
            said = COMMANDS[words[0]](self, words[1:])
        if not self.by_hand:
            self.env.go_on()
        out = [*(said or []), *self.env.take()]
        if self.env.wants_continue:
            out.append("...")
        return out

    def feed(self, message: Any, source: str = "") -> None:
        self.env.turn(message, source)


COMMANDS: dict[str, Callable[[Scenario, list[str]], list[str] | None]] = {}


def command(name: str) -> Callable[[Any], Any]:
    def mark(function: Any) -> Any:
        COMMANDS[name] = function
        return function

    return mark


def key(word: str) -> Any:
    """``x`` is a name, ``x.3`` the tuple ("x", 3)."""
    name, _, number = word.partition(".")
    return (name, int(number)) if number else name


def keys(words: list[str]) -> list[Any]:
    """As ``key``; ``x*3`` is x.0, x.1, x.2."""
    out: list[Any] = []
    for word in words:
        name, _, count = word.partition("*")
        out += [(name, i) for i in range(int(count))] if count else [key(word)]
    return out


def value(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def options(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Words without and with ``=``."""
    named = dict(word.split("=") for word in words if "=" in word)
    return [word for word in words if "=" not in word], {
        name.replace("-", "_"): value(text) for name, text in named.items()
    }


def shown(word: Any) -> str:
    return f"{word[0]}.{word[1]}" if isinstance(word, tuple) else str(word)


# ------------------------------------------------------------------ the cluster


@command("config")
def config(play: Scenario, words: list[str]) -> None:
    """``config worker-saturation=1.0``: begins anew with these settings."""
    play.env = Env(**options(words)[1])


@command("by hand")
def by_hand(play: Scenario, words: list[str]) -> None:
    play.by_hand = True


@command("continue")
def go_on(play: Scenario, words: list[str]) -> None:
    play.feed(Continue())


@command("to-the-end")
def to_the_end(play: Scenario, words: list[str]) -> None:
    play.env.go_on()


@command("client")
def client(play: Scenario, words: list[str]) -> None:
    play.env.client(*words)


@command("client leaves")
def client_leaves(play: Scenario, words: list[str]) -> None:
    play.feed(ClientRemoved(words[0]), words[0])


@command("worker")
def worker(play: Scenario, words: list[str]) -> None:
    """``worker w0 w1 nthreads=2 gpu=1``"""
    addresses, facts = options(words)
    resources = {name: facts.pop(name) for name in list(facts) if name in ("gpu", "disk")}
    play.env.join(*addresses, resources=resources or None, **facts)


@command("worker dies")
def worker_dies(play: Scenario, words: list[str]) -> None:
    play.feed(WorkerRemoved(words[0]))


@command("worker leaves")
def worker_leaves(play: Scenario, words: list[str]) -> None:
    play.feed(WorkerRemoved(words[0], expected=True))


@command("status")
def status(play: Scenario, words: list[str]) -> None:
    """``status w0 paused``"""
    play.feed(m.WorkerStatusChange(status=words[1]), words[0])


@command("retire")
def retire(play: Scenario, words: list[str]) -> None:
    """The scheduler tells a worker that it is to go."""
    play.feed(SetWorkerStatus(words[0], "closing_gracefully"))


@command("beat")
def beat(play: Scenario, words: list[str]) -> None:
    """``beat w0 x=1.5``: x has been executing for 1.5 seconds."""
    (address,), executing = options(words)
    play.env.beat(address, executing={key(name): seconds for name, seconds in executing.items()})


@command("backpressured")
def backpressured(play: Scenario, words: list[str]) -> None:
    play.feed(WorkerBackpressured(words[0], True))


@command("unclogged")
def unclogged(play: Scenario, words: list[str]) -> None:
    play.feed(WorkerBackpressured(words[0], False))


@command("wait")
def wait(play: Scenario, words: list[str]) -> None:
    """``wait 30``: seconds, and a tick."""
    play.env.tick(float(words[0]))


@command("restart")
def restart(play: Scenario, words: list[str]) -> None:
    play.feed(ReleaseAll())


# ------------------------------------------------------------------ graphs and wishes


@command("graph")
def graph(play: Scenario, words: list[str]) -> None:
    """``graph alice: a, b*3, c*3 <- b, d <- c*3 a; want d; on w1: a``"""
    hold(play, words)
    while play.held:
        send(play, [])


@command("hold")
def hold(play: Scenario, words: list[str]) -> None:
    """As ``graph``, but its parts wait for ``send``."""
    text = " ".join(words)
    name, _, text = text.partition(":")
    tasks, *clauses = text.split(";")
    annotations: dict[Any, AnnotationSet] = {}
    want: list[Any] | None = None
    commit: dict[str, Any] = {}
    chunk_size = 10_000
    for clause in clauses:
        head, _, tail = clause.strip().partition(":")
        what, *arguments = head.split()
        about = keys(tail.split())
        if what == "want":
            want = keys(arguments)
        elif what == "actors":
            commit["actors"] = keys(arguments)
        elif what == "chunks":
            chunk_size = int(arguments[0])
        else:
            annotations.update(dict.fromkeys(about, ANNOTATIONS[what](arguments)))
    rows = play.env.rows(
        parse_tasks(tasks), want, name, chunk_size, annotations=annotations, commit=commit
    )
    play.held += [(name, part) for part in rows]


ANNOTATIONS: dict[str, Callable[[list[str]], AnnotationSet]] = {
    "on": lambda a: AnnotationSet(workers=a),
    "preferably-on": lambda a: AnnotationSet(workers=a, allow_other_workers=True),
    "retries": lambda a: AnnotationSet(retries=int(a[0])),
    "priority": lambda a: AnnotationSet(priority=float(a[0])),
    "using": lambda a: AnnotationSet(resources=options(a)[1]),
}


def parse_tasks(text: str) -> dict[Any, list[Any]]:
    """``y*3 <- x``: y.i on x.i where x stands without a number and is a row of tasks, else on x itself."""
    out: dict[Any, list[Any]] = {}
    for task in filter(None, (part.strip() for part in text.split(","))):
        name, _, needs = task.partition("<-")
        for made in keys([name.strip()]):
            out[made] = [
                (need, made[1]) if isinstance(made, tuple) and (need, 0) in out else one
                for need in needs.split()
                for one in keys([need])
            ]
    return out


@command("send")
def send(play: Scenario, words: list[str]) -> None:
    """The next part of what is held."""
    name, part = play.held.pop(0)
    play.feed(part, name)


@command("desire")
def desire(play: Scenario, words: list[str]) -> None:
    play.feed(m.ClientDesiresKeys(keys=keys(words[1:]), client=words[0]), words[0])


@command("release")
def release(play: Scenario, words: list[str]) -> None:
    play.feed(m.ClientReleasesKeys(keys=keys(words[1:]), client=words[0]), words[0])


@command("cancel")
def cancel(play: Scenario, words: list[str]) -> None:
    """``cancel alice x force``"""
    force = words[-1] == "force"
    names = words[1:-1] if force else words[1:]
    message = m.CancelKeys(keys=keys(names), force=force, reason="cancelled", client=words[0])
    play.feed(message, words[0])


@command("retry")
def retry(play: Scenario, words: list[str]) -> None:
    play.feed(RetryKeys(keys(words[1:]), words[0]), words[0])


@command("scatter")
def scatter(play: Scenario, words: list[str]) -> None:
    """``scatter alice d w0 w1``: d lies on these."""
    name = key(words[1])
    play.feed(DataPlaced({name: words[2:]}, {name: 100}, client=words[0]), words[0])


# ------------------------------------------------------------------ what workers say


@command("finish")
def finish(play: Scenario, words: list[str]) -> None:
    """``finish x y nbytes=100 seconds=2``"""
    names, fields = options(words)
    for name in keys(names):
        play.feed(play.env.finished(name, **fields), play.env.where(name))


@command("fail")
def fail(play: Scenario, words: list[str]) -> None:
    play.env.fail(*keys(words))


@command("fetched")
def fetched(play: Scenario, words: list[str]) -> None:
    """``fetched w1 x``"""
    play.feed(m.AddKeys(keys=keys(words[1:])), words[0])


@command("dropped")
def dropped(play: Scenario, words: list[str]) -> None:
    for name in keys(words[1:]):
        play.feed(m.ReleaseWorkerData(key=name), words[0])


@command("secede")
def secede(play: Scenario, words: list[str]) -> None:
    for name in keys(words):
        run_id = play.env.task(name).run_id
        message = m.LongRunning(key=name, run_id=run_id, compute_duration=1.0)
        play.feed(message, play.env.where(name))


@command("reschedule")
def reschedule(play: Scenario, words: list[str]) -> None:
    for name in keys(words):
        play.feed(m.Reschedule(key=name), play.env.where(name))


@command("where is")
def where_is(play: Scenario, words: list[str]) -> None:
    """``where is w1 x``: the worker w1 asks."""
    play.feed(m.RequestRefreshWhoHas(keys=keys(words[1:])), words[0])


@command("balance")
def balance(play: Scenario, words: list[str]) -> None:
    """Look who has too much to do."""
    play.feed(BalanceWork())


@command("ask back")
def ask_back(play: Scenario, words: list[str]) -> None:
    """``ask back x w1``: whoever has x is asked for it, for w1."""
    play.feed(RecallTask(key(words[0]), words[1]))


@command("restrict")
def restrict(play: Scenario, words: list[str]) -> None:
    """``restrict x w0``: x may run on w0 only, from now on."""
    play.feed(RestrictionsSet({key(words[0]): words[1:]}))


@command("stealing")
def stealing(play: Scenario, words: list[str]) -> None:
    """``stealing on``, ``stealing off``"""
    play.feed(ConfigureStealing(words[0] == "on"))


@command("answer")
def answer(play: Scenario, words: list[str]) -> None:
    """``answer w0 x ready steal-0``: w0 was asked for x, which was ready there. ``none``: it does not know it."""
    address, name, found, request = words
    state = None if found == "none" else found
    play.feed(m.StealResponse(key=key(name), state=state, stimulus_id=request), address)


@command("stolen")
def stolen(play: Scenario, words: list[str]) -> list[str]:
    """The last line of the log of stealing, without times and loads."""
    events = play.env.core.state.events.get("stealing")
    what, *rest = events[-1][1]
    if what == "request":
        return [f"request {shown(r[2])} {r[4]} -> {r[6]} at level {r[1]}" for r in rest[0]]
    return [" ".join([what, *(shown(r) for r in rest)])]


@command("in flight")
def in_flight(play: Scenario, words: list[str]) -> list[str]:
    """What is on its way, and how many tasks each worker gains by it."""
    steals = play.env.state.stealing
    gains = " ".join(f"{ws.address}{n:+d}" for ws, n in steals.tasks.items() if n)
    return [f"{shown(ts.key)}" for ts in steals.in_flight] + ([gains] if gains else [])


@command("states")
def states(play: Scenario, words: list[str]) -> list[str]:
    found = play.env.states(*keys(words))
    return [f"{shown(name)} {state}" for name, state in zip(keys(words), found, strict=True)]


# ------------------------------------------------------------------ the test


@pytest.mark.parametrize("name", FILES)
def test_scenario(name: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / f"{name}.txt"
    text = path.read_text()
    assert re.match(r"# \w", text), "a scenario begins with a comment that says what it shows"
    found = Scenario().play(text)
    if request.config.getoption("--record", default=False) or os.environ.get("RECORD"):
        path.write_text(found)
    else:
        assert found == text


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 15
