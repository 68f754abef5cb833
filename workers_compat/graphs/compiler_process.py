"""The graph compiler process: requests and replies on a socket.

User code runs here: unpickling imports the user's modules, and expressions call the user's
functions. What it raises does not end the process. If user code does end the process, the scheduler
keeps running.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

from paceline.protocol.framing import FrameReader
from paceline.scheduler.core.stimuli import GraphChunk
from paceline.workers_compat.end_process import end_process
from paceline.workers_compat.malloc_trim import malloc_trim
from setproctitle import setproctitle

from .compiler_messages import (
    Cancel,
    ChildSetup,
    CompileRequest,
    CompilerReady,
    GraphDone,
    MatchRequest,
    UploadedFile,
    decode_request,
    encode_reply,
)

#: Bytes requested per read.
READ_NBYTES = 1 << 20

#: Pieces per ``writev``; the limit of the operating system is at least this.
WRITE_PIECES_MAX = 64

#: Under memory pressure the kernel kills a compiler before the scheduler.
OOM_SCORE = "500"

#: Tasks after which garbage is collected even if a request is waiting.
COLLECT_TASKS = 10_000

#: Idle time after which free memory is returned to the operating system, seconds.
TRIM_IDLE_SECONDS = 1.0


class Channel:
    """The child's end of the socket: blocking reads and writes of whole messages."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._reader = FrameReader()
        self.closed = False

    def has_data(self, seconds: float) -> bool:
        """Wait up to `seconds` for data or the end, and return whether there is any."""
        return bool(wait([self._fd], seconds))

    def receive(self, block: bool) -> list[Any]:
        """Return requests that have arrived. Wait for one if `block`; empty if it closed."""
        requests: list[Any] = []
        while not requests and not self.closed:
            if not block and not self.has_data(0):
                break
            data = os.read(self._fd, READ_NBYTES)
            if not data:
                self.closed = True
                break
            requests += map(decode_request, self._reader.feed(data))
        return requests

    def send(self, reply: Any) -> None:
        """Write one reply. Raises BrokenPipeError if the scheduler has closed it."""
        pieces = [memoryview(piece) for piece in encode_reply(reply)]
        while pieces:
            written = os.writev(self._fd, pieces[:WRITE_PIECES_MAX])
            while pieces and written >= pieces[0].nbytes:
                written -= pieces.pop(0).nbytes
            if written:
                pieces[0] = pieces[0][written:]


