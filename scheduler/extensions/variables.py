"""Variables: one value or future under a name, shared by peers (``distributed.Variable``).

Must not know: what the values are.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.protocol.messages import (
    VariableDelete,
    VariableFutureReceivedConfirm,
    VariableGet,
    VariableSet,
)

from .holders import drop_idle, future_status, hold, hold_if_known, let_go
from .key_watch import KeyWatch
from .machine import Handler, Machine, sender
from .names import as_key, deadline_after, hashable_name
from .replies import ErrorReply, Refused
from .waiting import WaitingRoom

if TYPE_CHECKING:
    from paceline.protocol.keys import Key
    from paceline.scheduler.core.stimuli import Stimulus
    from paceline.scheduler.core.turn import Turn

#: Variables that exist. One that nobody deletes stays.
VARIABLES_MAX = 1_000_000
#: Futures of one value that were given out and not confirmed. A peer confirms at once, or it is gone.
TOKENS_MAX = 100_000


@dataclass(slots=True)
class VariableWaitOver:
    """Timer: a get has reached its deadline."""

    number: int


@dataclass(slots=True)
class VariableKeyLook:
    """Timer: look whether the keys that sets wait for are known."""


@dataclass(slots=True)
class VariableKeyOver:
    """Timer: a set has waited for its key until its deadline."""

    number: int


@dataclass(slots=True, frozen=True)
class Content:
    """What a variable holds.

    Attributes:
        is_future: ``value`` is the key of a future.
        value: the key, or the value.
    """

    is_future: bool
    value: Any


class Variables(Machine):
    """Ops ``variable_set``, ``variable_get``, ``variable_delete`` and ``variable-future-received-confirm``.

    A variable wants the future in it, as a client of its own. Each get of a future hands out a token; a value
    that was replaced or deleted is let go when its tokens have been confirmed, that is when those who got it
    want its key themselves, or are gone.

    Attributes:
        variables: name -> content.
    """

    name: ClassVar[str] = "variables"

    def __init__(self) -> None:
        self.variables: dict[Hashable, Content] = {}
        self._tokens: dict[tuple[Hashable, Key], dict[str, str | None]] = {}
        self._n_tokens = 0
        self._room: WaitingRoom[str | None] = WaitingRoom(VariableWaitOver)
        self._unknown = KeyWatch(self._set_known, VariableKeyLook, VariableKeyOver)

    def routes(self) -> Mapping[type[Any], Handler]:
        return {
            VariableSet: self.handle_variable_set,
            VariableGet: self.handle_variable_get,
            VariableDelete: self.handle_variable_delete,
            VariableFutureReceivedConfirm: self.handle_variable_future_received_confirm,
            VariableWaitOver: self.handle_wait_over,
            VariableKeyLook: self.handle_key_look,
            VariableKeyOver: self.handle_key_over,
        }

    # ------------------------------------------------------------------ set and delete

    def handle_variable_set(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies None; TimeoutError where the key of a future stays unknown until the deadline."""
        message = stimulus.message
        name = hashable_name(message.name)
        deadline = deadline_after(turn.now, message.timeout)
        if message.key is None:
            self._set(turn, stimulus.request_id, name, Content(False, message.data))
            return
        key = as_key(message.key)
        content = Content(True, key)
        if key in turn.state.tasks:
            self._set(turn, stimulus.request_id, name, content)
        else:
            want = (name, content)
            self._unknown.wait(turn, key, stimulus.request_id, deadline, want)

    def _set_known(self, turn: Turn, request_id: int, want: tuple[Hashable, Content]) -> None:
        """The key of a set that waited for it is known."""
        try:
            self._set(turn, request_id, *want)
        except Refused as refusal:
            turn.reply(request_id, refusal.reply)

    def _set(self, turn: Turn, request_id: int, name: Hashable, content: Content) -> None:
        old = self.variables.get(name)
        if old is None and len(self.variables) >= VARIABLES_MAX:
            raise Refused("RuntimeError", f"More than {VARIABLES_MAX} variables exist")
        if content.is_future:
            hold(turn, [content.value], holder_of(name))
        self.variables[name] = content
        if old is not None and old.is_future:
            self._settle(turn, name, old.value)
        turn.reply(request_id, None)
        for waiter in self._room.standing(name):
            self._room.leave(turn, waiter)
            turn.reply(waiter.request_id, self._record(turn, name, content, waiter.want))

    def handle_variable_delete(self, turn: Turn, stimulus: Stimulus) -> None:
        """The variable is gone at once; its future is kept for those who are about to want it."""
        name = hashable_name(stimulus.message.name)
        old = self.variables.pop(name, None)
        if old is not None and old.is_future:
            self._settle(turn, name, old.value)

    def _settle(self, turn: Turn, name: Hashable, key: Key) -> None:
        """Let the key go, unless the variable holds it, or somebody is about to want it."""
        now = self.variables.get(name)
        held = now is not None and now.is_future and now.value == key
        if not held and (name, key) not in self._tokens:
            let_go(turn, [key], holder_of(name))

    # ------------------------------------------------------------------ get and confirm

    def handle_variable_get(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies the record when the variable is set; TimeoutError at the deadline."""
        message = stimulus.message
        name = hashable_name(message.name)
        deadline = deadline_after(turn.now, message.timeout)
        content = self.variables.get(name)
        if content is not None:
            record = self._record(turn, name, content, message.client)
            turn.reply(stimulus.request_id, record)
        elif deadline is not None and deadline <= turn.now:
            turn.reply(stimulus.request_id, ErrorReply("TimeoutError"))
        else:
            self._room.enter(turn, name, stimulus.request_id, deadline, message.client)

    def _record(
        self, turn: Turn, name: Hashable, content: Content, client: str | None
    ) -> dict[str, Any]:
        """A content as stock clients read it; a future comes with its present state and a token."""
        if not content.is_future:
            return {"type": "msgpack", "value": content.value}
        self._n_tokens += 1
        token = f"token-{self._n_tokens}"
        tokens = self._tokens.setdefault((name, content.value), {})
        if len(tokens) >= TOKENS_MAX:
            del tokens[next(iter(tokens))]
        tokens[token] = client
        status = future_status(turn, content.value)
        return {"type": "Future", "value": content.value, "token": token, **status}

    def handle_variable_future_received_confirm(self, turn: Turn, stimulus: Stimulus) -> None:
        """Whoever got a future has made one of its own: from now on the client wants the key."""
        message = stimulus.message
        name, key = hashable_name(message.name), as_key(message.key)
        hold_if_known(turn, key, sender(stimulus))
        tokens = self._tokens.get((name, key))
        if tokens is not None:
            tokens.pop(message.token, None)
            self._drop_if_empty(turn, name, key, tokens)

    def _drop_if_empty(
        self, turn: Turn, name: Hashable, key: Key, tokens: dict[str, str | None]
    ) -> None:
        if not tokens:
            del self._tokens[name, key]
            self._settle(turn, name, key)

    # ------------------------------------------------------------------ waiters

    def handle_wait_over(self, turn: Turn, stimulus: Stimulus) -> None:
        """A get's deadline has come: TimeoutError."""
        waiter = self._room.leave_by_number(turn, stimulus.message.number)
        if waiter is not None:
            turn.reply(waiter.request_id, ErrorReply("TimeoutError"))

    def handle_key_look(self, turn: Turn, stimulus: Stimulus) -> None:
        """Timer of the watch."""
        self._unknown.look_again(turn)

    def handle_key_over(self, turn: Turn, stimulus: Stimulus) -> None:
        """A set has waited for its key until its deadline."""
        self._unknown.give_up(turn, stimulus.message.number)

    def on_keys_known(self, turn: Turn) -> None:
        self._unknown.look(turn)

    def on_restart(self, turn: Turn) -> None:
        """Contents stay; a future is lost, as in stock."""
        for name, content in self.variables.items():
            if content.is_future:
                drop_idle(turn, holder_of(name))

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        if self._room.leave_by_request(turn, request_id) is None:
            self._unknown.request_gone(turn, request_id)

    def on_client_gone(self, turn: Turn, client: str) -> None:
        """The client will confirm nothing any more."""
        for (name, key), tokens in list(self._tokens.items()):
            for token in [token for token, holder in tokens.items() if holder == client]:
                del tokens[token]
            self._drop_if_empty(turn, name, key, tokens)


def holder_of(name: Hashable) -> str:
    """The pseudo client that holds a variable's future."""
    return f"variable-{name}"
