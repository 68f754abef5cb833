"""Replay a journal through a new core and report its output."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.handlers.commands import write_task
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.stimuli import Stimulus, stimulus_name
from paceline.scheduler.core.turn import Outbox
from paceline.scheduler.server.build_core import build_core

from .journal import JournalEntry, JournalReader, output_digest
from .values import JournalError, ValueCodec


@dataclass(slots=True)
class ReplayReport:
    """The result of a replay.

    Attributes:
        digest: hash of all output, in order; the same in any process.
        release: version and kind of build of the scheduler that wrote the journal.
        ending: how the journal ended, as text.
        errors: (number of the stimulus, error) for each exception of the core.
        differs_after: number of the stimulus after which the output first differed from that of the
            recorded run; None if it never did.
    """

    n_stimuli: int
    digest: str
    release: str
    ending: str
    core: SchedulerCore
    errors: list[tuple[int, str]]
    differs_after: int | None


class ReplayedPlugins:
    """Replaces the plugins of the recorded run: repeats what they wrote in the hooks of one turn.

    Implements ``core.ports.PluginPort``.

    Args:
        state: the state of the core.
        writes: (number of the hook's call in this turn, command) pairs.
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


def replay(
    path: str | os.PathLike[str],
    *,
    until: int | None = None,
    show: Callable[[str], None] | None = None,
    key: Any = None,
) -> ReplayReport:
    """Replay a journal through a new core, up to the stimulus with the number `until`.

    `show` is called with lines that describe stimuli and output; with `key` only those that contain
    this key.

    Raises:
        JournalError: the file is not a journal of this format.
        OSError: the file cannot be read.
    """
    reader = JournalReader(path)
    core = build_core(reader.config)
    codec, hashed = ValueCodec(), hashlib.blake2b(digest_size=16)
    outbox = Outbox()
    errors: list[tuple[int, str]] = []
    count = 0
    differs_after: int | None = None
    for entry in _entries(reader, until):
        if entry.stimulus is None:
            digest = output_digest(codec, outbox) if outbox else b""
            hashed.update(digest)
            if digest != entry.digest and differs_after is None:
                differs_after = count
            if show is not None:
                _show_outbox(outbox, show, key)
            outbox = Outbox()
            continue
        count += 1
        if show is not None:
            _show_stimulus(count, entry.now, entry.stimulus, show, key)
        if entry.writes:
            core.state.plugins = ReplayedPlugins(core.state, entry.writes)
        try:
            core.handle(entry.stimulus, entry.now, outbox)
        except Exception as error:
            errors.append((count, f"{type(error).__name__}: {error}"))
        core.state.plugins = None
    if outbox:
        hashed.update(output_digest(codec, outbox))
    if show is not None:
        _show_outbox(outbox, show, key)
    return ReplayReport(
        count, hashed.hexdigest(), reader.release, reader.ending, core, errors, differs_after
    )


def _entries(reader: JournalReader, until: int | None) -> Iterator[JournalEntry]:
    """Yield the entries up to the stimulus `until`, behind which the journal may be damaged."""
    count = 0
    try:
        for entry in reader:
            if entry.stimulus is not None:
                if count == until:
                    break
                count += 1
            yield entry
        else:
            return
    except JournalError:
        if count != until:
            raise
    reader.ending = f"stopped after {until} stimuli"


def _show_stimulus(
    number: int, now: float, stimulus: Stimulus, show: Callable[[str], None], key: Any
) -> None:
    text = _repr(stimulus.message)
    if _is_about(text, key):
        name = stimulus_name(stimulus.message)
        show(f"{number:8d} {now:.6f} {stimulus.source or '-'} {name} ({stimulus.stimulus_id})")
        show(f"         < {_short(text)}")


def _show_outbox(outbox: Outbox, show: Callable[[str], None], key: Any) -> None:
    for title, peers in (("client", outbox.clients), ("worker", outbox.workers)):
        for name, messages in peers.items():
            for message in messages:
                text = _repr(message)
                if _is_about(text, key):
                    show(f"         > {title} {name}: {_short(text)}")
    if key is None:
        for request_id, value in outbox.replies:
            show(f"         > reply {request_id}: {_short(_repr(value))}")
        for instruction in outbox.instructions:
            show(f"         > {_short(_repr(instruction))}")


def _is_about(text: str, key: Any) -> bool:
    """Return whether ``text``, the repr of a message, contains ``key``, or ``key`` is None."""
    return key is None or repr(key) in text


#: Characters of a message that are shown at most.
SHOWN_MAX_CHARS = 400


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_MAX_CHARS else text[:SHOWN_MAX_CHARS] + "..."


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except RecursionError:
        return f"<{type(value).__name__}, nested too deeply to show>"
