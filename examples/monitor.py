"""A client that computes nothing: it subscribes to topics of a scheduler and prints their events as they come.

    python examples/monitor.py tcp://127.0.0.1:8786 all my-topic

Schedulers and workers log to "all", each worker under its address, and `client.log_event` and `worker.log_event` under
what they like. It works with the stock scheduler, too, but for one thing: some events of "all" hold objects of that
scheduler which it cannot always send, and it ends the stream of who listens.
"""

import argparse
import asyncio
import json
from contextlib import suppress
from datetime import datetime

from asyncio_link import GONE, Link
from paceline.protocol import messages as m
from paceline.protocol.json_form import to_json

HEARTBEAT_SECONDS = 5.0
SHOWN_NBYTES = 100  # of bytes in events


async def watch(address: str, topics: list[str]) -> None:
    """Prints until the scheduler goes."""
    link = await Link.dial(address)
    name = f"monitor-{id(link):x}"
    link.say(m.RegisterClient(client=name, versions={"host": {}, "packages": {}}, reply=False))
    link.connection.become_stream("client")
    beating = None
    try:
        async for message in link.messages():
            match message:
                case m.StreamStart():  # the scheduler has us
                    link.say([m.SubscribeTopic(topic=topic, client=name) for topic in topics])
                    beating = asyncio.ensure_future(beat(link, name))
                    print(f"listening to {', '.join(topics)}", flush=True)
                case m.Event(topic=topic, event=(when, what)):
                    at = datetime.fromtimestamp(when).time().isoformat("milliseconds")
                    print(at, topic, json.dumps(to_json(what, SHOWN_NBYTES)), flush=True)
                case m.StreamClosed():
                    break
    except GONE as error:
        print(f"the scheduler is gone: {error}")
    if beating is not None:
        beating.cancel()


async def beat(link: Link, name: str) -> None:
    """Says now and then that we are there. Stock takes a name of nil for a name: it must be said, or the field left out."""
    while True:
        link.say([m.HeartbeatClient(client=name)])
        await asyncio.sleep(HEARTBEAT_SECONDS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scheduler")
    parser.add_argument("topics", nargs="*", default=["all"])
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(watch(options.scheduler, options.topics))
