"""One request to a running scheduler, from a command line: dial, say who we are, ask, hang up. Blocking.

Must not know: what is asked.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Final

from paceline.protocol.connection import Connection, HandshakeDone, Value
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.workers_compat import shared_secret

from .addresses import address_host_port, split_address

#: Bytes read at a time.
READ_NBYTES: Final = 2**16


class AskError(Exception):
    """There was no answer; the text says why."""


def ask_scheduler(address: str, request: Any, timeout: float = 30.0) -> Any:
    """The scheduler's reply.

    Args:
        address: ``tcp://host:port``; for ``tls://`` certificates come from the configuration.
        timeout: seconds for all of it.

    Raises:
        AskError: no scheduler is there, it does not answer in time, or it answers with an error.
    """
    if "://" not in address:
        address = f"tcp://{address}"
    scheme, _ = split_address(address)
    if scheme not in ("tcp", "tls"):
        raise AskError(f"cannot ask {address}: this command speaks tcp and tls only")
    ends_at = time.monotonic() + timeout
    try:
        with _connect(address, scheme == "tls", timeout) as sock:
            reply = _converse(sock, request, ends_at)
    except TimeoutError as error:
        raise AskError(f"{address} did not answer within {timeout:g} s") from error
    except OSError as error:
        raise AskError(f"cannot ask {address}: {error}") from error
    if isinstance(reply, dict) and reply.get("status") == "uncaught-error":
        raise AskError(f"{address}: {reply.get('exception_text')}")
    return reply


def _connect(address: str, encrypted: bool, timeout: float) -> socket.socket:
    host, port = address_host_port(address)
    sock = socket.create_connection((host, port), timeout=timeout)
    if not encrypted:
        return sock
    from paceline.workers_compat import security

    try:
        context = security.read().dial
        if context is None:
            raise AskError(f"{address} needs distributed.comm.tls.* in the configuration")
        return context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def _converse(sock: socket.socket, request: Any, ends_at: float) -> Any:
    secret = shared_secret.configured()
    connection = Connection(
        "connector", secret.proof(shared_secret.CONNECTOR) if secret is not None else None
    )
    frames = FrameReader()
    _write(sock, connection.start())
    asked = False
    while True:
        sock.settimeout(max(0.001, ends_at - time.monotonic()))
        data = sock.recv(READ_NBYTES)
        if not data:
            raise ConnectionError("it hung up")
        for got in frames.feed(data):
            for event in connection.receive_frames(got):
                if isinstance(event, HandshakeDone) and not asked:
                    asked = True
                    _write(sock, connection.send(request))
                elif isinstance(event, Value):
                    return event.value


def _write(sock: socket.socket, frames: Any) -> None:
    sock.sendall(b"".join(bytes(buffer) for buffer in pack_frames(frames)))
