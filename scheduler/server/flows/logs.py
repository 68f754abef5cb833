"""The last lines of the log, for ``Client.get_scheduler_logs``.

Must not know: who asks.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

#: Lines kept unless the configuration says otherwise (``distributed.admin.log-length``).
LOG_LENGTH = 10_000
#: How a line looks unless the configuration says otherwise (``distributed.admin.log-format``).
LOG_FORMAT = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
#: The logger whose lines are kept: it and all below it.
LOGGER_NAME = "distributed.scheduler"


class LogKeeper(logging.Handler):
    """A log handler that keeps the last records.

    Args:
        length: how many; 0 or less keeps none.
        line_format: how a line looks.

    Attributes:
        deque: the records, oldest first (stock's ``DequeHandler`` has this name for them).
    """

    def __init__(self, length: int = LOG_LENGTH, line_format: str = LOG_FORMAT) -> None:
        super().__init__()
        self.deque: deque[logging.LogRecord] = deque(maxlen=max(0, length))
        self.setFormatter(logging.Formatter(line_format))
        self._logger = logging.getLogger(LOGGER_NAME)
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.deque.append(record)

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
        for record in reversed(self.deque):
            if (n and len(out) >= n) or record.created < start:
                break
            line = (record.levelname, self.format(record))
            out.append((record.created, *line) if timestamps else line)
        return out
