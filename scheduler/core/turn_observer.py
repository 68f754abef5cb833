"""Base class of observers of turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .stimuli import Stimulus
from .turn import Outbox


class TurnObserver:
    """Called by the driver around turns, batches and flushes.

    Subclasses override the methods they need.
    """

    def before_turn(self, stimulus: Stimulus, now: float) -> None:
        """Observe ``stimulus`` before the core handles it at the time ``now``."""

    def after_turn(self, stimulus: Stimulus) -> None:
        """Observe ``stimulus`` after the core has handled it or has raised an exception."""

    def after_batch(self, source: str, messages: Sequence[Any]) -> None:
        """Observe that the core has handled the messages of one batch of a stream."""

    def before_flush(self, outbox: Outbox) -> None:
        """Observe the messages in ``outbox`` before they are sent."""
