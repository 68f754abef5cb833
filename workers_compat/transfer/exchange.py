"""Both ends of a fetch. Stock's own code does all of it but for the values: it answers, counts, limits, retries and acknowledges.

The asker adds to the keys it asks for one that nobody has, in which it says what it can read; a worker without the transfer finds no
such key and answers as ever. The worker that is asked replaces in its answer the values that a back end carries better by *stubs*; the
asker replaces the stubs by values before stock's code sees the answer, and acknowledges after that, so that what a stub names stays
until it was read. A value that cannot be had so is asked for once more, without the extra key.

Small results of neighbours stand on their shelves (``shelf.py``), where the asker finds them without asking.

Must not know: back ends' insides, how the plugin came here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from distributed.protocol.serialize import Serialize

from .backend import Backend, BackendError, BackendFull, Fetched
from .encoding import Encoded, Layout, Unsuitable, decode, decode_from, encode
from .health import Health
from .holdings import Holding, Holdings
from .settings import ANNOTATION, Settings
from .shelf import VALUE_NBYTES_MAX, Neighbours, Shelf, room_for

logger = logging.getLogger("distributed.worker.transfer")

ASKS = "__paceline-transfer__"
"""First word of the key in which an asker says what it reads."""
STUBS = "paceline-transfer"
"""Where the answer has its stubs: ``[[key, stub], ...]``."""
FAILED = "paceline-transfer-failed"
SHELF = "paceline-transfer-shelf"
"""Where the answer says which shelf its worker has; as the name of a place it says that the asker wants to know."""
SHELF_OF = "shm"
"""The back end that a shelf belongs to: where it is not chosen, nothing stands on shelves."""
VERSION = 1
MADE_ROOM_MAX = 64
"""So many values are let go, at most, to make room for one."""
BUSY_SECONDS = 0.15  # as stock waits
IN_PLACE_SHARE = 0.75
"""A worker uses what it put in place of its own copy where at least this part of it is used where it lies."""
THREADS = 4
SCRATCH_NBYTES = 32 << 20
"""Memory that a worker keeps for reading values of which nothing is used where it lies."""

Key = Hashable


class _Putting:
    """A value that is being put.

    Attributes:
        task: gives its holding.
        waiting: how many answers wait for it.
    """

    def __init__(self) -> None:
        self.task: Any = None
        self.waiting = 0


class Exchange:
    """One worker's part.

    Args:
        worker: the stock worker.
        settings, health: see there.
    """

    def __init__(self, worker: Any, settings: Settings, health: Health) -> None:
        self.worker = worker
        self.settings = settings
        self.health = health
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="Transfer")
        self.holdings = Holdings(self._end)
        self.neighbours = Neighbours()
        self.shelf = self._own_shelf()
        self._scratch: memoryview | None = None
        self._scratch_lock = threading.Lock()
        self._copying: Collection[Key] = ()
        self._putting: dict[Any, _Putting] = {}  # as many as are asked for at once

    # asking

    def announcement(self, address: str) -> tuple[Any, ...] | None:
        """The key that nobody has, for a question to this worker."""
        places = self.health.announced()
        if SHELF_OF in self.health.places and address not in self.neighbours:
            places = (*places, (SHELF, self.health.places[SHELF_OF]))
        return (ASKS, VERSION, places) if places else None

    def found(self, keys: Collection[Key], address: str) -> dict[Key, Any]:
        """Those values that stand on the shelf of the worker that is to be asked, or of another that has them."""
        values: dict[Key, Any] = {}
        for key in keys:
            ts = self.worker.state.tasks.get(key)
            holders = ts.who_has if ts is not None else ()
            others = (other for other in holders if other != address)
            there, value = self.neighbours.first(key, (address, *others))
            if there:
                values[key] = value
        return values

    def meet(self, address: str, ref: Mapping[str, Any]) -> None:
        """A worker said which shelf it has."""
        try:
            self.neighbours.learn(address, ref)
        except (BackendError, OSError) as error:
            logger.debug("the shelf of %s cannot be looked at: %s", address, error)

    async def take(self, stubs: Any) -> tuple[dict[Key, Any], list[Key]]:
        """The values that stubs name, and the keys of those that could not be had."""
        values: dict[Key, Any] = {}
        wanted = [(key, stub, self.health.usable(stub["by"])) for key, stub in stubs]
        working = [(key, stub, backend) for key, stub, backend in wanted if backend is not None]
        jobs = [self._run(by, stub["size"], self._get, by, stub) for _, stub, by in working]
        done = await asyncio.gather(*jobs, return_exceptions=True)
        for (key, stub, backend), got in zip(working, done):
            if isinstance(got, tuple):
                values[key] = got[0]
                self._pass_on(key, *got, stub, backend)
            elif not isinstance(got, Unsuitable):
                logger.warning("a value of %r is asked for Dask's own way", key, exc_info=got)
        return values, [key for key, _, _ in wanted if key not in values]

    def _get(self, backend: Backend, stub: Mapping[str, Any]) -> tuple[Any, Fetched]:
        layout = Layout(stub["pickle"], tuple(stub["buffers"]))
        try:
            source = backend.source(stub["ref"], layout.size_nbytes)
            if source is not None:
                fetched = Fetched(memoryview(b""))  # nothing that could be passed on
                value = decode_from(source.read_into, layout)
            elif layout.buffer_sizes or layout.size_nbytes > SCRATCH_NBYTES:
                fetched = backend.get(stub["ref"], layout.size_nbytes)
                value = decode(fetched.view, layout)
            else:  # all of it is copied out: memory that is there is cheaper than fresh one
                with self._scratch_lock:
                    into = self._scratch_of(layout.size_nbytes)
                    fetched = backend.get(stub["ref"], layout.size_nbytes, into)
                    value = decode(fetched.view, layout)
        except (BackendError, OSError) as error:
            self.health.failed(backend.name, "get a value", error)
            raise Unsuitable(str(error)) from error
        except Exception as error:  # Dask's own way then says what is wrong with the value
            raise Unsuitable(f"cannot be opened: {error}") from error
        self.health.worked(backend.name)
        return value, fetched

    def _scratch_of(self, size_nbytes: int) -> memoryview:
        if self._scratch is None:
            self._scratch = memoryview(bytearray(SCRATCH_NBYTES))
        return self._scratch[:size_nbytes]

    def _pass_on(
        self, key: Key, value: Any, fetched: Fetched, stub: Mapping[str, Any], backend: Backend
    ) -> None:
        """Who asks this worker next gets the very same bytes, if the back end can do that."""
        layout = Layout(stub["pickle"], tuple(stub["buffers"]))
        if fetched.ref is not None and layout.mapped_share >= IN_PLACE_SHARE:
            holding = Holding(backend, fetched.ref, layout, id(value), owned=False)
            self.holdings.keep(key, holding, fetched.view.obj)

    # answering

    def _own_shelf(self) -> Shelf | None:
        if SHELF_OF not in self.health.backends or not hasattr(os, "pidfd_open"):
            return None
        wanted = self.settings.options.get(SHELF_OF, {}).get("shelf_nbytes")
        room = room_for(self.worker.memory_manager.memory_limit or 0, wanted)
        try:
            return Shelf(room) if room >= VALUE_NBYTES_MAX else None
        except OSError as error:
            logger.debug("no shelf: %s", error)
            return None

    def made(self, key: Key) -> None:
        """This worker made a value: it is offered where such are taken."""
        if self.shelf is not None and key not in self._copying and self.shelf.spend():
            self.offer(key)

    @contextmanager
    def copying(self, keys: Collection[Key]) -> Iterator[None]:
        """While this lasts, what comes to memory under these keys is not made here: others have it on their shelves."""
        self._copying = keys
        try:
            yield
        finally:
            self._copying = ()

    def offer(self, key: Key) -> None:
        """Put a small value that this worker has on its shelf, unless it stands there."""
        ts = self.worker.state.tasks.get(key)
        if self.shelf is None or ts is None or not ts.nbytes or key in self.shelf:
            return
        fast = _in_memory(self.worker.data)
        if ts.nbytes > VALUE_NBYTES_MAX or key not in fast:
            return
        annotated = (ts.annotations or {}).get(ANNOTATION)
        if ts.nbytes < (self.settings.min_nbytes or 0) and annotated is None:
            return
        value = fast[key]
        if SHELF_OF not in self.settings.order(key, type(value), ts.nbytes, annotated):
            return
        with suppress(Unsuitable):
            encoded = encode(value)
            if encoded.layout.size_nbytes <= VALUE_NBYTES_MAX:
                self.shelf.put(key, encoded)

    def let_go(self, key: Key) -> None:
        """Dask freed a key, or moved it away: it stands nowhere any more."""
        self.holdings.drop(key)
        if self.shelf is not None:
            self.shelf.drop(key)

    async def substitute(
        self, data: Mapping[Key, Any], places: Mapping[str, str]
    ) -> tuple[dict[Key, Any], list[Any], list[Holding]]:
        """Which values go as they are, the stubs of the others, and what must stay until they were read."""
        plain = dict(data)
        jobs: list[tuple[Key, Awaitable[Holding]]] = []
        for key, wrapped in data.items():
            backends = self._choose(key, wrapped, places)
            if backends:
                jobs.append((key, self._holding(key, wrapped.data, backends)))
        stubs, used = [], []
        done = await asyncio.gather(*(job for _, job in jobs), return_exceptions=True)
        for (key, _), holding in zip(jobs, done):
            if not isinstance(holding, Holding):
                if not isinstance(holding, Unsuitable):
                    logger.warning("a value of %r goes Dask's own way", key, exc_info=holding)
                continue
            used.append(holding)
            layout = holding.layout
            stub = {
                "by": holding.backend.name,
                "ref": holding.ref,
                "size": layout.size_nbytes,
                "pickle": layout.pickle_nbytes,
                "buffers": list(layout.buffer_sizes),
            }
            stubs.append([key, stub])
            del plain[key]
        return plain, stubs, used

    async def _holding(self, key: Key, value: Any, backends: list[Backend]) -> Holding:
        """Where the value lies already, or is put now; used once more."""
        # since the answer took it, it may have been put for another asker, and be used where it lies now
        value = _in_memory(self.worker.data).get(key, value)
        holding = self._found(key, value, backends)
        if holding is None:
            return await self._once(key, value, backends)
        self.holdings.use(holding)
        return holding

    async def _once(self, key: Key, value: Any, backends: list[Backend]) -> Holding:
        """A holding of the value, used once more; who asks while it is being put waits for the same."""
        place = (key, id(value), backends[0].name)
        putting = self._putting.get(place)
        if putting is None:
            putting = self._putting[place] = _Putting()
            putting.task = asyncio.ensure_future(self._put_once(putting, place, value, backends))
        putting.waiting += 1
        try:
            return await asyncio.shield(putting.task)
        except asyncio.CancelledError:
            if putting.task.done() and not putting.task.exception():
                self.holdings.used(putting.task.result())
            else:
                putting.waiting -= 1
            raise

    async def _put_once(
        self, putting: _Putting, place: Any, value: Any, backends: list[Backend]
    ) -> Holding:
        key = place[0]
        size = self.worker.state.tasks[key].nbytes or 0
        try:
            holding, in_place = await self._run(backends[0], size, self._put, backends, value)
        finally:
            self._putting.pop(place, None)
        self.holdings.use(holding)
        self._keep(key, value, holding, in_place)
        for _ in range(putting.waiting):
            self.holdings.use(holding)
        self.holdings.used(holding)  # ends it where all who waited have gone
        return holding

    def _found(self, key: Key, value: Any, backends: list[Backend]) -> Holding | None:
        """Where the value lies already."""
        for backend in backends:
            if (holding := self.holdings.find(backend.name, key, value)) is not None:
                return holding
        return None

    def _choose(self, key: Key, wrapped: Any, places: Mapping[str, str]) -> list[Backend]:
        """The back ends for a value, best first; none for Dask's own way."""
        ts = self.worker.state.tasks.get(key)
        if ts is None or not ts.nbytes or not isinstance(wrapped, Serialize):
            return []
        if key in self.worker.state.actors:
            return []
        chosen = []
        annotated = (ts.annotations or {}).get(ANNOTATION)
        for name in self.settings.order(key, type(wrapped.data), ts.nbytes, annotated):
            backend = self.health.usable(name)
            if backend is None or places.get(name) != self.health.places.get(name):
                continue
            if ts.nbytes >= backend.worth_nbytes or annotated is not None:
                chosen.append(backend)
        return chosen

    def _put(self, backends: list[Backend], value: Any) -> tuple[Holding, Any]:
        """Put a value with the first back end that takes it; see ``_put_with``."""
        encoded = encode(value)
        refused = Unsuitable("nothing carries it")
        for backend in backends:
            if encoded.layout.mapped_share < backend.mapped_share_min:
                continue
            try:
                return self._put_with(backend, encoded, value)
            except Unsuitable as error:
                refused = error
        raise refused

    def _put_with(self, backend: Backend, encoded: Encoded, value: Any) -> tuple[Holding, Any]:
        """Put a value; gives its holding, and the value as the back end has it where that may replace the worker's own."""
        size = encoded.layout.size_nbytes
        try:
            for _ in range(MADE_ROOM_MAX):
                if backend.capacity().holds(size):
                    break
                oldest = self.holdings.least_recent(backend.name)
                if oldest is None:
                    break
                self._delete(oldest)
            if not backend.capacity().holds(size):
                raise BackendFull(f"no room for {size} bytes")
            stored = backend.put(encoded.pieces, size)
        except (BackendError, OSError) as error:
            self.health.failed(backend.name, "put a value", error)
            raise Unsuitable(str(error)) from error
        self.health.worked(backend.name)
        holding = Holding(backend, stored.ref, encoded.layout, id(value))
        if stored.view is None or encoded.layout.mapped_share < IN_PLACE_SHARE:
            return holding, None
        try:
            return holding, (decode(stored.view, encoded.layout), stored.view.obj)
        except (
            Exception
        ):  # it cannot be opened: the asker will see that too, and ask for it Dask's own way
            return holding, None

    def _keep(self, key: Key, value: Any, holding: Holding, in_place: Any) -> None:
        """Note what was put, and use it in place of the worker's own where that saves memory."""
        data = self.worker.data
        fast = _in_memory(data)
        alive = key in fast and fast[key] is value
        if in_place is not None and alive:
            mapped, mapping = in_place
            data[key] = mapped
            holding.value_id = id(mapped)
            self.holdings.keep(key, holding, mapping)
        elif holding.backend.keeps and key in data:
            self.holdings.keep(key, holding)
        else:
            holding.over = True  # it ends with its last user

    def _end(self, holding: Holding) -> None:
        """Delete in a thread: back ends may take their time."""
        if not holding.owned:
            return
        if holding.backend.inline_nbytes:
            self._delete(holding)
            return
        with suppress(RuntimeError):  # threads are shut: the back end's own close does it
            self.threads.submit(self._delete, holding)

    def _delete(self, holding: Holding) -> None:
        try:
            holding.backend.delete(holding.ref)
        except (BackendError, OSError) as error:
            self.health.failed(holding.backend.name, "delete a value", error)

    async def _run(self, backend: Backend, size: int, call: Callable[..., Any], *args: Any) -> Any:
        """Call here what is small, and in a thread what is not."""
        if size <= backend.inline_nbytes:
            return call(*args)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, call, *args)

    def renew(self) -> None:
        """Once in a while: leases, and what dead workers left."""
        self.neighbours.sweep()
        self.threads.submit(self.health.renew)

    def close(self) -> None:
        self.neighbours.close()
        if self.shelf is not None:
            self.shelf.close()
            self.shelf = None
        self.holdings.clear()
        self.threads.shutdown(wait=True)
        self.health.close()


