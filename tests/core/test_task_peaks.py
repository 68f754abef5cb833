"""Peaks that a plugin in workers measures replace those that are learned from heartbeats."""

from __future__ import annotations

from typing import Any

from paceline.testing import Env

MB = 10**6
IDLE: dict[str, Any] = {"memory": 60 * MB, "managed_bytes": 0}


def test_measured_peaks_replace_those_of_heartbeats() -> None:
    env = Env()
    env.client("alice")
    env.join("w0", nthreads=2, memory_limit=1000 * MB, metrics=IDLE | {"task_peaks": None})
    env.submit({"x-1": [], "y-1": []})
    memory = env.task("x-1").prefix.memory
    executing = {"x-1": 2.0}
    env.heartbeat(
        "w0", metrics=IDLE | {"memory": 200 * MB, "task_peaks": None}, executing=executing
    )
    assert memory.peak_nbytes == 0  # the plugin has measured nothing yet
    env.heartbeat("w0", metrics=IDLE | {"task_peaks": {"x": 300 * MB}}, executing=executing)
    assert memory.peak_nbytes == 300 * MB
    env.heartbeat("w0", metrics=IDLE | {"task_peaks": {"x": 100 * MB}}, executing=executing)
    assert memory.peak_nbytes == 290 * MB
    assert env.task("y-1").prefix.memory.peak_nbytes == 0


def test_peaks_that_are_no_sizes_are_ignored() -> None:
    env = Env()
    env.client("alice")
    env.join("w0", nthreads=2, memory_limit=1000 * MB, metrics=IDLE)
    env.submit({"x-1": []})
    wrong: list[Any] = [7, "x", ["x"], {"x": "a"}, {"x": float("inf")}, {"x": -1}, {"other": 1}]
    for peaks in wrong:
        env.heartbeat("w0", metrics=IDLE | {"task_peaks": peaks}, executing={"x-1": 2.0})
    assert env.task("x-1").prefix.memory.peak_nbytes == 0
