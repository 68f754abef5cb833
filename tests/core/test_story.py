"""Stories: transitions of keys and stimuli in the transition log."""

from __future__ import annotations

from paceline.scheduler.core.inspection.queries import story
from paceline.testing import Env


def test_story_of_a_key(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"]})
    duo.finish("x")
    told = story(duo.state, "x")
    assert [entry[:3] for entry in told] == [
        ("x", "released", "waiting"),
        ("x", "waiting", "processing"),
        ("x", "processing", "memory"),
    ]
    _, _, _, recommended, stimulus_id, seconds = told[-1]
    assert recommended == {"y": "processing"}
    assert stimulus_id.startswith("task-finished-")
    assert seconds == duo.now


def test_story_includes_recommendations_for_the_key(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"]})
    duo.finish("x")
    assert ("x", "processing", "memory") in [entry[:3] for entry in story(duo.state, "y")]


def test_the_story_of_a_stimulus_and_of_a_task(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"]})
    duo.finish("x")
    stimulus_id = story(duo.state, "x")[-1][4]
    assert [entry[0] for entry in story(duo.state, stimulus_id)] == ["x", "y"]
    assert story(duo.state, duo.task("x")) == story(duo.state, "x")
    assert story(duo.state, "x", stimulus_id)[-1][0] == "y"


def test_story_of_unknown_keys_is_empty(duo: Env) -> None:
    duo.submit({"x": []})
    assert story(duo.state, "nobody-knows") == []
    assert story(duo.state) == []


def test_length_of_the_story_is_limited(duo: Env) -> None:
    duo.submit({("x", i): [] for i in range(2 * duo.config.low_level_log_length)})
    duo.release(*[("x", i) for i in range(1, 2 * duo.config.low_level_log_length)])
    assert story(duo.state, ("x", 0)) == []
