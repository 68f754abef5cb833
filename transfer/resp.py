"""A minimal Redis client (RESP 2) that sends from buffers and receives into buffers without copies.

redis-py copies each value on both ways.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .backend import BackendError, BackendFull

CONNECT_SECONDS = 5.0
READ_NBYTES = 1 << 16
LINE_NBYTES_MAX = 1 << 16
#: Prefixes of errors of a server without memory.
FULL = ("OOM", "MISCONF")


class RedisConnection:
    """A connection to a server, for one thread at a time.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``, with user, password and database.
        timeout_seconds: socket timeout.

    Raises:
        OSError: the server cannot be reached.
        BackendError: the server refuses the user or database.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        parts = urlsplit(url)
        given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self._socket = _connect(parts, given)
        self._socket.settimeout(timeout_seconds)
        self._received = bytearray()
        self.broken = False
        password = unquote(parts.password) if parts.password else given.get("password")
        if password:
            user = [unquote(parts.username)] if parts.username else []
            self.request("AUTH", *user, password)
        database = given.get("db", "") or (parts.path.strip("/") if parts.scheme != "unix" else "")
        if database and database != "0":
            self.request("SELECT", database)

    def request(self, *words: Any) -> Any:
        """Send a command and return its reply."""
        self.send([words])
        return self.reply()

    def send(self, commands: Sequence[Sequence[Any]]) -> None:
        """Send commands; arguments are text, numbers, buffers, or lists of buffers to join."""
        text = bytearray()
        try:
            for words in commands:
                text += b"*%d\r\n" % len(words)
                for word in words:
                    pieces = word if isinstance(word, list) else [_bytes(word)]
                    text += b"$%d\r\n" % sum(len(piece) for piece in pieces)
                    for piece in pieces:
                        if len(piece) > READ_NBYTES:
                            self._socket.sendall(text)
                            self._socket.sendall(piece)
                            text.clear()
                        else:
                            text += piece
                    text += b"\r\n"
            self._socket.sendall(text)
        except BaseException:
            self.broken = True
            raise

    def reply(self, into: memoryview | None = None) -> Any:
        """Return the next reply; bytes are read into ``into`` if given.

        Raises:
            BackendFull: the server has no memory left.
            BackendError: an error reply, or an invalid one.
            OSError: the connection failed or timed out.
        """
        try:
            return self._reply(into)
        except _ErrorReply as error:
            text = str(error)
            raise (BackendFull if text.startswith(FULL) else BackendError)(text) from None
        except BaseException:
            self.broken = True
            raise

    def close(self) -> None:
        self._socket.close()

    def _reply(self, into: memoryview | None) -> Any:
        line = self._read_line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            raise _ErrorReply(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return [self._reply(None) for _ in range(int(rest))]
        if kind != b"$":
            raise BackendError("invalid reply")
        length = int(rest)
        if length < 0:
            return None
        if into is None:
            into = memoryview(bytearray(length))
        elif len(into) != length:
            raise BackendError(f"expected {len(into)} bytes, got {length}")
        self._read(into)
        if self._take(2) != b"\r\n":
            raise BackendError("reply without terminator")
        return into

    def _read_line(self) -> bytes:
        while (end := self._received.find(b"\r\n")) < 0:
            if len(self._received) > LINE_NBYTES_MAX:
                raise BackendError("invalid reply")
            self._receive()
        line = bytes(self._received[:end])
        del self._received[: end + 2]
        return line

    def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            self._receive()
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    def _receive(self) -> None:
        received = self._socket.recv(READ_NBYTES)
        if not received:
            raise ConnectionResetError("the Redis server closed the connection")
        self._received += received

    def _read(self, into: memoryview) -> None:
        have = min(len(self._received), len(into))
        into[:have] = self._received[:have]
        del self._received[:have]
        while have < len(into):
            count = self._socket.recv_into(into[have:])
            if not count:
                raise ConnectionResetError("the Redis server closed the connection")
            have += count


class _ErrorReply(Exception):
    """An error reply of the server."""


def _bytes(word: Any) -> Any:
    if isinstance(word, str):
        return word.encode()
    return b"%d" % word if isinstance(word, int) else word


def _connect(parts: Any, given: dict[str, str]) -> socket.socket:
    if parts.scheme == "unix":
        found = socket.socket(socket.AF_UNIX)
        found.settimeout(CONNECT_SECONDS)
        found.connect(parts.path)
        return found
    if parts.scheme not in ("redis", "rediss", "valkey", "valkeys"):
        raise BackendError("the URL must begin with redis://, rediss:// or unix://")
    host, port = parts.hostname or "127.0.0.1", parts.port or 6379
    raw = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not parts.scheme.endswith("ss") and parts.scheme != "valkeys":
        return raw
    try:
        return _context(given).wrap_socket(raw, server_hostname=host)
    except BaseException:
        with contextlib.suppress(OSError):
            raw.close()
        raise


def _context(given: dict[str, str]) -> ssl.SSLContext:
    """Return the TLS context for the URL's options, which are those of redis-py."""
    context = ssl.create_default_context(cafile=given.get("ssl_ca_certs"))
    if given.get("ssl_check_hostname", "true").lower() in ("false", "0", "no"):
        context.check_hostname = False
    if given.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if given.get("ssl_certfile"):
        context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"))
    return context
