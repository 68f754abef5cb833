"""Check every message that this process sends against the catalogue, for tests.

If the environment variable ``PACELINE_CHECK_MESSAGES`` names a file, connections are
``CheckedConnection`` objects, and each violation is appended to that file as one line of JSON with
"text", "kind", "way" and "message". Several processes may append to the same file.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable
from typing import Final

from paceline.protocol.checked import CheckedConnection
from paceline.protocol.checking import Violation
from paceline.protocol.connection import Connection
from paceline.protocol.observer import ObservedMessage

logger = logging.getLogger("distributed.scheduler")

VARIABLE: Final = "PACELINE_CHECK_MESSAGES"
#: Violations that one process reports at most.
REPORTS_MAX: Final = 1000
#: Characters of a message that are reported at most.
MESSAGE_MAX_LENGTH: Final = 2000


def connection_factory() -> Callable[..., Connection]:
    """Return ``Connection``, or a factory of checked connections if ``VARIABLE`` is set."""
    path = os.environ.get(VARIABLE)
    if not path:
        return Connection
    return functools.partial(CheckedConnection, report=ViolationFile(path))


class ViolationFile:
    """Appends violations to the file at ``path``."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._n_reports = 0

    def __call__(self, violation: Violation, seen: ObservedMessage) -> None:
        """Log a violation and append it to the file."""
        self._n_reports += 1
        if self._n_reports > REPORTS_MAX:
            return
        line = {
            "text": str(violation),
            "kind": seen.kind,
            "way": seen.way,
            "message": repr(seen.value)[:MESSAGE_MAX_LENGTH],
        }
        logger.error("A sent message violates the catalogue: %s", violation)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
