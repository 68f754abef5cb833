"""The graph compiler as a process of its own: requests on standard input, replies on standard output.

User code runs here: unpickling imports the user's modules, expressions call the user's functions. So
nothing that it prints reaches the pipe, and nothing that it raises ends the process; if it takes the
process with it all the same, the scheduler lives on.

Must not know: what becomes of the replies (``scheduler/server/children.py``).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from typing import Any

READ_NBYTES = 1 << 20
"""Bytes asked for in one read."""

WRITE_PIECES_MAX = 64
"""Pieces given to one ``writev`` (the system's own limit is at least this)."""

TRIM_TASKS = 10_000
"""After so many tasks since the last time, memory that is free is given back to the system."""


class Pipe:
    """The child's end of the pipes: whole messages in, whole messages out, blocking."""

    def __init__(self, in_fd: int, out_fd: int) -> None:
        from .graph_table import MessageSplitter

        self._in = in_fd
        self._out = out_fd
        self._splitter = MessageSplitter()
        self.closed = False

    def receive(self, block: bool) -> list[Any]:
        """Requests that have come in; waits for one when ``block``. Empty when there is none, or no more."""
        from .graph_table import decode_request

        requests: list[Any] = []
        while not requests and not self.closed:
            if not block and not select.select([self._in], [], [], 0)[0]:
                break
            data = os.read(self._in, READ_NBYTES)
            if not data:
                self.closed = True
                break
            requests += [decode_request(message) for message in self._splitter.feed(data)]
        return requests

    def send(self, reply: Any) -> None:
        """Write one reply whole. Raises BrokenPipeError when nobody reads any more."""
        from .graph_table import encode_reply

        pieces = [memoryview(piece) for piece in encode_reply(reply)]
        while pieces:
            written = os.writev(self._out, pieces[:WRITE_PIECES_MAX])
            while pieces and written >= pieces[0].nbytes:
                written -= pieces.pop(0).nbytes
            if written:
                pieces[0] = pieces[0][written:]


class CompilerChild:
    """The loop: one request after the other, with an eye on what is cancelled meanwhile."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._waiting: deque[Any] = deque()
        self._cancelled: set[int] = set()
        self._at_work = 0
        self._chunk_size = 1000
        self._uncollected = 0
        self._modules_count = 0
        self.folder = ""

    def run(self) -> None:
        """Until the scheduler closes the pipe."""
        while True:
            self._take(block=not self._waiting)
            if self._waiting:
                self._handle(self._waiting.popleft())
            elif self._pipe.closed:
                return

    def _take(self, block: bool) -> None:
        """Read what is there. A cancel counts at once, all else in its turn."""
        from .graph_table import Cancel

        for request in self._pipe.receive(block):
            if isinstance(request, Cancel):
                self._cancel(request.graph_id)
            else:
                self._waiting.append(request)

    def _cancel(self, graph_id: int) -> None:
        """What is waiting, or at work, is given up. A graph that is done with may come again: it was taken away too late,
        and given to another child, which was slow.
        """
        from .graph_table import CompileRequest

        waiting = (r.graph_id for r in self._waiting if isinstance(r, CompileRequest))
        if graph_id == self._at_work or graph_id in waiting:
            self._cancelled.add(graph_id)

    def _handle(self, request: Any) -> None:
        from .graph_table import ChildSetup, CompileRequest, UploadFile

        if isinstance(request, CompileRequest):
            self._at_work = request.graph_id
            self._compile(request)
            self._at_work = 0
            # graphs come in order: whatever was cancelled up to here is done with
            waiting = {r.graph_id for r in self._waiting if isinstance(r, CompileRequest)}
            self._cancelled &= waiting
            self._collect()
        elif isinstance(request, ChildSetup):
            self._set_up(request)
        elif isinstance(request, UploadFile):
            self._upload(request.name, request.data)

    def _compile(self, request: Any) -> None:
        from paceline.scheduler.core.stimuli import GraphChunk

        from .graph import compile_graph, failed
        from .graph_table import GraphDone

        replies = compile_graph(request, self._chunk_size)
        with contextlib.closing(replies):
            while request.graph_id not in self._cancelled and not self._pipe.closed:
                reply = next(replies, None)
                if reply is None:
                    break
                try:
                    self._pipe.send(reply)
                except OSError:
                    raise
                except Exception as error:
                    # a value that the pipe cannot carry
                    self._pipe.send(failed(request, error))
                    break
                if isinstance(reply, GraphChunk):
                    self._uncollected += len(reply.keys)
                    self._take(block=False)
        self._pipe.send(GraphDone(request.graph_id))

    def _collect(self) -> None:
        """Cycles are collected between graphs, when nobody waits."""
        if self._waiting and self._uncollected < TRIM_TASKS:
            return
        large = self._uncollected >= TRIM_TASKS
        self._uncollected = 0
        self._collect_and_freeze()
        if large:
            give_memory_back()

    def _collect_and_freeze(self) -> None:
        """What modules brought stays, and is not looked at again: with pandas and pyarrow that is 20 ms after each graph."""
        gc.collect()
        if len(sys.modules) != self._modules_count:
            self._modules_count = len(sys.modules)
            gc.freeze()

    def _set_up(self, setup: Any) -> None:
        from .graph_table import Ready

        started = time.perf_counter()
        known = set(sys.path)
        sys.path += [place for place in setup.sys_path if place not in known]
        self._chunk_size = setup.chunk_size
        import dask.config

        dask.config.update(dask.config.config, setup.config, priority="new")
        import_what_compiling_needs()
        from .quick_tasks import quicken

        quicken()
        for name in setup.warm:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        for name, data in setup.files.items():
            self._upload(name, data)
        self._collect_and_freeze()
        self._pipe.send(Ready(os.getpid(), time.perf_counter() - started))

    def _upload(self, name: str, data: bytes) -> None:
        """Put an uploaded file where it can be imported, instead of an older one of its name."""
        from distributed.utils import import_file

        if not self.folder:
            self.folder = tempfile.mkdtemp(prefix="paceline-uploads-")
        path = os.path.join(self.folder, os.path.basename(name))
        with open(path, "wb") as file:
            file.write(data)
        try:
            import_file(path)
        except BaseException as error:
            # the client was told so by the scheduler, which imports the file too
            print(f"uploaded file {name!r} cannot be imported: {error!r}", file=sys.stderr)


def import_what_compiling_needs() -> None:
    """So that the first graph does not wait for imports."""
    importlib.import_module("distributed.protocol")
    importlib.import_module("dask.delayed")
    importlib.import_module("dask.highlevelgraph")
    importlib.import_module(f"{__package__}.graph")


def give_memory_back() -> None:
    """Ask the C library to return free memory to the system; where it cannot, nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def private_pipes() -> tuple[int, int]:
    """Take standard input and output away from everybody else: prints go to standard error."""
    in_fd, out_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return in_fd, out_fd


def main() -> int:
    """Serve until standard input ends. Returns the exit code."""
    in_fd, out_fd = private_pipes()
    # set for our own start alone (``config.child_environment``), not for what user code may start
    os.environ.pop("PYTHONSAFEPATH", None)
    # Ctrl-C is for the scheduler: it closes the pipe when it is done
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle("paceline graph compiler")
    child = CompilerChild(Pipe(in_fd, out_fd))
    code = 0
    try:
        child.run()
    except BrokenPipeError:
        pass
    except Exception as error:
        print(f"paceline graph compiler: {type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    finally:
        if child.folder:
            shutil.rmtree(child.folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    # user code may have left threads behind that would keep the process alive
    exit_code = main()
    sys.stderr.flush()
    os._exit(exit_code)
