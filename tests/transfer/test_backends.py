"""Every backend fulfils the interface. Custom backends can run the same tests."""

from __future__ import annotations

import errno
import os
import secrets
import selectors
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from paceline.transfer import direct, files, process_vm, redis
from paceline.transfer.backend import Backend, BackendContext, BackendError, BackendFull, ValueGone
from paceline.transfer.shared_memory import SharedMemory

from tests.support.certificates import Authority
from tests.support.redis_servers import Server, program, redis_server

Makes = Callable[[], Backend]
KINDS = ["shm", "file", "redis", "direct"]
needs_server = pytest.mark.skipif(program() is None, reason="no Redis server is installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with redis_server(tmp_path_factory.mktemp("redis"), memory="64mb") as found:
        yield found


def new(kind: type[Backend], **options: object) -> Backend:
    return kind(BackendContext(secrets.token_hex(16), options=dict(options)))


@pytest.fixture(params=[*KINDS[:2], pytest.param("redis", marks=needs_server), "direct", "vm"])
def makes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Makes]:
    made: list[Backend] = []

    def make() -> Backend:
        if request.param == "shm":
            made.append(new(SharedMemory, idle_nbytes=0))
        elif request.param == "file":
            made.append(new(files.Files, directory=str(tmp_path)))
        elif request.param == "redis":
            url = request.getfixturevalue("server").url
            made.append(new(redis.Redis, url=url, limit_nbytes=32 << 20))
        elif request.param == "direct":
            made.append(new(direct.Direct))
        else:
            try:
                made.append(new(process_vm.ProcessVM))
            except BackendError as error:
                pytest.skip(str(error))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def test_get_returns_what_was_put(makes: Makes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "PART_NBYTES", 1 << 20)
    monkeypatch.setattr(direct, "RANGE_NBYTES_MIN", 1 << 20)
    owner, reader = makes(), makes()
    assert owner.place() == reader.place() != ""
    body = os.urandom(1 << 20) * 5 + b"odd"
    pieces = [memoryview(b"head"), memoryview(b""), memoryview(body).cast("B")]
    size = len(body) + 4
    assert owner.capacity().holds(size)
    stored = owner.put(pieces, size)
    for _ in range(2):
        got = reader.get(stored.ref, size)
        assert got.view.nbytes == size
        assert bytes(got.view) == b"head" + body
    owner.renew()
    owner.delete(stored.ref)
    assert bytes(got.view[:4]) == b"head", "readers keep the data they hold"
    with pytest.raises(ValueGone):
        makes().get(stored.ref, size)
    assert owner.traffic.put_count == 1 and reader.traffic.got_nbytes == 2 * size


def test_closed_worker_leaves_nothing(makes: Makes) -> None:
    owner, reader = makes(), makes()
    stored = owner.put([memoryview(b"x" * 100_000)], 100_000)
    owner.close()
    with pytest.raises((BackendError, OSError)):
        reader.get(stored.ref, 100_000)


def test_names_cannot_be_guessed(makes: Makes) -> None:
    owner = makes()
    refs = [owner.put([memoryview(b"x")], 1).ref for _ in range(2)]
    names = [ref.get("name") or ref.get("ticket") or ref.get("tag") for ref in refs]
    assert names[0] != names[1]
    assert all(len(name) >= 32 for name in names)


# files


def test_files_are_private(tmp_path: Path) -> None:
    owner = new(files.Files, directory=str(tmp_path))
    owner.put([memoryview(b"x" * 1000)], 1000)
    found = list(tmp_path.rglob("*"))
    assert {oct(p.stat().st_mode & 0o777) for p in found if p.is_dir()} == {"0o700"}
    assert {oct(p.stat().st_mode & 0o777) for p in found if p.is_file()} == {"0o600"}
    owner.close()
    assert list(tmp_path.iterdir()) == []


