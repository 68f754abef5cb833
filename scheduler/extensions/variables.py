"""Variables: a value or a future under a name, shared by clients (``distributed.Variable``)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.protocol.messages import (
    VariableDelete,
    VariableFutureReceivedConfirm,
    VariableGet,
    VariableSet,
)
from paceline.scheduler.core.registry import Registry, on

from .errors import ExtensionError, ExtensionErrorReply
from .extension import Extension
from .holders import desire_if_known, desire_keys, future_status, release_keys, remove_idle_holder
from .key_watch import KeyWatch
from .names import as_key, deadline_after, hashable_name
from .wait_queues import WaitQueues

if TYPE_CHECKING:
    from paceline.protocol.keys import Key
    from paceline.scheduler.core.turn import Turn

#: Maximum number of variables. A variable exists until a client deletes it.
VARIABLES_MAX = 1_000_000
#: Maximum number of unconfirmed tokens of one future. Clients confirm at once unless they died.
TOKENS_MAX = 100_000


@dataclass(slots=True)
class VariableWaitOver:
    """Timer message: the deadline of a get has passed."""

    number: int


@dataclass(slots=True)
class VariableKeyRecheck:
    """Timer message: check whether the keys that sets wait for are known."""


@dataclass(slots=True)
class VariableKeyOver:
    """Timer message: the deadline of a set that waits for its key has passed."""

    number: int


@dataclass(slots=True, frozen=True)
class Content:
    """The content of a variable.

    Attributes:
        is_future: whether ``value`` is the key of a future.
        value: the key, or the value.
    """

    is_future: bool
    value: Any


class Variables(Extension):
    """The operations ``variable_...`` and ``variable-future-received-confirm``.

    A variable desires the key of its future as a pseudo client. Each get of a future returns a
    token. The key of a value that was replaced or deleted is released when all its tokens are
    confirmed, that is, when each client that received the future desires the key itself or has
    left.

    Attributes:
        variables: name -> content.
    """

    name: ClassVar[str] = "variables"

    def __init__(self) -> None:
        self.variables: dict[Hashable, Content] = {}
        self._tokens: dict[tuple[Hashable, Key], dict[str, str | None]] = {}
        self._n_tokens = 0
        self._waiting: WaitQueues[str | None] = WaitQueues(VariableWaitOver)
        self._key_watch = KeyWatch(self._set_known, VariableKeyRecheck, VariableKeyOver)

    def routes(self) -> Registry:
        """See ``Extension``."""
        return dict(
            [
                on(VariableSet, self.handle_variable_set),
                on(VariableGet, self.handle_variable_get),
                on(VariableDelete, self.handle_variable_delete),
                on(VariableFutureReceivedConfirm, self.handle_variable_future_received_confirm),
                on(VariableWaitOver, self.handle_wait_over),
                on(VariableKeyRecheck, self.handle_key_recheck),
                on(VariableKeyOver, self.handle_key_over),
            ]
        )

    # ------------------------------------------------------------------ set and delete

    def handle_variable_set(self, turn: Turn, message: VariableSet) -> None:
        """Set a variable and reply None, or TimeoutError if the key stays unknown."""
        name = hashable_name(message.name)
        deadline = deadline_after(turn.now, message.timeout)
        if message.key is None:
            self._set(turn, turn.request_id, name, Content(False, message.data))
            return
        key = as_key(message.key)
        content = Content(True, key)
        if key in turn.state.tasks:
            self._set(turn, turn.request_id, name, content)
        else:
            want = (name, content)
            self._key_watch.wait(turn, key, turn.request_id, deadline, want)

    def _set_known(self, turn: Turn, request_id: int, want: tuple[Hashable, Content]) -> None:
        """Carry out a set whose key has become known."""
        try:
            self._set(turn, request_id, *want)
        except ExtensionError as error:
            turn.reply(request_id, error.reply)

    def _set(self, turn: Turn, request_id: int, name: Hashable, content: Content) -> None:
        old = self.variables.get(name)
        if old is None and len(self.variables) >= VARIABLES_MAX:
            raise ExtensionError("RuntimeError", f"More than {VARIABLES_MAX} variables exist")
        if content.is_future:
            desire_keys(turn, [content.value], holder_of(name))
        self.variables[name] = content
        if old is not None and old.is_future:
            self._release_if_unused(turn, name, old.value)
        turn.reply(request_id, None)
        for waiter in self._waiting.waiters(name):
            self._waiting.leave(turn, waiter)
            turn.reply(waiter.request_id, self._record(turn, name, content, waiter.want))

    def handle_variable_delete(self, turn: Turn, message: VariableDelete) -> None:
        """Delete a variable; its future is kept until its tokens are confirmed."""
        name = hashable_name(message.name)
        old = self.variables.pop(name, None)
        if old is not None and old.is_future:
            self._release_if_unused(turn, name, old.value)

    def _release_if_unused(self, turn: Turn, name: Hashable, key: Key) -> None:
        """Release `key` unless it is the content of the variable or has unconfirmed tokens."""
        now = self.variables.get(name)
        held = now is not None and now.is_future and now.value == key
        if not held and (name, key) not in self._tokens:
            release_keys(turn, [key], holder_of(name))

    # ------------------------------------------------------------------ get and confirm

    def handle_variable_get(self, turn: Turn, message: VariableGet) -> None:
        """Reply the content when the variable is set, or TimeoutError at the deadline."""
        name = hashable_name(message.name)
        deadline = deadline_after(turn.now, message.timeout)
        content = self.variables.get(name)
        if content is not None:
            record = self._record(turn, name, content, message.client)
            turn.reply(turn.request_id, record)
        elif deadline is not None and deadline <= turn.now:
            turn.reply(turn.request_id, ExtensionErrorReply("TimeoutError"))
        else:
            self._waiting.enter(turn, name, turn.request_id, deadline, message.client)

    def _record(
        self, turn: Turn, name: Hashable, content: Content, client: str | None
    ) -> dict[str, Any]:
        """Return the reply to a get; for a future, with its state and a new token."""
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

    def handle_variable_future_received_confirm(
        self, turn: Turn, message: VariableFutureReceivedConfirm
    ) -> None:
        """Let the client, which has created its own future, desire the key itself."""
        name, key = hashable_name(message.name), as_key(message.key)
        desire_if_known(turn, key, message.client or turn.source)
        tokens = self._tokens.get((name, key))
        if tokens is not None:
            tokens.pop(message.token or "", None)
            self._drop_if_empty(turn, name, key, tokens)

    def _drop_if_empty(
        self, turn: Turn, name: Hashable, key: Key, tokens: dict[str, str | None]
    ) -> None:
        if not tokens:
            del self._tokens[name, key]
            self._release_if_unused(turn, name, key)

    # ------------------------------------------------------------------ waiters

    def handle_wait_over(self, turn: Turn, message: VariableWaitOver) -> None:
        """Reply TimeoutError to a get whose deadline has passed."""
        waiter = self._waiting.leave_by_number(turn, message.number)
        if waiter is not None:
            turn.reply(waiter.request_id, ExtensionErrorReply("TimeoutError"))

    def handle_key_recheck(self, turn: Turn, message: VariableKeyRecheck) -> None:
        """Carry out sets whose keys are known."""
        self._key_watch.recheck(turn)

    def handle_key_over(self, turn: Turn, message: VariableKeyOver) -> None:
        """Reply TimeoutError to a set whose key is unknown at its deadline."""
        self._key_watch.give_up(turn, message.number)

    def on_restart(self, turn: Turn) -> None:
        """Keep the contents; futures among them are lost, as in stock."""
        for name, content in self.variables.items():
            if content.is_future:
                remove_idle_holder(turn, holder_of(name))

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        """See ``Extension``."""
        if self._waiting.leave_by_request(turn, request_id) is None:
            self._key_watch.request_gone(turn, request_id)

    def on_client_gone(self, turn: Turn, client: str) -> None:
        """Drop the tokens of the client, which cannot confirm them."""
        for (name, key), tokens in list(self._tokens.items()):
            for token in [token for token, holder in tokens.items() if holder == client]:
                del tokens[token]
            self._drop_if_empty(turn, name, key, tokens)


def holder_of(name: Hashable) -> str:
    """Return the pseudo client that holds the future of the variable `name`."""
    return f"variable-{name}"
