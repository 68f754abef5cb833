"""The template process, tested in separate processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the template is used on Linux")

#: A module that runs in a forked child: "code" is written to its socket, and the reply is its exit code.
CHILD = """
import os, sys, threading

def main(fds):
    assert "decimal" in sys.modules, "imported before the fork"
    assert threading.active_count() == 1
    open_fds = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}")}
    os.write(fds[0], repr((os.getpid(), os.getppid(), len(open_fds))).encode())
    print("printed by a child")
    text = os.read(fds[0], 100)
    if text == b"close":
        sys.stdout.close()
        return 5
    if text == b"raise":
        raise ValueError("raised in a child")
    return int(text or 0)
"""

START = """
import decimal, os, signal, socket, subprocess, sys, time
from paceline.scheduler.server.runtime.template import Template

def child(module="forked"):
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    process = template.spawn(module, [theirs.fileno()])
    theirs.close()
    return process, ours, eval(ours.recv(100)) if ours else None

template = Template.start()
"""


def run(code: str, folder: object) -> tuple[str, str]:
    """Run ``code`` after START in a new interpreter. Return its output and errors."""
    with open(f"{folder}/forked.py", "w") as file:
        file.write(CHILD)
    done = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code)],
        capture_output=True, text=True, timeout=60, cwd=str(folder),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_children_report_their_exit_codes(tmp_path):
    output, errors = run(
        """
        a, a_socket, (a_pid, a_parent, _) = child()
        b, b_socket, (b_pid, b_parent, _) = child()
        assert a.pid == a_pid and b.pid == b_pid
        assert a_parent == b_parent != os.getpid(), "forked by the template"
        assert a.poll() is None
        try:
            a.wait(0.01)
        except subprocess.TimeoutExpired:
            print("still running")
        a_socket.send(b"7")
        assert a.wait(20) == 7 and a.poll() == 7
        assert b.poll() is None
        b.kill()
        assert b.wait(20) == -signal.SIGKILL
        b.kill()  # does nothing: it has ended
        c, c_socket, _ = child()
        c_socket.send(b"raise")
        assert c.wait(20) == 1
        d, d_socket, _ = child()
        d_socket.send(b"close")
        assert d.wait(20) == 5
        template.stop()
        """,
        tmp_path,
    )
    assert output == "still running\n"
    assert "printed by a child" in errors, "standard output is reserved for the scheduler"
    assert "ValueError: raised in a child" in errors


def test_children_detect_the_end_of_their_sockets(tmp_path):
    """A child inherits no descriptor of another child, so that each notices the end of its own."""
    run(
        """
        children = [child() for _ in range(3)]
        counts = {facts[2] for _, _, facts in children}
        assert len(counts) == 1, counts
        children[0][1].close()
        assert children[0][0].wait(20) == 0
        assert children[1][0].poll() is None
        for process, link, _ in children[1:]:
            link.close()
            assert process.wait(20) == 0
        template.stop()
        """,
        tmp_path,
    )


def test_interpreters_are_started_after_the_template_has_ended(tmp_path):
    _, errors = run(
        """
        process, link, (_, template_pid, _) = child()
        os.kill(template_pid, signal.SIGKILL)
        link.send(b"5")
        assert process.wait(20) == -signal.SIGKILL, "its exit code is not known any more"
        ours, theirs = socket.socketpair()
        other = template.spawn("json.tool", [theirs.fileno()])
        assert isinstance(other, subprocess.Popen)
        other.kill()
        other.wait()
        template.stop()
        """,
        tmp_path,
    )
    assert "The template process has ended" in errors


def test_template_that_does_not_answer_is_killed(tmp_path):
    _, errors = run(
        """
        template._channel.settimeout(0.1)
        os.kill(template.pid, signal.SIGSTOP)
        ours, theirs = socket.socketpair()
        for _ in range(2):
            process = template.spawn("decimal", [theirs.fileno()])
            assert isinstance(process, subprocess.Popen)
            process.wait(20)
        assert not os.path.exists(f"/proc/{template.pid}")
        template.stop()
        """,
        tmp_path,
    )
    assert "did not answer" in errors and "starting a new interpreter" in errors


def test_no_template_in_a_process_with_threads(tmp_path):
    output, _ = run(
        """
        import threading
        stop = threading.Event()
        threading.Thread(target=stop.wait).start()
        print(Template.start())
        stop.set()
        template.stop()
        """,
        tmp_path,
    )
    assert output == "None\n"


def test_no_template_if_the_process_cannot_be_forked(tmp_path):
    output, errors = run(
        """
        def fail():
            raise BlockingIOError(11, "Resource temporarily unavailable")

        before = os.listdir("/proc/self/fd")
        os.fork = fail
        print(Template.start(), os.listdir("/proc/self/fd") == before)
        template.stop()
        """,
        tmp_path,
    )
    assert output == "None True\n"
    assert "cannot fork this process: Resource temporarily unavailable" in errors


def test_a_module_that_cannot_be_imported(tmp_path):
    _, errors = run(
        """
        process = template.spawn("no_such_module", [])
        assert process.wait(20) == 1
        template.stop()
        """,
        tmp_path,
    )
    assert "No module named 'no_such_module'" in errors


def test_template_becomes_the_graph_compiler(tmp_path):
    """Run the compiler in the template process. Later children are new interpreters."""
    output, errors = run(
        """
        from paceline.scheduler.server.runtime import template as module
        module.MODULE = "forked"
        template.stop()
        template = Template.start()
        a, a_socket, (a_pid, a_parent, _) = child()
        assert a.pid == a_pid and a_parent == os.getpid()
        assert isinstance(template.spawn("json.tool", []), subprocess.Popen)
        try:
            a.wait(0.01)
        except subprocess.TimeoutExpired:
            print("still running")
        template.stop()
        assert a.poll() is None
        a_socket.send(b"7")
        assert a.wait(20) == 7 and a.poll() == 7
        a.kill()  # does nothing: it has ended
        """,
        tmp_path,
    )
    assert output == "still running\n"
    assert "The template process has ended" not in errors


def test_template_with_children_forks_the_graph_compiler(tmp_path):
    """Keep the template, which reports the exit codes of its children."""
    run(
        """
        from paceline.scheduler.server.runtime import template as module
        template.stop()
        open("other.py", "w").write(open("forked.py").read())
        module.MODULE = "other"
        template = Template.start()
        first, first_socket, (_, template_pid, _) = child()
        second, second_socket, (_, parent, _) = child("other")
        assert parent == template_pid != os.getpid()
        first_socket.send(b"3")
        assert first.wait(20) == 3
        second.kill()
        assert second.wait(20) == -signal.SIGKILL
        third, third_socket, (pid, _, _) = child("other")
        assert pid == template_pid, "it has no children left"
        third.kill()
        assert third.wait(20) == -signal.SIGKILL
        template.stop()
        """,
        tmp_path,
    )
