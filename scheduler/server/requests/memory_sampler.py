"""Samples of the whole cluster's memory, taken while a client wants them (distributed's ``MemorySampler``)."""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass, field

from paceline.protocol.messages import extension_rpc as x
from paceline.scheduler.core.config import MEASURES
from paceline.scheduler.core.policy.memory import measured

from .api import Handler, ServerApi

logger = logging.getLogger("distributed.scheduler")

#: Samples of one sampler; then it takes no more.
SAMPLES_MAX = 1_000_000
#: A sampler that asks for less would keep the loop from everything else.
INTERVAL_MIN_SECONDS = 0.01


@dataclass(slots=True)
class MemorySampler:
    """A running sample.

    Attributes:
        samples: (seconds since the epoch, bytes).
        task: takes them.
    """

    samples: list[tuple[float, int]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


def start(server: ServerApi, client: str, measure: str, interval_seconds: float) -> str:
    """Take samples from now on, until ``stop``, or until the client is gone. Returns the sampler's key.

    Args:
        measure: one of ``core.config.MEASURES``.

    Raises:
        ValueError: there is no such measure.
    """
    if measure not in MEASURES:
        raise ValueError(f"measure must be one of {', '.join(MEASURES)}, not {measure!r}")
    key = str(uuid.uuid4())
    sampler = server.request_state.memory_samplers[key] = MemorySampler()
    _sample(server, sampler, measure)  # so that there always is one
    sampling = _run(server, key, client, measure, max(interval_seconds, INTERVAL_MIN_SECONDS))
    sampler.task = server.spawn(sampling, "memory sampler")
    return key


def stop(server: ServerApi, key: str) -> list[tuple[float, int]]:
    """The samples; no more are taken.

    Raises:
        KeyError: there is no such sampler.
    """
    sampler = server.request_state.memory_samplers.pop(key)
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
            return
        _sample(server, sampler, measure)
    logger.warning("A memory sampler of %s has taken %d samples: no more", client, SAMPLES_MAX)


def _sample(server: ServerApi, sampler: MemorySampler, measure: str) -> None:
    nbytes = sum(measured(ws, measure) for ws in server.state.workers.values())
    sampler.samples.append((server.now(), nbytes))


HANDLERS: dict[type, Handler] = {
    x.MemorySamplerStart: lambda server, request, peer: start(
        server, request.client, request.measure, request.interval
    ),
    x.MemorySamplerStop: lambda server, request, peer: stop(server, request.key),
}
