"""Names chosen by peers are kept up to a limit: prefixes, metrics, types, clients."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.handlers import workers
from paceline.scheduler.core.lifecycle import accounting
from paceline.scheduler.core.state.graphs import spans
from paceline.testing import Env


def run_tasks(env: Env, *keys: str) -> None:
    """Compute tasks, and release them."""
    env.submit({key: [] for key in keys})
    for key in keys:
        env.finish(key, seconds=2.0)
    env.release(*keys)
    assert not env.state.tasks
    env.take()


def test_least_recently_used_prefix_is_dropped(
    make_env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "IDLE_PREFIXES_MAX", 2)
    env = make_env()
    env.join("w0")
    run_tasks(env, "a-1")
    run_tasks(env, "b-1")
    run_tasks(env, "a-2")
    run_tasks(env, "c-1")
    state = env.state
    assert list(state.task_prefixes) == ["a", "c"]
    assert state.task_prefixes["a"].duration_average == 2.0
    assert state.dropped_prefixes.state_counts["memory"] == 1
    assert state.dropped_prefixes.durations_over == {"compute": 2.0}
    for key in ("b-2", "d-1", "e-1", "f-1"):
        run_tasks(env, key)
    assert list(state.idle_prefixes) == ["e", "f"]
    counts = [p.state_counts["memory"] for p in state.task_prefixes.values()]
    assert sum(counts) + state.dropped_prefixes.state_counts["memory"] == 8


def test_desires_for_an_absent_client_are_ignored(duo: Env) -> None:
    before = dict(duo.state.clients)
    duo.feed(m.ClientDesiresKeys(keys=["x"], client="absent"), "alice")
    assert duo.state.clients == before and not duo.state.tasks
    assert "absent" in duo.lines[-1][1]
    duo.client("bob")
    duo.feed(m.ClientDesiresKeys(keys=["x"], client="bob"), "alice")
    assert list(duo.state.tasks) == ["x"]


@pytest.mark.pure
def test_metrics_of_further_prefixes_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "METRIC_NAMES_MAX", 3)
    monkeypatch.setattr(spans, "OTHER_METRICS_MAX", 1)
    sums: dict[Any, float] = {}
    for number in range(6):
        spans.add_metric(sums, ("execute", f"p{number}", "cpu", "seconds"), 1.0)
    spans.add_metric(sums, ("execute", "p0", "cpu", "seconds"), 1.0)
    spans.add_metric(sums, ("execute", "p9", "io", "seconds"), 1.0)
    spans.add_metric(sums, "text", 1.0)
    assert list(sums.values()) == [2.0, 1.0, 1.0, 3.0]
    assert ("execute", "(other)", "cpu", "seconds") in sums


def test_actions_and_types_are_limited(duo: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "ACTIONS_MAX", 2)
    monkeypatch.setattr(workers, "BANDWIDTH_TYPES_MAX", 2)
    duo.submit({"x": []})
    group = duo.task("x").group
    for action in ("compute", "transfer", "a", "b", "compute"):
        accounting.add_duration(duo.state, group, action, 1.0, 2.0)
    assert group.all_durations == {"compute": 2.0, "transfer": 1.0, "(other)": 2.0}
    types = dict.fromkeys(("int", "str", "float"), (1000000.0, 1))
    workers._learn_bandwidth(duo.state, duo.worker("w0"), {"total": 5e-324, "types": types})
    assert list(duo.state.bandwidth_types) == ["str", "float"]
    assert duo.state.bandwidth >= workers.BANDWIDTH_MIN