def _in_memory(data: Any) -> Mapping[Key, Any]:
    """What of a worker's data is not spilled: stock's ``SpillBuffer.fast`` is a mapping of it."""
    fast: Mapping[Key, Any] = getattr(data, "fast", data)
    return fast


class Answering:
    """What stock's ``get_data`` gets in place of its comm: it changes the one answer that passes."""

    def __init__(self, comm: Any, exchange: Exchange, places: Mapping[str, str]) -> None:
        self._comm = comm
        self._exchange = exchange
        self._places = places
        self._used: list[Holding] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    async def write(self, message: Any, **options: Any) -> Any:
        if isinstance(message, dict) and message.get("status") == "OK" and message.get("data"):
            exchange = self._exchange
            plain, stubs, self._used = await exchange.substitute(message["data"], self._places)
            if stubs:
                message = {**message, "data": plain, STUBS: stubs}
            near = exchange.health.places.get(SHELF_OF)
            if exchange.shelf is not None and self._places.get(SHELF_OF) == near:
                exchange.shelf.earn(len(plain))
                for key in plain:
                    exchange.offer(key)
                if SHELF in self._places:
                    message = {**message, SHELF: exchange.shelf.ref}
        return await self._comm.write(message, **options)

    def over(self) -> None:
        """It was acknowledged, or never will be."""
        used, self._used = self._used, []
        for holding in used:
            self._exchange.holdings.used(holding)


