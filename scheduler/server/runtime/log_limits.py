"""Limits for log lines whose text or number depends on peers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

#: Loggers of the scheduler; child loggers do not inherit filters.
LOGGERS: Final = (
    "distributed.scheduler",
    "distributed.active_memory_manager",
    "distributed.stealing",
)
#: A longer message is shortened in the middle, characters. Keys and error texts of peers can have
#: any length.
MESSAGE_MAX: Final = 4_000
#: A longer traceback is shortened in the middle, characters.
TRACEBACK_MAX: Final = 16_000
#: Characters that similar lines may have within ``PERIOD_SECONDS``; further lines are counted only.
SIMILAR_MAX: Final = 200_000
#: Seconds after which the count of similar lines starts again.
PERIOD_SECONDS: Final = 60.0
#: Kinds of similar lines that are counted separately; all further kinds share one count.
KINDS_MAX: Final = 1_000

#: Formats tracebacks as the handlers do.
_FORMATTER: Final = logging.Formatter()


@dataclass(slots=True)
class _Similar:
    """Lines of one kind within the current period.

    Attributes:
        n_characters: of the lines that were let through.
        last: the latest suppressed line, without its traceback.
    """

    n_characters: int = 0
    last: logging.LogRecord | None = None
    n_suppressed: int = 0


class LogLimits(logging.Filter):
    """A filter of the scheduler's loggers that shortens lines and limits similar ones.

    Lines are similar if the same statement logs them. When the period is over, one line with the
    number of suppressed lines is logged.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._similar: dict[Any, _Similar] = {}
        self._period_ends = clock() + PERIOD_SECONDS
        for name in LOGGERS:
            logging.getLogger(name).addFilter(self)

    def close(self) -> None:
        """Remove the filter from the loggers and log how many lines it suppressed."""
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(self)
        self._end_period()

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten a record; return False if it is to be suppressed."""
        try:
            kind = _kind(record)
            message = shorten(record)
        except Exception:  # the arguments do not fit the message: the handler reports it
            return True
        if self._clock() >= self._period_ends:
            self._end_period()
        with self._lock:
            return self._count(kind, record, message)

    def _count(self, kind: Any, record: logging.LogRecord, message: str) -> bool:
        """Count a line; return whether it may be logged."""
        if kind not in self._similar and len(self._similar) >= KINDS_MAX:
            kind = None
        similar = self._similar.setdefault(kind, _Similar())
        if similar.n_characters < SIMILAR_MAX:
            similar.n_characters += len(message) + len(record.exc_text or "")
            return True
        similar.n_suppressed += 1
        similar.last = logging.LogRecord(
            record.name, record.levelno, record.pathname, record.lineno, "%s", (message,), None
        )
        return False

    def _end_period(self) -> None:
        """Reset the counts, and log how many lines were suppressed."""
        with self._lock:
            self._period_ends = self._clock() + PERIOD_SECONDS
            counted, self._similar = self._similar, {}
        for similar in counted.values():
            record = similar.last
            if record is not None:
                lines = "line" if similar.n_suppressed == 1 else "lines"
                record.msg = f"{similar.n_suppressed} similar {lines} suppressed. The last one: %s"
                # to the handlers, because it must not be filtered again
                logging.getLogger(record.name).callHandlers(record)


def shorten(record: logging.LogRecord) -> str:
    """Limit the length of a record's message and traceback; return the message."""
    message = record.getMessage()
    if len(message) > MESSAGE_MAX:
        message = cut(message, MESSAGE_MAX)
        record.msg, record.args = "%s", (message,)
    if record.exc_info and not record.exc_text:
        record.exc_text = _FORMATTER.formatException(record.exc_info)
    if record.exc_text:
        record.exc_text = cut(record.exc_text, TRACEBACK_MAX)
    return message


def cut(text: str, length_max: int) -> str:
    """Return ``text`` without its middle if it is longer than ``length_max`` characters."""
    if len(text) <= length_max:
        return text
    half = length_max // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters omitted ...] {text[-half:]}"


def _kind(record: logging.LogRecord) -> Any:
    """Return the key of similar records: the statement that logs them.

    All lines of the core are logged by one statement, so their first word is part of the key.
    """
    word = record.getMessage().partition(" ")[0] if record.msg == "%s" else ""
    return record.pathname, record.lineno, record.levelno, word if word.isalpha() else ""
