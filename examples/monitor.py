"""Subscribe to topics of a scheduler as a client and print their events.

usage: python examples/monitor.py tcp://127.0.0.1:8786 all my-topic      (stop with Ctrl-C)
Schedulers and workers log to the topic "all", `client.log_event` to a topic of its choice. The
stock scheduler fails to serialize some events in "all", and then ends the subscriber's stream.
"""

import argparse
import json
import os
import socket
import time
from contextlib import suppress
from datetime import datetime

from paceline.protocol import messages as m
from paceline.protocol.connection import Batch, Connection, HandshakeDone
from paceline.protocol.errors import ProtocolError
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.protocol.json_form import to_json

HEARTBEAT_SECONDS = 5.0
SHOWN_NBYTES = 100  # of each bytes value


class Monitor:
    """A client that subscribes to topics and prints their events."""

    def __init__(self, address: str, topics: list[str]) -> None:
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=HEARTBEAT_SECONDS)
        self.connection, self.reader = Connection("connector"), FrameReader()
        self.name, self.topics = f"monitor-{os.getpid()}", topics

    def send(self, value) -> None:
        self.socket.sendall(b"".join(pack_frames(self.connection.send(value))))

    def watch(self) -> None:
        """Print events until the scheduler closes."""
        self.socket.sendall(b"".join(pack_frames(self.connection.start())))
        last_heartbeat = time.monotonic()
        while self.connection.phase != "closed":
            with suppress(TimeoutError):
                if not (data := self.socket.recv(2**18)):
                    return
                for frames in self.reader.feed(data):
                    for event in self.connection.receive_frames(frames):
                        self.handle_event(event)
            if time.monotonic() - last_heartbeat > HEARTBEAT_SECONDS:
                self.send([m.HeartbeatClient(client=self.name)])
                last_heartbeat = time.monotonic()

    def handle_event(self, event) -> None:
        if isinstance(event, HandshakeDone):
            self.send(m.RegisterClient(client=self.name, versions={}, reply=False))
            self.connection.become_stream("client")
        elif isinstance(event, Batch):
            for part in (event.messages, *(event.more or ())):
                for message in part:
                    self.show(message)

    def show(self, message: m.Message) -> None:
        match message:
            case m.StreamStart():  # the registration is complete
                self.send([m.SubscribeTopic(topic=x, client=self.name) for x in self.topics])
                print(f"listening to {', '.join(self.topics)}", flush=True)
            case m.Event(topic=topic, event=(when, what)):
                at = datetime.fromtimestamp(when).time().isoformat("milliseconds")
                print(at, topic, json.dumps(to_json(what, SHOWN_NBYTES)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scheduler")
    parser.add_argument("topics", nargs="*", default=["all"])
    options = parser.parse_args()
    try:
        Monitor(options.scheduler, options.topics).watch()
    except (OSError, ProtocolError, KeyboardInterrupt) as error:
        raise SystemExit(f"The connection has ended: {error!r}") from None