def test_open_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"paceline-transfer-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"paceline-transfer-{os.getuid()}").chmod(0o777)
    with pytest.raises(BackendError, match="0700"):
        new(files.Files, directory=str(tmp_path))


def test_files_of_dead_worker_are_removed(tmp_path: Path) -> None:
    pid = os.fork()
    if not pid:  # a worker that is killed
        new(files.Files, directory=str(tmp_path)).put([memoryview(b"x" * 1000)], 1000)
        os._exit(9)
    os.waitpid(pid, 0)
    root = next(tmp_path.iterdir())
    assert len([p for p in root.iterdir() if p.is_dir()]) == 1
    living = new(files.Files, directory=str(tmp_path))
    assert [p.name for p in root.iterdir() if p.is_dir()] == [living.context.worker_id]
    other = new(files.Files, directory=str(tmp_path))
    living.renew()
    assert len([p for p in root.iterdir() if p.is_dir()]) == 2, "files of live workers are kept"
    living.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_leases_of_other_hosts_expire_by_age(tmp_path: Path) -> None:
    mine = new(files.Files, directory=str(tmp_path), lease_seconds=100)
    folder = next(tmp_path.iterdir()) / "elsewhere"
    folder.mkdir(mode=0o700)
    lease = folder / files.LEASE
    lease.write_text("another host")
    mine.renew()
    assert folder.is_dir()
    os.utime(lease, (time.time() - 200,) * 2)
    mine.renew()
    assert not folder.exists()
    mine.close()


def test_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    mine = new(files.Files, directory=str(tmp_path))
    for ref in ({"folder": "..", "name": "x"}, {"folder": "a", "name": "../../etc"}):
        with pytest.raises(BackendError, match="invalid file name"):
            mine.get(ref, 1)
    mine.close()


# redis


@needs_server
def test_unrenewed_leases_expire(server: Server) -> None:
    owner = new(redis.Redis, url=server.url, lease_seconds=0.3)
    owner.put([memoryview(b"x" * 1000)], 1000)
    for _ in range(4):
        time.sleep(0.15)
        owner.renew()
    assert server.keys() == 1
    time.sleep(0.6)
    assert server.keys() == 0
    owner.close()


@needs_server
def test_full_server_refuses_and_is_unchanged(server: Server) -> None:
    owner = new(redis.Redis, url=server.url)
    with pytest.raises(BackendFull):
        owner.put([memoryview(bytes(130 << 20))], 130 << 20)
    assert server.keys() == 0
    for _ in range(100):  # the server frees memory in a separate thread
        try:
            owner.put([memoryview(b"x" * 1000)], 1000)
            break
        except BackendFull:
            time.sleep(0.05)
    assert server.keys() == 1
    owner.close()
    assert server.keys() == 0


@needs_server
def test_wrong_password_is_reported(server: Server) -> None:
    with pytest.raises(BackendError, match=r"WRONGPASS|NOAUTH|invalid"):
        new(redis.Redis, url=server.url.replace(server.password, "guess"))


@needs_server
def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("localhost", alternatives=("127.0.0.1",))
    files_of = {"certificate": Path(pair.cert), "key": Path(pair.key)}
    with redis_server(tmp_path / "redis", **files_of) as server:
        checked = f"{server.url}?ssl_ca_certs={authority.ca_file}"
        owner = new(redis.Redis, url=checked)
        body = os.urandom(1 << 20)
        stored = owner.put([memoryview(body)], len(body))
        assert bytes(owner.get(stored.ref, len(body)).view) == body
        owner.close()
        with pytest.raises(OSError, match="certificate"):
            new(redis.Redis, url=server.url)


