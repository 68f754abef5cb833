"""Spans: their groups, their sums, and what is kept after they end."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.scheduler.core.state.graphs import spans as spans_module
from paceline.scheduler.core.state.graphs.spans import Span, SpanTree, intervals
from paceline.scheduler.core.state.model import TaskGroup, TaskPrefix
from paceline.scheduler.core.state.task_states import STATE_NUMBERS
from paceline.scheduler.core.stimuli import AnnotationSet
from paceline.testing import Env


def annotated(*ids: str, names: tuple[str, ...] | None = None, **more: Any) -> AnnotationSet:
    path = (names or tuple(f"name-{each}" for each in ids), ids)
    value = {"span": {"name": path[0], "ids": ids}}
    return AnnotationSet(value=value, span=path, **more)


def names(env: Env) -> list[tuple[str, ...]]:
    return [span.name for span in env.state.spans.spans.values()]


def span_of(env: Env, key: Any) -> Span:
    return env.state.spans.spans[env.task(key).group.span_id or ""]


def test_tasks_without_span_are_in_a_default_span(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"]})
    assert names(duo) == [("default",)]
    assert span_of(duo, "x") is span_of(duo, "y")
    assert span_of(duo, "x").annotation is None
    assert duo.task("x").annotations is None


def test_workers_receive_the_span(duo: Env) -> None:
    duo.submit({"x": []}, annotations={"x": annotated("a")})
    (messages,) = duo.outbox.workers.values()
    assert messages[0].span_id == "a"
    assert messages[0].annotations["span"]["ids"] == ("a",)


def test_spans_are_a_tree(duo: Env) -> None:
    duo.submit(
        {"x": [], "y": ["x"], "z": ["y"]},
        annotations={"y": annotated("wf", "p1"), "z": annotated("wf", "p2")},
    )
    # as in stock: from the roots of the graph to its ends
    assert names(duo) == [
        ("name-wf",),
        ("name-wf", "name-p2"),
        ("name-wf", "name-p1"),
        ("default",),
    ]
    top = duo.state.spans.spans["wf"]
    assert [child.id for child in top.children] == ["p2", "p1"]
    assert top.children[0].parent is top
    assert top.children[1].annotation == {"name": ("name-wf", "name-p1"), "ids": ("wf", "p1")}
    assert [group.name for group in top.traverse_groups()] == ["z", "y"]


def test_a_default_span_ends_when_its_tasks_are_done(duo: Env) -> None:
    duo.submit({"x": []})
    duo.submit({"y": []})
    assert span_of(duo, "x") is span_of(duo, "y")
    duo.finish("x", "y")
    assert span_of(duo, "x").done
    duo.submit({"z": []})
    assert span_of(duo, "z") is not span_of(duo, "x")


def test_group_stays_in_one_span(duo: Env) -> None:
    duo.submit({("x", 0): []}, annotations={("x", 0): annotated("p1")})
    duo.submit({("x", 1): []}, annotations={("x", 1): annotated("p2")})
    duo.submit({("x", 2): []})
    assert names(duo) == [("name-p1",)]
    wanted = {"span": {"name": ("name-p1",), "ids": ("p1",)}}
    assert [duo.task(("x", i)).annotations for i in range(3)] == [wanted] * 3


def test_tasks_of_a_graph_follow_the_first_one_of_their_group(duo: Env) -> None:
    graph: dict[Any, list[Any]] = {("x", 0): [], ("x", 1): []}
    duo.submit(graph, annotations={("x", 0): annotated("p1"), ("x", 1): annotated("p2")})
    assert names(duo) == [("name-p1",)]
    wanted = {"span": {"name": ("name-p1",), "ids": ("p1",)}}
    assert [duo.task(key).annotations for key in graph] == [wanted] * 2


def test_a_group_of_a_default_span_stays_there(duo: Env) -> None:
    duo.submit({("x", 0): []})
    duo.submit({("x", 1): []}, annotations={("x", 1): annotated("p2")})
    assert names(duo) == [("default",)]
    assert duo.task(("x", 1)).annotations is None


def test_serialized_annotations_lose_the_span_of_another_group(duo: Env) -> None:
    from paceline.testing import fake_error

    duo.submit({("x", 0): []})
    both = annotated("p2", value_less_span=fake_error("less"))
    both.value = fake_error("whole")
    duo.submit({("x", 1): []}, annotations={("x", 1): both})
    assert duo.task(("x", 1)).annotations == fake_error("less")


def test_scattered_data_has_a_span_once_its_group_is_computed(duo: Env) -> None:
    from paceline.scheduler.core.stimuli import DataPlaced

    duo.feed(DataPlaced({("x", 0): ["w0"]}, {("x", 0): 1}, client="alice"))
    assert duo.task(("x", 0)).group.span_id is None
    duo.submit({("x", 1): []})
    assert duo.task(("x", 0)).group.span_id is not None


def test_sums(duo: Env) -> None:
    duo.submit(
        {"x": [], "y": ["x"]}, annotations={"x": annotated("wf"), "y": annotated("wf", "p1")}
    )
    duo.finish("x", nbytes=10, seconds=2.0)
    top = duo.state.spans.spans["wf"]
    assert not top.done
    duo.finish("y", nbytes=5, seconds=1.0)
    sums = top.totals()
    assert top.done
    assert (sums.nbytes, sums.duration, sums.all_durations) == (15, 3.0, {"compute": 3.0})
    assert (sums.start, sums.stop) == (duo.now, duo.now + 2.0)
    duo.release("y")
    assert top.totals().states["forgotten"] == 2
    assert top.totals().nbytes == 15


def test_metrics_of_workers(duo: Env) -> None:
    duo.submit({"x": []}, annotations={"x": annotated("wf", "p1")})
    data = {
        ("execute", "p1", "x", "thread-cpu", "seconds"): 0.5,
        ("execute", "gone", "x", "y", "z"): 1.0,
    }
    duo.heartbeat("w0", extensions={"spans": data})
    duo.heartbeat("w1", extensions={"spans": data})
    top = duo.state.spans.spans["wf"]
    assert top.metrics == {}
    assert top.all_metrics() == {("execute", "x", "thread-cpu", "seconds"): 1.0}


def test_invalid_metrics_are_ignored(duo: Env) -> None:
    duo.heartbeat("w0", extensions={"spans": {"odd": 1.0, (): 2.0}})
    assert duo.state.spans.spans == {}


def test_code_and_metadata(duo: Env) -> None:
    for key in "xy":
        said = {"collections": [{"type": "Future"}]}
        duo.submit({key: []}, commit={"code": ("a = 1",), "span_metadata": said})
    span = span_of(duo, "x")
    assert list(span.codes.values()) == [("a = 1",)]
    assert span.metadata == [said, said]
    assert span.metadata[0] is span.metadata[1]  # equal values are stored once
    assert list(duo.state.computations[-1].codes.values()) == [("a = 1",)]


def test_computation_includes_graphs_submitted_while_busy(duo: Env) -> None:
    duo.submit({"x": []})
    duo.submit({"y": []})
    assert len(duo.state.computations) == 1
    duo.finish("x", "y")
    duo.submit({"z": []})
    first, second = duo.state.computations
    assert [group.name for group in first.groups] == ["x", "y"]
    assert first.stop == duo.now + 0.1
    assert [group.name for group in second.groups] == ["z"]


@pytest.mark.pure
def test_finished_groups_are_kept_for_a_while(duo: Env, monkeypatch: Any) -> None:
    monkeypatch.setattr(spans_module, "GROUPS_OVER_MAX", 2)
    duo.submit({"keep": []})  # one span for all
    for i in range(5):
        duo.submit({f"x{i}": []})
        duo.finish(f"x{i}", nbytes=1)
        duo.release(f"x{i}")
    span = span_of(duo, "keep")
    assert [group.name for group in span.groups] == ["keep", "x3", "x4"]
    assert span.totals().states["forgotten"] == 5
    assert span.totals().nbytes == 5
    (computation,) = duo.state.computations
    assert list(computation.groups) == list(span.groups)
    assert computation.states["forgotten"] == 5
    assert computation.states["processing"] == 1
    assert computation.stop == duo.now + 0.1


def test_group_of_many_graphs_releases_finished_dependencies(duo: Env) -> None:
    """As ``finalize``, which has a task in each graph: it would otherwise keep every group."""
    duo.submit({("final", "keep"): []})
    for i in range(500):
        duo.submit({(f"x{i}", 0): [], ("final", i): [(f"x{i}", 0)]}, want=[("final", i)])
        duo.finish((f"x{i}", 0), ("final", i))
        duo.release(("final", i))
    group = duo.task(("final", "keep")).group
    assert group.states["forgotten"] == 500
    assert 5 < len(group.dependencies) <= 64
    assert [other.name for other in group.dependencies][-1] == "x499"


def test_unfinished_groups_remain_dependencies(duo: Env) -> None:
    many = {(f"x{i}", 0): [] for i in range(300)}
    duo.submit({**many, "y": list(many)})
    assert [other.name for other in duo.task("y").group.dependencies] == [
        f"x{i}" for i in range(300)
    ]


def test_restart_keeps_only_sums(duo: Env) -> None:
    from paceline.scheduler.core.stimuli import ReleaseAll

    duo.submit({"x": []})
    duo.finish("x", nbytes=7)
    span = span_of(duo, "x")
    duo.feed(ReleaseAll())
    assert not span.groups
    assert span.totals().nbytes == 7
    assert span.done


def group(name: str) -> TaskGroup:
    made = TaskGroup(name, TaskPrefix(name))
    made.n_added = made.counts[STATE_NUMBERS["memory"]] = 1
    return made


@pytest.mark.pure
def test_number_of_spans_is_limited(monkeypatch: Any) -> None:
    monkeypatch.setattr(spans_module, "SPANS_MAX", 3)
    tree = SpanTree()
    for i in range(10):
        tree.observe([(group(f"x{i}"), (("wf", f"p{i}"), ("wf", f"p{i}")))], 1.0 + i)
    assert list(tree.spans) == ["wf", "p8", "p9"]
    assert [child.id for child in tree.spans["wf"].children] == ["p8", "p9"]
    assert tree.spans["wf"].totals().states["memory"] == 10
    tree.add_metrics({("execute", "p0", "x", "y", "seconds"): 1.0})


@pytest.mark.pure
def test_number_of_default_spans_is_limited(monkeypatch: Any) -> None:
    monkeypatch.setattr(spans_module, "DEFAULT_SPANS_MAX", 2)
    tree = SpanTree()
    tree.observe([(group("mine"), (("wf",), ("wf",)))], 1.0)
    for i in range(5):
        tree.observe([(group(f"x{i}"), None)], 2.0 + i)
    assert list(tree.spans) == ["wf", "default-4", "default-5"], "named spans are kept"
    again = group("x0")
    again.span_id = "default-1"
    assert tree.group_over(again) is None  # metrics of a span that was removed
    tree.add_metrics({("execute", "default-1", "x", "y", "seconds"): 1.0})


def test_names_of_metrics_are_shared() -> None:
    tree = SpanTree()
    for i in range(2):
        tree.observe([(group(f"x{i}"), ((f"p{i}",), (f"p{i}",)))], 1.0)
        tree.add_metrics({("execute", f"p{i}", "prefix", "activity", "seconds"): 1.0})
    (first,), (second,) = (span.metrics for span in tree.spans.values())
    assert first is second == ("execute", "prefix", "activity", "seconds")


def test_an_open_group_is_found_among_many() -> None:
    tree = SpanTree()
    groups = [group(f"x{i}") for i in range(5)]
    groups[1].counts[STATE_NUMBERS["processing"]] = 1
    tree.observe([(each, None) for each in groups], 1.0)
    (span,) = tree.spans.values()
    assert span.is_open()
    assert span.open_group is groups[1]
    groups[1].counts[STATE_NUMBERS["processing"]] = 0
    assert not span.is_open()
    assert span.open_group is None


def test_threads_over_time() -> None:
    log = [(0.0, 0), (1.0, 4), (3.0, 2)]
    assert intervals([(2.0, 5.0)], log) == [(2.0, 3.0, 4), (3.0, 5.0, 2)]
    assert intervals([(4.0, 5.0), (1.0, 2.0), (1.5, 2.5)], log) == [(1.0, 2.5, 4), (4.0, 5.0, 2)]
    assert intervals([(2.0, 2.0)], log) == []


@pytest.mark.pure
def test_the_log_of_threads_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(spans_module, "THREADS_LOG_MAX", 4)
    tree = SpanTree()
    tree.note_threads(1, 1.0)
    span = tree.ensure((("a",), ("a",)), 1.5)
    assert tree.threads_since(span) == [(1.0, 1)]
    for i in range(2, 10):
        tree.note_threads(i, float(i))
    assert len(tree.threads) <= 4
    late = tree.ensure((("b",), ("b",)), 9.5)
    assert tree.threads_since(late) == [(9.0, 9)]


def test_the_log_follows_workers(env: Env) -> None:
    env.join("w0", nthreads=2)
    env.now += 1
    env.join("w1", nthreads=3)
    env.lose("w0")
    assert [n for _, n in env.state.spans.threads] == [0, 2, 5, 3]
