"""The compiler process isolates the scheduler from user code."""

from __future__ import annotations

import contextlib
import gc
import pickle
import queue
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from dask._task_spec import Task
from paceline.protocol.framing import FrameReader
from paceline.protocol.payload import serialized_payload
from paceline.scheduler.core.stimuli import GraphChunk, GraphCommit, GraphFailed
from paceline.workers_compat.config import config
from paceline.workers_compat.graphs.compiler_messages import (
    Cancel,
    ChildSetup,
    CompileRequest,
    CompilerReady,
    GraphDone,
    UploadedFile,
    decode_reply,
    encode_request,
)
from paceline.workers_compat.graphs.compiler_process import CompilerChild
from paceline.workers_compat.graphs.rows import CHUNK_SIZE


class Child:
    """A compiler process; requests are sent by a thread, to avoid a deadlock."""

    def __init__(self, **setup):
        self.socket, theirs = socket.socketpair()
        fd = theirs.fileno()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline.workers_compat.graphs.compiler_process", str(fd)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[fd],
            env=config.child_environment() | {"PYTHONUNBUFFERED": ""},  # as in most shells
        )  # fmt: skip
        theirs.close()
        self._requests: queue.Queue = queue.Queue()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()
        self._replies = self._read()
        self.send(ChildSetup(config=config.plain_config(), sys_path=list(sys.path), **setup))
        self.ready = next(self._replies)

    def _write(self):
        with contextlib.suppress(OSError):
            while (request := self._requests.get()) is not None:
                for piece in encode_request(request):
                    self.socket.sendall(piece)
            self.socket.shutdown(socket.SHUT_WR)

    def _read(self):
        reader = FrameReader()
        while data := self.socket.recv(1 << 20):
            yield from map(decode_reply, reader.feed(data))

    def send(self, request):
        self._requests.put(request)

    def until_done(self, graph_id):
        replies = []
        for reply in self._replies:
            if isinstance(reply, GraphDone):
                assert reply.graph_id == graph_id
                return replies
            assert reply.graph_id == graph_id
            replies.append(reply)
        raise EOFError("the child is gone")

    def compile(self, request):
        self.send(request)
        return self.until_done(request.graph_id)

    def close(self):
        self._requests.put(None)
        code = self.process.wait(20)
        return code, self.process.stdout.read().decode()


@pytest.fixture
def child():
    child = Child()
    yield child
    if child.process.poll() is None:
        child.close()


def simple(make_request, graph_id=1, n=3):
    return make_request({("x", i): Task(("x", i), max, i, 0) for i in range(n)}, graph_id=graph_id)


class Runs:
    """Runs code on unpickling."""

    def __init__(self, code):
        self.code = code

    def __reduce__(self):
        return exec, (self.code,)


def running(code, graph_id=1):
    payload = serialized_payload(
        {"serializer": "pickle", "writeable": ()}, [pickle.dumps(Runs(code))]
    )
    return CompileRequest(graph_id, "c", payload, ["a"])


def test_a_graph_and_its_end(child, make_request, as_compiled):
    assert isinstance(child.ready, CompilerReady)
    assert child.ready.pid == child.process.pid
    c = as_compiled(child.compile(simple(make_request)))
    assert set(c.keys) == {("x", 0), ("x", 1), ("x", 2)}
    assert c.run()[("x", 2)] == 2
    code, err = child.close()
    assert code == 0
    assert err == ""


def test_a_graph_with_and_without_accelerators(accelerators, make_request, as_compiled):
    child = Child()
    code = "from dask._task_spec import Task; print(Task.__setstate__.__name__)"
    child.compile(running(code))
    assert as_compiled(child.compile(simple(make_request, graph_id=2))).run()[("x", 2)] == 2
    assert child.close() == (0, "set_state\n" if accelerators else "__setstate__\n")


def test_user_code_that_raises_prints_or_exits(child, make_request):
    for code in (
        "raise SystemExit(3)",
        "raise KeyboardInterrupt",
        "raise MemoryError",
        "raise BaseException('odd')",
        "exec('def f(): f()\\nf()', {})",
        "print('printed'); import os; os.write(1, b'written'); raise ValueError",
        "import sys; sys.stdout.close(); raise ValueError",
        "raise ValueError('\\udc80')",
    ):
        (reply,) = child.compile(running(code))
        assert isinstance(reply, GraphFailed)
        assert isinstance(pickle.loads(reply.exception.frames[0]), RuntimeError)
    assert isinstance(child.compile(simple(make_request))[-1], GraphCommit)
    code, err = child.close()
    assert code == 0
    assert "printed" in err
    assert "written" in err


