"""Backend that stores values on a Redis or Valkey server.

Stored values expire unless their worker renews them. Large values are split into parts, because the
server accepts at most 512 MB per key, and parts are sent over several connections.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from . import large_pages
from .backend import (
    LEASE_SECONDS,
    Backend,
    BackendContext,
    BackendError,
    BackendFull,
    Capacity,
    Fetched,
    Ref,
    Stored,
    ValueGone,
)
from .resp import RedisConnection

PART_NBYTES = 64 << 20
#: Connections of one worker.
CONNECTIONS_MAX = 4
TIMEOUT_SECONDS = 10.0
#: Default limit of the bytes that one worker stores; beyond it, the least recently used go.
LIMIT_NBYTES = 4 << 30
#: Keys in one command.
KEYS_PER_COMMAND = 1000


class Redis(Backend):
    """Backend "redis".

    Options: ``url``, ``limit_nbytes`` (per worker), ``timeout_seconds``, ``lease_seconds``.
    """

    name = "redis"
    keeps = True
    worth_nbytes = 512 << 10
    inline_nbytes = 0

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        options = context.options
        self._url = str(options.get("url", ""))
        self._timeout = float(options.get("timeout_seconds", TIMEOUT_SECONDS))
        self._limit_nbytes = int(options.get("limit_nbytes", LIMIT_NBYTES))
        self._lease_ms = int(float(options.get("lease_seconds", LEASE_SECONDS)) * 1000)
        self._lock = threading.Lock()
        self._connections: list[RedisConnection] = []
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._put: dict[str, tuple[int, int]] = {}
        self._used_nbytes = 0
        self._prefix = f"paceline:{context.worker_id}:"
        with self._connection() as connection:
            self._place = _identity(connection, self._url)
        self._parts = ThreadPoolExecutor(CONNECTIONS_MAX, thread_name_prefix="Transfer-Redis")

    def place(self) -> str:
        return self._place

    def capacity(self) -> Capacity:
        return Capacity(max(0, self._limit_nbytes - self._used_nbytes))

    def put(self, pieces: Sequence[memoryview], size_nbytes: int) -> Stored:
        name = self._prefix + secrets.token_hex(16)
        parts = list(split(pieces, PART_NBYTES))
        with self._lock:
            self._put[name] = (size_nbytes, len(parts))
            self._used_nbytes += size_nbytes
        try:
            self._each(self._put_part, [(f"{name}:{i}", part) for i, part in enumerate(parts)])
        except BaseException:
            with contextlib.suppress(BackendError, OSError):
                self.delete({"name": name})
            raise
        self.traffic.put_count += 1
        self.traffic.put_nbytes += size_nbytes
        return Stored({"name": name})

    def get(self, ref: Ref, size_nbytes: int, into: memoryview | None = None) -> Fetched:
        name = str(ref["name"])
        if not name.startswith("paceline:"):
            raise BackendError("invalid key")
        whole = into if into is not None else large_pages.empty(size_nbytes)
        begins = range(0, size_nbytes, PART_NBYTES)
        parts = [(f"{name}:{i}", whole[b : b + PART_NBYTES]) for i, b in enumerate(begins)]
        self._each(self._get_part, parts)
        self.traffic.got_count += 1
        self.traffic.got_nbytes += size_nbytes
        return Fetched(whole)

    def delete(self, ref: Ref) -> None:
        with self._lock:
            size, parts = self._put.pop(ref["name"], (0, 0))
            self._used_nbytes -= size
        with self._connection() as connection:
            self._delete([f"{ref['name']}:{i}" for i in range(parts)], connection)

    def renew(self) -> None:
        with self._lock:
            names = [f"{name}:{i}" for name, (_, parts) in self._put.items() for i in range(parts)]
        with self._connection() as connection:
            connection.request("PING")
            for begin in range(0, len(names), KEYS_PER_COMMAND):
                some = names[begin : begin + KEYS_PER_COMMAND]
                connection.send([("PEXPIRE", name, self._lease_ms) for name in some])
                for _ in some:
                    connection.reply()

    def close(self) -> None:
        self._parts.shutdown(wait=True)
        with self._lock:
            names = [f"{name}:{i}" for name, (_, parts) in self._put.items() for i in range(parts)]
            self._put.clear()
            self._used_nbytes = 0
        try:
            if names:
                with self._connection() as connection:
                    self._delete(names, connection)
        finally:
            with self._lock:
                connections, self._connections = self._connections, []
            for connection in connections:
                connection.close()

    def _put_part(self, name: str, part: list[memoryview]) -> None:
        with self._connection() as connection:
            if connection.request("SET", name, part, "PX", self._lease_ms) != "OK":
                raise BackendFull("the server did not store the value")

    def _get_part(self, name: str, into: memoryview) -> None:
        with self._connection() as connection:
            connection.send([("GET", name)])
            if connection.reply(into) is None:
                raise ValueGone("the value has expired")

    def _each(self, call: Any, parts: Sequence[tuple[Any, ...]]) -> None:
        """Call ``call`` for each part in parallel; return or raise when all calls have ended."""
        if len(parts) == 1:
            call(*parts[0])
            return
        jobs = [self._parts.submit(call, *part) for part in parts]
        errors = [error for job in jobs if (error := job.exception()) is not None]
        if errors:
            raise errors[0]

    def _delete(self, names: list[str], connection: RedisConnection) -> None:
        for begin in range(0, len(names), KEYS_PER_COMMAND):
            connection.request("UNLINK", *names[begin : begin + KEYS_PER_COMMAND])

    @contextlib.contextmanager
    def _connection(self) -> Iterator[RedisConnection]:
        """Lend one of at most ``CONNECTIONS_MAX`` connections."""
        if not self._free.acquire(timeout=self._timeout):
            raise BackendError("all connections to the server are in use")
        connection = None
        try:
            with self._lock:
                connection = self._connections.pop() if self._connections else None
            if connection is None:
                connection = RedisConnection(self._url, self._timeout)
            yield connection
        finally:
            if connection is not None:
                if connection.broken:
                    connection.close()
                else:
                    with self._lock:
                        self._connections.append(connection)
            self._free.release()


def split(pieces: Sequence[memoryview], part_nbytes: int) -> Iterator[list[memoryview]]:
    """Split ``pieces`` into parts of ``part_nbytes`` bytes; the last part may be smaller."""
    part: list[memoryview] = []
    room = part_nbytes
    for piece in pieces:
        flat = piece if piece.format == "B" and piece.ndim == 1 else piece.cast("B")
        while flat.nbytes:
            taken = flat[:room]
            part.append(taken)
            room -= taken.nbytes
            flat = flat[taken.nbytes :]
            if not room:
                yield part
                part, room = [], part_nbytes
    if part:
        yield part


def _identity(connection: RedisConnection, url: str) -> str:
    """Return a digest of the server's ``run_id`` and database, equal for all URLs of one server."""
    try:
        info = bytes(connection.request("INFO", "server") or b"").decode(errors="replace")
    except BackendError:  # not permitted for this user
        info = ""
    runs = [text for text in info.splitlines() if text.startswith("run_id:")]
    name = runs[0] if runs else url.rpartition("@")[2]
    database = urlsplit(url).path
    return hashlib.sha256(f"{name} {database}".encode()).hexdigest()[:24]
