"""A private Redis (or Valkey) server with a password, for the benchmark and the tests."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 20.0


def program() -> str | None:
    """Return the path of the server's program, or None if none is installed."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


@dataclass
class Server:
    """A running server.

    Attributes:
        url: with the password.
        process: of the server.
        port: on which it listens.
        password: required of clients.
    """

    url: str
    process: subprocess.Popen[bytes]
    port: int
    password: str

    def pause(self) -> None:
        """Stop the process (SIGSTOP), so that requests hang until ``resume``."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def keys(self) -> int:
        """Return the number of stored values."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(f"AUTH {self.password}\r\nDBSIZE\r\n".encode())
            reply = b""
            while reply.count(b"\r\n") < 2:
                reply += connection.recv(100)
        return int(reply.split(b"\r\n")[1].lstrip(b":"))


@contextlib.contextmanager
def redis_server(
    folder: Path, memory: str = "0", certificate: Path | None = None, key: Path | None = None
) -> Iterator[Server]:
    """Start a server on a free port of this host, without persistence.

    Args:
        folder: for its files.
        memory: its memory limit ("100mb"), beyond which it refuses values. "0" for no limit.
        certificate, key: for TLS, which then replaces plain connections.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    password = secrets.token_urlsafe(24)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        *("bind 127.0.0.1", 'save ""', "appendonly no", "daemonize no", f"dir {folder}"),
        *(f"requirepass {password}", f"maxmemory {memory}", "maxmemory-policy noeviction"),
    ]
    if certificate is not None:
        lines += [f"tls-port {port}", "port 0", f"tls-cert-file {certificate}"]
        lines += [f"tls-key-file {key}", "tls-auth-clients no"]
    else:
        lines += [f"port {port}"]
    settings = folder / "redis.conf"
    settings.touch(mode=0o600)
    settings.write_text("\n".join(lines) + "\n")
    path = program()
    if path is None:
        raise FileNotFoundError("neither redis-server nor valkey-server is installed")
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([path, str(settings)], stdout=quiet, stderr=quiet)
    scheme = "redis" if certificate is None else "rediss"
    try:
        _wait(process, port)
        yield Server(f"{scheme}://:{password}@127.0.0.1:{port}/0", process, port, password)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError("the Redis server ended at its start")
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.05)
    raise TimeoutError("the Redis server does not listen")
