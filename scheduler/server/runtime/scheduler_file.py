"""The file with the address of a running scheduler, for other processes: ``--scheduler-file``."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
from typing import Any

logger = logging.getLogger("distributed.scheduler")


class SchedulerFile:
    """The file at `path`, which exists until ``remove`` is called or the process ends."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, identity: dict[str, Any], is_successor: bool) -> None:
        """Write what ``Scheduler.identity`` returns.

        Raises OSError with the name of the file if that fails. If `is_successor`, the file of the
        previous scheduler process has the same address, and the error is only logged.
        """
        temporary = f"{self._path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "w") as file:
                json.dump(identity, file, indent=2)
            os.replace(temporary, self._path)  # in one step: other processes poll for it
        except OSError as error:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            named = OSError(error.errno, error.strerror, self._path)
            if not is_successor:
                raise named from error
            logger.error(
                "The scheduler file cannot be written: %s. Keeping the file of the previous "
                "scheduler process, which has the same address",
                named,
            )
        atexit.register(self.remove)

    def remove(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            os.remove(self._path)
        atexit.unregister(self.remove)
