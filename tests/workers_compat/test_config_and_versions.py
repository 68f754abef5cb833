"""Settings from dask's configuration, and versions that are sent to peers."""

from __future__ import annotations

import math

import dask
import distributed
import pytest
from paceline.scheduler.core.config import SchedulerConfig
from paceline.workers_compat.config.config import (
    ConfigError,
    check,
    child_environment,
    plain_config,
    scheduler_config,
)
from paceline.workers_compat.config.settings import texts
from paceline.workers_compat.config.versions import get_versions, is_supported, version_warning


def test_every_setting_has_a_key_of_stock():
    for name, key in SchedulerConfig.dask_keys().items():
        if key.startswith("distributed."):
            assert dask.config.get(key, default="missing") != "missing", name


def test_defaults_and_units():
    config = scheduler_config()
    assert config.worker_ttl_seconds == 300
    assert config.unknown_task_duration_seconds == 0.5
    assert config.default_data_size_nbytes == 1024
    assert config.default_task_durations_seconds["split-shuffle"] == pytest.approx(1e-6)
    assert config.idle_timeout_seconds is None


def test_settings_of_the_user():
    values = {
        "distributed.scheduler.bandwidth": "10 GB",
        "distributed.scheduler.worker-saturation": "inf",
        "distributed.scheduler.worker-ttl": None,
        "distributed.scheduler.allowed-failures": "5",
        "distributed.scheduler.validate": "true",
        "distributed.scheduler.idle-timeout": "1 hour",
        "distributed.scheduler.default-task-durations": {"slow": "2 h"},
    }
    with dask.config.set(values):
        config = scheduler_config(no_workers_timeout_seconds=3.0)
    assert config.bandwidth == 10e9
    assert math.isinf(config.worker_saturation)
    assert config.worker_ttl_seconds is None
    assert config.allowed_failures == 5
    assert config.validate is True
    assert config.idle_timeout_seconds == 3600
    assert config.default_task_durations_seconds == {"slow": 7200}
    assert config.no_workers_timeout_seconds == 3


@pytest.mark.parametrize("key", SchedulerConfig.dask_keys().values())
def test_empty_value_is_the_default(key):
    with dask.config.set({key: None}):
        expected = scheduler_config()
    with dask.config.set({key: ""}):
        assert scheduler_config() == expected


def test_list_of_texts_may_be_one_text():
    with dask.config.set({"distributed.scheduler.blocked-handlers": "run_function"}):
        assert texts("distributed.scheduler.blocked-handlers") == ["run_function"]


@pytest.mark.parametrize(
    "key, value", [("bandwidth", "fast"), ("worker-ttl", "soon"), ("allowed-failures", "many")]
)
def test_invalid_values_name_their_key(key, value):
    with (
        dask.config.set({f"distributed.scheduler.{key}": value}),
        pytest.raises(ConfigError, match=key),
    ):
        scheduler_config()


def test_false_allows_no_failures():
    with dask.config.set({"distributed.scheduler.allowed-failures": False}):
        assert check() == []
        assert scheduler_config().allowed_failures == 0


@pytest.mark.parametrize(
    "setting",
    [
        {"distributed.scheduler.worker-saturation": 0},
        {"paceline.scheduler.fetch-weight": 0},
        {"paceline.scheduler.fetch-weight": float("inf")},
    ],
)
def test_values_out_of_range(setting):
    with dask.config.set(setting), pytest.raises(ValueError):
        scheduler_config()


def test_configuration_of_the_child_is_plain():
    with dask.config.set({"x": {"f": len, "n": 1}}):
        assert plain_config()["x"] == {"n": 1}
    assert child_environment()["PYTHONSAFEPATH"] == "1"


def test_versions():
    mine = get_versions()
    assert mine["packages"]["distributed"] == distributed.__version__
    assert version_warning({}, mine) == {"warning": "", "error": ""}
    other = {"packages": {**mine["packages"], "dask": "1.0"}}
    told = version_warning({"tcp://a": mine}, other, source_name="Client")
    assert "Mismatched versions found" in told["warning"]
    assert "1.0" in told["warning"]
    assert "UNKNOWN" in version_warning({"tcp://a": 3}, "odd")["warning"]
    assert is_supported("2026.8.0")
    assert not is_supported("2025.1.0")
    assert not is_supported("odd")


def test_warning_equals_stocks():
    from distributed.versions import error_message

    mine = get_versions()
    other = {"packages": {**mine["packages"], "tornado": "1.0"}}
    ours = version_warning({"w": mine}, other, source_name="Worker")
    assert ours == error_message(mine, {"w": mine}, other, source_name="Worker")
