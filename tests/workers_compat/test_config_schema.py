"""The schema covers every setting of a scheduler; invalid values and unknown keys are reported."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import dask
import pytest
from paceline.scheduler.core.config import SchedulerConfig
from paceline.workers_compat.config import schema
from paceline.workers_compat.config.config import ConfigError, check, scheduler_config


def test_schema_has_all_keys_of_stock_about_schedulers() -> None:
    for section in ("distributed.scheduler", "distributed.comm"):
        keys = schema.leaves(dask.config.get(section), section)
        assert [key for key in keys if not schema._is_known(key)] == []
    read = set(SchedulerConfig.dask_keys().values())
    assert read <= schema.VALUE_TYPES.keys()
    assert schema.STOCK.keys() - read >= schema.WITHOUT_EFFECT


def test_defaults_are_valid() -> None:
    assert check() == []


INVALID: dict[str, Any] = {
    "distributed.admin.event-loop": "uvlop",
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
    "paceline.scheduler.memory-admission": True,
    "paceline.shares.groups": {"batch": {"memory": float("inf")}},
    "paceline.shares.clients": {"batch-*": 5},
}
NOT_ZERO: dict[str, Any] = {
    "paceline.http.body-size": 0,
    "paceline.http.connections": 0,
    "paceline.http.idle-timeout": 0,
    "paceline.scheduler.dump-timeout": "0 s",
}


@pytest.mark.parametrize(("key", "value"), (INVALID | NOT_ZERO).items())
def test_error_has_the_key_and_the_accepted_values(key: str, value: Any) -> None:
    with dask.config.set({key: value}), pytest.raises(ConfigError) as raised:
        check()
    assert f"`{key}` cannot be {value!r}" in str(raised.value)
    assert schema.VALUE_TYPES[key].description in str(raised.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"limit": 5}, "'limit' is not a policy"),
        ({"timeout": -5}, "'timeout' must be more than 0 seconds, not -5"),
        ({"retry-delay": "soon"}, "'retry_delay' must be a duration, .* not 'soon'"),
        ({"retry-backoff": 0.5}, "'retry_backoff' must be from 1 to 1000, not 0.5"),
        ({"retry-on": [5]}, "'retry_on' must be an exception class, .* not 5"),
        ({"retry-on": "NoError"}, "'retry_on' names 'NoError', which the scheduler cannot import"),
        ({"retries": -1}, "'retries' must be 0 or more, not -1"),
        ({"speculative": "yes"}, "'speculative' must be True or False, not 'yes'"),
        ({"deadline": "tomorrow"}, "'deadline' must be a duration, .* not 'tomorrow'"),
    ],
)
def test_error_about_policies_has_the_pattern_and_the_option(options: Any, error: str) -> None:
    found = {"other*": {"timeout": 5}, "load*": options}
    text = rf"`paceline\.scheduler\.policies`.*in 'load\*', {error}"
    with (
        dask.config.set({"paceline.scheduler.policies": found}),
        pytest.raises(ConfigError, match=text),
    ):
        check()


def test_warning_about_a_deadline_that_has_passed() -> None:
    """Otherwise a supervisor could not restart the scheduler later."""
    found = {"load*": {"deadline": "2020-01-31"}, "slow*": {"deadline": "1 h"}}
    with dask.config.set({"paceline.scheduler.policies": found}):
        (line,) = check()
    begin = "in `paceline.scheduler.policies`, pattern 'load*': 'deadline'='2020-01-31' had passed"
    assert line.startswith(begin)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"weight": 0}, "weight of share group 'batch' must be from 1e-06 to 1e\\+06; got 0"),
        ({"cores": 5}, "share group 'batch' has the unknown setting 'cores'; use weight, "),
        (5, "share group 'batch' must be a mapping of settings; got 5"),
        (
            {"memory": "10 XB", "weight": 2},
            'memory of share group \'batch\' must be a size, as "10 GiB", or "none" for no cap; '
            "got '10 XB'",
        ),
        (
            {"threads": "few"},
            "threads of share group 'batch' must be a whole number, or \"none\" for no cap; "
            "got 'few'",
        ),
        ({"tasks": -2}, "tasks of share group 'batch' must be >= 0 and finite, or \"none\" for no"),
        ({"weight": None}, "weight of share group 'batch' must be a number; got None"),
    ],
)
def test_error_about_share_groups_has_the_group_and_the_setting(settings: Any, error: str) -> None:
    with (
        dask.config.set({"paceline.shares.groups": {"batch": settings}}),
        pytest.raises(ConfigError, match=rf"`paceline\.shares\.groups`.*; {error}"),
    ):
        check()


@pytest.mark.parametrize(
    "shares", [{"groups": {"a\x00": {"weight": 2}}}, {"clients": {"*": "a\x00"}}]
)
def test_names_of_share_groups_have_no_control_characters(shares: Any) -> None:
    with dask.config.set({"paceline.shares": shares}):
        for read in (check, scheduler_config):
            with pytest.raises(ValueError, match=r"none of them control characters; got 'a\\x00'"):
                read()


def test_share_groups_without_settings_and_caps() -> None:
    settings = {"threads": "none", "tasks": None, "memory": "none"}
    with dask.config.set({"paceline.shares.groups": {"batch": None, "night": settings}}):
        assert check() == []
        found = scheduler_config().shares_groups
    assert found == {"batch": {}, "night": {"threads": -1, "tasks": -1, "memory": -1}}


VALID: dict[str, Any] = {
    "paceline.scheduler.policies": {
        "load*": {"timeout": "5m", "retry-on": ["OSError", "missing.Error"], "retry-delay": 0},
        "slow*": {"timeout": None, "retries": 3, "deadline": "9000-01-31 18:00"},
    },
    "paceline.shares.groups": {"batch": {"weight": 2, "memory": "10 GiB"}},
    "paceline.shares.clients": {"batch-*": "batch"},
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
    "paceline.security.peer-names": ["*.workers.example", "alice"],
    "paceline.worker-end": "1798761600",
}


def test_valid_values() -> None:
    with dask.config.set(VALID):
        assert check() == []


def test_error_lists_all_invalid_values() -> None:
    with dask.config.set(INVALID), pytest.raises(ConfigError) as raised:
        check()
    assert str(raised.value).count("cannot be") == len(INVALID)


@pytest.mark.parametrize(
    "key",
    [
        "distributed.admin.tick.interval",
        "distributed.admin.tick.limit",
        "distributed.scheduler.work-stealing-interval",
        "distributed.worker.profile.cycle",
    ],
)
def test_error_says_which_numbers_are_milliseconds(key: str) -> None:
    with dask.config.set({key: -1}), pytest.raises(ConfigError, match="number of milliseconds"):
        check()


def test_unknown_keys_are_reported_with_the_closest_known_key() -> None:
    with dask.config.set({"distributed.scheduler.work-stealin": True, "paceline.no-such": 1}):
        near, far = check()
    assert "did you mean `distributed.scheduler.work-stealing`?" in near
    assert "`paceline.no-such`" in far and "did you mean" not in far


def test_process_reports_an_invalid_value_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "soon")
    command = [sys.executable, "-m", "paceline.scheduler", "--port", "0", "--no-dashboard"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    variable = "environment variable DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"
    assert f"({variable}): it takes a duration" in done.stderr
