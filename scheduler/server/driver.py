"""The driver of the core: reads the clock, feeds stimuli, and sends what the core produced.

The output of the core is collected in one outbox. Once everything that was read in a wake-up of the
event loop has been handled, ``flush`` empties it: messages to clients first, then replies, messages
to workers and instructions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from paceline.scheduler.core import instructions, stimuli
from paceline.scheduler.core.stimuli import Stimulus, stimulus_name
from paceline.scheduler.core.turn import Outbox
from paceline.scheduler.server.durable.log.recorder import Recorder
from paceline.scheduler.server.runtime.clock import SteadyClock

from .driver_futures import PendingReplies, StateConditions

if TYPE_CHECKING:
    from paceline.protocol.framing import Frames
    from paceline.scheduler.core.turn_observer import TurnObserver
    from paceline.scheduler.server.durable.recovery.replay import RecordedState
    from paceline.scheduler.server.runtime.gc_policy import GcPolicy

    from .driver_ports import ClientStreamPort, CorePort, StreamPort

logger = logging.getLogger("distributed.scheduler")

#: Interval of ``Tick`` stimuli, seconds. Stock checks its timeouts at the same interval.
TICK_INTERVAL_SECONDS = 0.25
#: Stream messages that are handled before the loop polls its sockets and timers again: about 20 ms
#: of work. The rest waits, so that a peer that sends many messages does not delay the others.
WAKE_UP_MESSAGES_MAX: Final = 400
#: Transitions after which further stream messages wait in the same way.
WAKE_UP_TRANSITIONS_MAX = 2_000
#: Stimuli of plugin hooks that are handled right after their turn. Further ones wait for the loop.
AFTER_TURN_MAX = 1_000
#: Cancelled timers that the event loop keeps, besides as many as there are other timers.
CANCELLED_TIMERS_MAX = 1_000
#: Messages that a deferred stream may handle at least per wake-up, if many streams are deferred.
SHARE_MIN_MESSAGES = 16

#: Creates a NamedTuple without a Python call.
_new_tuple = tuple.__new__


class Driver:
    """Feeds the core and sends its output.

    Args:
        core: the scheduler core. Only the driver calls its ``handle``.
        close_scheduler: called with a reason when the core requests a shutdown.
        gc_policy: called after each flush and tick. None leaves garbage collection to Python.
        recorder: records turns, if the scheduler is durable.

    Attributes:
        worker_streams, client_streams: address or name -> stream; kept by ``peers``.
        instructions: class of an instruction -> function that carries it out.
        last_request_id: number of the last request to the core.
        replies: futures of the replies to requests.
        conditions: predicates that coroutines wait for, checked at the end of each flush.
        messages_left: number of stream messages that may still be handled in this wake-up. 0 after
            ``WAKE_UP_TRANSITIONS_MAX`` transitions.
        last_activity: returns when Jupyter was used last, in seconds since the epoch.
        record_sinks: called with the records of a flush, if there are any.
        observers: called around turns, batches and flushes; see ``add_observer``.
    """

    def __init__(
        self,
        core: CorePort,
        *,
        close_scheduler: Callable[[str], None],
        gc_policy: GcPolicy | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.core = core
        self._recorder = recorder or Recorder()
        self.clock = SteadyClock()
        self.worker_streams: dict[str, StreamPort] = {}
        self.client_streams: dict[str, ClientStreamPort] = {}
        self.last_activity: Callable[[], float] = lambda: 0.0
        self.record_sinks: list[Callable[[list[tuple[Any, ...]]], None]] = []
        self.n_stimuli = 0
        self.n_core_errors = 0
        self.messages_left = WAKE_UP_MESSAGES_MAX
        self._last_transition = core.state.transition_counter + WAKE_UP_TRANSITIONS_MAX
        self._close_scheduler = close_scheduler
        self._deferred: dict[StreamPort, None] = {}
        self._gc_policy = gc_policy
        self._loop = asyncio.get_running_loop()
        self._after_turn: list[Stimulus] = []
        self.observers: tuple[TurnObserver, ...] = ()
        self._handle: Callable[[Stimulus, float, Outbox], Any] = core.handle
        self._outbox = Outbox()
        self._flush_scheduled = False
        self._closed = False
        self.replies = PendingReplies(
            self._loop, lambda request_id: self.feed(stimuli.RequestGone(request_id))
        )
        self.conditions = StateConditions(self._loop)
        self.last_request_id = 0
        self._timers: dict[int, tuple[float, asyncio.TimerHandle]] = {}
        self._tick: asyncio.TimerHandle | None = None
        self.instructions: dict[type, Callable[[Any], None]] = {
            instructions.WantsContinue: self._want_continue,
            instructions.SetTimer: self._set_timer,
            instructions.LogLine: self._log_line,
            instructions.DropWorkerConnection: self._drop_worker,
            instructions.CloseScheduler: self._close,
        }

    # stimuli

    def feed(
        self,
        message: Any,
        source: str = "",
        stimulus_id: str | None = None,
        request_id: int = 0,
        frames: Frames | None = None,
    ) -> None:
        """Handle one stimulus now. Its output is sent at the end of this wake-up.

        ``frames`` are those of a graph compiler's message, if ``message`` was decoded from them.
        """
        if self._closed:
            return
        now = self.clock()
        if not stimulus_id:
            stimulus_id = f"{stimulus_name(message)}-{now}"
        self._turn(Stimulus(source, message, stimulus_id, request_id), now, frames)
        if self._after_turn:
            self._run_after_turn(now)
        self._schedule_flush()

    def feed_batch(self, source: str, messages: Sequence[Any], connection: int = 0) -> int:
        """Handle messages of comm ``connection``, one turn each, as far as this wake-up allows.

        Return the number of messages that were handled: at least one, if there are any.
        """
        if self._closed:
            return len(messages)
        now = self.clock()
        recorder = self._recorder
        state = self.core.state
        has_hooks = recorder.is_durable and state.plugins is not None
        handled = 0
        handle = self._handle
        after_turn = self._after_turn
        formatted_now = ""  # messages of clients have no stimulus id
        for message in messages:
            stimulus_id = getattr(message, "stimulus_id", None)
            if not stimulus_id:
                formatted_now = formatted_now or str(now)
                stimulus_id = f"{stimulus_name(message)}-{formatted_now}"
            stimulus = _new_tuple(Stimulus, (source, message, stimulus_id, 0))
            if has_hooks:
                recorder.batch(connection, 1, now)
            try:
                handle(stimulus, now, self._outbox)
            except Exception:
                self._core_failed(stimulus)
            if has_hooks:
                recorder.hook_writes()
            if after_turn:
                self._run_after_turn(now)
            handled += 1
            if state.transition_counter >= self._last_transition:
                self.messages_left = 0
                break
        if not has_hooks:
            recorder.batch(connection, handled, now)
        self.n_stimuli += handled
        self.messages_left -= handled
        self._schedule_flush()
        for observer in self.observers:
            observer.after_batch(source, messages[:handled])
        return handled

    def add_observer(self, observer: TurnObserver) -> None:
        """Call the methods of ``observer`` from the next batch on."""
        self.observers = (*self.observers, observer)
        self._handle = self._handle_observed

    def remove_observer(self, observer: TurnObserver) -> None:
        """Stop calling ``observer``. Do nothing if it was not added."""
        self.observers = tuple(each for each in self.observers if each is not observer)
        if not self.observers:
            self._handle = self.core.handle  # turns cost nothing extra without observers

    def _handle_observed(self, stimulus: Stimulus, now: float, outbox: Outbox) -> None:
        observers = self.observers
        for observer in observers:
            observer.before_turn(stimulus, now)
        try:
            self.core.handle(stimulus, now, outbox)
        finally:
            for observer in observers:
                observer.after_turn(stimulus)

    def defer(self, stream: StreamPort) -> None:
        """Call ``stream.handle_deferred`` in a later wake-up."""
        self._deferred[stream] = None
        self._schedule_flush()

    def _resume_deferred(self) -> None:
        """Let deferred streams handle their share of messages. Those left out are first next."""
        streams = list(self._deferred)
        if not streams:
            return
        share = max(SHARE_MIN_MESSAGES, WAKE_UP_MESSAGES_MAX // len(streams))
        for stream in streams:
            if self.messages_left <= 0:
                break
            del self._deferred[stream]
            previous = self._recorder.handling(stream.number)
            if stream.handle_deferred(share):
                self._deferred[stream] = None
            self._recorder.handling(previous)
        if self._deferred:
            self._schedule_flush()

    def request(
        self, message: Any, source: str = "", stimulus_id: str | None = None
    ) -> asyncio.Future[Any]:
        """Feed a request and return a future of its reply (``turn.reply``).

        The reply may come some turns later. Cancelling the future feeds ``RequestGone``.
        """
        self.last_request_id += 1
        request_id = self.last_request_id
        future = self.replies.add(request_id)
        self.feed(message, source, stimulus_id, request_id)
        return future

    def _turn(self, stimulus: Stimulus, now: float, frames: Frames | None = None) -> None:
        self.n_stimuli += 1
        if self._recorder.is_set_aside(stimulus):
            self.replies.fail(stimulus.request_id, CoreError(stimulus_name(stimulus.message)))
            stimulus = stimulus._replace(message=stimuli.SetAside(stimulus.message))
        if frames is None:
            self._recorder.stimulus(stimulus, now)
        else:
            self._recorder.compiled(stimulus.source, stimulus.stimulus_id, now, frames)
        try:
            self._handle(stimulus, now, self._outbox)
        except Exception:
            self._core_failed(stimulus)
        self._recorder.hook_writes()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def feed_after_turn(
        self, message: Any, source: str = "", stimulus_id: str | None = None
    ) -> None:
        """Handle a stimulus of a plugin's hook right after the current turn."""
        name = stimulus_id or f"{stimulus_name(message)}-{self.clock()}"
        self._after_turn.append(Stimulus(source, message, name))

    def _run_after_turn(self, now: float) -> None:
        """Handle the stimuli of hooks. The hooks of these turns may add more."""
        waiting = self._after_turn
        done = 0
        while done < len(waiting):
            self._turn(waiting[done], now)
            done += 1
            if done >= AFTER_TURN_MAX:
                rest = waiting[done:]
                waiting.clear()
                for left in rest:
                    self._loop.call_soon(self.feed, left.message, left.source, left.stimulus_id)
                return
        waiting.clear()

    def _core_failed(self, stimulus: Stimulus) -> None:
        """Log an exception of the core and fail the request that caused it."""
        self.n_core_errors += 1
        logger.exception(
            "Internal error while handling %s from %r (%s)",
            stimulus_name(stimulus.message),
            stimulus.source,
            stimulus.stimulus_id,
        )
        self.replies.fail(stimulus.request_id, CoreError(stimulus_name(stimulus.message)))

    # output

    def flush(self) -> None:
        """Send the messages in the outbox, clients first, and carry out its instructions."""
        self._flush_scheduled = False
        outbox, self._outbox = self._outbox, Outbox()
        if outbox:
            self._recorder.flushed()
        for observer in self.observers:
            observer.before_flush(outbox)
        if outbox.clients:
            _send(self.client_streams, outbox.clients)
        for request_id, value in outbox.replies:
            self.replies.resolve(request_id, value)
        if outbox.workers:
            _send(self.worker_streams, outbox.workers)
        for instruction in outbox.instructions:
            try:
                self.instructions[type(instruction)](instruction)
            except Exception:  # the rest of the output is sent
                name = type(instruction).__name__
                logger.exception("Internal error while carrying out %s", name)
        if outbox.records:
            for sink in self.record_sinks:
                sink(outbox.records)
        self.messages_left = WAKE_UP_MESSAGES_MAX
        self._last_transition = self.core.state.transition_counter + WAKE_UP_TRANSITIONS_MAX
        if self._deferred:
            self._loop.call_soon(self._resume_deferred)
        self.conditions.check()
        if self._gc_policy is not None:
            self._gc_policy.after_flush(self._n_tasks_and_rows())

    def _want_continue(self, _: Any) -> None:
        # two iterations of the loop, so that readable sockets are read before the core continues
        self._loop.call_soon(lambda: self._loop.call_soon(self._continue))

    def _continue(self) -> None:
        """Continue deferred work, on behalf of the client whose graph is being committed."""
        commits = self.core.state.deferred.commits
        stream = self.client_streams.get(commits[0].client) if commits else None
        previous = self._recorder.handling(stream.number if stream is not None else 0)
        self.feed(stimuli.Continue())
        self._recorder.handling(previous)

    def _set_timer(self, instruction: instructions.SetTimer) -> None:
        def due() -> None:
            del self._timers[instruction.timer_id]
            self.feed(stimuli.TimerDue(instruction.timer_id))

        handle = self._loop.call_later(max(0.0, instruction.when - self.clock()), due)
        self._timers[instruction.timer_id] = (instruction.when, handle)
        current = self.core.state.timers
        if len(self._timers) > 2 * len(current) + CANCELLED_TIMERS_MAX:
            for timer_id in self._timers.keys() - current.keys():
                self._timers.pop(timer_id)[1].cancel()

    def _log_line(self, instruction: instructions.LogLine) -> None:
        logging.getLogger(instruction.logger).log(instruction.level, "%s", instruction.text)

    def _drop_worker(self, instruction: instructions.DropWorkerConnection) -> None:
        stream = self.worker_streams.get(instruction.address)
        if stream is not None:
            stream.close_when_written()

    def _close(self, instruction: instructions.CloseScheduler) -> None:
        self._close_scheduler(instruction.reason)

    # time

    def continue_from(self, recorded: RecordedState) -> None:
        """Continue what another process did: its time, timers, numbers and unsent output.

        Nothing is sent before ``resume``.
        """
        self.clock = SteadyClock(since=recorded.now)
        self.n_stimuli = recorded.n_turns
        self.n_core_errors = recorded.n_errors
        self.last_request_id = recorded.last_request_id
        self._outbox = recorded.outbox
        for timer_id, when in recorded.timers.items():
            if timer_id in self.core.state.timers:
                self._set_timer(instructions.SetTimer(when, timer_id))
        self._flush_scheduled = True

    def resume(self) -> None:
        """Send output and continue deferred work, once all streams are there."""
        self._flush_scheduled = False
        self._schedule_flush()
        self._want_continue(None)

    def capture(self, recorded: RecordedState) -> None:
        """Add to ``recorded`` what another process needs for ``continue_from``."""
        recorded.now = self.clock()
        recorded.n_turns = self.n_stimuli
        recorded.n_errors = self.n_core_errors
        recorded.last_request_id = self.last_request_id
        recorded.outbox = self._outbox
        recorded.timers = {timer_id: when for timer_id, (when, _) in self._timers.items()}

    def start(self) -> None:
        """Start feeding ``Tick`` stimuli."""
        self._tick = self._loop.call_later(TICK_INTERVAL_SECONDS, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = self._loop.call_later(TICK_INTERVAL_SECONDS, self._on_tick)
        self.feed(stimuli.Tick(self.is_active()))
        if self._gc_policy is not None:
            self._gc_policy.on_tick(self._n_tasks_and_rows(), self.n_stimuli)

    @property
    def n_compiling(self) -> int:
        """The number of graphs that are being compiled."""
        return sum(stream.n_graphs for stream in self.client_streams.values())

    def is_active(self) -> bool:
        """Return whether graphs are being compiled, or Jupyter was used since the core is idle."""
        idle_since = self.core.state.idle_since
        return bool(self.n_compiling or (idle_since and self.last_activity() > idle_since))

    def _n_tasks_and_rows(self) -> int:
        """Return the number of tasks, and of rows of graphs that are being received or inserted."""
        state = self.core.state
        return len(state.tasks) + sum([len(graph.keys) for graph in state.graphs.values()])

    def close(self) -> None:
        """Send what is in the outbox and ignore all later stimuli."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        if self._tick is not None:
            self._tick.cancel()
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.conditions.cancel()


def _send(streams: Mapping[str, StreamPort], batches: dict[str, list[Any]]) -> None:
    """Send each batch on the stream of its peer. Ignore peers that are gone."""
    for name, messages in batches.items():
        stream = streams.get(name)
        if stream is not None:
            stream.send(messages)


class CoreError(Exception):
    """The reply to a request whose handling raised an exception in the core."""

    def __init__(self, op: str) -> None:
        super().__init__(f"internal error of the scheduler while handling {op}; see its log")
