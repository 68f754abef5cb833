"""The last lines of the log, for ``Client.get_scheduler_logs``."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from paceline.protocol import messages as r
from paceline.scheduler.core.state.history import History

from .api import Handler, PeerApi, ServerApi

#: Lines kept unless the configuration says otherwise (``distributed.admin.log-length``).
LOG_LENGTH = 10_000
#: How a line looks unless the configuration says otherwise (``distributed.admin.log-format``).
LOG_FORMAT = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
#: The logger whose lines are kept: it and all below it.
LOGGER_NAME = "distributed.scheduler"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What is kept of a log record: half its size, and no traceback with the frames that hang on it.

    Attributes:
        created: seconds since the epoch.
        levelno, levelname, name: as in ``logging.LogRecord``.
        line: the record as it was formatted.
        message_at: where in ``line`` the message begins.
        message_length: its length, characters.
    """

    created: float
    levelno: int
    levelname: str
    name: str
    line: str
    message_at: int
    message_length: int

    def getMessage(self) -> str:  # a log record's name for it
        """The message alone."""
        return self.line[self.message_at : self.message_at + self.message_length]


class LogKeeper(logging.Handler):
    """A log handler that keeps the last lines.

    Args:
        length: how many; 0 or less keeps none.
        line_format: how a line looks.
    """

    def __init__(self, length: int = LOG_LENGTH, line_format: str = LOG_FORMAT) -> None:
        super().__init__()
        self._kept: History[tuple[Any, ...]] = History(max(0, length))
        self.setFormatter(logging.Formatter(line_format))
        self._logger = logging.getLogger(LOGGER_NAME)
        self._logger.addHandler(self)

    @property
    def deque(self) -> list[LogEntry]:
        """The lines, oldest first (stock's ``DequeHandler`` has this name for its records)."""
        return [LogEntry(*fields) for fields in self._kept]

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it; what does not format is told as ``logging`` tells it."""
        try:
            line, message = self.format(record), record.getMessage()
        except Exception:
            self.handleError(record)
            return
        begin = (record.created, record.levelno, record.levelname, record.name)
        self._kept.append((*begin, line, max(0, line.find(message)), len(message)))

    def close(self) -> None:
        """Listen no more."""
        self._logger.removeHandler(self)
        super().close()

    def lines(
        self, start: float = 0.0, n: int | None = None, timestamps: bool = False
    ) -> list[tuple[Any, ...]]:
        """(level, line), or with ``timestamps`` (seconds since the epoch, level, line); newest first.

        Args:
            start: nothing older than this (seconds since the epoch).
            n: so many at most.
        """
        out: list[tuple[Any, ...]] = []
        for fields in reversed(self._kept):
            kept = LogEntry(*fields)
            if (n and len(out) >= n) or kept.created < start:
                break
            line = (kept.levelname, kept.line)
            out.append((kept.created, *line) if timestamps else line)
        return out


def _log_lines(
    server: ServerApi, request: r.GetLogs | r.Logs, peer: PeerApi
) -> list[tuple[Any, ...]]:
    return server.request_state.log.lines(request.start, request.n, request.timestamps)


HANDLERS: dict[type, Handler] = {r.GetLogs: _log_lines, r.Logs: _log_lines}
