"""The last lines of the log, for ``Client.get_scheduler_logs``."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, NamedTuple

from paceline.workers_compat.config import config

#: Default of ``distributed.admin.log-length``.
LOG_LENGTH = 10_000
#: Default of ``distributed.admin.log-format``.
LOG_FORMAT = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"

#: The logger whose lines are kept, with those of the loggers below it.
LOGGER_NAME = "distributed.scheduler"


class LogEntry(NamedTuple):
    """A log record without its traceback, which would keep frames alive; `line` is formatted."""

    created: float
    levelno: int
    levelname: str
    name: str
    line: str
    message: str

    def getMessage(self) -> str:  # noqa: N802 - a log record's name for it
        """Return the message without its format."""
        return self.message


class RecentLog(logging.Handler):
    """A log handler that keeps the last lines.

    ``distributed.admin.log-length`` and ``log-format`` are their number and format.

    Attributes:
        deque: the entries, oldest first (the name in stock's ``DequeHandler``).
    """

    def __init__(self) -> None:
        super().__init__()
        length = int(config.get("distributed.admin.log-length") or LOG_LENGTH)
        self.deque: deque[LogEntry] = deque(maxlen=max(0, length))
        line_format = config.get("distributed.admin.log-format") or LOG_FORMAT
        self.setFormatter(logging.Formatter(line_format))
        self._logger = logging.getLogger(LOGGER_NAME)
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            texts = (self.format(record), record.getMessage())
        except Exception:
            self.handleError(record)
        else:
            fields = (record.created, record.levelno, record.levelname, record.name, *texts)
            self.deque.append(LogEntry(*fields))

    def close(self) -> None:
        """Remove the handler from the logger."""
        self._logger.removeHandler(self)
        super().close()

    def lines(
        self, start: float = 0.0, n: int | None = None, timestamps: bool = False
    ) -> list[tuple[Any, ...]]:
        """Return at most `n` lines since `start` (seconds since the epoch), newest first.

        A line is (level, line), or with `timestamps` (seconds since the epoch, level, line).
        """
        out: list[tuple[Any, ...]] = []
        for entry in reversed(self.deque):
            if (n and len(out) >= n) or entry.created < start:
                break
            line = (entry.levelname, entry.line)
            out.append((entry.created, *line) if timestamps else line)
        return out