def test_cancelled_graphs_end_early(child, make_request):
    others = [simple(make_request, 2, n=8_000), simple(make_request, 3), Cancel(1)]
    child.send(simple(make_request, 1, n=60_000))  # it takes longer than cancelling the others
    for other in others:
        child.send(other)
    child.send(Cancel(2))
    first = child.until_done(1)
    assert not any(isinstance(reply, GraphCommit) for reply in first)
    assert child.until_done(2) == []
    assert isinstance(child.until_done(3)[-1], GraphCommit)


def test_objects_of_imported_modules_are_frozen(monkeypatch):
    """With pandas and pyarrow loaded, a full collection takes 20 ms, as long as ten small graphs."""
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    child = CompilerChild(channel=None)
    child._collect_and_freeze()
    child._collect_and_freeze()
    assert len(frozen) == 1
    monkeypatch.setitem(sys.modules, "came_with_a_graph", sys)
    child._collect_and_freeze()
    assert len(frozen) == 2


def test_graph_cancelled_too_late_may_be_sent_again(child, make_request):
    first = child.compile(simple(make_request, 1))
    child.send(Cancel(1))
    second = child.compile(simple(make_request, 1))
    assert [type(reply) for reply in second] == [type(reply) for reply in first]
    assert isinstance(second[-1], GraphCommit)


def test_chunk_size_and_buffers(child, make_request):
    big = np.arange(1_000_000)
    graph = {("x", i): Task(("x", i), np.add, big, i) for i in range(2 * CHUNK_SIZE + 5)}
    *chunks, commit = child.compile(make_request(graph))
    assert [len(chunk.keys) for chunk in chunks] == [CHUNK_SIZE, CHUNK_SIZE, 5]
    assert [[b.nbytes for b in chunk.buffers] for chunk in chunks] == [[big.nbytes], [], []]
    assert isinstance(commit, GraphCommit)


def test_configuration_and_path_of_the_parent(tmp_path, make_request):
    (tmp_path / "on_the_path_b.py").write_text("x = 1\n")
    import dask

    sys.path.append(str(tmp_path))
    try:
        with dask.config.set({"paceline-test": {"value": 17}}):
            child = Child()
    finally:
        sys.path.remove(str(tmp_path))
    (reply,) = child.compile(
        running(
            "import on_the_path_b, dask\nraise ValueError(dask.config.get('paceline-test.value') + on_the_path_b.x)"
        )
    )
    assert "18" in reply.text
    child.close()


def test_uploaded_files_and_their_replacements(make_request):
    child = Child(files={"uploaded_b.py": b"def f(): return 1\n"})

    def version():
        (reply,) = child.compile(running("import uploaded_b\nraise ValueError(uploaded_b.f())"))
        return reply.text[-1]

    assert version() == "1"
    child.send(UploadedFile("../uploaded_b.py", b"def f(): return 22\n"))
    assert version() == "2"
    child.send(UploadedFile("broken_b.py", b"def"))
    assert isinstance(child.compile(simple(make_request))[-1], GraphCommit)
    code, err = child.close()
    assert code == 0
    assert "broken_b.py" in err


def test_scheduler_ends_in_the_middle(make_request):
    child = Child()
    child.send(simple(make_request, 1, n=8_000))
    next(child._replies)
    child.socket.close()
    child._requests.put(None)
    assert child.process.wait(20) == 0


def test_a_child_that_dies(make_request):
    child = Child()
    child.send(running("import os; os._exit(7)"))
    with pytest.raises(EOFError):
        child.until_done(1)
    assert child.process.wait(20) == 7


def test_values_that_cannot_be_sent_fail_their_graph(child, make_request):
    bad = simple(make_request)
    # decoded by the child, which fails only when it writes
    bad.user_priority = {("x", 0): 1}
    assert isinstance(child.compile(bad)[-1], GraphCommit)


def test_remaining_threads_do_not_keep_it_alive(make_request):
    child = Child()
    code = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    (reply,) = child.compile(running(code))
    assert isinstance(reply, GraphFailed)
    assert child.close()[0] == 0


def test_chunks_are_sent_while_the_rest_is_compiled(child, make_request):
    child.send(simple(make_request, 1, n=5000))
    first = next(child._replies)
    assert isinstance(first, GraphChunk)
    assert isinstance(child.until_done(1)[-1], GraphCommit)


def test_an_idle_process_returns_its_memory(make_request):
    child = Child()
    code = "import sys; sys.held = [bytes(50_000) for _ in range(2_000)]"
    child.compile(running(code, graph_id=1))
    process = psutil.Process(child.process.pid)
    held = process.memory_info().rss
    # every second block is kept, so that the heap does not shrink by itself
    child.compile(running("import sys; del sys.held[::2]", graph_id=2))
    deadline = time.monotonic() + 20
    while process.memory_info().rss > held - 30_000_000 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.memory_info().rss <= held - 30_000_000
    child.close()
