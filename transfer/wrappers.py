"""Wrappers of ``get_data`` and ``get_data_from_worker`` of stock Dask.

Stock code still sends the requests, limits, counts, retries and acknowledges them. The receiver
adds one key to a request that names the backends it can read. A worker without the transfer has no
such key and replies as usual. A worker with it replaces values in its reply by *stubs*. The
receiver resolves the stubs before stock code sees the reply, and acknowledges it afterwards, so a
stored value exists until it was read. Values that cannot be fetched are requested again without
the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from .published import PublishedValue
from .worker_transfer import CAPABILITIES, SHM_CACHE, SHM_CACHE_BACKEND, VERSION, WorkerTransfer

#: Field of the reply with the stubs: ``[[key, stub], ...]``.
STUBS = "paceline-transfer"
FAILED = "paceline-transfer-failed"
#: Attribute of a worker's connection pool with its transfer.
POOL_ATTRIBUTE = "paceline_transfer"
#: Seconds between retries, as in stock.
BUSY_SECONDS = 0.15

Key = Hashable


class _Wrapper:
    """An object with the attributes of the object that it wraps."""

    def __init__(self, wrapped: Any, transfer: WorkerTransfer) -> None:
        self.wrapped = wrapped
        self._transfer = transfer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


class SubstitutingComm(_Wrapper):
    """Comm for stock's ``get_data`` that replaces values in the reply by stubs."""

    def __init__(self, comm: Any, transfer: WorkerTransfer, places: Mapping[str, str]) -> None:
        super().__init__(comm, transfer)
        self._places = places
        self._used: list[PublishedValue] = []

    async def write(self, message: Any, **options: Any) -> Any:
        if isinstance(message, dict) and message.get("status") == "OK" and message.get("data"):
            transfer = self._transfer
            plain, stubs, self._used = await transfer.substitute(message["data"], self._places)
            if stubs:
                message = {**message, "data": plain, STUBS: stubs}
            near = transfer.health.places.get(SHM_CACHE_BACKEND)
            if transfer.shm_cache is not None and self._places.get(SHM_CACHE_BACKEND) == near:
                transfer.shm_cache.allow_puts(len(plain))
                for key in plain:
                    transfer.offer(key)
                if SHM_CACHE in self._places:
                    message = {**message, SHM_CACHE: transfer.shm_cache.ref}
        return await self.wrapped.write(message, **options)

    def release(self) -> None:
        """Release the stored values: the reply was acknowledged, or never will be."""
        used, self._used = self._used, []
        for published_value in used:
            self._transfer.published.remove_user(published_value)


class ResolvingComm(_Wrapper):
    """Comm for stock's ``get_data_from_worker`` that resolves the stubs in the reply."""

    def __init__(self, comm: Any, transfer: WorkerTransfer, address: str) -> None:
        super().__init__(comm, transfer)
        self._address = address

    async def read(self, **options: Any) -> Any:
        message = await self.wrapped.read(**options)
        if isinstance(message, dict) and SHM_CACHE in message:
            self._transfer.register_peer(self._address, message.pop(SHM_CACHE))
        if isinstance(message, dict) and STUBS in message:
            values, failed = await self._transfer.resolve_stubs(message.pop(STUBS))
            message["data"] = {**message["data"], **values}
            message[FAILED] = failed
        return message


class ResolvingPool(_Wrapper):
    """Connection pool for stock's ``get_data_from_worker`` that returns resolving comms."""

    async def connect(self, address: str, **options: Any) -> ResolvingComm:
        return ResolvingComm(
            await self.wrapped.connect(address, **options), self._transfer, address
        )

    def reuse(self, address: str, comm: ResolvingComm) -> Any:
        return self.wrapped.reuse(address, comm.wrapped)


def wrap_get_data(transfer: WorkerTransfer, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``get_data`` handler that wraps ``stock``."""

    async def get_data(
        comm: Any, keys: Collection[Key], who: str | None = None, serializers: Any = None
    ) -> Any:
        """See ``distributed.worker.Worker.get_data``."""
        requested = [key for key in keys if not _is_capability_key(key)]
        capability: Any = next((key for key in keys if _is_capability_key(key)), None)
        places = capability[2] if capability is not None and capability[1] == VERSION else None
        if places is not None and not places:
            for key in requested:  # the receiver could not read the stored values
                transfer.published.drop(key)
        if not places or serializers is not None:
            return await stock(comm, keys=requested, who=who, serializers=serializers)
        substituting = SubstitutingComm(comm, transfer, dict(places))
        try:
            return await stock(substituting, keys=requested, who=who, serializers=serializers)
        finally:
            substituting.release()

    return get_data


def _is_capability_key(key: Key) -> bool:
    return isinstance(key, tuple) and len(key) == 3 and key[0] == CAPABILITIES


def wrap_get_data_from_worker(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of ``stock`` that changes requests over pools with a transfer only."""

    async def get_data_from_worker(
        rpc: Any, keys: Collection[Key], worker: str, **options: Any
    ) -> Any:
        """See ``distributed.worker.get_data_from_worker``."""
        transfer: WorkerTransfer | None = getattr(rpc, POOL_ATTRIBUTE, None)
        capability = transfer.capability_key(worker) if transfer is not None else None
        custom = options.get("serializers") or options.get("deserializers")
        if transfer is None or capability is None or custom:
            return await stock(rpc, keys, worker, **options)
        found = transfer.cached_values(keys, worker)
        left = [key for key in keys if key not in found]
        if not left:
            return {"status": "OK", "data": found}
        response = await stock(ResolvingPool(rpc, transfer), [*left, capability], worker, **options)
        if response["status"] == "OK":
            response["data"].update(found)
        again = response.pop(FAILED, None)
        while again:
            more = await stock(rpc, [*again, (CAPABILITIES, VERSION, ())], worker, **options)
            if more["status"] == "OK":
                response["data"].update(more["data"])
                break
            await asyncio.sleep(BUSY_SECONDS)  # without limit, as in stock
        return response

    get_data_from_worker.paceline_stock = stock  # type: ignore[attr-defined]
    return get_data_from_worker
