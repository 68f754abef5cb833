"""Every setting of a scheduler has a form; what cannot be read is told with its key, what nobody reads with its neighbour."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import dask
import pytest
from paceline.scheduler.core.config import SchedulerConfig
from paceline.workers_compat import config_forms
from paceline.workers_compat.config import ConfigError, check


def test_all_keys_of_stock_that_concern_a_scheduler_have_a_form() -> None:
    for section in ("distributed.scheduler", "distributed.comm"):
        keys = config_forms._leaves(dask.config.get(section), section)
        assert [key for key in keys if not config_forms._is_known(key)] == []
    for key in SchedulerConfig.dask_keys().values():
        section = key.split(".")[1]
        assert key in config_forms.FORMS or section in ("worker", "diagnostics"), key


def test_the_defaults_are_fine() -> None:
    assert check() == []


WRONG: dict[str, Any] = {
    "distributed.scheduler.bandwidth": "fast",
    "distributed.scheduler.worker-ttl": "soon",
    "distributed.scheduler.allowed-failures": 2.5,
    "distributed.scheduler.work-stealing": "sometimes",
    "distributed.scheduler.worker-saturation": 0,
    "distributed.scheduler.default-task-durations": {"slow": "long"},
    "distributed.scheduler.blocked-handlers": 5,
    "distributed.scheduler.active-memory-manager.policies": ["a.Policy"],
    "distributed.scheduler.active-memory-manager.measure": "guess",
    "distributed.comm.timeouts.connect": "30 apples",
    "distributed.comm.shard": "-3 MiB",
    "distributed.comm.retry.count": "some",
    "distributed.comm.tls.min-version": 1.1,
    "distributed.comm.compression": 7,
    "distributed.comm.offload": [],
    "paceline.scheduler.client-grace": "a while",
}


@pytest.mark.parametrize("key", WRONG)
def test_what_cannot_be_read_names_its_key_and_what_is_accepted(key: str) -> None:
    with dask.config.set({key: WRONG[key]}), pytest.raises(ConfigError) as told:
        check()
    assert f"`{key}` cannot be {WRONG[key]!r}" in str(told.value)
    assert config_forms.FORMS[key].words in str(told.value)


RIGHT: dict[str, Any] = {
    "distributed.scheduler.bandwidth": "1 GB",
    "distributed.scheduler.worker-ttl": None,
    "distributed.scheduler.allowed-failures": "inf",
    "distributed.scheduler.work-stealing": "False",
    "distributed.scheduler.worker-saturation": "inf",
    "distributed.scheduler.preload": "a.module",
    "distributed.scheduler.preload-argv": ["--x", 3],
    "distributed.comm.compression": "auto",
    "distributed.comm.offload": False,
    "distributed.comm.ucx.cuda-copy": True,
    "distributed.scheduler.dashboard.bokeh-application.anything": 1,
}


def test_what_stock_takes_is_taken() -> None:
    with dask.config.set(RIGHT):
        assert check() == []


def test_several_are_told_at_once() -> None:
    with dask.config.set(WRONG), pytest.raises(ConfigError) as told:
        check()
    assert str(told.value).count("cannot be") == len(WRONG)


def test_what_nobody_reads_is_warned_of_with_the_nearest() -> None:
    with dask.config.set({"distributed.scheduler.work-stealin": True, "paceline.no-such": 1}):
        near, far = check()
    assert "is it `distributed.scheduler.work-stealing`?" in near
    assert "`paceline.no-such`" in far and "is it" not in far


def test_a_process_says_so_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "soon")
    command = [sys.executable, "-m", "paceline.scheduler", "--port", "0", "--no-dashboard"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert (
        "(the variable DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL): it takes a duration" in done.stderr
    )
