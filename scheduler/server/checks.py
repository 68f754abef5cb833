"""For tests: every message that this process sends is held against the catalogue.

Where the environment variable ``PACELINE_CHECK_MESSAGES`` names a file, connections are ``CheckedConnection``s, and each violation is a line
in that file: JSON with "text", "kind", "way" and "message". Processes append to one file. Without the variable nothing of this is there.

Must not know: what messages mean.
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
from paceline.protocol.onlooker import Seen

logger = logging.getLogger("distributed.scheduler")

VARIABLE: Final = "PACELINE_CHECK_MESSAGES"
#: One process reports so many violations, and is silent then.
REPORTS_MAX: Final = 1000
#: Of a message so many characters are reported.
MESSAGE_MAX_LENGTH: Final = 2000


def connection_factory() -> Callable[..., Connection]:
    """What makes connections: ``Connection``, unless the environment asks for checks."""
    path = os.environ.get(VARIABLE)
    if not path:
        return Connection
    return functools.partial(CheckedConnection, report=Reporter(path))


class Reporter:
    """Writes violations to a file.

    Args:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._n_reports = 0

    def __call__(self, violation: Violation, seen: Seen) -> None:
        """One line."""
        self._n_reports += 1
        if self._n_reports > REPORTS_MAX:
            return
        line = {
            "text": str(violation),
            "kind": seen.kind,
            "way": seen.way,
            "message": repr(seen.value)[:MESSAGE_MAX_LENGTH],
        }
        logger.error("We sent what the catalogue does not allow: %s", violation)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
