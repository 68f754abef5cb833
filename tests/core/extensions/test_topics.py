"""The event log and its topics."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.state import event_log as events
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.core.stimuli import ClientJoined, LogEventCommand, WorkerJoined
from paceline.scheduler.extensions import topics


def log(world: Any, topic: Any, msg: Any) -> Any:
    return world.request(m.LogEventRpc(topic=topic, msg=msg))


def read(world: Any, topic: Any = None) -> Any:
    return world.request(m.Events(topic=topic)).reply


def heard(world: Any, client: str) -> list[tuple[str, Any]]:
    return [
        (message.topic, message.event[1])
        for name, message in world.sent
        if name == client and type(message) is m.Event
    ]


def test_log_and_read(world: Any) -> None:
    assert log(world, "a", 1).reply is None
    world.advance(5)
    log(world, ["a", "b"], {"x": 2})
    assert read(world, "a") == ((1000.0, 1), (1005.0, {"x": 2}))
    assert read(world, "b") == ((1005.0, {"x": 2}),)
    assert read(world, "nothing") == ()
    everything = read(world)
    assert everything["b"] == ((1005.0, {"x": 2}),)
    assert "nothing" not in everything
    assert {"a", "b", "all", "alice", "bob"} == set(everything)


def test_workers_are_named_in_their_events(world: Any) -> None:
    event = {"action": "spill"}
    world.send(m.LogEvent(topic="spills", msg=event), "tcp://w:1")
    world.send(m.LogEvent(topic="tcp://w:1", msg=event), "tcp://w:1")
    world.send(m.LogEvent(topic=["spills", "more"], msg="text"), "tcp://w:1")
    assert [msg for _, msg in read(world, "spills")] == [
        {"action": "spill", "worker": "tcp://w:1"},
        "text",
    ]
    assert read(world, "tcp://w:1")[0][1] == {"action": "spill"}
    assert event == {"action": "spill"}


def test_events_of_the_core_and_the_server(world: Any) -> None:
    world.feed(LogEventCommand(["a", "b"], "hello"))
    assert read(world, "a") == read(world, "b") == ((1000.0, "hello"),)
    assert read(world, "alice")[0][1] == {"action": "add-client", "client": "alice"}


def test_subscribers_receive_events(world: Any) -> None:
    log(world, "a", "before")
    world.send(m.SubscribeTopic(topic="a"), "bob")
    world.send(m.SubscribeTopic(topic="a"), "bob")
    world.send(m.SubscribeTopic(topic="b"), "alice")
    log(world, ["a", "b"], 1)
    log(world, "c", 2)
    world.send(m.UnsubscribeTopic(topic="a"), "bob")
    world.send(m.UnsubscribeTopic(topic="what"), "bob")
    log(world, "a", 3)
    assert heard(world, "bob") == [("a", 1)]
    assert heard(world, "alice") == [("b", 1)]


def test_subscriptions_survive_a_reconnect(world: Any) -> None:
    world.send(m.SubscribeTopic(topic="a"), "bob")
    world.leave("bob")
    log(world, "a", "while away")
    world.feed(ClientJoined("bob"), "bob")
    log(world, "a", "back")
    world.advance(4000)
    log(world, "a", "later")
    assert heard(world, "bob") == [("a", "back"), ("a", "later")]


def test_peers_that_left_are_forgotten_after_a_while(world: Any) -> None:
    world.send(m.SubscribeTopic(topic="a"), "bob")
    world.leave("bob")
    log(world, "tcp://w:1", 1)
    world.lose_worker("tcp://w:1")
    world.advance(3599)
    assert read(world, "bob") and read(world, "tcp://w:1")
    world.advance(2)
    assert read(world, "bob") == read(world, "tcp://w:1") == ()
    assert not world.state.events.subscribers
    assert world.pending_timers() == 0


@pytest.mark.parametrize("status", ["closed", "failed"])
def test_a_worker_that_reports_that_it_is_closed_is_forgotten(world: Any, status: Any) -> None:
    address = "tcp://w:1"
    registration = m.RegisterWorker(address=address, name="w", nthreads=1)
    world.feed(WorkerJoined(address, "w", registration), address)
    world.send(m.WorkerStatusChange(status=status), address)
    assert not world.state.workers and read(world, address)
    world.advance(3601)
    assert read(world, address) == ()


def test_a_peer_that_comes_and_goes_has_one_timer(world: Any) -> None:
    for _ in range(5):
        world.leave("bob")
        world.advance(1)
        world.join("bob")
    assert world.pending_timers() == 1
    world.leave("bob")
    world.advance(3595)
    assert read(world, "bob")


def test_several_topics_in_a_set(world: Any) -> None:
    log(world, {"a", "b"}, 1)
    assert read(world, "a") == read(world, "b") == ((1000.0, 1),)
    assert topics.topic_names({"b", ("a", 1), "c"}) == ("b", "c", ("a", 1))


def test_wrong_topics(world: Any) -> None:
    assert log(world, 5, 1).error == ("TypeError", "'int' object is not iterable")
    assert world.request(m.Events(topic={})).error[0] == "TypeError"


def test_each_topic_is_bounded() -> None:
    stored = EventLog(maxlen=3, topics_max=2)
    for number in range(5):
        stored.append("a", (1.0, number))
    assert [event for _, event in stored.get("a")] == [2, 3, 4]
    assert stored.topics["a"].count == 5
    stored.append("b", (1.0, 1))
    stored.append("a", (1.0, 6))
    stored.append("c", (1.0, 1))
    assert list(stored.topics) == ["a", "c"], "the topic that was silent longest is removed"
    stored.truncate("a")
    assert list(stored.topics) == ["c"]
    stored.truncate()
    assert stored.get() == {}
    EventLog(maxlen=None).append("a", (1.0, 1))


def test_every_event_is_in_the_records(world: Any) -> None:
    """Events are in the records of the turn, which plugins read."""
    from paceline.scheduler.core.turn import Outbox, Turn

    outbox = Outbox()
    Turn(world.core.state, outbox, 1.0, "", "").log_event(["a", "b"], "x")
    assert outbox.records == [("log-event", "a", "x"), ("log-event", "b", "x")]


def test_too_many_subscribers(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SUBSCRIBERS_MAX", 1)
    monkeypatch.setattr(events, "SUBSCRIBED_TOPICS_MAX", 1)
    world.send(m.SubscribeTopic(topic="a"), "alice")
    world.send(m.SubscribeTopic(topic="a"), "bob")
    world.send(m.SubscribeTopic(topic="b"), "alice")
    assert world.lines[-2:] == [
        "Too many subscriptions: bob does not get 'a'",
        "Too many subscriptions: alice does not get 'b'",
    ]


def test_too_many_left(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "LEFT_PEERS_MAX", 2)
    for worker in ("w1", "w2", "w3"):
        log(world, worker, 1)
        world.lose_worker(worker)
    assert (read(world, "w1"), len(read(world, "w2"))) == ((), 1)
    assert world.pending_timers() == 2
