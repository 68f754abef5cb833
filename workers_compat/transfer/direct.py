"""Worker to worker over connections of its own: large values in ranges side by side, from the memory where they lie into the memory
where they will lie, in threads beside the event loop.

A worker listens on a port of its own, on the host that Dask's port is on, with the cluster's TLS where it has TLS. What it offers has an
unguessable ticket, which travels inside Dask's own answer and is good until the answer is acknowledged.

Where a sample of the bytes compresses and the line is slow, ranges are compressed for as long as values come sooner so; on one host they
never are.

Must not know: keys, values.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from .backend import (
    Backend,
    BackendError,
    Capacity,
    Fetched,
    Ref,
    Stored,
    Surroundings,
    ValueGone,
)
from .pace import Paces

TICKET_NBYTES = 32
ASK = struct.Struct("!32sQQ?")
"""Ticket, begin, length, whether it may be compressed."""
HEAD = struct.Struct("!BI")
"""Of each chunk: how it is packed, its length."""
PLAIN, LZ4, GONE = 0, 1, 2
CHUNK_NBYTES = 4 << 20
PACKED_CHUNK_NBYTES_MAX = CHUNK_NBYTES + (CHUNK_NBYTES >> 6) + 4096
RANGE_NBYTES_MIN = 16 << 20
"""A range of its own pays from this size on."""
RANGES_MAX = 4
SERVED_MAX = 16
"""Connections that a worker answers at a time; others wait in the kernel's queue."""
ASKING_MAX = 8
"""Connections that a worker has open to others for reading, in all."""
IDLE_LINES_MAX = 16
BACKLOG = 128
TIMEOUT_SECONDS = 20.0
SAMPLE_NBYTES = 16 << 10
SAMPLES = 3
SAMPLE_RATIO_MAX = 0.8
"""Compressed to at most this part, a sample says that the whole is worth trying."""


