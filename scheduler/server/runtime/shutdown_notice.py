"""Send clients the reason why the scheduler closes.

Stock's scheduler closes its connections without a reason, and its clients try to reconnect for half
a minute. Two messages that stock clients know carry the reason: pending futures are cancelled with
it (``FutureCancelledError``), and an event of the topic "warn", to which all clients subscribe,
displays it.
"""

from __future__ import annotations

import asyncio
import signal
from itertools import islice
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core.state.model import ClientState
from paceline.scheduler.core.text import format_time

#: Futures of one client that are cancelled with the reason. The others report only the lost
#: connection.
CANCELLED_KEYS_MAX = 10_000
#: Time between the notices and the end of the connections, seconds.
NOTICE_SECONDS = 0.1
#: Value of ``FutureCancelledError.reason``.
REASON = "scheduler-closed"
#: Reasons that are not sent: a program closes the scheduler that it created.
SILENT_REASONS = ("unknown", "")


def reason_text(reason: str, idle_timeout: float | None = None) -> str:
    """Return the text for ``reason``, the argument of ``Scheduler.close``."""
    if reason == "idle-timeout-exceeded" and idle_timeout:
        return f"it had nothing to do for {format_time(idle_timeout)} (idle timeout)"
    if reason == "terminate":
        return "it was asked to shut down"
    if reason.startswith("signal-"):
        number = reason.removeprefix("signal-")
        name = signal.Signals(int(number)).name if number.isdigit() else number
        return f"it was sent {name}"
    return reason.replace("-", " ")


async def send_notices(server: Any, reason: str) -> None:
    """Send the reason to all clients, and wait until they have handled it.

    A client whose connection ends first cancels its futures with a reason of its own.
    """
    streams = server.driver.client_streams
    if reason in SILENT_REASONS or not streams:
        return
    why = reason_text(reason, server.state.config.idle_timeout_seconds)
    text = f"The scheduler at {server.scheduler.address} closes: {why}."
    sent = False
    # the only client of a scheduler has shut it down itself
    alone = reason == "terminate" and len(streams) < 2
    listeners = {} if alone else server.state.events.subscribers.get("warn", {})
    for name, stream in list(streams.items()):
        messages: list[Any] = []
        if name in listeners:
            messages.append(m.Event(topic="warn", event=(server.now(), text)))
        keys = pending_keys(server.state.clients.get(name))
        if keys:
            messages.append(m.CancelledKeys(keys=keys, reason=REASON, msg=text))
        if messages:
            stream.send(messages)
            sent = True
    if sent:
        await asyncio.sleep(NOTICE_SECONDS)


def pending_keys(client: ClientState | None) -> list[Any]:
    """Return the keys of the client's pending futures, at most ``CANCELLED_KEYS_MAX``."""
    tasks = client.wants_what if client is not None else ()
    keys = (ts.key for ts in tasks if ts.state not in ("memory", "erred"))
    return list(islice(keys, CANCELLED_KEYS_MAX))
