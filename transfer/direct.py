"""Backend that sends values over separate connections between workers.

Large values are split into ranges that are read in parallel by threads, directly from the memory
of the sender into the memory of the receiver.

A worker listens on a separate port of the host of Dask's port, with TLS if the cluster uses it.
An offered value has an unguessable ticket, which is sent in Dask's own reply and is valid until
the reply is acknowledged.

If a sample of the bytes compresses well and the link is slow, ranges are compressed as long as
that is measurably faster. Values on the same host are never compressed.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lz4.block

from . import huge_pages
from .backend import (
    Backend,
    BackendContext,
    BackendError,
    Fetched,
    Ref,
    Stored,
    ValueGone,
    run_parts,
    slice_pieces,
)
from .link_rates import LinkRates

TICKET_NBYTES = 32
#: A request: ticket, offset, length, whether compression is allowed.
REQUEST = struct.Struct("!32sQQ?")
#: Header of a chunk: its encoding and length.
HEAD = struct.Struct("!BI")
PLAIN, LZ4, GONE = 0, 1, 2
CHUNK_NBYTES = 4 << 20
COMPRESSED_CHUNK_NBYTES_MAX = CHUNK_NBYTES + (CHUNK_NBYTES >> 6) + 4096
#: Smallest size in bytes of a range that is read in parallel.
RANGE_NBYTES_MIN = 16 << 20
RANGES_MAX = 4
#: Requests that a worker answers at once; others wait for a thread.
SERVED_MAX = 16
#: Connections to other workers that a worker reads from at once.
READING_MAX = 8
IDLE_CONNECTIONS_MAX = 16
BACKLOG = 128
#: Seconds until connections are accepted again after an error, such as no free file descriptors.
ACCEPT_AGAIN_SECONDS = 0.5
TIMEOUT_SECONDS = 20.0
SAMPLE_NBYTES = 16 << 10
SAMPLES = 3
#: Compression is tried if samples shrink to at most this share.
SAMPLE_RATIO_MAX = 0.8


class Direct(Backend):
    """Backend "direct". Options: ``compression`` ("auto", True, False), ``timeout_seconds``."""

    name = "direct"
    is_reusable = False
    min_nbytes = 2 << 20

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self._timeout = float(context.options.get("timeout_seconds", TIMEOUT_SECONDS))
        self._compression = context.options.get("compression", "auto")
        self._offered: dict[bytes, Sequence[memoryview]] = {}
        self._lock = threading.Lock()
        self._idle_connections: deque[tuple[tuple[str, int], socket.socket]] = deque()
        self._reading = threading.BoundedSemaphore(READING_MAX)
        self._rates = LinkRates()
        self._closed = False
        self._connect_tls = self._listen_tls = None
        if context.security is not None:
            self._connect_tls = context.security.get_connection_args("worker").get("ssl_context")
            self._listen_tls = context.security.get_listen_args("worker").get("ssl_context")
        family = socket.AF_INET6 if ":" in context.host else socket.AF_INET
        self._listener = socket.create_server((context.host, 0), family=family, backlog=BACKLOG)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._accept_at = 0.0  # when accepting is resumed after an error; 0 while it is not paused
        self._open: set[socket.socket] = set()
        self._ranges = ThreadPoolExecutor(READING_MAX, thread_name_prefix="Transfer-direct")
        self._serving = ThreadPoolExecutor(SERVED_MAX, thread_name_prefix="Transfer-serves")
        self._listening = threading.Thread(
            target=self._listen, name="Transfer-listens", daemon=True
        )
        self._listening.start()

    def place(self) -> str:
        return "tls" if self._connect_tls is not None else "tcp"

    def put(self, pieces: Sequence[memoryview], size_nbytes: int) -> Stored:
        ticket = secrets.token_bytes(TICKET_NBYTES)
        host, port = self._listener.getsockname()[:2]
        with self._lock:
            self._offered[ticket] = pieces
        self.traffic.put(size_nbytes)
        compressible = self._compression is not False and _is_compressible(pieces)
        return Stored({"host": host, "port": port, "ticket": ticket, "compressible": compressible})

    def get(self, ref: Ref, size_nbytes: int, into: memoryview | None = None) -> Fetched:
        peer = (str(ref["host"]), int(ref["port"]))
        whole = into if into is not None else huge_pages.empty(size_nbytes)
        count = max(1, min(RANGES_MAX, size_nbytes // RANGE_NBYTES_MIN))
        each = -(-size_nbytes // count // CHUNK_NBYTES) * CHUNK_NBYTES if count > 1 else size_nbytes
        compress = bool(ref["compressible"]) and self._should_compress(peer)
        ranges = [
            (peer, ref["ticket"], begin, whole[begin : begin + each], compress)
            for begin in range(0, size_nbytes, each)
        ]
        with self._rates.moving(peer, compress, size_nbytes):
            run_parts(self._ranges, self._get_range, ranges)
        self.traffic.got(size_nbytes)
        return Fetched(whole)

    def delete(self, ref: Ref) -> None:
        with self._lock:
            self._offered.pop(ref["ticket"], None)

    def renew(self) -> None:
        """Drop the measured rates and close idle connections."""
        self._rates.forget()
        with self._lock:
            idle, self._idle_connections = self._idle_connections, deque()
        for _, connection in idle:
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._offered.clear()
            connections = [*self._open, *(each for _, each in self._idle_connections)]
            self._idle_connections.clear()
        self._wake()
        self._listening.join()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for connection in (self._listener, self._waker, self._woken):
            connection.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                # not SSLSocket.shutdown: what is sent during that is not encrypted
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            connection.close()
        self._ranges.shutdown(wait=False)
        self._serving.shutdown(wait=False)

    # receiver

    def _should_compress(self, peer: tuple[str, int]) -> bool:
        """Return whether ``peer`` should compress the values that it sends."""
        if self._compression is True:
            return True
        if peer[0] == self.context.host or peer[0].startswith("127."):
            return False
        return self._rates.should_compress(peer)

    def _get_range(
        self, peer: tuple[str, int], ticket: bytes, begin: int, into: memoryview, compress: bool
    ) -> None:
        at = 0
        with self._connection(peer) as connection:
            connection.sendall(REQUEST.pack(ticket, begin, into.nbytes, compress))
            head = memoryview(bytearray(HEAD.size))
            while at < into.nbytes:
                _read(connection, head)
                how, length = HEAD.unpack(head)
                if how == GONE:
                    break
                if how == PLAIN and length <= into.nbytes - at:
                    _read(connection, into[at : at + length])
                    at += length
                elif how == LZ4 and length <= COMPRESSED_CHUNK_NBYTES_MAX:
                    at += _read_compressed(connection, length, into[at:])
                else:
                    raise BackendError("invalid chunk header")
        if at < into.nbytes:  # the connection can be used again
            raise ValueGone("the ticket is no longer valid")

    @contextlib.contextmanager
    def _connection(self, peer: tuple[str, int]) -> Iterator[Any]:
        """Yield a connection to ``peer``; it is kept for reuse unless an error occurs."""
        if not self._reading.acquire(timeout=self._timeout):
            raise BackendError("all connections are in use")
        try:
            connection = self._idle_connection(peer) or self._connect(peer)
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            self._idle(peer, connection)
        finally:
            self._reading.release()

    def _idle_connection(self, peer: tuple[str, int]) -> Any:
        with self._lock:
            for each in self._idle_connections:
                if each[0] == peer:
                    self._idle_connections.remove(each)
                    return each[1]
        return None

    def _idle(self, peer: tuple[str, int], connection: Any) -> None:
        with self._lock:
            self._idle_connections.append((peer, connection))
            if len(self._idle_connections) > IDLE_CONNECTIONS_MAX:
                self._idle_connections.popleft()[1].close()

    def _connect(self, peer: tuple[str, int]) -> Any:
        connection = socket.create_connection(peer, timeout=self._timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = self._connect_tls
        return connection if tls is None else tls.wrap_socket(connection)

    # sender

    def _listen(self) -> None:
        """Accept connections, and answer their requests in threads."""
        while not self._closed:
            paused = self._accept_at > 0
            for key, _ in self._selector.select(ACCEPT_AGAIN_SECONDS if paused else self._timeout):
                connection: Any = key.fileobj
                if connection is self._listener:
                    self._accept()
                    continue
                if connection is self._woken:
                    connection.recv(SERVED_MAX)
                    continue
                self._selector.unregister(connection)
                try:
                    self._serving.submit(self._serve, connection)
                except RuntimeError:  # the executor is shut down, or no thread can be started
                    self._drop(connection)
            self._drop_silent()
            if paused and time.monotonic() >= self._accept_at:
                self._accept_at = 0.0
                self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the peer has given up
            return
        except OSError:
            self._selector.unregister(self._listener)
            self._accept_at = time.monotonic() + ACCEPT_AGAIN_SECONDS
            return
        connection.settimeout(self._timeout)
        try:
            if self._listen_tls is not None:
                connection = self._listen_tls.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
            self._wait_for_request(connection)
        except OSError:
            self._drop(connection)

    def _wait_for_request(self, connection: Any) -> None:
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._open.add(connection)
            self._selector.register(connection, selectors.EVENT_READ, time.monotonic())
        self._wake()

    def _wake(self) -> None:
        """End a `select` that has begun: only some selectors notice a registration meanwhile."""
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def _drop_silent(self) -> None:
        """Close connections that sent nothing for ``timeout_seconds``."""
        latest = time.monotonic() - self._timeout
        with self._lock:
            waiting = [key for key in self._selector.get_map().values() if key.data is not None]
        for key in waiting:
            if key.data < latest:
                self._selector.unregister(key.fileobj)
                self._drop(key.fileobj)

    def _drop(self, connection: Any) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _serve(self, connection: Any) -> None:
        """Answer one request, and let the connection wait for the next one."""
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()  # only the first time
            request = memoryview(bytearray(REQUEST.size))
            _read(connection, request)
            self._answer(connection, *REQUEST.unpack(request))
            self._wait_for_request(connection)
        except Exception:  # the receiver notices
            self._drop(connection)

    def _answer(
        self, connection: Any, ticket: bytes, begin: int, length: int, compress: bool
    ) -> None:
        with self._lock:
            pieces = self._offered.get(ticket)
        if pieces is None:
            connection.sendall(HEAD.pack(GONE, 0))
            return
        for piece in slice_pieces(pieces, begin, length):
            for at in range(0, piece.nbytes, CHUNK_NBYTES):
                chunk = piece[at : at + CHUNK_NBYTES]
                compressed = _compressed(chunk) if compress else None
                if compressed is not None:
                    connection.sendall(HEAD.pack(LZ4, len(compressed)))
                    connection.sendall(compressed)
                else:
                    connection.sendall(HEAD.pack(PLAIN, chunk.nbytes))
                    connection.sendall(chunk)


def _read(connection: Any, into: memoryview) -> None:
    while into.nbytes:
        count = connection.recv_into(into)
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        into = into[count:]


def _read_compressed(connection: Any, length: int, into: memoryview) -> int:
    compressed = memoryview(bytearray(length))
    _read(connection, compressed)
    try:
        chunk = lz4.block.decompress(compressed)
    except Exception as error:
        raise BackendError(f"a chunk cannot be decompressed: {error}") from error
    if not 0 < len(chunk) <= into.nbytes:
        raise BackendError("a chunk has an invalid length")
    into[: len(chunk)] = chunk
    return len(chunk)


def _compressed(chunk: memoryview) -> bytes | None:
    """Compress ``chunk``; return None if it does not get smaller."""
    compressed: bytes = lz4.block.compress(chunk)
    return compressed if len(compressed) < chunk.nbytes else None


def _is_compressible(pieces: Sequence[memoryview]) -> bool:
    """Return whether samples of the largest piece compress well."""
    largest = max(pieces, key=lambda piece: piece.nbytes)
    step = max(1, (largest.nbytes - SAMPLE_NBYTES) // SAMPLES)
    begins = list(range(0, largest.nbytes, step))[:SAMPLES]
    samples = [largest[begin : begin + SAMPLE_NBYTES] for begin in begins]
    compressed = sum(len(lz4.block.compress(sample)) for sample in samples)
    return compressed <= SAMPLE_RATIO_MAX * sum(sample.nbytes for sample in samples)
