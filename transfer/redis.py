"""Backend that stores values on a Redis or Valkey server: ``pip install 'paceline[redis]'``.

Stored values expire unless their worker renews them. Large values are split into parts, which are
sent over several connections.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import redis
from redis.backoff import NoBackoff
from redis.connection import Encoder, PythonRespSerializer
from redis.retry import Retry

from . import huge_pages
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
    run_parts,
    slice_pieces,
)

#: Fastest with hiredis; the server accepts at most 512 MB per key.
PART_NBYTES = 4 << 20
#: Connections of one worker.
CONNECTIONS_MAX = 4
CONNECT_SECONDS = 5.0
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
    min_nbytes = 512 << 10

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        options = context.options
        timeout = float(options.get("timeout_seconds", TIMEOUT_SECONDS))
        self._limit_nbytes = int(options.get("limit_nbytes", LIMIT_NBYTES))
        self._lease_ms = int(float(options.get("lease_seconds", LEASE_SECONDS)) * 1000)
        self._lock = threading.Lock()
        self._put: dict[str, tuple[int, int]] = {}
        self._used_nbytes = 0
        self._prefix = f"paceline:{context.worker_id}:"
        self._client = connect(str(options.get("url", "")), timeout)
        with _errors():
            self._place = _identity(self._client)
        self._parts = ThreadPoolExecutor(CONNECTIONS_MAX, thread_name_prefix="Transfer-Redis")

    def place(self) -> str:
        return self._place

    def capacity(self) -> Capacity:
        return Capacity(max(0, self._limit_nbytes - self._used_nbytes))

    def put(self, pieces: Sequence[memoryview], size_nbytes: int) -> Stored:
        name = self._prefix + secrets.token_hex(16)
        begins = range(0, size_nbytes, PART_NBYTES)
        with self._lock:
            self._put[name] = (size_nbytes, len(begins))
            self._used_nbytes += size_nbytes
        try:
            parts = [
                (f"{name}:{i}", list(slice_pieces(pieces, begin, PART_NBYTES)))
                for i, begin in enumerate(begins)
            ]
            run_parts(self._parts, self._put_part, parts)
        except BaseException:
            with contextlib.suppress(BackendError, OSError):
                self.delete({"name": name})
            raise
        self.traffic.put(size_nbytes)
        return Stored({"name": name})

    def get(self, ref: Ref, size_nbytes: int, into: memoryview | None = None) -> Fetched:
        name = str(ref["name"])
        if not name.startswith("paceline:"):
            raise BackendError("invalid key")
        whole = into if into is not None else huge_pages.empty(size_nbytes)
        begins = range(0, size_nbytes, PART_NBYTES)
        parts = [(f"{name}:{i}", whole[b : b + PART_NBYTES]) for i, b in enumerate(begins)]
        run_parts(self._parts, self._get_part, parts)
        self.traffic.got(size_nbytes)
        return Fetched(whole)

    def delete(self, ref: Ref) -> None:
        with self._lock:
            size, parts = self._put.pop(ref["name"], (0, 0))
            self._used_nbytes -= size
        self._unlink([f"{ref['name']}:{i}" for i in range(parts)])

    def renew(self) -> None:
        with _errors(), self._client.pipeline(transaction=False) as pipeline:
            pipeline.ping()
            for name in self._part_names():
                pipeline.pexpire(name, self._lease_ms)
            pipeline.execute()

    def close(self) -> None:
        self._parts.shutdown(wait=True)
        names = self._part_names()
        self._put.clear()
        self._used_nbytes = 0
        try:
            self._unlink(names)
        finally:
            self._client.close()

    def _part_names(self) -> list[str]:
        with self._lock:
            return [f"{name}:{i}" for name, (_, parts) in self._put.items() for i in range(parts)]

    def _put_part(self, name: str, part: list[memoryview]) -> None:
        with _errors():
            self._client.set(name, part[0] if len(part) == 1 else b"".join(part), px=self._lease_ms)

    def _get_part(self, name: str, into: memoryview) -> None:
        with _errors():
            found = self._client.get(name)
        if found is None:
            raise ValueGone("the value has expired")
        if len(found) != len(into):
            raise BackendError(f"expected {len(into)} bytes, got {len(found)}")
        huge_pages.copy(memoryview(found), into)

    def _unlink(self, names: list[str]) -> None:
        with _errors():
            for begin in range(0, len(names), KEYS_PER_COMMAND):
                self._client.unlink(*names[begin : begin + KEYS_PER_COMMAND])


def connect(url: str, timeout_seconds: float) -> redis.Redis:
    """Return a client for ``redis://``, ``rediss://`` (TLS), ``valkey://`` or ``unix://``."""
    pool = redis.BlockingConnectionPool.from_url(
        url.replace("valkey", "redis", 1) if url.startswith("valkey") else url,
        max_connections=CONNECTIONS_MAX,
        timeout=timeout_seconds,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=CONNECT_SECONDS,
        retry=Retry(NoBackoff(), 0),
        # that of hiredis copies the values
        command_packer=PythonRespSerializer(6000, Encoder("utf-8", "strict", False).encode),
    )
    return redis.Redis(connection_pool=pool)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raise errors of redis-py as those of backends."""
    try:
        yield
    except redis.OutOfMemoryError as error:
        raise BackendFull(str(error)) from error
    except redis.AuthenticationError as error:
        raise BackendError(str(error)) from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise OSError(str(error)) from error
    except redis.RedisError as error:
        full = str(error).startswith("MISCONF")
        raise (BackendFull if full else BackendError)(str(error)) from error


def _identity(client: redis.Redis) -> str:
    """Return a digest of the server's ``run_id`` and database, equal for all URLs of one server."""
    place = client.connection_pool.connection_kwargs
    try:
        name = client.info("server")["run_id"]
    except (redis.ResponseError, KeyError):  # not permitted for this user
        name = f"{place.get('host')}:{place.get('port')}{place.get('path', '')}"
    return hashlib.sha256(f"{name} {place.get('db', 0)}".encode()).hexdigest()[:24]