class Direct(Backend):
    """See the module. Options: ``compression`` ("auto", True, False), ``timeout_seconds``."""

    name = "direct"
    keeps = False
    worth_nbytes = 2 << 20
    inline_nbytes = 0

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._timeout = float(around.options.get("timeout_seconds", TIMEOUT_SECONDS))
        self._compression = around.options.get("compression", "auto")
        self._offered: dict[bytes, list[memoryview]] = {}
        self._lock = threading.Lock()
        self._lines: deque[tuple[tuple[str, int], socket.socket]] = deque()
        self._asking = threading.BoundedSemaphore(ASKING_MAX)
        self._paces = Paces()
        self._closed = False
        self._connect_tls, listen_tls = _contexts(around.security)
        self._listener = socket.create_server(
            (around.host, 0), family=_family(around.host), backlog=BACKLOG
        )
        self._listen_tls = listen_tls
        self._open: set[socket.socket] = set()
        self._ranges = ThreadPoolExecutor(ASKING_MAX, thread_name_prefix="Transfer-direct")
        self._serving = ThreadPoolExecutor(SERVED_MAX, thread_name_prefix="Transfer-serves")
        threading.Thread(target=self._accept, name="Transfer-listens", daemon=True).start()

    def place(self) -> str:
        return "tls" if self._connect_tls is not None else "tcp"

    def capacity(self) -> Capacity:
        return Capacity()  # nothing is stored

    def put(self, pieces: Sequence[memoryview], size_nbytes: int) -> Stored:
        ticket = secrets.token_bytes(TICKET_NBYTES)
        flat = [p if p.format == "B" and p.ndim == 1 else p.cast("B") for p in pieces]
        host, port = self._listener.getsockname()[:2]
        with self._lock:
            self._offered[ticket] = flat
        self.traffic.put_count += 1
        self.traffic.put_nbytes += size_nbytes
        packs = self._compression is not False and _compresses(flat)
        return Stored({"host": host, "port": port, "ticket": ticket, "packs": packs})

    def get(self, ref: Ref, size_nbytes: int, into: memoryview | None = None) -> Fetched:
        peer = (str(ref["host"]), int(ref["port"]))
        whole = into if into is not None else memoryview(np.empty(size_nbytes, "u1"))
        count = max(1, min(RANGES_MAX, size_nbytes // RANGE_NBYTES_MIN))
        each = -(-size_nbytes // count // CHUNK_NBYTES) * CHUNK_NBYTES if count > 1 else size_nbytes
        packs = bool(ref["packs"]) and self._pays(peer)
        ranges = [(b, whole[b : b + each]) for b in range(0, size_nbytes, each)]
        with self._paces.moving(peer, packs, size_nbytes):
            self._get_ranges(peer, ref["ticket"], ranges, packs)
        self.traffic.got_count += 1
        self.traffic.got_nbytes += size_nbytes
        return Fetched(whole)

    def delete(self, ref: Ref) -> None:
        with self._lock:
            self._offered.pop(ref["ticket"], None)

    def renew(self) -> None:
        """Forget speeds, so that they are measured anew, and close connections that nobody used."""
        self._paces.forget()
        with self._lock:
            idle, self._lines = self._lines, deque()
        for _, line in idle:
            line.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._offered.clear()
            lines = [line for _, line in self._lines] + list(self._open)
            self._lines.clear()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        self._ranges.shutdown(wait=False)
        self._serving.shutdown(wait=False)

    # asking

    def _pays(self, peer: tuple[str, int]) -> bool:
        """Whether values come from a peer sooner if they are compressed, as far as both ways were tried."""
        if self._compression is True:
            return True
        if peer[0] == self.around.host or peer[0].startswith("127."):
            return False
        return self._paces.packing_pays(peer)

    def _get_ranges(
        self,
        peer: tuple[str, int],
        ticket: bytes,
        ranges: list[tuple[int, memoryview]],
        packs: bool,
    ) -> None:
        """All of them side by side; nobody writes any more when it is over."""
        jobs = [
            self._ranges.submit(self._get_range, peer, ticket, begin, into, packs)
            for begin, into in ranges[1:]
        ]
        error: BaseException | None = None
        try:
            self._get_range(peer, ticket, *ranges[0], packs)
        except (BackendError, OSError) as failed:
            error = failed
        errors = [failed for job in jobs if (failed := job.exception()) is not None]
        if error or errors:
            raise error or errors[0]

    def _get_range(
        self, peer: tuple[str, int], ticket: bytes, begin: int, into: memoryview, packs: bool
    ) -> None:
        with self._line(peer) as line:
            line.sendall(ASK.pack(ticket, begin, into.nbytes, packs))
            at = 0
            head = memoryview(bytearray(HEAD.size))
            while at < into.nbytes:
                _read(line, head)
                how, length = HEAD.unpack(head)
                if how == GONE:
                    raise ValueGone("the ticket is good no more")
                if how == PLAIN and length <= into.nbytes - at:
                    _read(line, into[at : at + length])
                    at += length
                elif how == LZ4 and length <= PACKED_CHUNK_NBYTES_MAX:
                    at += _read_packed(line, length, into[at:])
                else:
                    raise BackendError("that is not what a worker says")

    @contextlib.contextmanager
    def _line(self, peer: tuple[str, int]) -> Iterator[Any]:
        """A connection to a peer for one's own; it is used again unless something goes wrong."""
        if not self._asking.acquire(timeout=self._timeout):
            raise BackendError("all connections are taken")
        line = None
        try:
            line = self._idle_line(peer) or self._connect(peer)
            yield line
        except ValueGone:
            self._idle(peer, line)
            raise
        except BaseException:
            if line is not None:
                line.close()
            raise
        else:
            self._idle(peer, line)
        finally:
            self._asking.release()

    def _idle_line(self, peer: tuple[str, int]) -> Any:
        with self._lock:
            for each in self._lines:
                if each[0] == peer:
                    self._lines.remove(each)
                    return each[1]
        return None

    def _idle(self, peer: tuple[str, int], line: Any) -> None:
        with self._lock:
            self._lines.append((peer, line))
            late = self._lines.popleft()[1] if len(self._lines) > IDLE_LINES_MAX else None
        if late is not None:
            late.close()

    def _connect(self, peer: tuple[str, int]) -> Any:
        line = socket.create_connection(peer, timeout=self._timeout)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._connect_tls is not None:
            return self._connect_tls.wrap_socket(line)
        return line

    # answering

    def _accept(self) -> None:
        while not self._closed:
            try:
                line, _ = self._listener.accept()
                line.settimeout(self._timeout)
                self._serving.submit(self._serve, line)
            except (OSError, RuntimeError):
                if self._closed or self._listener.fileno() < 0:
                    return

    def _serve(self, line: Any) -> None:
        with contextlib.suppress(OSError, BackendError), contextlib.closing(line):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._listen_tls is not None:
                line = self._listen_tls.wrap_socket(line, server_side=True)
            with self._lock:
                self._open.add(line)
            try:
                asked = memoryview(bytearray(ASK.size))
                while True:
                    _read(line, asked)
                    self._answer(line, *ASK.unpack(asked))
            finally:
                with self._lock:
                    self._open.discard(line)
                line.close()

    def _answer(self, line: Any, ticket: bytes, begin: int, length: int, packs: bool) -> None:
        with self._lock:
            pieces = self._offered.get(ticket)
        if pieces is None:
            line.sendall(HEAD.pack(GONE, 0))
            return
        for piece in _part(pieces, begin, length):
            for at in range(0, piece.nbytes, CHUNK_NBYTES):
                chunk = piece[at : at + CHUNK_NBYTES]
                packed = _packed(chunk) if packs else None
                if packed is not None:
                    line.sendall(HEAD.pack(LZ4, len(packed)))
                    line.sendall(packed)
                else:
                    line.sendall(HEAD.pack(PLAIN, chunk.nbytes))
                    line.sendall(chunk)


def _read(line: Any, into: memoryview) -> None:
    while into.nbytes:
        count = line.recv_into(into)
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        into = into[count:]


def _read_packed(line: Any, length: int, into: memoryview) -> int:
    import lz4.block

    packed = memoryview(bytearray(length))
    _read(line, packed)
    try:
        chunk = lz4.block.decompress(packed)
    except Exception as error:
        raise BackendError(f"a chunk does not unpack: {error}") from error
    if not 0 < len(chunk) <= into.nbytes:
        raise BackendError("a chunk of another length")
    into[: len(chunk)] = chunk
    return len(chunk)


def _packed(chunk: memoryview) -> bytes | None:
    """None where it would not get smaller."""
    import lz4.block

    packed: bytes = lz4.block.compress(chunk)
    return packed if len(packed) < chunk.nbytes else None


def _compresses(pieces: Sequence[memoryview]) -> bool:
    """Whether samples of the largest piece compress."""
    try:
        import lz4.block
    except ImportError:
        return False
    largest = max(pieces, key=lambda piece: piece.nbytes)
    step = max(1, (largest.nbytes - SAMPLE_NBYTES) // SAMPLES)
    samples = [largest[begin : begin + SAMPLE_NBYTES] for begin in range(0, largest.nbytes, step)][
        :SAMPLES
    ]
    packed = sum(len(lz4.block.compress(sample)) for sample in samples)
    return packed <= SAMPLE_RATIO_MAX * sum(sample.nbytes for sample in samples)


def _part(pieces: Sequence[memoryview], begin: int, length: int) -> Iterator[memoryview]:
    """The bytes from ``begin`` on, of pieces that lie one after the other."""
    at = 0
    end = begin + length
    for piece in pieces:
        low, high = max(begin, at), min(end, at + piece.nbytes)
        if low < high:
            yield piece[low - at : high - at]
        at += piece.nbytes


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _contexts(security: Any) -> tuple[Any, Any]:
    """TLS for connecting and for listening, as the worker has it; both verify the other side."""
    if security is None:
        return None, None
    connect = security.get_connection_args("worker").get("ssl_context")
    listen = security.get_listen_args("worker").get("ssl_context")
    return connect, listen
