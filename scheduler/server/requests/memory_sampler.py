"""Samples of the whole cluster's memory, for distributed's ``MemorySampler``."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid

from paceline.protocol import messages as m
from paceline.scheduler.core.config import MEASURES
from paceline.scheduler.core.policy.memory import measured
from paceline.scheduler.server.server_api import Handler, ServerApi

from .handler_parts import calls
from .state import MemorySampler

logger = logging.getLogger("distributed.scheduler")

#: Kind of samplers, for the recorder.
KIND = "memory-sampler"
#: Samples that one sampler takes at most.
SAMPLES_MAX = 1_000_000
#: Shortest interval of samples, seconds; a shorter one would block the event loop.
INTERVAL_MIN_SECONDS = 0.01


def start(server: ServerApi, client: str, measure: str, interval: float) -> str:
    """Take samples until ``stop``, or until `client` is removed. Return the key of the sampler.

    See ``messages.MemorySamplerStart`` for the arguments. Raise ValueError for an unknown measure.
    """
    if measure not in MEASURES:
        raise ValueError(f"measure must be one of {', '.join(MEASURES)}, not {measure!r}")
    key = str(uuid.uuid4())
    server.recorder.continued(KIND, key, json.dumps([client, measure, interval]).encode())
    _start(server, key, client, measure, interval)
    return key


def start_again(server: ServerApi, key: str, options: bytes) -> None:
    """Start a sampler that another process of the scheduler had. Its samples are lost."""
    server.recorder.continued(KIND, key, options)
    _start(server, key, *json.loads(options))


def _start(server: ServerApi, key: str, client: str, measure: str, interval: float) -> None:
    sampler = server.request_state.memory_samplers[key] = MemorySampler()
    _sample(server, sampler, measure)  # so that there is always one
    sampling = _run(server, key, client, measure, max(interval, INTERVAL_MIN_SECONDS))
    sampler.task = server.spawn(sampling, "memory sampler")


def stop(server: ServerApi, key: str) -> list[tuple[float, int]]:
    """Stop a sampler and return its samples. Raise KeyError if there is no such sampler."""
    sampler = server.request_state.memory_samplers.pop(key)
    server.recorder.continued(KIND, key, None)
    if sampler.task is not None:
        sampler.task.cancel()
    return sampler.samples


async def _run(
    server: ServerApi, key: str, client: str, measure: str, interval_seconds: float
) -> None:
    sampler = server.request_state.memory_samplers[key]
    while len(sampler.samples) < SAMPLES_MAX:
        await asyncio.sleep(interval_seconds)
        if client not in server.state.clients:
            server.request_state.memory_samplers.pop(key, None)
            server.recorder.continued(KIND, key, None)
            return
        _sample(server, sampler, measure)
    logger.warning("A memory sampler of %s took %d samples; stopping it", client, SAMPLES_MAX)


def _sample(server: ServerApi, sampler: MemorySampler, measure: str) -> None:
    nbytes = sum(measured(ws, measure) for ws in server.state.workers.values())
    sampler.samples.append((server.now(), nbytes))


HANDLERS: dict[type, Handler] = {
    m.MemorySamplerStart: calls(start),
    m.MemorySamplerStop: calls(stop),
}
