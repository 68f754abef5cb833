"""The control socket of a keeper, on which ``paceline upgrade`` sends its request.

It is a Unix socket in the folder of the log. A request and its reply are one JSON object each.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: File name of the socket.
NAME = "control"
#: Size of the largest request or reply.
MESSAGE_NBYTES = 64 * 2**10


class ControlError(Exception):
    """A keeper cannot be reached."""


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Return a path of the socket that fits into an address, whatever the length of ``folder``."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)


class ControlSocket:
    """The keeper's end of the control socket.

    Args:
        folder: the folder of the log.
        sock: the listening socket of a keeper before this one.
    """

    def __init__(self, folder: Path, sock: socket.socket | None = None) -> None:
        self.sock = _listen(folder) if sock is None else sock
        self.sock.setblocking(False)
        self._callers: list[socket.socket] = []

    @property
    def socks(self) -> list[socket.socket]:
        """The sockets on which requests arrive."""
        return [self.sock, *self._callers]

    def requests(self, ready: list[Any]) -> Iterator[tuple[dict[str, Any], socket.socket]]:
        """Return the requests of the sockets that are ready, with the sockets for their replies."""
        for caller in [each for each in self._callers if each in ready]:
            self._callers.remove(caller)
            try:
                request = json.loads(caller.recv(MESSAGE_NBYTES))
            except (OSError, ValueError):  # the caller has ended
                request = None
            if isinstance(request, dict):
                yield request, caller
            else:
                caller.close()
        if self.sock in ready:
            with contextlib.suppress(OSError):
                self._callers.append(self.sock.accept()[0])


def _listen(folder: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (folder / NAME).unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        with _short_path(folder) as path:
            sock.bind(path)
    finally:
        os.umask(before)
    sock.listen()
    return sock


def reply(caller: socket.socket | None, value: dict[str, Any]) -> None:
    """Send the reply to a request, and close its socket. Do nothing without one."""
    if caller is not None:
        with caller, contextlib.suppress(OSError):
            caller.send(json.dumps(value).encode())


def call(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the keeper that uses ``folder``, and return its reply.

    Raises:
        ControlError: there is none, or it has ended before its reply.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            with _short_path(folder) as path:
                sock.connect(path)
            sock.send(json.dumps(request).encode())
            data = sock.recv(MESSAGE_NBYTES)
        except OSError as error:
            raise ControlError(f"no scheduler with --durable {folder} runs: {error}") from error
    if not data:
        raise ControlError("the scheduler ended")
    answer: dict[str, Any] = json.loads(data)
    return answer
