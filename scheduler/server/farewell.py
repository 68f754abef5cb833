"""What clients are told when the scheduler closes: why, in words.

Stock's scheduler hangs up without a word, and its clients try for half a minute to find it again. Two messages that stock
clients know carry the reason: futures that wait are cancelled with it (``FutureCancelledError``), and a line of the topic
"warn", which clients subscribe to by themselves, shows it where somebody sits.

Must not know: sockets; what comes after the farewell.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core.handlers.timers import format_seconds
from paceline.scheduler.core.state import ClientState

#: Futures of one client that are told why; the others learn only that the connection is lost.
TOLD_KEYS_MAX = 10_000
#: Between the farewell and the end of the connections.
MOMENT_SECONDS = 0.1
#: What ``FutureCancelledError.reason`` says.
REASON = "scheduler-closed"
#: A program that closes the scheduler it made knows why.
UNSAID = ("unknown", "")


def in_words(reason: str, idle_timeout: float | None = None) -> str:
    """A reason as ``Scheduler.close`` gets it, for people.

    Args:
        idle_timeout: seconds.
    """
    if reason == "idle-timeout-exceeded" and idle_timeout:
        return f"it had nothing to do for {format_seconds(idle_timeout)} (idle timeout)"
    if reason == "terminate":
        return "it was asked to shut down"
    if reason.startswith("signal-"):
        number = reason.removeprefix("signal-")
        name = signal.Signals(int(number)).name if number.isdigit() else number
        return f"it was sent {name}"
    return reason.replace("-", " ")


async def farewell(server: Any, reason: str) -> None:
    """Say it to every client, and give them a moment to take it in: a client whose connection ends gives its futures
    a reason of its own.

    Args:
        server: ``scheduler.server.server.Server``, before it parts from its peers.
    """
    streams = server.driver.client_streams
    if reason in UNSAID or not streams:
        return
    why = in_words(reason, server.state.config.idle_timeout_seconds)
    text = f"The scheduler at {server.scheduler.address} closes: {why}."
    # who shuts down what nobody else uses knows why
    said = False
    alone = reason == "terminate" and len(streams) < 2
    listeners = {} if alone else server.state.events.subscribers.get("warn", {})
    for name, stream in list(streams.items()):
        messages: list[Any] = []
        if name in listeners:
            messages.append(m.Event(topic="warn", event=(server.now(), text)))
        keys = waited_for(server.state.clients.get(name))
        if keys:
            messages.append(m.CancelledKeys(keys=keys, reason=REASON, msg=text))
        if messages:
            stream.send(messages)
            said = True
    if said:
        await asyncio.sleep(MOMENT_SECONDS)


def waited_for(client: ClientState | None) -> list[Any]:
    """Keys of a client's futures that have no outcome, as many as are told."""
    keys: list[Any] = []
    for ts in client.wants_what if client is not None else ():
        if ts.state not in ("memory", "erred"):
            keys.append(ts.key)
            if len(keys) == TOLD_KEYS_MAX:
                break
    return keys