@needs_server
def test_hanging_server_costs_a_timeout(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        owner = new(redis.Redis, url=server.url, timeout_seconds=0.3)
        server.pause()
        with pytest.raises((OSError, BackendError)):
            owner.put([memoryview(b"x" * 1000)], 1000)
        server.resume()
        owner.put([memoryview(b"x" * 1000)], 1000)  # works again when the server responds
        owner.close()


# direct


def test_ranges_are_compressed_if_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, reader = new(direct.Direct), new(direct.Direct, compression=True)
    sent: list[int] = []
    real = direct._compressed

    def compressed(chunk: memoryview) -> bytes | None:
        made = real(chunk)
        sent.append(len(made or chunk))
        return made

    monkeypatch.setattr(direct, "_compressed", compressed)
    monkeypatch.setattr(direct, "RANGE_NBYTES_MIN", 1 << 20)
    plain = b"all alike " * 1_000_000
    stored = owner.put([memoryview(plain)], len(plain))
    assert bytes(reader.get(stored.ref, len(plain)).view) == plain
    assert sum(sent) < len(plain) / 10
    sent.clear()
    mixed = os.urandom(1 << 20)
    assert not owner.put([memoryview(mixed)], len(mixed)).ref["compressible"]
    assert bytes(reader.get(stored.ref, len(plain)).view) == plain
    for backend in (owner, reader):
        backend.close()


def test_unauthorized_peers_get_nothing() -> None:
    owner, reader = new(direct.Direct), new(direct.Direct)
    stored = owner.put([memoryview(b"secret" * 1000)], 6000)
    with pytest.raises(ValueGone):
        reader.get({**stored.ref, "ticket": secrets.token_bytes(32)}, 6000)
    assert bytes(reader.get(stored.ref, 6000).view[:6]) == b"secret"
    for backend in (owner, reader):
        backend.close()


def accept_fails(monkeypatch: pytest.MonkeyPatch, *errors: OSError) -> list[OSError]:
    """Let the next calls of `accept` raise `errors`. Return those that are left."""
    left, real = list(errors), socket.socket.accept

    def accept(self: socket.socket) -> object:
        if left:
            raise left.pop(0)
        return real(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    return left


def test_connections_are_served_while_none_can_be_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct, "ACCEPT_AGAIN_SECONDS", 60)
    owner, reader = new(direct.Direct), new(direct.Direct, timeout_seconds=5)
    stored = owner.put([memoryview(b"value")], 5)
    reader.get(stored.ref, 5)
    gave_up, full = BlockingIOError(), OSError(errno.EMFILE, "Too many open files")
    left = accept_fails(monkeypatch, gave_up, full)
    with socket.create_connection(owner._listener.getsockname()):
        while left:
            time.sleep(0.001)
        assert bytes(reader.get(stored.ref, 5).view) == b"value"
    for backend in (owner, reader):
        backend.close()


def test_connections_are_accepted_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "ACCEPT_AGAIN_SECONDS", 0.01)
    owner, reader = new(direct.Direct), new(direct.Direct, timeout_seconds=5)
    stored = owner.put([memoryview(b"value")], 5)
    full = OSError(errno.EMFILE, "Too many open files")
    accept_fails(monkeypatch, full, full)
    assert bytes(reader.get(stored.ref, 5).view) == b"value"
    for backend in (owner, reader):
        backend.close()


def test_connection_that_cannot_be_registered_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, reader = new(direct.Direct), new(direct.Direct, timeout_seconds=5)
    stored = owner.put([memoryview(b"value")], 5)
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(owner._selector, "register", Mock(side_effect=full))
        with pytest.raises(OSError):
            reader.get(stored.ref, 5)
    assert not owner._open
    assert bytes(reader.get(stored.ref, 5).view) == b"value"
    for backend in (owner, reader):
        backend.close()


def test_connection_that_cannot_be_served_is_closed() -> None:
    backend = new(direct.Direct)
    backend._serving.shutdown()
    try:
        address = backend._listener.getsockname()
        with socket.create_connection(address, timeout=10) as connection:
            connection.send(b"x")
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    finally:
        backend.close()


