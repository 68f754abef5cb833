"""The template process: becomes the graph compiler, and forks other child processes before that.

It is forked from the scheduler's process before that has threads, an event loop, sockets or user
code. A child is then ready in milliseconds, and its memory consists of the pages that it changes.
The template ends when the scheduler closes the channel to it, or ends.

If the template forked the graph compiler and stayed, it would keep a copy of each page that both
the scheduler and the compiler have changed: about 13 MB. So it runs the compiler itself, unless it
has forked other children, whose exit codes it reports. Further children are new interpreters.

Without a template (``Template.start`` returns None) all children are started by
``child_process.spawn``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import NoReturn

from paceline.workers_compat.config import config
from paceline.workers_compat.end_process import end_process
from setproctitle import setproctitle

from . import child_process
from .child_process import ChildProcess

logger = logging.getLogger("distributed.scheduler")

#: The module that the template runs itself.
MODULE = "paceline.workers_compat.graphs.compiler_process"
#: Time within which the template must have forked a child, seconds.
FORK_SECONDS = 10.0
#: Interval at which ``FormerTemplate.wait`` checks whether it has ended, seconds.
WAIT_SECONDS = 0.001
#: Length of a request: the name of a module.
REQUEST_NBYTES = 512
#: Descriptors that a child may inherit.
FDS_MAX = 8
#: A process id or an exit code.
NUMBER = struct.Struct("<i")


class ForkedProcess:
    """A process that the template forked.

    Args:
        pid: its process id.
        status: pipe to which the template writes the exit code. If the template has ended, the
            exit code is not known; then the process is killed.
    """

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self._status = status
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """See ``Popen.poll``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """See ``Popen.wait``."""
        if self._returncode is None:
            if not wait([self._status], timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            data = os.read(self._status, NUMBER.size)
            os.close(self._status)
            if not data:
                self.kill()
            self._returncode = NUMBER.unpack(data)[0] if data else -signal.SIGKILL
        return self._returncode

    def kill(self) -> None:
        """See ``Popen.kill``."""
        if self._returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class FormerTemplate:
    """The template process, when it runs a module."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """See ``Popen.poll``."""
        if self._returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._returncode = os.waitstatus_to_exitcode(status)
        return self._returncode

    def wait(self, timeout: float | None = None) -> int:
        """See ``Popen.wait``."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(WAIT_SECONDS)
        return code

    def kill(self) -> None:
        """See ``Popen.kill``."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Template:
    """The scheduler's end of the channel to a template process, which runs ``serve``.

    Attributes:
        pid: process id of the template.
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self._channel = channel
        channel.settimeout(FORK_SECONDS)
        self._has_become_child = False

    @classmethod
    def start(cls, fds: Sequence[int] = (), *, is_kept: bool = False) -> Template | None:
        """Fork the template process. Return None if this process cannot be forked, or not safely.

        Args:
            fds: descriptors that the template closes.
            is_kept: whether it only forks; a process that is not its parent may use it.
        """
        if sys.platform != "linux":
            return None
        if threading.active_count() > 1:  # NumPy's threads end themselves before a fork
            logger.info("Child processes import modules again: a preload has started threads")
            return None
        importlib.import_module(MODULE)  # before the fork, as imports write to shared pages
        gc.freeze()  # so do collections
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy's threads
            pid = _fork()
        if pid < 0:
            ours.close()
            theirs.close()
            text = "Child processes import modules again: cannot fork this process: %s"
            logger.warning(text, os.strerror(-pid))
            return None
        if pid:
            theirs.close()
            return cls(pid, ours)
        ours.close()
        for fd in fds:
            os.close(fd)
        try:
            _set_up()
            serve(theirs, "" if is_kept else MODULE)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)

    def spawn(self, module: str, fds: Sequence[int]) -> ChildProcess:
        """Start a process that runs ``module.main(fds)``. Raises OSError.

        If the template has ended or become a child, a new interpreter is started.
        """
        if self._has_become_child:
            return child_process.spawn(module, fds)
        status, child_status = os.pipe()
        try:
            socket.send_fds(self._channel, [module.encode()], [child_status, *fds])
            reply = self._channel.recv(NUMBER.size)
        except OSError as error:
            reply = b""
            if isinstance(error, TimeoutError):  # a child that it forks later would share `fds`
                self._kill()
        finally:
            os.close(child_status)
        pid = NUMBER.unpack(reply)[0] if reply else 0
        if pid > 0 and pid != self.pid:
            return ForkedProcess(pid, status)
        os.close(status)
        if pid == self.pid:
            self._has_become_child = True
            return FormerTemplate(pid)
        if reply:
            raise OSError(-pid, os.strerror(-pid))
        logger.warning("The template process has ended; starting a new interpreter")
        return child_process.spawn(module, fds)

    def _kill(self) -> None:
        logger.warning("The template process did not answer for %g s; killing it", FORK_SECONDS)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def fileno(self) -> int:
        """Return the descriptor of the channel."""
        return self._channel.fileno()

    def close(self) -> None:
        """Close this end of the channel. The template ends when all of its copies are closed."""
        self._channel.close()

    def stop(self) -> None:
        """Let the template process end. Children that still run are not affected."""
        self._channel.close()
        if not self._has_become_child:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)


def _set_up() -> None:
    """Make this process, just forked from the scheduler's, one that can only fork."""
    os.setsid()  # Ctrl-C in a terminal reaches the scheduler only
    os.environ.update(config.child_environment())
    for number in (signal.SIGINT, signal.SIGTERM):
        # a service manager may send them to all processes; the scheduler ends this one
        signal.signal(number, signal.SIG_IGN)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.dup2(2, 1)
    os.close(devnull)
    setproctitle("paceline template")


def serve(channel: socket.socket, own_module: str = "") -> None:
    """Fork a child for each request, and report exit codes, until ``channel`` is closed.

    Run ``own_module`` in this process if no forked child is left, and do not return.
    """
    statuses: dict[int, int] = {}  # pid -> pipe for its exit code
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_end)
    while True:
        ready = wait([channel, wake])
        if wake in ready:
            os.read(wake, 4096)
            _report_exits(statuses)
        if channel not in ready:
            continue
        try:
            name, fds, _, _ = socket.recv_fds(channel, REQUEST_NBYTES, FDS_MAX)
        except ConnectionResetError:  # the scheduler died before it read a reply
            return
        if not name:
            return
        status, *inherited = fds
        pid = 0
        if name.decode() == own_module and not statuses:
            channel.send(NUMBER.pack(os.getpid()))
        else:
            pid = _fork()
        if pid == 0:
            for fd in (channel.detach(), wake, wake_end, status, *statuses.values()):
                os.close(fd)
            _run(name.decode(), inherited)
        for fd in inherited:
            os.close(fd)
        if pid > 0:
            statuses[pid] = status
        else:
            os.close(status)
        channel.send(NUMBER.pack(pid))


def _fork() -> int:
    """Fork this process. Return the process id, 0 in the child, or a negative error number."""
    try:
        return os.fork()
    except OSError as error:
        return -(error.errno or 0) or -1


def _report_exits(statuses: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pipe = statuses.pop(ended[0])
            with contextlib.suppress(BrokenPipeError):  # the scheduler is not interested
                os.write(pipe, NUMBER.pack(os.waitstatus_to_exitcode(ended[1])))
            os.close(pipe)


def _run(module: str, fds: list[int]) -> NoReturn:
    """Run the module in this new process, and end it."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        gc.enable()  # the scheduler's command has disabled it
        code = importlib.import_module(module).main(fds) or 0
    except BaseException:
        traceback.print_exc()
    finally:
        end_process(code)
