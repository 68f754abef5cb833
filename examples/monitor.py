"""A client that computes nothing: it subscribes to topics of a scheduler and prints their events as they come.

    python examples/monitor.py tcp://127.0.0.1:8786 all my-topic      (Ctrl-C ends it)

Schedulers and workers log to "all", `client.log_event` and `worker.log_event` under what they like. It works with the
stock scheduler, too, but some events of "all" hold objects that it cannot send: it then ends the stream of who listens.
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
SHOWN_NBYTES = 100  # of bytes in events


class Monitor:
    def __init__(self, address: str, topics: list[str]) -> None:
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=HEARTBEAT_SECONDS)
        self.connection, self.reader = Connection("connector"), FrameReader()
        self.name, self.topics = f"monitor-{os.getpid()}", topics

    def say(self, value) -> None:
        self.socket.sendall(b"".join(pack_frames(self.connection.send(value))))

    def watch(self) -> None:
        """Prints until the scheduler goes."""
        self.socket.sendall(b"".join(pack_frames(self.connection.start())))
        beaten = time.monotonic()
        while self.connection.phase != "closed":
            with suppress(TimeoutError):
                if not (data := self.socket.recv(2**18)):
                    return
                for frames in self.reader.feed(data):
                    for event in self.connection.receive_frames(frames):
                        self.take(event)
            if time.monotonic() - beaten > HEARTBEAT_SECONDS:  # it is still there
                self.say([m.HeartbeatClient(client=self.name)])
                beaten = time.monotonic()

    def take(self, event) -> None:
        if isinstance(event, HandshakeDone):
            self.say(m.RegisterClient(client=self.name, versions={}, reply=False))
            self.connection.become_stream("client")
        elif isinstance(event, Batch):
            for part in (event.messages, *(event.more or ())):
                for message in part:
                    self.show(message)

    def show(self, message: m.Message) -> None:
        match message:
            case m.StreamStart():  # the scheduler has us
                self.say([m.SubscribeTopic(topic=x, client=self.name) for x in self.topics])
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
        raise SystemExit(f"this is the end: {error!r}") from None
