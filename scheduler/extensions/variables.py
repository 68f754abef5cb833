"""Variables: a value or a future under a name, shared by clients (``distributed.Variable``)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

from paceline.protocol import messages as m
from paceline.protocol.keys import Key
from paceline.scheduler.core.extension import Extension, ExtensionError, ExtensionErrorReply
from paceline.scheduler.core.handlers.clients import client_desires_keys
from paceline.scheduler.core.turn import Turn

from .holders import Item, desire_if_known, release_keys, remove_idle_holder
from .key_watch import KeyWatch
from .names import as_key, deadline_after, hashable_name
from .wait_queues import Waiter, WaitQueues

#: Maximum number of variables. A variable exists until a client deletes it.
VARIABLES_MAX = 1_000_000
#: Maximum number of unconfirmed tokens of one future. Clients confirm at once unless they died.
TOKENS_MAX = 100_000


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
        self.variables: dict[Hashable, Item] = {}
        self._tokens: dict[tuple[Hashable, Key], dict[str, str | None]] = {}
        self._n_tokens = 0
        self._waiting: WaitQueues[str | None] = WaitQueues(self._time_out)
        self._key_watch = KeyWatch(self._set)

    # ------------------------------------------------------------------ set and delete

    def handle_variable_set(self, turn: Turn, message: m.VariableSet) -> None:
        """Set a variable and reply None, or TimeoutError if the key stays unknown."""
        want = (hashable_name(message.name), Item.of(message.key, message.data))
        deadline = deadline_after(turn.now, message.timeout)
        if want[1].is_unknown(turn):
            self._key_watch.wait(turn, want[1].value, turn.request_id, deadline, want)
        else:
            self._set(turn, turn.request_id, want)

    def _set(self, turn: Turn, request_id: int, want: tuple[Hashable, Item]) -> None:
        name, content = want
        old = self.variables.get(name)
        if old is None and len(self.variables) >= VARIABLES_MAX:
            raise ExtensionError("RuntimeError", f"More than {VARIABLES_MAX} variables exist")
        if content.is_future:
            client_desires_keys(turn, [content.value], holder_of(name))
        self.variables[name] = content
        if old is not None and old.is_future:
            self._release_if_unused(turn, name, old.value)
        turn.reply(request_id, None)
        for waiter in self._waiting.waiters(name):
            self._waiting.leave(turn, waiter)
            turn.reply(waiter.request_id, self._record(turn, name, content, waiter.want))

    def handle_variable_delete(self, turn: Turn, message: m.VariableDelete) -> None:
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

    def handle_variable_get(self, turn: Turn, message: m.VariableGet) -> None:
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
        self, turn: Turn, name: Hashable, content: Item, client: str | None
    ) -> dict[str, Any]:
        """Return the reply to a get; for a future, with its state and a new token."""
        record = content.record(turn)
        if not content.is_future:
            return record
        self._n_tokens += 1
        token = f"token-{self._n_tokens}"
        tokens = self._tokens.setdefault((name, content.value), {})
        if len(tokens) >= TOKENS_MAX:
            del tokens[next(iter(tokens))]
        tokens[token] = client
        return {**record, "token": token}

    def handle_variable_future_received_confirm(
        self, turn: Turn, message: m.VariableFutureReceivedConfirm
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

    def _time_out(self, turn: Turn, waiter: Waiter[str | None]) -> None:
        turn.reply(waiter.request_id, ExtensionErrorReply("TimeoutError"))

    def on_restart(self, turn: Turn) -> None:
        """Keep the contents; futures among them are lost, as in stock."""
        for name, content in self.variables.items():
            if content.is_future:
                remove_idle_holder(turn, holder_of(name))

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        if self._waiting.leave_by_request(turn, request_id) is None:
            self._key_watch.request_gone(turn, request_id)

    def on_client_removed(self, turn: Turn, client: str) -> None:
        """Drop the tokens of the client, which cannot confirm them."""
        for (name, key), tokens in list(self._tokens.items()):
            for token in [token for token, holder in tokens.items() if holder == client]:
                del tokens[token]
            self._drop_if_empty(turn, name, key, tokens)


def holder_of(name: Hashable) -> str:
    """Return the pseudo client that holds the future of the variable `name`."""
    return f"variable-{name}"