class CompilerChild:
    """The main loop: handles one request after another and watches for cancellations."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._waiting: deque[Any] = deque()
        self._cancelled: set[int] = set()
        self._current = 0
        self._tasks_since_collection = 0
        self._modules_count = 0
        self._loader: Any = None
        self.folder = ""

    def run(self) -> None:
        """Handle requests until the scheduler closes the channel."""
        while True:
            if not self._waiting and not self._channel.has_data(TRIM_IDLE_SECONDS):
                self._trim()
            self._take(block=not self._waiting)
            if self._waiting:
                self._handle(self._waiting.popleft())
            elif self._channel.closed:
                return

    def _take(self, block: bool) -> None:
        """Read what has arrived. Apply cancellations at once and queue the rest."""
        for request in self._channel.receive(block):
            if isinstance(request, Cancel):
                self._cancel(request.graph_id)
            else:
                self._waiting.append(request)

    def _cancel(self, graph_id: int) -> None:
        """Cancel a graph that is queued or being compiled.

        A graph that is already done is not marked: it can be sent again after a slow child lost it.
        """
        if graph_id == self._current or graph_id in self._queued():
            self._cancelled.add(graph_id)

    def _queued(self) -> set[int]:
        """Return the ids of the graphs that have not been begun."""
        kinds = CompileRequest, MatchRequest
        return {each.graph_id for each in self._waiting if isinstance(each, kinds)}

    def _handle(self, request: Any) -> None:
        if isinstance(request, CompileRequest | MatchRequest):
            self._current = request.graph_id
            self._compile(request)
            self._current = 0
            self._cancelled &= self._queued()  # graphs come in order: earlier ones are obsolete
            self._collect()
        elif isinstance(request, ChildSetup):
            self._set_up(request)
        elif isinstance(request, UploadedFile):
            self._upload(request.name, request.data)

    def _compile(self, request: Any) -> None:
        from .compiler import failed
        from .dispatch import replies as replies_to

        with contextlib.closing(replies_to(request, self._loader)) as replies:
            while request.graph_id not in self._cancelled and not self._channel.closed:
                reply = next(replies, None)
                if reply is None:
                    break
                try:
                    self._channel.send(reply)
                except OSError:
                    raise
                except Exception as error:
                    # a value that cannot be encoded
                    self._channel.send(failed(request, error))
                    break
                if isinstance(reply, GraphChunk):
                    self._tasks_since_collection += len(reply.keys)
                    self._take(block=False)
        self._channel.send(GraphDone(request.graph_id))

    def _collect(self) -> None:
        """Collect garbage while no request is waiting, or after many tasks."""
        if not self._waiting or self._tasks_since_collection >= COLLECT_TASKS:
            self._tasks_since_collection = 0
            self._collect_and_freeze()

    def _trim(self) -> None:
        """Return free memory to the operating system, where that is possible."""
        trim = malloc_trim()
        if trim is not None:
            trim()

    def _collect_and_freeze(self) -> None:
        """Collect garbage and freeze the objects of new modules.

        With pandas and pyarrow a collection of unfrozen objects takes 20 ms after each graph.
        """
        gc.collect()
        if len(sys.modules) != self._modules_count:
            self._modules_count = len(sys.modules)
            gc.freeze()

    def _set_up(self, setup: Any) -> None:
        started = time.perf_counter()
        known = set(sys.path)
        sys.path += [place for place in setup.sys_path if place not in known]
        import dask.config

        dask.config.update(dask.config.config, setup.config, priority="new")
        import_dependencies()
        from . import accelerators
        from .accelerators import fast_unpickle, no_docstrings, optional_imports, unimported

        if accelerators.are_enabled():
            fast_unpickle.install()
            no_docstrings.install()
            optional_imports.hide(optional_imports.COMPILER)
            self._loader = unimported.ReferenceLoader()
        for name, data in setup.files.items():
            self._upload(name, data)
        self._collect_and_freeze()
        self._channel.send(CompilerReady(os.getpid(), time.perf_counter() - started))

    def _upload(self, name: str, data: bytes) -> None:
        """Store an uploaded file and import it, in place of an older version."""
        from distributed.utils import import_file

        if not self.folder:
            self.folder = tempfile.mkdtemp(prefix="paceline-uploads-")
        path = os.path.join(self.folder, os.path.basename(name))
        with open(path, "wb") as file:
            file.write(data)
        try:
            import_file(path)
        except BaseException as error:
            # the scheduler imports the file too, and sends this error to the client
            print(f"Uploaded file {name!r} cannot be imported: {error!r}", file=sys.stderr)


def import_dependencies() -> None:
    """Import dependencies now, so that the first graph does not wait for them."""
    importlib.import_module("distributed.protocol")
    importlib.import_module("dask.delayed")
    importlib.import_module("dask.highlevelgraph")
    importlib.import_module(f"{__package__}.dispatch")


def main(fds: Sequence[int]) -> int:
    """Serve on the socket ``fds[0]`` until the scheduler closes it. Return the exit code."""
    # meant for this process only (``config.child_environment``), not for its children
    os.environ.pop("PYTHONSAFEPATH", None)
    # on Ctrl-C the scheduler closes the channel when it is done
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(OOM_SCORE)
    gc.disable()
    setproctitle("paceline graph compiler")
    child = CompilerChild(Channel(fds[0]))
    code = 0
    try:
        child.run()
    except (BrokenPipeError, ConnectionResetError):
        pass
    except Exception as error:
        print(f"paceline graph compiler: {type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    finally:
        if child.folder:
            shutil.rmtree(child.folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    end_process(main([int(fd) for fd in sys.argv[1:]]))
