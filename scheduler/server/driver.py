"""The driver: owns the core, is the only reader of the clock, and carries out what the core decided.

Stimuli come in through ``feed`` and ``feed_batch``; what came of them gathers in one outbox. Once everything that
was read in a wake-up of the event loop has been handled, ``flush`` empties it: one batch per peer, clients
first, then replies, then workers, then instructions.

Must not know: sockets, frames, codecs; what messages mean.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from paceline.scheduler.core import stimuli
from paceline.scheduler.core.ports import TurnWrites
from paceline.scheduler.core.stimuli import Stimulus, stimulus_name
from paceline.scheduler.core.turn import Outbox

if TYPE_CHECKING:
    from paceline.protocol.messages import Message
    from paceline.scheduler.core.core import SchedulerCore

    from .gc_policy import GcPolicy
    from .journal import JournalWriter

logger = logging.getLogger("distributed.scheduler")

#: How often the core is told that time has passed, seconds; stock looks at its timeouts as often.
TICK_INTERVAL_SECONDS = 0.25


#: Messages of streams that are handled before the loop looks at its sockets and timers again: some 20 ms of
#: work. What a peer sent beyond that waits its turn, so one peer with much to say does not stop the others.
WAKE_UP_MESSAGES_MAX = 400
#: Stimuli that plugins' hooks ask for are handled right after their turn, but no more than this at a time: hooks
#: that always ask for more do not stop the loop.
AFTER_TURN_MAX = 1_000
#: What a stream that waited gets at least, when many do.
SHARE_MIN_MESSAGES = 16


Handle = Callable[[Stimulus, float, Outbox], Any]

#: Makes a NamedTuple without a call of Python's.
_new_tuple = tuple.__new__


class StreamPort(Protocol):
    """A worker's or client's stream, as the driver sees it."""

    def send(self, messages: list[Message]) -> None:
        """Send in order, as one batch."""

    def close_when_written(self) -> None:
        """Say no more after what was sent."""

    def go_on(self, count: int) -> bool:
        """Handle up to ``count`` messages that waited. Returns whether there are more."""

    def route(self, to_core: frozenset[type]) -> None:
        """Classes of messages that go to the core from now on (``Server.route_streams``)."""


class Driver:
    """Feeds the core and carries out its outboxes.

    Args:
        core: the scheduler core; nobody else calls its ``handle``.
        close_scheduler: called with a reason when the core asks to shut down.
        clock: seconds since the epoch.
        gc_policy: decides after each flush whether garbage is collected, or None to leave that alone.
        journal: where stimuli are written before they are handled, or None.

    Attributes:
        worker_streams: address -> stream; kept by ``peers``.
        client_streams: client name -> stream; kept by ``peers``.
        instructions: class -> what carries it out.
        messages_left: how many messages of streams this wake-up may still handle.
        record_sinks: called with a flush's records, when there are any.
        n_stimuli, n_core_errors: counted since the start.
        writes: what plugins' hooks write within a turn; None while there is no journal.
    """

    def __init__(
        self,
        core: SchedulerCore,
        *,
        close_scheduler: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        gc_policy: GcPolicy | None = None,
        journal: JournalWriter | None = None,
    ) -> None:
        self.core = core
        self.clock = clock
        self.worker_streams: dict[str, StreamPort] = {}
        self.client_streams: dict[str, StreamPort] = {}
        self.record_sinks: list[Callable[[list[tuple[Any, ...]]], None]] = []
        self.n_stimuli = 0
        self.n_core_errors = 0
        self._close_scheduler = close_scheduler
        self.messages_left = WAKE_UP_MESSAGES_MAX
        self._deferred: dict[StreamPort, None] = {}
        self._gc_policy = gc_policy
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._after_turn: list[Stimulus] = []
        self.writes = None if journal is None else TurnWrites()
        self._handle: Handle = core.handle
        if journal is not None:
            self._handle = self._handle_journaled
        self._outbox = Outbox()
        self._flush_scheduled = False
        self._closed = False
        self._replies: dict[int, Callable[[Any], None]] = {}
        self._last_request_id = 0
        self._timers: set[asyncio.TimerHandle] = set()
        self._tick: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[bool]]] = []
        self.instructions: dict[type, Callable[[Any], None]] = {
            stimuli.WantsContinue: self._want_continue,
            stimuli.SetTimer: self._set_timer,
            stimuli.LogLine: self._log_line,
            stimuli.DropWorkerConnection: self._drop_worker,
            stimuli.CloseScheduler: self._close,
        }

    # stimuli

    def feed(
        self, message: Any, source: str = "", stimulus_id: str | None = None, request_id: int = 0
    ) -> None:
        """Handle one stimulus now; what comes of it goes out at the end of this wake-up."""
        if self._closed:
            return
        now = self.clock()
        if not stimulus_id:
            stimulus_id = f"{stimulus_name(message)}-{now}"
        self._turn(Stimulus(source, message, stimulus_id, request_id), now)

    def feed_batch(self, source: str, messages: Sequence[Any]) -> None:
        """Handle what came in one batch on a stream, one turn each."""
        if self._closed:
            return
        now = self.clock()
        handle = self._handle
        outbox = self._outbox
        after_turn = self._after_turn
        for message in messages:
            stimulus_id = getattr(message, "stimulus_id", None)
            if not stimulus_id:
                stimulus_id = f"{stimulus_name(message)}-{now}"
            stimulus = _new_tuple(Stimulus, (source, message, stimulus_id, 0))
            try:
                handle(stimulus, now, outbox)
            except Exception:
                self._core_failed(stimulus)
            if after_turn:
                self._run_after_turn(now)
        self.n_stimuli += len(messages)
        self.messages_left -= len(messages)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def listen(self, listener: Callable[[str, Sequence[Any]], None] | None) -> None:
        """Tell one listener of each batch of a stream once it was handled; None ends it, and costs nothing."""
        vars(self).pop("feed_batch", None)
        if listener is None:
            return
        feed_batch = self.feed_batch

        def feed_and_tell(source: str, messages: Sequence[Any]) -> None:
            feed_batch(source, messages)
            listener(source, messages)

        self.feed_batch = feed_and_tell  # type: ignore[method-assign]

    def around_turns(self, wrap: Callable[[Handle], Handle]) -> None:
        """Let something else handle stimuli, from the next batch on; ``wrap`` is given what does so now."""
        self._handle = wrap(self._handle)

    def defer(self, stream: StreamPort) -> None:
        """A stream has messages that wait for a later wake-up."""
        self._deferred[stream] = None
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def _resume_deferred(self) -> None:
        """Each stream that waits gets its share."""
        deferred, self._deferred = self._deferred, {}
        if not deferred:
            return
        share = max(SHARE_MIN_MESSAGES, WAKE_UP_MESSAGES_MAX // len(deferred))
        for stream in deferred:
            if self.messages_left <= 0 or stream.go_on(share):
                self._deferred[stream] = None
        if self._deferred and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def request(
        self,
        message: Any,
        reply: Callable[[Any], None],
        source: str = "",
        stimulus_id: str | None = None,
    ) -> int:
        """Feed a request that the core answers, now or turns later, by calling ``reply`` in a flush.

        Returns the request's number, for ``request_gone``.
        """
        self._last_request_id += 1
        request_id = self._last_request_id
        self._replies[request_id] = reply
        self.feed(message, source, stimulus_id, request_id)
        return request_id

    def request_gone(self, request_id: int) -> None:
        """Nobody waits for this reply any more."""
        if self._replies.pop(request_id, None) is not None:
            self.feed(stimuli.RequestGone(request_id))

    def _turn(self, stimulus: Stimulus, now: float) -> None:
        self.n_stimuli += 1
        try:
            self._handle(stimulus, now, self._outbox)
        except Exception:
            self._core_failed(stimulus)
        if self._after_turn:
            self._run_after_turn(now)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def feed_after_turn(
        self, message: Any, source: str = "", stimulus_id: str | None = None
    ) -> None:
        """Handle a stimulus right after the turn that is under way: a plugin's hook asks for it."""
        name = stimulus_id or f"{stimulus_name(message)}-{self.clock()}"
        self._after_turn.append(Stimulus(source, message, name))

    def _run_after_turn(self, now: float) -> None:
        """What hooks asked for; hooks of these turns may ask for more."""
        waiting = self._after_turn
        done = 0
        while done < len(waiting):
            stimulus = waiting[done]
            done += 1
            self.n_stimuli += 1
            try:
                self._handle(stimulus, now, self._outbox)
            except Exception:
                self._core_failed(stimulus)
            if done >= AFTER_TURN_MAX:
                rest = waiting[done:]
                waiting.clear()
                for left in rest:
                    self._loop.call_soon(self.feed, left.message, left.source, left.stimulus_id)
                return
        waiting.clear()

    def _handle_journaled(self, stimulus: Stimulus, now: float, outbox: Outbox) -> None:
        assert self._journal is not None and self.writes is not None
        self._journal.stimulus(stimulus, now)
        self.writes.begin()
        try:
            self.core.handle(stimulus, now, outbox)
        finally:
            if self.writes.made:
                self._journal.writes(self.writes.made)

    def _core_failed(self, stimulus: Stimulus) -> None:
        """A bug of ours: said loudly; everybody else is still served."""
        self.n_core_errors += 1
        logger.exception(
            "Internal error while handling %s from %r (%s)",
            stimulus_name(stimulus.message),
            stimulus.source,
            stimulus.stimulus_id,
        )
        reply = self._replies.pop(stimulus.request_id, None)
        if reply is not None:
            reply(CoreFailure(stimulus_name(stimulus.message)))

    # what came of them

    def flush(self) -> None:
        """Send what gathered, clients first, and carry out instructions."""
        self._flush_scheduled = False
        outbox, self._outbox = self._outbox, Outbox()
        if self._journal is not None:
            self._journal.flushed(outbox)
        if outbox.clients:
            streams = self.client_streams
            for name, messages in outbox.clients.items():
                stream = streams.get(name)
                if stream is not None:
                    stream.send(messages)
        for request_id, value in outbox.replies:
            reply = self._replies.pop(request_id, None)
            if reply is not None:
                reply(value)
        if outbox.workers:
            streams = self.worker_streams
            for address, messages in outbox.workers.items():
                stream = streams.get(address)
                if stream is not None:
                    stream.send(messages)
        for instruction in outbox.instructions:
            self.instructions[type(instruction)](instruction)
        if outbox.records:
            for sink in self.record_sinks:
                sink(outbox.records)
        self.messages_left = WAKE_UP_MESSAGES_MAX
        if self._deferred:
            self._loop.call_soon(self._resume_deferred)
        if self._waiting:
            self._try_waiting()
        if self._gc_policy is not None:
            self._gc_policy.after_flush(len(self.core.state.tasks))

    def _want_continue(self, _: Any) -> None:
        # one turn of the loop for what can be read by now, then go on
        self._loop.call_soon(self._continue_soon)

    def _continue_soon(self) -> None:
        self._loop.call_soon(self.feed, stimuli.Continue())

    def _set_timer(self, instruction: stimuli.SetTimer) -> None:
        def due() -> None:
            self._timers.discard(handle)
            self.feed(stimuli.TimerDue(instruction.timer_id))

        handle = self._loop.call_later(max(0.0, instruction.when - self.clock()), due)
        self._timers.add(handle)

    def _log_line(self, instruction: stimuli.LogLine) -> None:
        logging.getLogger(instruction.logger).log(instruction.level, "%s", instruction.text)

    def _drop_worker(self, instruction: stimuli.DropWorkerConnection) -> None:
        stream = self.worker_streams.get(instruction.address)
        if stream is not None:
            stream.close_when_written()

    def _close(self, instruction: stimuli.CloseScheduler) -> None:
        self._close_scheduler(instruction.reason)

    # waiting for a state

    async def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until ``predicate`` is true; tried now and after each flush. False when time ran out."""
        if predicate():
            return True
        future: asyncio.Future[bool] = self._loop.create_future()
        entry = (predicate, future)
        self._waiting.append(entry)
        try:
            return await asyncio.wait_for(future, timeout)
        except TimeoutError:
            return False
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def _try_waiting(self) -> None:
        for entry in list(self._waiting):
            predicate, future = entry
            if future.done():
                self._waiting.remove(entry)
            elif predicate():
                self._waiting.remove(entry)
                future.set_result(True)

    # time

    def start(self) -> None:
        """Start telling the core that time passes."""
        self._tick = self._loop.call_later(TICK_INTERVAL_SECONDS, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = self._loop.call_later(TICK_INTERVAL_SECONDS, self._on_tick)
        self.feed(stimuli.Tick())
        if self._gc_policy is not None:
            self._gc_policy.on_tick(len(self.core.state.tasks), self.n_stimuli)

    def close(self) -> None:
        """Handle nothing more; what gathered goes out."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        if self._tick is not None:
            self._tick.cancel()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for _, future in self._waiting:
            if not future.done():
                future.cancel()
        self._waiting.clear()
        if self._journal is not None:
            self._journal.close()


class CoreFailure(Exception):
    """The reply to a request whose handling met a bug of ours."""

    def __init__(self, op: str) -> None:
        super().__init__(f"internal error of the scheduler while handling {op}; see its log")
