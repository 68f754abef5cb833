"""Rules 5 and 6: the tables are complete. Ops have handlers, and pairs of states have an entry."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections import Counter

from paceline.protocol.catalogue import TABLES, Direction, Op
from paceline.protocol.messages import Message
from paceline.scheduler.core import handlers
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import HANDLERS
from paceline.scheduler.core.lifecycle.transitions import TRANSITIONS
from paceline.scheduler.core.state.task_states import IMPOSSIBLE, TASK_STATES
from paceline.scheduler.extensions import default_extensions
from paceline.scheduler.server import requests
from paceline.scheduler.server.requests import build_handlers


def answer(start: str, finish: str) -> str:
    """Return the entry of a pair: "direct", "through released", a reason why not, or nothing."""
    if (start, finish) in TRANSITIONS:
        return "direct"
    if (start, finish) in IMPOSSIBLE:
        return IMPOSSIBLE[start, finish]
    if (start, "released") in TRANSITIONS or start == "released":
        if ("released", finish) in TRANSITIONS:
            return "through released"
        return IMPOSSIBLE.get(("released", finish), "")
    return ""


def test_every_pair_of_states_has_an_entry() -> None:
    pairs = itertools.permutations(TASK_STATES, 2)
    silent = [pair for pair in pairs if pair[0] != "forgotten" and not answer(*pair)]
    assert silent == []


def test_no_pair_is_both_possible_and_not() -> None:
    assert set(TRANSITIONS) & set(IMPOSSIBLE) == set()


def test_nothing_leaves_forgotten() -> None:
    assert [pair for pair in TRANSITIONS if pair[0] == "forgotten"] == []


def test_transitions_are_named_after_their_pair() -> None:
    """Functions that serve several pairs have another name."""
    uses = Counter(TRANSITIONS.values())
    wrong = [
        function.__name__
        for (start, finish), function in TRANSITIONS.items()
        if uses[function] == 1
        and function.__name__ != f"transition_{start}_{finish}".replace("-", "_")
    ]
    assert wrong == []


# ------------------------------------------------------------------ ops

# Ops without a handler, and the issue that adds each. The peer gets an error that names the op.
NOT_YET: dict[str, str] = {}
# Messages of a client's stream about graphs and data go through the graph compilers and `requests`.
BY_THE_STREAM = {"update-graph", "update-data"}
# Stock's scheduler plugin puts its own handlers on the facade (workers_compat/facade/stock_plugins.py).
BY_THE_SHUFFLE_PLUGIN = {
    "shuffle_get_or_create",
    "shuffle_get",
    "shuffle_barrier",
    "shuffle_restrict_task",
}
INCOMING: tuple[Direction, ...] = ("worker_to_scheduler", "client_to_scheduler", "scheduler_rpc")


def takers(cls: type[Message]) -> list[str]:
    """Return the handlers of a message's class: the core, its extensions, the server's table of requests."""
    extensions = default_extensions(SchedulerConfig())
    found = [each.name for each in extensions if cls in each.handlers()]
    return [*found, "core"] if cls in HANDLERS else found


def incoming() -> list[Op]:
    elsewhere = BY_THE_STREAM | BY_THE_SHUFFLE_PLUGIN
    ops = [op for direction in INCOMING for op in TABLES[direction].values()]
    return [op for op in ops if not op.is_connection and op.name not in elsewhere]


def test_every_module_of_handlers_handles_messages() -> None:
    found = pkgutil.iter_modules(handlers.__path__, handlers.__name__ + ".")
    modules = [importlib.import_module(info.name) for info in found]
    assert [each.__name__ for each in modules if not hasattr(each, "HANDLERS")] == []
    missing = [each.__name__ for each in modules if not each.HANDLERS.items() <= HANDLERS.items()]
    assert missing == []


def test_every_module_of_requests_is_described() -> None:
    names = {module.__name__.rpartition(".")[2] for module in requests.import_modules()}
    assert [name for name in names if f"``{name}``" not in str(requests.__doc__)] == []


def test_every_op_has_a_handler_or_a_reason() -> None:
    served = build_handlers()
    silent = [
        f"{op.direction}: {op.name}"
        for op in incoming()
        if not takers(op.cls) and op.cls not in served and op.name not in NOT_YET
    ]
    assert silent == []


def test_reasons_are_current_and_name_an_issue() -> None:
    """An op with a handler must be removed from the list of ops without one, and every reason names an issue."""
    served = build_handlers()
    stale = [
        op.name for op in incoming() if op.name in NOT_YET and (takers(op.cls) or op.cls in served)
    ]
    assert stale == []
    assert [op for op, reason in NOT_YET.items() if not reason[:1].isdigit()] == []


def test_no_op_has_two_handlers() -> None:
    """A request may have a handler of the server that makes it a turn of the core; other ops have one handler."""
    assert [op.name for op in incoming() if len(takers(op.cls)) > 1] == []
