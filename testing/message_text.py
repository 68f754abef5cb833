"""Messages and instructions of the core as one line of text each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.protocol import messages as m
from paceline.protocol.payload import Payload
from paceline.scheduler.core.instructions import LogLine, SetTimer, WantsContinue
from paceline.scheduler.core.stimuli import stimulus_name

#: Instructions that `Env.take` leaves out.
OMITTED = (LogLine, SetTimer, WantsContinue)


def _join(words: Iterable[Any]) -> str:
    return " ".join(_key(w) for w in words)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else repr(key).replace(" ", "")


def _places(who_has: dict[Any, Any]) -> str:
    return _join(f"{_key(key)}@{','.join(addresses)}" for key, addresses in who_has.items())


def _compute(message: m.ComputeTask) -> str:
    words = [f"compute-task {_key(message.key)}"]
    if message.who_has:
        words.append(f"with {_places(message.who_has)}")
    for resource, amount in (message.resource_restrictions or {}).items():
        words.append(f"using {resource}={amount:g}")
    if message.actor:
        words.append("as actor")
    return " ".join(words)


def _erred(message: m.TaskErredReport) -> str:
    return f"task-erred {_key(message.key)}: {error_text(message.exception)}"


def error_text(payload: Any) -> str:
    """Return the description in a fake error."""
    return payload.header.decode() if isinstance(payload, Payload) else str(payload)


def _cancelled(message: m.CancelledKeys) -> str:
    why = f" ({message.reason})" if message.reason else ""
    return f"cancelled-keys {_join(message.keys)}{why}"


WORDS: dict[type[Any], Any] = {
    m.ComputeTask: _compute,
    m.FreeKeys: lambda x: f"free-keys {_join(x.keys)}",
    m.StealRequest: lambda x: f"steal-request {_key(x.key)} ({x.stimulus_id})",
    m.RemoveReplicas: lambda x: f"remove-replicas {_join(x.keys)}",
    m.RefreshWhoHas: lambda x: f"refresh-who-has {_places(x.who_has)}",
    m.Close: lambda x: f"close ({x.reason})",
    m.RemoveWorker: lambda x: f"remove-worker {x.worker}",
    m.WorkerStatusChange: lambda x: f"worker-status-change {x.status}",
    m.KeyInMemory: lambda x: f"key-in-memory {_key(x.key)}",
    m.LostData: lambda x: f"lost-data {_key(x.key)}",
    m.TaskErredReport: _erred,
    m.TaskRetried: lambda x: f"task-retried {_key(x.key)}",
    m.CancelledKeys: _cancelled,
    m.Restart: lambda x: "restart",
    m.AdjustHeartbeatInterval: lambda x: f"adjust-heartbeat-interval {x.interval:g}",
}


def message_text(message: Any) -> str:
    """Return `message`, or an instruction, as one line of text."""
    words = WORDS.get(type(message))
    if words is not None:
        return str(words(message))
    values = [getattr(message, name) for name in getattr(message, "__dataclass_fields__", ())]
    return f"{stimulus_name(message)} {_join(values)}".rstrip()
