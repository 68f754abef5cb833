"""Check every message that this process sends against the catalogue, for tests.

If the environment variable ``PACELINE_CHECK_MESSAGES`` names a file, each violation is appended to
it as one line of JSON. Several processes may append to the same file.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from paceline.protocol.connection import Connection

if TYPE_CHECKING:
    from paceline.protocol.observer import ObservedMessage
    from paceline.protocol.validation import Violation

logger = logging.getLogger("distributed.scheduler")

VARIABLE: Final = "PACELINE_CHECK_MESSAGES"
#: Violations that one process reports at most.
REPORTS_MAX: Final = 1000
#: Characters of a message that are reported at most.
MESSAGE_MAX_LENGTH: Final = 2000


def connection_type() -> Callable[..., Connection]:
    """Return ``Connection``, or a factory of checked connections if ``VARIABLE`` is set."""
    path = os.environ.get(VARIABLE)
    if not path:
        return Connection
    from paceline.protocol.checked_connection import CheckedConnection

    numbers = itertools.count()

    def report(violation: Violation, seen: ObservedMessage) -> None:
        if next(numbers) >= REPORTS_MAX:
            return
        facts = {"text": str(violation), "kind": seen.kind, "way": seen.way}
        line = json.dumps({**facts, "message": repr(seen.value)[:MESSAGE_MAX_LENGTH]})
        logger.error("A sent message violates the catalogue: %s", violation)
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    return functools.partial(CheckedConnection, report=report)
