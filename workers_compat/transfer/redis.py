"""A Redis or Valkey server between workers. What is put there has a lease: it goes by itself when its worker does not renew it.

Values are split into parts, well below the 512 MB that the server takes as one; parts move over several connections.

Must not know: keys of Dask, values.
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

import numpy as np

from .backend import (
    LEASE_SECONDS,
    Backend,
    BackendError,
    BackendFull,
    Capacity,
    Fetched,
    Ref,
    Stored,
    Surroundings,
    ValueGone,
)
from .resp import Line

PART_NBYTES = 64 << 20
LINES_MAX = 4
"""Connections of one worker."""
TIMEOUT_SECONDS = 10.0
LIMIT_NBYTES = 4 << 30
"""What one worker keeps there at most, unless an option says otherwise; then what was asked for least recently goes."""
SWEPT_MAX = 1000  # names in one command


class Redis(Backend):
    """See the module. Options: ``url``; ``limit_nbytes``, of one worker; ``timeout_seconds``; ``lease_seconds``."""

    name = "redis"
    keeps = True
    worth_nbytes = 512 << 10
    inline_nbytes = 0

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        options = around.options
        self._url = str(options.get("url", ""))
        self._timeout = float(options.get("timeout_seconds", TIMEOUT_SECONDS))
        self._limit_nbytes = int(options.get("limit_nbytes", LIMIT_NBYTES))
        self._lease_ms = int(float(options.get("lease_seconds", LEASE_SECONDS)) * 1000)
        self._lock = threading.Lock()
        self._lines: list[Line] = []
        self._free = threading.BoundedSemaphore(LINES_MAX)
        self._put: dict[str, tuple[int, int]] = {}
        self._used_nbytes = 0
        self._prefix = f"paceline:{around.worker_id}:"
        with self._line() as line:
            self._place = _identity(line, self._url)
        self._parts = ThreadPoolExecutor(LINES_MAX, thread_name_prefix="Transfer-Redis")

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
            raise BackendError("that is no name of ours")
        whole = into if into is not None else memoryview(np.empty(size_nbytes, "u1"))
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
        with self._line() as line:
            self._delete([f"{ref['name']}:{i}" for i in range(parts)], line)

    def renew(self) -> None:
        with self._lock:
            names = [f"{name}:{i}" for name, (_, parts) in self._put.items() for i in range(parts)]
        with self._line() as line:
            line.ask("PING")
            for begin in range(0, len(names), SWEPT_MAX):
                some = names[begin : begin + SWEPT_MAX]
                line.send([("PEXPIRE", name, self._lease_ms) for name in some])
                for _ in some:
                    line.answer()

    def close(self) -> None:
        self._parts.shutdown(wait=True)
        with self._lock:
            names = [f"{name}:{i}" for name, (_, parts) in self._put.items() for i in range(parts)]
            self._put.clear()
            self._used_nbytes = 0
        try:
            if names:
                with self._line() as line:
                    self._delete(names, line)
        finally:
            with self._lock:
                lines, self._lines = self._lines, []
            for line in lines:
                line.close()

    def _put_part(self, name: str, part: list[memoryview]) -> None:
        with self._line() as line:
            if line.ask("SET", name, part, "PX", self._lease_ms) != "OK":
                raise BackendFull("the server did not take it")

    def _get_part(self, name: str, into: memoryview) -> None:
        with self._line() as line:
            line.send([("GET", name)])
            if line.answer(into) is None:
                raise ValueGone("the server has it no more")

    def _each(self, call: Any, parts: Sequence[tuple[Any, ...]]) -> None:
        """Call for each part, several at a time; all have ended when it returns or raises."""
        if len(parts) == 1:
            call(*parts[0])
            return
        jobs = [self._parts.submit(call, *part) for part in parts]
        errors = [error for job in jobs if (error := job.exception()) is not None]
        if errors:
            raise errors[0]

    def _delete(self, names: list[str], line: Line) -> None:
        for begin in range(0, len(names), SWEPT_MAX):
            line.ask("UNLINK", *names[begin : begin + SWEPT_MAX])

    @contextlib.contextmanager
    def _line(self) -> Iterator[Line]:
        """A connection for one's own; there are ``LINES_MAX``."""
        if not self._free.acquire(timeout=self._timeout):
            raise BackendError("all connections to the server are taken")
        line = None
        try:
            with self._lock:
                line = self._lines.pop() if self._lines else None
            if line is None:
                line = Line(self._url, self._timeout)
            yield line
        finally:
            if line is not None:
                if line.broken:
                    line.close()
                else:
                    with self._lock:
                        self._lines.append(line)
            self._free.release()


def split(pieces: Sequence[memoryview], part_nbytes: int) -> Iterator[list[memoryview]]:
    """Pieces in parts of this many bytes, the last one smaller."""
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


def _identity(line: Line, url: str) -> str:
    """The server's own name for its run: two that hear the same text talk to the same server, whatever they call it."""
    try:
        info = bytes(line.ask("INFO", "server") or b"").decode(errors="replace")
    except BackendError:  # this user may not ask
        info = ""
    runs = [text for text in info.splitlines() if text.startswith("run_id:")]
    name = runs[0] if runs else url.rpartition("@")[2]
    database = urlsplit(url).path
    return hashlib.sha256(f"{name} {database}".encode()).hexdigest()[:24]