@pytest.mark.parametrize("selector", [selectors.DefaultSelector, selectors.SelectSelector])
def test_idle_connections_occupy_no_thread(
    monkeypatch: pytest.MonkeyPatch, selector: type[selectors.BaseSelector]
) -> None:
    monkeypatch.setattr(direct.selectors, "DefaultSelector", selector)
    monkeypatch.setattr(direct, "SERVED_MAX", 1)
    owner = new(direct.Direct)
    readers = [new(direct.Direct, timeout_seconds=5) for _ in range(3)]
    stored = owner.put([memoryview(b"value")], 5)
    for reader in [*readers, *reversed(readers)]:
        assert bytes(reader.get(stored.ref, 5).view) == b"value"
        assert len(reader._idle_connections) == 1
    for backend in (owner, *readers):
        backend.close()


def test_silent_connections_are_closed() -> None:
    backend = new(direct.Direct, timeout_seconds=0.1)
    try:
        address = backend._listener.getsockname()
        with socket.create_connection(address, timeout=10) as connection:
            assert connection.recv(1) == b""
        assert not backend._open
    finally:
        backend.close()


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = new(files.Files, directory=str(tmp_path), limit_nbytes=10_000)
    stored = mine.put([memoryview(b"x" * 9000)], 9000)
    assert not mine.capacity().holds(2000)
    mine.delete(stored.ref)
    assert mine.capacity().holds(2000)

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="No space"):
        mine.put([memoryview(b"x" * 100)], 100)
    monkeypatch.undo()
    mine.close()
    assert list(tmp_path.iterdir()) == []
    shutil.rmtree(tmp_path)


def test_direct_uses_the_clusters_tls() -> None:
    from distributed import Security

    security = Security.temporary()
    owner, reader = (direct.Direct(BackendContext("w", security=security)) for _ in range(2))
    body = os.urandom(1 << 20)
    stored = owner.put([memoryview(body)], len(body))
    assert owner.place() == "tls"
    for _ in range(2):
        assert bytes(reader.get(stored.ref, len(body)).view) == body
        assert len(reader._idle_connections) == 1
    plain = new(direct.Direct, timeout_seconds=2)
    with pytest.raises((OSError, BackendError)):
        plain.get(stored.ref, len(body))
    large = bytearray(32 << 20)
    ref = owner.put([memoryview(large)], len(large)).ref
    with reader._connect((ref["host"], ref["port"])) as connection:
        connection.sendall(direct.REQUEST.pack(ref["ticket"], 0, len(large), False))
        assert connection.recv(1)
        owner.close()
        for thread in owner._serving._threads:
            thread.join(5)
            assert not thread.is_alive(), "the answer goes on"
    for backend in (reader, plain):
        backend.close()


@pytest.fixture
def vm() -> Iterator[process_vm.ProcessVM]:
    try:
        backend = new(process_vm.ProcessVM)
    except BackendError as error:
        pytest.skip(str(error))
    yield backend
    backend.close()


def test_values_of_same_host_are_read_in_any_parts(vm: process_vm.ProcessVM) -> None:
    pieces = [b"a" * 10, b"", b"b" * 100_000, b"c" * (5 << 20)]
    whole = b"".join(pieces)
    stored = vm.put([memoryview(piece) for piece in pieces], len(whole))
    source = vm.source(stored.ref, len(whole))
    for begin, size in [
        (0, 0),
        (0, 5),
        (5, 50),
        (9, 1),
        (10, 100_000),
        (0, len(whole)),
        (len(whole) - 3, 3),
    ]:
        view = bytearray(size)
        source.read_into(begin, memoryview(view))
        assert view == whole[begin : begin + size]
    with pytest.raises(BackendError, match="do not make up"):
        source.read_into(len(whole) - 3, memoryview(bytearray(4)))
    vm.delete(stored.ref)
    with pytest.raises(ValueGone):
        source.read_into(0, memoryview(bytearray(5)))
