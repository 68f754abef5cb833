"""A scheduler plugin that kills its process."""

from __future__ import annotations

import os
import signal
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin


class DiesOf(SchedulerPlugin):
    """Kills the scheduler process with a transition of the key "poison" to a state."""

    name = "dies-of"

    def __init__(self, finish: str) -> None:
        self.finish = finish

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if key == "poison" and finish == self.finish:
            os.kill(os.getpid(), signal.SIGKILL)