class Asking:
    """What stock's ``get_data_from_worker`` gets in place of a comm: it resolves the stubs of the one answer that passes."""

    def __init__(self, comm: Any, exchange: Exchange, address: str) -> None:
        object.__setattr__(self, "comm", comm)
        object.__setattr__(self, "_address", address)
        object.__setattr__(self, "_exchange", exchange)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.comm, name, value)

    async def read(self, **options: Any) -> Any:
        message = await self.comm.read(**options)
        if isinstance(message, dict) and SHELF in message:
            self._exchange.meet(self._address, message.pop(SHELF))
        if isinstance(message, dict) and STUBS in message:
            values, failed = await self._exchange.take(message.pop(STUBS))
            message["data"] = {**message["data"], **values}
            message[FAILED] = failed
        return message


class AskingPool:
    """What stock's ``get_data_from_worker`` gets in place of the worker's pool of connections."""

    def __init__(self, pool: Any, exchange: Exchange) -> None:
        self._pool = pool
        self._exchange = exchange

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    async def connect(self, address: str, **options: Any) -> Asking:
        return Asking(await self._pool.connect(address, **options), self._exchange, address)

    def reuse(self, address: str, comm: Asking) -> Any:
        return self._pool.reuse(address, comm.comm)


def answering(exchange: Exchange, stock: Callable[..., Any]) -> Callable[..., Any]:
    """A handler of ``get_data`` around stock's."""

    async def get_data(
        comm: Any, keys: Collection[Key], who: str | None = None, serializers: Any = None
    ) -> Any:
        """See ``distributed.worker.Worker.get_data``."""
        asked = [key for key in keys if not _asks(key)]
        said = next((key for key in keys if _asks(key)), None)
        if said is not None and said[1] == VERSION and not said[2]:
            for key in asked:  # what was offered could not be had
                exchange.holdings.drop(key)
        if said is None or said[1] != VERSION or not said[2] or serializers is not None:
            return await stock(comm, keys=asked, who=who, serializers=serializers)
        changing = Answering(comm, exchange, dict(said[2]))
        try:
            return await stock(changing, keys=asked, who=who, serializers=serializers)
        finally:
            changing.over()

    return get_data


