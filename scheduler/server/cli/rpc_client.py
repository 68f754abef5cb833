"""A blocking RPC client for the command line: one request per connection."""

from __future__ import annotations

import ast
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

import click
from paceline.protocol.connection import Connection, HandshakeDone, Value
from paceline.protocol.errors import ProtocolError
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.protocol.messages import Identity

#: Bytes read at a time.
READ_NBYTES: Final = 2**16


class RpcError(click.ClickException):
    """The request failed; ``text``, which commands print, is the reason.

    Control characters other than the ends of lines are escaped: a peer may have sent them.
    """

    def __init__(self, text: str) -> None:
        super().__init__("\n".join(map(printable, text.split("\n"))))


def call_scheduler(address: str, request: Any, timeout: float = 30.0) -> Any:
    """Send a request to a scheduler and return its reply.

    Certificates, required encryption and the shared secret are those of the configuration.
    `timeout` is for connecting and the reply together, seconds.

    Raises:
        RpcError: the scheduler cannot be reached, does not reply in time, or replies with an error.
    """
    from paceline.workers_compat.addressing import split_address
    from paceline.workers_compat.config.settings import is_on

    encrypted_only = is_on("distributed.comm.require-encryption", default=False)
    if "://" not in address:
        address = f"{'tls' if encrypted_only else 'tcp'}://{address}"
    scheme, _ = split_address(address)
    if scheme not in ("tcp", "tls"):
        raise RpcError(f"Cannot connect to {address}: this command supports tcp and tls only")
    if scheme == "tcp" and encrypted_only:
        setting = "distributed.comm.require-encryption"
        raise RpcError(f"Cannot connect to {address}: {setting} permits tls:// addresses only")
    deadline = time.monotonic() + timeout
    try:
        with _connect(address, scheme == "tls", timeout) as sock:
            reply = _exchange(sock, request, deadline)
    except TimeoutError as error:
        raise RpcError(f"{address} did not reply within {timeout:g} s") from error
    except (OSError, ValueError) as error:
        raise RpcError(f"Cannot connect to {address}: {error}") from error
    except ProtocolError as error:
        raise RpcError(f"{address} is not a scheduler: {error}") from error
    if isinstance(reply, dict) and reply.get("status") == "uncaught-error":
        text = _error_text(str(reply.get("exception_text")))
        raise RpcError(f"{address} replied with an error: {text}")
    return reply


def _error_text(shown: str) -> str:
    """Return the message of an exception whose repr is `shown`, or `shown` if it has no message."""
    _, _, arguments = shown.partition("(")
    try:
        message = ast.literal_eval(arguments.removesuffix(")"))
    except (SyntaxError, ValueError):
        return shown
    return message if isinstance(message, str) else shown


def scheduler_identity(address: str, timeout: float) -> Any:
    """Return the identity of a scheduler, with all of its workers.

    Raises:
        RpcError: as ``call_scheduler``, and if the address is that of a worker or nanny.
    """
    try:
        return call_scheduler(address, Identity(n_workers=-1), timeout)
    except RpcError as error:
        if "unexpected keyword argument 'n_workers'" in error.message:
            raise RpcError(f"{address} is not a scheduler") from error
        raise


def call_paceline(address: str, request: Any, timeout: float) -> Mapping[str, Any]:
    """Send a request that stock schedulers do not know, and return the facts that it replies.

    Raises:
        RpcError: as ``call_scheduler``, and if the scheduler is a stock one.
    """
    found = call_scheduler(address, request, timeout)
    if not isinstance(found, Mapping):
        raise RpcError(f"{address} is not a paceline scheduler: it replied {found!r:.500}")
    return found


def printable(text: str) -> str:
    """Escape control characters, with which names that peers chose would control the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _connect(address: str, encrypted: bool, timeout: float) -> socket.socket:
    from paceline.workers_compat.addressing import split_host_port

    host, port = split_host_port(address)
    sock = socket.create_connection((host, port), timeout=timeout)
    if not encrypted:
        return sock
    from paceline.workers_compat.security import tls_config

    try:
        context = tls_config.client_context()
        if context is None:
            raise RpcError(
                f"{address} needs certificates in the configuration: distributed.comm.tls.ca-file "
                "and distributed.comm.tls.client.{cert,key}"
            )
        return context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def _exchange(sock: socket.socket, request: Any, deadline: float) -> Any:
    from paceline.workers_compat.security import shared_secret

    secret = shared_secret.configured()
    connection = Connection(
        "connector", secret.proof(shared_secret.CONNECTOR) if secret is not None else None
    )
    frames = FrameReader()
    _write(sock, connection.start())
    is_sent = False
    while True:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        data = sock.recv(READ_NBYTES)
        if not data:
            raise ConnectionError("the connection was closed")
        for got in frames.feed(data):
            for event in connection.receive_frames(got):
                if isinstance(event, HandshakeDone) and not is_sent:
                    refusal = secret and secret.refusal(event.remote, shared_secret.LISTENER)
                    if refusal:
                        raise ConnectionError(refusal)
                    is_sent = True
                    _write(sock, connection.send(request))
                elif isinstance(event, Value):
                    return event.value


def _write(sock: socket.socket, frames: Any) -> None:
    sock.sendall(b"".join(bytes(buffer) for buffer in pack_frames(frames)))
