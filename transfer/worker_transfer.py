"""The transfer of one worker: stores values for other workers, and fetches the values of others.

It is called by the wrappers of stock's functions (``wrappers.py``). Small results are read from the
caches of peers without a request (``shm_cache.py``).
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
from .published import PublishedValue, PublishedValues
from .settings import ANNOTATION, Settings
from .shm_cache import VALUE_NBYTES_MAX, PeerCaches, ShmCache, room_for

logger = logging.getLogger("distributed.worker.transfer")

#: First element of the key that names the backends of the receiver.
CAPABILITIES = "__paceline-transfer__"
#: Field of the reply with the location of the sender's cache. In the capability key, it requests
#: that location.
SHM_CACHE = "paceline-transfer-cache"
#: The backend that must be enabled for caches to be used.
SHM_CACHE_BACKEND = "shm"
VERSION = 1
#: Values deleted at most to make space for another one.
EVICTED_MAX = 64
#: A worker replaces its own copy by the stored one if at least this share is used in place.
IN_PLACE_SHARE = 0.75
THREADS = 4
#: Reused memory for values that are copied on decoding anyway.
SCRATCH_NBYTES = 32 << 20

Key = Hashable


class _Storing:
    """A value that is being stored, and the number of replies that wait for it."""

    def __init__(self) -> None:
        self.task: asyncio.Future[PublishedValue]
        self.waiting = 0


class WorkerTransfer:
    """The transfer of one ``distributed.Worker``."""

    def __init__(self, worker: Any, settings: Settings, health: Health) -> None:
        self.worker = worker
        self.settings = settings
        self.health = health
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="Transfer")
        self.published = PublishedValues(self._end)
        self.peer_caches = PeerCaches()
        self.shm_cache = self._create_cache()
        self._scratch: memoryview | None = None
        self._scratch_lock = threading.Lock()
        self._copying: Collection[Key] = ()
        self._storing: dict[Any, _Storing] = {}  # bounded by concurrent requests

    # receiver

    def capability_key(self, address: str) -> tuple[Any, ...] | None:
        """Return the key that announces this worker's backends to ``address``; None without any."""
        places = self.health.announced()
        if SHM_CACHE_BACKEND in self.health.places and address not in self.peer_caches:
            places = (*places, (SHM_CACHE, self.health.places[SHM_CACHE_BACKEND]))
        return (CAPABILITIES, VERSION, places) if places else None

    def cached_values(self, keys: Collection[Key], address: str) -> dict[Key, Any]:
        """Return the values found in the caches of ``address`` and of other holders."""
        values: dict[Key, Any] = {}
        for key in keys:
            ts = self.worker.state.tasks.get(key)
            holders = ts.who_has if ts is not None else ()
            others = (other for other in holders if other != address)
            found, value = self.peer_caches.first(key, (address, *others))
            if found:
                values[key] = value
        return values

    def register_peer(self, address: str, ref: Mapping[str, Any]) -> None:
        """Open the cache of the worker at ``address``."""
        try:
            self.peer_caches.open(address, ref)
        except (BackendError, OSError) as error:
            logger.debug("Cannot open the cache of %s: %s", address, error)

    async def resolve_stubs(self, stubs: Any) -> tuple[dict[Key, Any], list[Key]]:
        """Return the values of ``stubs``, and the keys of those that could not be fetched."""
        values: dict[Key, Any] = {}
        wanted = [(key, stub, self.health.usable(stub["by"])) for key, stub in stubs]
        working = [(key, stub, backend) for key, stub, backend in wanted if backend is not None]
        jobs = [self._run(by, stub["size"], self._get, by, stub) for _, stub, by in working]
        done = await asyncio.gather(*jobs, return_exceptions=True)
        for (key, stub, backend), got in zip(working, done):
            if isinstance(got, tuple):
                values[key], fetched = got
                self._pass_on(key, values[key], fetched, stub, backend)
            elif not isinstance(got, Unsuitable):
                logger.warning("Failed to fetch %r; using Dask's own transfer", key, exc_info=got)
        return values, [key for key, _, _ in wanted if key not in values]

    def _get(self, backend: Backend, stub: Mapping[str, Any]) -> tuple[Any, Fetched]:
        layout = Layout(stub["pickle"], tuple(stub["buffers"]))
        try:
            source = backend.source(stub["ref"], layout.size_nbytes)
            if source is not None:
                fetched = Fetched(memoryview(b""))  # cannot be passed on
                value = decode_from(source.read_into, layout)
            elif layout.buffer_sizes or layout.size_nbytes > SCRATCH_NBYTES:
                fetched = backend.get(stub["ref"], layout.size_nbytes)
                value = decode(fetched.view, layout)
            else:  # all of it is copied on decoding, and reused memory is cheaper than fresh memory
                with self._scratch_lock:
                    if self._scratch is None:
                        self._scratch = memoryview(bytearray(SCRATCH_NBYTES))
                    into = self._scratch[: layout.size_nbytes]
                    fetched = backend.get(stub["ref"], layout.size_nbytes, into)
                    value = decode(fetched.view, layout)
        except (BackendError, OSError) as error:
            self.health.failed(backend.name, "get a value", error)
            raise Unsuitable(str(error)) from error
        except Exception as error:  # Dask's own transfer then reports the error
            raise Unsuitable(f"cannot be decoded: {error}") from error
        self.health.worked(backend.name)
        return value, fetched

    def _pass_on(
        self, key: Key, value: Any, fetched: Fetched, stub: Mapping[str, Any], backend: Backend
    ) -> None:
        """Publish a fetched value for other workers, if the backend can share the same bytes."""
        layout = Layout(stub["pickle"], tuple(stub["buffers"]))
        if fetched.ref is not None and layout.mapped_share >= IN_PLACE_SHARE:
            published_value = PublishedValue(backend, fetched.ref, layout, id(value), owned=False)
            self.published.keep(key, published_value, fetched.view.obj)

    # sender

    def _create_cache(self) -> ShmCache | None:
        if SHM_CACHE_BACKEND not in self.health.backends or not hasattr(os, "pidfd_open"):
            return None
        wanted = self.settings.options.get(SHM_CACHE_BACKEND, {}).get("cache_nbytes")
        room = room_for(self.worker.memory_manager.memory_limit or 0, wanted)
        try:
            return ShmCache(room) if room >= VALUE_NBYTES_MAX else None
        except OSError as error:
            logger.debug("Cannot create a cache: %s", error)
            return None

    def on_task_finished(self, key: Key) -> None:
        """Offer the result of ``key``, unless it was read from a peer's cache."""
        if self.shm_cache is not None and key not in self._copying and self.shm_cache.may_put():
            self.offer(key)

    @contextmanager
    def copying(self, keys: Collection[Key]) -> Iterator[None]:
        """Mark ``keys`` as copies, so that they are not offered again."""
        self._copying = keys
        try:
            yield
        finally:
            self._copying = ()

    def offer(self, key: Key) -> None:
        """Add the value of ``key`` to the cache, if it is small and not there yet."""
        ts = self.worker.state.tasks.get(key)
        if self.shm_cache is None or ts is None or not ts.nbytes or key in self.shm_cache:
            return
        fast = _in_memory(self.worker.data)
        if ts.nbytes > VALUE_NBYTES_MAX or key not in fast:
            return
        annotated = self._annotated(ts)
        if ts.nbytes < (self.settings.min_nbytes or 0) and annotated is None:
            return
        value = fast[key]
        if SHM_CACHE_BACKEND not in self.settings.order(key, type(value), ts.nbytes, annotated):
            return
        with suppress(Unsuitable):
            encoded = encode(value)
            if encoded.layout.size_nbytes <= VALUE_NBYTES_MAX:
                self.shm_cache.put(key, encoded)

    def on_key_released(self, key: Key) -> None:
        """Remove the published values of ``key``, because Dask freed or moved it."""
        self.published.drop(key)
        if self.shm_cache is not None:
            self.shm_cache.drop(key)

    async def substitute(
        self, data: Mapping[Key, Any], places: Mapping[str, str]
    ) -> tuple[dict[Key, Any], list[Any], list[PublishedValue]]:
        """Return the values to send unchanged, stubs for the others, and what these refer to."""
        plain = dict(data)
        jobs: list[tuple[Key, Awaitable[PublishedValue]]] = []
        for key, wrapped in data.items():
            backends = self._choose(key, wrapped, places)
            if backends:
                jobs.append((key, self._publish(key, wrapped.data, backends)))
        stubs, used = [], []
        done = await asyncio.gather(*(job for _, job in jobs), return_exceptions=True)
        for (key, _), found in zip(jobs, done):
            if isinstance(found, PublishedValue):
                used.append(found)
                stubs.append([key, found.stub()])
                del plain[key]
            elif not isinstance(found, Unsuitable):
                logger.warning("Failed to store %r; using Dask's own transfer", key, exc_info=found)
        return plain, stubs, used

    async def _publish(self, key: Key, value: Any, backends: list[Backend]) -> PublishedValue:
        """Return the published form of ``value``, storing it if needed, with one more use."""
        # the worker's object may have been replaced by the stored one since the reply was built
        value = _in_memory(self.worker.data).get(key, value)
        for backend in backends:
            published_value = self.published.find(backend.name, key, value)
            if published_value is not None:
                self.published.add_user(published_value)
                return published_value
        return await self._once(key, value, backends)

    async def _once(self, key: Key, value: Any, backends: list[Backend]) -> PublishedValue:
        """Store ``value`` once, even if several replies need it at the same time."""
        place = (key, id(value), backends[0].name)
        storing = self._storing.get(place)
        if storing is None:
            storing = self._storing[place] = _Storing()
            storing.task = asyncio.ensure_future(self._put_once(storing, place, value, backends))
        storing.waiting += 1
        try:
            return await asyncio.shield(storing.task)
        except asyncio.CancelledError:
            if storing.task.done() and not storing.task.exception():
                self.published.remove_user(storing.task.result())
            else:
                storing.waiting -= 1
            raise

    async def _put_once(
        self, storing: _Storing, place: Any, value: Any, backends: list[Backend]
    ) -> PublishedValue:
        key = place[0]
        try:
            ts = self.worker.state.tasks.get(key)
            if ts is None:
                raise Unsuitable("it was released meanwhile")
            stored = await self._run(backends[0], ts.nbytes or 0, self._put, backends, value)
        finally:
            del self._storing[place]
        published_value: PublishedValue
        published_value, in_place = stored
        self.published.add_user(published_value)
        self._keep(key, value, published_value, in_place)
        for _ in range(storing.waiting):
            self.published.add_user(published_value)
        self.published.remove_user(published_value)  # ends it if all waiting replies were cancelled
        return published_value

    def _choose(self, key: Key, wrapped: Any, places: Mapping[str, str]) -> list[Backend]:
        """Return the backends for a value in order of preference; empty for Dask's own transfer."""
        ts = self.worker.state.tasks.get(key)
        if ts is None or not ts.nbytes or not isinstance(wrapped, Serialize):
            return []
        if key in self.worker.state.actors:
            return []
        chosen = []
        annotated = self._annotated(ts)
        for name in self.settings.order(key, type(wrapped.data), ts.nbytes, annotated):
            backend = self.health.usable(name)
            if backend is None or places.get(name) != self.health.places.get(name):
                continue
            if ts.nbytes >= backend.min_nbytes or annotated is not None:
                chosen.append(backend)
        return chosen

    def _annotated(self, ts: Any) -> tuple[str, ...] | None:
        """Return the known backends in the annotation of ``ts``.

        Return None if there is no annotation, or if all names in it are unknown.
        """
        annotated = (ts.annotations or {}).get(ANNOTATION)
        if annotated is None:
            return None
        known, unknown = self.settings.split_annotation(annotated)
        for name in unknown:
            self.health.ignored(name)
        return known if known or not unknown else None

    def _put(self, backends: list[Backend], value: Any) -> tuple[PublishedValue, Any]:
        """Store ``value`` with the first backend that accepts it; see ``_put_with``."""
        encoded = encode(value)
        refused = Unsuitable("no backend accepts it")
        for backend in backends:
            if encoded.layout.mapped_share < backend.mapped_share_min:
                continue
            try:
                return self._put_with(backend, encoded, value)
            except Unsuitable as error:
                refused = error
        raise refused

    def _put_with(
        self, backend: Backend, encoded: Encoded, value: Any
    ) -> tuple[PublishedValue, Any]:
        """Store ``value``; return its published form and an object that may replace it."""
        size = encoded.layout.size_nbytes
        try:
            for _ in range(EVICTED_MAX):
                if backend.capacity().holds(size):
                    break
                oldest = self.published.least_recent(backend.name)
                if oldest is None:
                    break
                self._delete(oldest)
            if not backend.capacity().holds(size):
                raise BackendFull(f"no space for {size} bytes")
            stored = backend.put(encoded.pieces, size)
        except (BackendError, OSError) as error:
            self.health.failed(backend.name, "put a value", error)
            raise Unsuitable(str(error)) from error
        self.health.worked(backend.name)
        published_value = PublishedValue(backend, stored.ref, encoded.layout, id(value))
        if stored.view is None or encoded.layout.mapped_share < IN_PLACE_SHARE:
            return published_value, None
        try:
            return published_value, (decode(stored.view, encoded.layout), stored.view.obj)
        except Exception:  # the receiver cannot decode it either, and uses Dask's own transfer
            return published_value, None

    def _keep(self, key: Key, value: Any, published_value: PublishedValue, in_place: Any) -> None:
        """Keep the published value, and use the stored object in place of the worker's own."""
        data = self.worker.data
        fast = _in_memory(data)
        alive = key in fast and fast[key] is value
        if in_place is not None and alive:
            mapped, mapping = in_place
            data[key] = mapped
            published_value.value_id = id(mapped)
            self.published.keep(key, published_value, mapping)
        elif published_value.backend.is_reusable and key in data:
            self.published.keep(key, published_value)
        else:
            published_value.is_dropped = True  # ends with its last use

    def _end(self, published_value: PublishedValue) -> None:
        """Delete the value, in a thread unless the backend is fast."""
        if not published_value.owned:
            return
        if published_value.backend.inline_nbytes:
            self._delete(published_value)
            return
        # if the executor is shut down, closing the backend frees the value
        with suppress(RuntimeError):
            self.threads.submit(self._delete, published_value)

    def _delete(self, published_value: PublishedValue) -> None:
        try:
            published_value.backend.delete(published_value.ref)
        except (BackendError, OSError) as error:
            self.health.failed(published_value.backend.name, "delete a value", error)

    async def _run(self, backend: Backend, size: int, call: Callable[..., Any], *args: Any) -> Any:
        """Call ``call`` directly for small values, else in a thread."""
        if size <= backend.inline_nbytes:
            return call(*args)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, call, *args)

    def renew(self) -> None:
        """Renew leases and clean up after dead workers; called periodically."""
        self.peer_caches.sweep()
        self.threads.submit(self.health.renew)

    def close(self) -> None:
        self.peer_caches.close()
        if self.shm_cache is not None:
            self.shm_cache.close()
            self.shm_cache = None
        self.published.clear()
        self.threads.shutdown(wait=True)
        self.health.close()


def _in_memory(data: Any) -> Mapping[Key, Any]:
    """Return the part of a worker's data that is not spilled (``SpillBuffer.fast``)."""
    fast: Mapping[Key, Any] = getattr(data, "fast", data)
    return fast
