"""Types of numbers, names and open maps with limited values, which msgspec checks while decoding.

A value that violates its type makes the message invalid. If the message's class lists the field in
``LENIENT_FIELDS``, the field gets its default instead; an invalid member of an open map
(``OPEN_MAPS``) is removed.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

#: Sizes of data and memory: floats, JSON and sums over thousands of workers hold them exactly.
NBYTES_MAX = 2**53
#: Durations and times. 10**11 s after the epoch is the year 5138, which ``datetime`` supports.
SECONDS_MAX = 1e11
#: Other measured amounts, so that sums of them stay finite.
AMOUNT_MAX = 1e18
#: Threads of one worker.
NTHREADS_MAX = 2**20
#: Characters of an address, a client's name, a status or the name of a type.
NAME_LENGTH_MAX = 4096

Nbytes = Annotated[int, Meta(ge=0, le=NBYTES_MAX)]
Nthreads = Annotated[int, Meta(le=NTHREADS_MAX)]
Seconds = Annotated[float, Meta(ge=-SECONDS_MAX, le=SECONDS_MAX)]
Amount = Annotated[float, Meta(ge=-AMOUNT_MAX, le=AMOUNT_MAX)]
Count = Annotated[float, Meta(ge=0, le=AMOUNT_MAX)]
#: Any number but NaN and minus infinity: an amount of a resource, or a time limit, may be infinite.
Ordered = Annotated[float, Meta(ge=-sys.float_info.max)]
#: A time limit, as users write it: seconds, text such as "30 s", or None.
TimeLimit = int | Ordered | str | None
Name = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]

#: Statuses of a worker: ``distributed.core.Status``.
WorkerStatus = Literal[
    "undefined", "created", "init", "starting", "running", "paused", "stopping", "stopped",
    "closing", "closing_gracefully", "closed", "failed", "dont_reply",
]  # fmt: skip


class Bandwidth(TypedDict, total=False):
    """Bandwidth that a worker measured: bytes/s, and (sum, count) by worker and by type."""

    total: Count
    workers: dict[Name, tuple[Count, Count]]
    types: dict[Name, tuple[Count, Count]]


class WorkerMetrics(TypedDict, total=False):
    """Members of a worker's metrics that the scheduler or its pages read. Users may add others."""

    bandwidth: Bandwidth
    cpu: Amount
    digests_total_since_heartbeat: dict[Any, Amount]
    event_loop_interval: Amount
    host_disk_io: dict[str, Amount]
    host_net_io: dict[str, Amount]
    managed_bytes: Count
    memory: Count
    memory_domain: Name | None
    num_fds: Amount
    spilled_bytes: dict[str, Count]
    task_counts: dict[Any, Count]
    time: Seconds
    transfer: dict[str, Amount]


class HeartbeatExtensions(TypedDict, total=False):
    """Members of ``extensions`` in a heartbeat that the scheduler itself reads."""

    spans: dict[Any, Amount]


def drop_invalid_members(value: dict[Any, Any], known: type) -> None:
    """Remove from `value` the members that `known`, a TypedDict, declares with another type."""
    found = {name: value[name] for name in known.__annotations__ if name in value}
    while found:
        try:
            msgspec.convert(found, known)
            return
        except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
            invalid = member_of(error)
            for name in [invalid] if invalid in found else list(found):
                del found[name], value[name]


def member_of(error: Exception) -> str:
    """Return the field of the outermost struct that msgspec's validation error names, or ""."""
    path = str(error).rpartition(" - at `")[2]
    return path[2:].split(".")[0].split("[")[0].rstrip("`") if path.startswith("$.") else ""
