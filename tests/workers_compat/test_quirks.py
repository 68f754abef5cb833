"""Behaviour of stock that paceline copies although another would be better: a numbered list.

Each entry names stock's code, the code here and a test. The number of a dropped entry is not used again.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Quirk:
    """A stock behaviour that paceline copies.

    Attributes:
        number: never used again.
        what: the behaviour, and what we would rather do.
        stock: module and name in distributed or dask that shows it.
        ours: module and name that copies it.
        test: file and function, under ``tests/``.
    """

    number: int
    what: str
    stock: str
    ours: str
    test: str


QUIRKS = (
    Quirk(
        1,
        "A graph that cannot be unpickled fails with a RuntimeError about different environments, "
        "whatever the reason was; the reason is its __cause__. Programs search for this text.",
        "distributed.scheduler:Scheduler.update_graph",
        "paceline.workers_compat.graphs.compiler:UNREADABLE",
        "workers_compat/test_graph.py:test_error_texts_of_stock_are_unchanged",
    ),
    Quirk(
        2,
        'Exceptions travel as bytes of distributed\'s "dask" family that hold a pickle, so a peer unpickles '
        "twice. Clients restricted to other serializers read them only so.",
        "distributed.core:error_message",
        "paceline.workers_compat.errors:bytes_payload",
        "workers_compat/test_errors.py:test_exception_cause_and_traceback",
    ),
    Quirk(
        3,
        "KilledWorker carries a whole pickled WorkerState of the scheduler's own class. An address would do, "
        "but users read last_worker.name and others.",
        "distributed.scheduler:KilledWorker",
        "paceline.workers_compat.errors:stock_worker_state",
        "workers_compat/test_errors.py:test_killed_worker",
    ),
    Quirk(
        4,
        "Only LLGExpr is culled by the scheduler; of every other expression the order is computed for the "
        "whole graph, and n_tasks counts it, though tasks that are not needed are never created.",
        "distributed.scheduler:_cull",
        "paceline.workers_compat.graphs.compiler:materialize",
        "workers_compat/test_graph.py:test_a_diamond",
    ),
    Quirk(
        5,
        "dask.order breaks ties by the text of a key, so independent tasks run from "
        "the last to the first by text: x-9 before x-10.",
        "dask.order:order",
        "paceline.workers_compat.graphs.ordering:GraphIndex.ordered",
        "workers_compat/test_ordering.py:test_order_equals_dasks",
    ),
    Quirk(
        6,
        'A worker in the annotation "workers" that is neither an address nor a known name is taken for a '
        "host name, so a misspelt name restricts a task to a host that does not exist. The graph is not refused.",
        "distributed.scheduler:Scheduler._apply_annotations",
        "paceline.workers_compat.graphs.annotations:plain_workers",
        "workers_compat/test_annotations.py:test_one_worker_without_its_list_and_a_set_of_them",
    ),
    Quirk(
        7,
        "The older annotation names restrictions and loose_restrictions mean the same as workers and "
        "allow_other_workers; current clients do not send them.",
        "distributed.scheduler:Scheduler._apply_annotations",
        "paceline.workers_compat.graphs.annotations:annotation_set",
        "workers_compat/test_annotations.py:test_former_names",
    ),
    Quirk(
        8,
        "A peer that sends no versions is warned with a table in which all of its packages are UNKNOWN.",
        "distributed.versions:error_message",
        "paceline.workers_compat.config.versions:version_warning",
        "workers_compat/test_config_and_versions.py:test_versions",
    ),
    Quirk(
        9,
        "While hooks are called for a forgotten task, it can still be found by its key, with its former "
        "dependencies.",
        "distributed.scheduler:SchedulerState._transition",
        "paceline.workers_compat.facade.plugins:Plugins.transition",
        "workers_compat/test_facade.py:test_forgotten_tasks_are_still_seen_by_the_hook",
    ),
    Quirk(
        10,
        "Plugins may write restrictions, resources and priorities of tasks in update_graph, on attributes "
        "with and without a leading underscore, and the graph is scheduled by them.",
        "distributed.diagnostics.plugin:SchedulerPlugin.update_graph",
        "paceline.workers_compat.facade.views:task_write",
        "workers_compat/test_facade.py:test_a_plugin_restricts_tasks_before_they_are_scheduled",
    ),
    Quirk(
        11,
        "A second plugin of the same name replaces the first with a warning, without its close being called.",
        "distributed.scheduler:Scheduler.add_plugin",
        "paceline.workers_compat.facade.plugins:Plugins.add",
        "workers_compat/test_facade.py:test_only_overridden_hooks_are_called",
    ),
)


def find(name: str) -> object:
    module, _, path = name.partition(":")
    found = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def test_numbers_are_used_once():
    numbers = [quirk.number for quirk in QUIRKS]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: str(quirk.number))
def test_what_a_quirk_names_exists(quirk):
    assert find(quirk.stock) is not None
    assert find(quirk.ours) is not None
    file, _, function = quirk.test.partition(":")
    tree = ast.parse((TESTS / file).read_text())
    names = {
        n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert function in names
    assert quirk.what.endswith(".")
