"""Backend that stores values in files of a shared directory, on one host or on many.

Files are mapped by their readers. Each worker has a private folder with a lease: a file that it
locks and touches regularly. A folder whose lease is not locked, or was not touched for
``LEASE_SECONDS``, belongs to a dead worker and is removed by the next sweep of any worker.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import secrets
import shutil
import socket
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from .backend import (
    LEASE_SECONDS,
    Backend,
    BackendContext,
    BackendError,
    Capacity,
    Fetched,
    Ref,
    Stored,
    ValueGone,
)
from .shared_memory import write_pieces

LEASE = "lease"
IDENTITY = "identity"
#: Worker folders checked in one sweep.
FOLDERS_MAX = 4096
#: Share of the file system that is left free.
FREE_SHARE_MIN = 0.05


class Files(Backend):
    """Backend "file". Options: ``directory``, ``limit_nbytes`` (per worker), ``lease_seconds``."""

    name = "file"

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        base = context.options.get("directory")
        if not base:
            raise BackendError("it needs a directory that all workers share")
        self._root = Path(str(base)).expanduser() / f"paceline-transfer-{os.getuid()}"
        self._limit_nbytes = context.options.get("limit_nbytes")
        self._lease_seconds = float(context.options.get("lease_seconds", LEASE_SECONDS))
        self._mine = self._root / context.worker_id
        _private_folder(self._root)
        # before the identity file, which is kept while any worker folder exists
        self._mine.mkdir(mode=0o700)
        self._place = _identity(self._root)
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._used_nbytes = 0
        self._lease = _hold(self._mine / LEASE)
        self.sweep()

    def place(self) -> str:
        return self._place

    def capacity(self) -> Capacity:
        found = os.statvfs(self._mine)
        size = found.f_blocks * found.f_frsize
        free = int(found.f_bavail * found.f_frsize - FREE_SHARE_MIN * size)
        if self._limit_nbytes is not None:
            free = min(free, int(self._limit_nbytes) - self._used_nbytes)
        return Capacity(max(0, free))

    def put(self, pieces: Sequence[memoryview], size_nbytes: int) -> Stored:
        name = secrets.token_hex(16)
        path = self._mine / name
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with contextlib.suppress(OSError):
                os.posix_fallocate(fd, 0, size_nbytes)
            write_pieces(fd, pieces)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        finally:
            os.close(fd)
        with self._lock:
            self._sizes[name] = size_nbytes
            self._used_nbytes += size_nbytes
        self.traffic.put(size_nbytes)
        return Stored({"folder": self._mine.name, "name": name})

    def get(self, ref: Ref, size_nbytes: int, into: memoryview | None = None) -> Fetched:
        folder, name = str(ref["folder"]), str(ref["name"])
        if not (folder.isalnum() and name.isalnum()):
            raise BackendError("invalid file name")
        try:
            fd = os.open(self._root / folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise ValueGone(str(error)) from error
        try:
            if os.fstat(fd).st_size < size_nbytes:
                raise BackendError("the file is too short")
            view = memoryview(mmap.mmap(fd, size_nbytes, prot=mmap.PROT_READ))
        finally:
            os.close(fd)
        self.traffic.got(size_nbytes)
        return Fetched(view)

    def delete(self, ref: Ref) -> None:
        with self._lock:
            self._used_nbytes -= self._sizes.pop(ref["name"], 0)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._mine / ref["name"])

    def renew(self) -> None:
        os.utime(self._mine / LEASE)
        self.sweep()

    def sweep(self) -> None:
        with os.scandir(self._root) as entries:
            folders = [e.name for e in entries if e.is_dir(follow_symlinks=False)][:FOLDERS_MAX]
        for name in folders:
            if name != self._mine.name and self._is_dead(self._root / name):
                shutil.rmtree(self._root / name, ignore_errors=True)

    def close(self) -> None:
        shutil.rmtree(self._mine, ignore_errors=True)
        if self._lease >= 0:
            os.close(self._lease)
            self._lease = -1
        with contextlib.suppress(OSError):
            if not any(each.is_dir() for each in self._root.iterdir()):
                (self._root / IDENTITY).unlink()
                self._root.rmdir()

    def _is_dead(self, folder: Path) -> bool:
        """Return whether the lease is not locked on this host, or was not touched for too long."""
        lease = folder / LEASE
        try:
            found = lease if lease.exists() else folder  # being created or removed
            is_old = time.time() - found.stat().st_mtime > self._lease_seconds
            here = found is lease and lease.read_text() == _host()
        except OSError:
            return False
        return not _is_held(lease) if here else is_old


def _host() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"


def _hold(lease: Path) -> int:
    """Write a lease and lock it for the lifetime of this process."""
    fd = os.open(lease, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # without file locks, only the age of the lease counts
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(fd, _host().encode())
    return fd


def _is_held(lease: Path) -> bool:
    try:
        fd = os.open(lease, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # locked, or unknown
        return True
    finally:
        os.close(fd)
    return False


def _private_folder(folder: Path) -> None:
    """Create ``folder`` for this user only. Raises BackendError if others have access."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise BackendError(f"{folder} belongs to another user")
    if found.st_mode & 0o077:
        raise BackendError(f"{folder} is accessible to other users; its mode must be 0700")


def _identity(root: Path) -> str:
    """Return a digest known only to processes that can read this directory, under any path."""
    path = root / IDENTITY
    fresh = root / f".{IDENTITY}-{secrets.token_hex(8)}"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.write(fd, secrets.token_hex(16).encode())
    os.close(fd)
    with contextlib.suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()
    return hashlib.sha256(path.read_bytes()).hexdigest()[:24]
