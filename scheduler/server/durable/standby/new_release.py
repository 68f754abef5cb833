"""The start of the standby of another release in an upgrade (``keeper/upgrade.py``)."""

from __future__ import annotations

import json
import os
import pickle
import socket
from pathlib import Path

from paceline.protocol.framing import SCRATCH_NBYTES
from paceline.scheduler.extensions import default_extensions
from paceline.scheduler.server.durable.channel.keeper_channel import KeeperChannel
from paceline.scheduler.server.durable.channel.kept import Kept
from paceline.scheduler.server.durable.channel.messages import FORMAT, receive
from paceline.scheduler.server.durable.channel.progress import KeptMemory, Progress
from paceline.scheduler.server.durable.keeper.upgrade import VARIABLE, UpgradeError
from paceline.scheduler.server.durable.log.segments import FORMAT as LOG_FORMAT
from paceline.scheduler.server.durable.log.segments import Position
from paceline.scheduler.server.durable.recovery.replay import RecordedState
from paceline.scheduler.server.peers.connection_factory import ConnectionFactory
from paceline.workers_compat.security import shared_secret

from . import snapshot, standby


def role() -> tuple[str, int]:
    """Return the role of this process in an upgrade, and a descriptor; "" without an upgrade.

    Processes that it starts have no role.
    """
    name, _, fd = os.environ.pop(VARIABLE, "").partition(":")
    return name, int(fd or -1)


def join(fd: int) -> KeeperChannel:
    """Become a standby. Return the channel of the scheduler process when the keeper wakes it.

    Args:
        fd: the descriptor of the socket to the keeper.

    Raises:
        UpgradeError: this release cannot continue the scheduler.
        SnapshotError: this release cannot read the snapshot.
    """
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    message, fds = receive(sock)
    if not message:
        raise UpgradeError("the keeper has ended")
    facts = json.loads(message)
    _check("the keeper's messages have", facts["format"], FORMAT)
    scratch, progress, file, stdout, stderr = fds
    with open(file, "rb") as stream:
        recorded, about = snapshot.read(
            stream, ConnectionFactory(shared_secret.configured()).accepted
        )
    _check("the log has", about["log"], LOG_FORMAT)
    _complete(recorded)
    if recorded.shuffles:
        pickle.loads(recorded.shuffles)  # imports pandas, which takes long
    kept = Kept(scratch=KeptMemory(SCRATCH_NBYTES, scratch), progress=Progress(progress))
    for number, duplicate in ((1, stdout), (2, stderr)):
        os.dup2(duplicate, number)
    standby.begin(sock)
    keeper = KeeperChannel(sock, kept, Path(facts["folder"]))
    return standby.wait(sock, keeper, recorded, Position(*about["position"]))


def _check(what: str, found: int, known: int) -> None:
    if found != known:
        raise UpgradeError(
            f"{what} format {found}, and this release knows format {known}. "
            "Stop the scheduler and start this release instead"
        )


def _complete(recorded: RecordedState) -> None:
    """Add what a snapshot does not contain, such as the extensions that are new in this release."""
    core = recorded.core
    core.state.plugins = None
    for extension in default_extensions(core.state.config):
        core.extensions.setdefault(extension.name, extension)
    core.register_handlers()
