"""Run a journal through a fresh core, and say what came of it.

Must not know: sockets, the driver.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.handlers.commands import write_task
from paceline.scheduler.core.state import SchedulerState
from paceline.scheduler.core.stimuli import Stimulus, stimulus_name
from paceline.scheduler.core.turn import Outbox

from .assembly import build_core
from .journal import JournalReader, ValueCodec, output_digest


@dataclass(slots=True)
class ReplayReport:
    """What a replay gave.

    Attributes:
        n_stimuli: handled.
        digest: hash of all outputs, in order; the same in any process.
        ending: how the journal ended, in words.
        core: as it is after the last stimulus.
        errors: (number of the stimulus, error) where the core failed.
        differs_after: number of the stimulus after which outputs first were not those of the run; None
            where all were the same.
    """

    n_stimuli: int
    digest: str
    ending: str
    core: SchedulerCore
    errors: list[tuple[int, str]]
    differs_after: int | None


class WritesAgain:
    """Stands for the plugins of the run: writes in the hooks of one turn what they wrote (``core.ports.PluginPort``).

    Args:
        writes: (number of the hook's call in this turn, command).
    """

    def __init__(self, state: SchedulerState, writes: tuple[tuple[int, Any], ...]) -> None:
        self._state = state
        self._writes: dict[int, list[Any]] = {}
        for number, command in writes:
            self._writes.setdefault(number, []).append(command)
        self._calls = 0

    def _hook(self, *args: Any, **kwargs: Any) -> None:
        self._calls += 1
        for command in self._writes.get(self._calls, ()):
            write_task(self._state, command)

    transition = update_graph = add_worker = remove_worker = _hook
    add_client = remove_client = restart = _hook


class OutputHash:
    """A running hash over outboxes."""

    def __init__(self) -> None:
        self._codec = ValueCodec()
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, outbox: Outbox) -> bytes:
        """Take an outbox in. Returns its own digest, as the journal has it."""
        if not outbox:
            return b""
        digest = output_digest(self._codec, outbox)
        self._hash.update(digest)
        return digest

    def hexdigest(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()


def replay(
    path: str | os.PathLike[str],
    *,
    until: int | None = None,
    show: Callable[[str], None] | None = None,
    key: Any = None,
) -> ReplayReport:
    """Run a journal through a fresh core.

    Args:
        until: stop after so many stimuli.
        show: called with lines that say what happens.
        key: show only stimuli and outputs that name this key.

    Raises:
        JournalError: not a journal of this format.
        OSError: it cannot be read.
    """
    reader = JournalReader(path)
    core = build_core(reader.header.config)
    hashed = OutputHash()
    outbox = Outbox()
    errors: list[tuple[int, str]] = []
    count = 0
    differs_after: int | None = None
    for entry in reader:
        if entry.stimulus is None:
            if hashed.add(outbox) != entry.digest and differs_after is None:
                differs_after = count
            if show is not None:
                _show_outbox(outbox, show, key)
            outbox = Outbox()
            continue
        if until is not None and count >= until:
            reader.ending = f"stopped after {until} stimuli"
            break
        count += 1
        if show is not None:
            _show_stimulus(count, entry.now, entry.stimulus, show, key)
        if entry.writes:
            core.state.plugins = WritesAgain(core.state, entry.writes)
        try:
            core.handle(entry.stimulus, entry.now, outbox)
        except Exception as error:
            errors.append((count, f"{type(error).__name__}: {error}"))
        core.state.plugins = None
    hashed.add(outbox)
    if show is not None:
        _show_outbox(outbox, show, key)
    return ReplayReport(count, hashed.hexdigest(), reader.ending, core, errors, differs_after)


def _show_stimulus(
    number: int, now: float, stimulus: Stimulus, show: Callable[[str], None], key: Any
) -> None:
    text = repr(stimulus.message)
    if key is None or names_key(text, key):
        name = stimulus_name(stimulus.message)
        show(f"{number:8d} {now:.6f} {stimulus.source or '-'} {name} ({stimulus.stimulus_id})")
        show(f"         < {_short(text)}")


def _show_outbox(outbox: Outbox, show: Callable[[str], None], key: Any) -> None:
    for title, peers in (("client", outbox.clients), ("worker", outbox.workers)):
        for name, messages in peers.items():
            for message in messages:
                text = repr(message)
                if key is None or names_key(text, key):
                    show(f"         > {title} {name}: {_short(text)}")
    if key is None:
        for request_id, value in outbox.replies:
            show(f"         > reply {request_id}: {_short(repr(value))}")
        for instruction in outbox.instructions:
            show(f"         > {_short(repr(instruction))}")


def names_key(text: str, key: Any) -> bool:
    """Whether a message's text names the key."""
    return repr(key) in text


#: How much of a message is shown.
SHOWN_MAX_CHARS = 400


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_MAX_CHARS else text[:SHOWN_MAX_CHARS] + "..."
