"""Fixtures of the core's tests: environments, see ``paceline.testing``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from paceline.testing import Env


@pytest.fixture
def make_env() -> Iterator[Callable[..., Env]]:
    """Return a factory of environments with a client alice; their invariants are checked after the test."""
    made: list[Env] = []

    def make(**config: Any) -> Env:
        env = Env(**config)
        env.client("alice")
        made.append(env)
        return env

    yield make
    for env in made:
        env.check()


@pytest.fixture
def env(make_env: Callable[..., Env]) -> Env:
    """Return an environment with client alice and no workers."""
    return make_env()


@pytest.fixture
def duo(make_env: Callable[..., Env]) -> Env:
    """Return an environment with client alice, and workers w0 and w1 with one thread each."""
    env = make_env()
    env.join("w0", "w1")
    env.take()
    return env


@pytest.fixture
def four(make_env: Callable[..., Env]) -> Env:
    """Return an environment with four workers of one thread and the clients alice and bob."""
    env = make_env(worker_saturation=1.0)
    env.client("bob")
    env.join("w0", "w1", "w2", "w3")
    env.take()
    return env