def _asks(key: Key) -> bool:
    return isinstance(key, tuple) and len(key) == 3 and key[0] == ASKS


def asking(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A ``get_data_from_worker`` around stock's: for pools of connections without an exchange it is stock's."""

    async def get_data_from_worker(
        rpc: Any, keys: Collection[Key], worker: str, **options: Any
    ) -> Any:
        """See ``distributed.worker.get_data_from_worker``."""
        exchange = getattr(rpc, POOL_ATTRIBUTE, None)
        said = exchange.announcement(worker) if exchange is not None else None
        if said is None or options.get("serializers") or options.get("deserializers"):
            return await stock(rpc, keys, worker, **options)
        found = exchange.found(keys, worker)
        left = [key for key in keys if key not in found]
        if not left:
            return {"status": "OK", "data": found}
        response = await stock(AskingPool(rpc, exchange), [*left, said], worker, **options)
        if response["status"] == "OK":
            response["data"].update(found)
        again = response.pop(FAILED, None)
        while again:
            more = await stock(rpc, [*again, (ASKS, VERSION, ())], worker, **options)
            if more["status"] == "OK":
                response["data"].update(more["data"])
                break
            await asyncio.sleep(BUSY_SECONDS)  # for as long as it takes: stock itself does so
        return response

    get_data_from_worker.paceline_stock = stock  # type: ignore[attr-defined]
    return get_data_from_worker


POOL_ATTRIBUTE = "paceline_transfer"
"""Of a worker's pool of connections: its exchange."""
