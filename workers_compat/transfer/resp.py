"""As much of Redis' protocol (RESP 2) as a transfer needs: commands out of buffers, answers into buffers, nothing copied between.

Must not know: values, leases.
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
FULL = ("OOM", "MISCONF")
"""What the server says first when it has no room."""


class Line:
    """One connection to a server; for one thread at a time.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``, with user, password and number of the database.
        timeout_seconds: for each time that nothing comes or goes.

    Raises:
        OSError: nobody answers.
        BackendError: the server refuses.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        parts = urlsplit(url)
        given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self._socket = _connect(parts, given)
        self._socket.settimeout(timeout_seconds)
        self._heard = bytearray()
        self.broken = False
        password = unquote(parts.password) if parts.password else given.get("password")
        if password:
            user = [unquote(parts.username)] if parts.username else []
            self.ask("AUTH", *user, password)
        database = given.get("db", "") or (parts.path.strip("/") if parts.scheme != "unix" else "")
        if database and database != "0":
            self.ask("SELECT", database)

    def ask(self, *words: Any) -> Any:
        """Send a command and read its answer."""
        self.send([words])
        return self.answer()

    def send(self, commands: Sequence[Sequence[Any]]) -> None:
        """Send commands whose words are text, numbers or buffers, or lists of buffers that are one word."""
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

    def answer(self, into: memoryview | None = None) -> Any:
        """The next answer: None, a number, text, bytes, or a list; bytes of the length of ``into`` are read into it.

        Raises:
            BackendFull: the server has no room.
            BackendError: it refuses, or says what makes no sense.
            OSError: it says nothing.
        """
        try:
            return self._answer(into)
        except _Refused as error:
            text = str(error)
            raise (BackendFull if text.startswith(FULL) else BackendError)(text) from None
        except BaseException:
            self.broken = True
            raise

    def close(self) -> None:
        self._socket.close()

    def _answer(self, into: memoryview | None) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            raise _Refused(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return [self._answer(None) for _ in range(int(rest))]
        if kind != b"$":
            raise BackendError("that is not what a Redis server says")
        length = int(rest)
        if length < 0:
            return None
        if into is None:
            into = memoryview(bytearray(length))
        elif len(into) != length:
            raise BackendError(f"{length} bytes where {len(into)} were put")
        self._read(into)
        if self._take(2) != b"\r\n":
            raise BackendError("an answer without its end")
        return into

    def _line(self) -> bytes:
        while (end := self._heard.find(b"\r\n")) < 0:
            if len(self._heard) > LINE_NBYTES_MAX:
                raise BackendError("that is not what a Redis server says")
            self._hear()
        line = bytes(self._heard[:end])
        del self._heard[: end + 2]
        return line

    def _take(self, count: int) -> bytes:
        while len(self._heard) < count:
            self._hear()
        taken = bytes(self._heard[:count])
        del self._heard[:count]
        return taken

    def _hear(self) -> None:
        heard = self._socket.recv(READ_NBYTES)
        if not heard:
            raise ConnectionResetError("the Redis server closed the connection")
        self._heard += heard

    def _read(self, into: memoryview) -> None:
        have = min(len(self._heard), len(into))
        into[:have] = self._heard[:have]
        del self._heard[:have]
        while have < len(into):
            count = self._socket.recv_into(into[have:])
            if not count:
                raise ConnectionResetError("the Redis server closed the connection")
            have += count


class _Refused(Exception):
    """What the server says after a minus."""


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
        raise BackendError("its URL begins with redis://, rediss:// or unix://")
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
    """As redis-py reads its URLs; the server's certificate is checked unless the URL says otherwise."""
    context = ssl.create_default_context(cafile=given.get("ssl_ca_certs"))
    if given.get("ssl_check_hostname", "true").lower() in ("false", "0", "no"):
        context.check_hostname = False
    if given.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if given.get("ssl_certfile"):
        context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"))
    return context
