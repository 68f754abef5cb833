"""What lies above the seam: peers, the driver, the table of requests, the pool, the compilers, put together.

Must not know: sockets (``transport.py``), options and files (``scheduler.py``).
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from paceline.protocol import messages as m
from paceline.protocol.catalogue import TABLES
from paceline.protocol.codec import OddMessage, UnknownMessage
from paceline.protocol.handshake import local_offer
from paceline.protocol.messages.extension_rpc import AmmHandler
from paceline.scheduler.core import stimuli
from paceline.scheduler.extensions.replies import ErrorReply
from paceline.workers_compat import memory_policies, shuffle, transfer_choice
from paceline.workers_compat.facade import SchedulerFacade
from paceline.workers_compat.scalars import close_value, read_scalar
from paceline.workers_compat.security import Tls
from paceline.workers_compat.shared_secret import CONNECTOR, LISTENER, Secret

from .carriers import carriers
from .checks import connection_factory
from .driver import CoreFailure, Driver
from .flows import replicate
from .inbound import Inbound
from .peers import Handshaking, Peer
from .pool import Outgoing, Pool
from .rpc import build_handlers
from .rpc.registration import worker_address
from .seam import PeerFacts
from .transport import Transport

if TYPE_CHECKING:
    from paceline.scheduler.core.core import SchedulerCore

    from .children import Compilers
    from .flows.registry import FlowState
    from .gc_policy import GcPolicy
    from .journal import JournalWriter

logger = logging.getLogger("distributed.scheduler")

#: What those who dial us are offered. Stock peers do not look at the second encoding.
OFFER: Mapping[str, Any] = MappingProxyType(local_offer(in_place=True))


class Server:
    """Serves peers. Implements ``SeamSink`` towards the transport and ``ServerPort`` towards ``rpc/`` and ``flows/``.

    Attributes:
        core, state, driver, transport, pool, compilers: its parts.
        scheduler: the ``Scheduler`` object that owns it.
        peers: connection number -> Peer.
        handlers: message class -> handler of an RPC request.
        secret: what peers must prove to know; None for nothing.
        core_types: message classes that the core or an extension handles.
        validate: check everything.
        flows: what flows keep between requests.
        plugins: scheduler plugins, and the facade.
    """

    def __init__(
        self,
        core: SchedulerCore,
        scheduler: Any,
        *,
        compilers: Compilers,
        flows: FlowState,
        blocked_handlers: frozenset[str] = frozenset(),
        gc_policy: GcPolicy | None = None,
        journal: JournalWriter | None = None,
        tls: Tls | None = None,
        secret: Secret | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.core = core
        self.state = core.state
        self.scheduler = scheduler
        self.flows = flows
        self.plugins: Any = SchedulerFacade(self, scheduler).plugin_host
        self.validate = core.state.validate
        self.driver = Driver(
            core, close_scheduler=self._close_scheduler, gc_policy=gc_policy, journal=journal
        )
        self.driver.instructions[stimuli.RestartWorkers] = self._restart_silent
        self.driver.record_sinks.append(self.plugins.on_records)
        self.plugins.writes = self.driver.writes
        self.secret = secret
        tls = tls or Tls()
        self.transport = Transport(self, carriers=carriers(tls), require_encryption=tls.required)
        self.pool = Pool(self)
        self.compilers = compilers
        self.handlers = build_handlers()
        self.asked: defaultdict[type[Any], int] = defaultdict(int)  # requests by type, for a page
        shuffle.SleepingShufflePlugin(self.plugins)
        flows.worker_plugins[shuffle.NAME] = shuffle.worker_plugin()
        flows.worker_plugins.update(transfer_choice.worker_plugins())
        self._block(blocked_handlers)
        self.core_types = frozenset(core.handlers)
        self.peers: dict[int, Peer] = {}
        self._new_connection = connection_factory()
        self._last_graph_id = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    # SeamSink

    def opened(self, number: int, facts: PeerFacts) -> None:
        """See ``transport.SeamSink``."""
        connection = self._new_connection(
            "connector" if facts.outgoing else "listener",
            offer=self._offer(facts.outgoing),
            same_host=facts.same_host,
            read_scalar=read_scalar,
            close_value=close_value,
        )
        peer = self.peers[number] = Peer(self, number, facts, connection)
        if not facts.outgoing:
            peer.inbound = self._inbound(number)
            self.transport.receive_large_into(number, peer.inbound.allocate)
        peer.mode = Outgoing(peer) if facts.outgoing else Handshaking(peer)
        self.write(number, connection.start())

    def _inbound(self, number: int) -> Inbound:
        """Where large messages of a peer go."""
        return Inbound(
            lambda: self.transport.coming(number),
            self.flows.gather_memory_nbytes,
            self.flows.spool_directory,
            self.spawn,
        )

    def _offer(self, outgoing: bool) -> Mapping[str, Any] | None:
        """What our handshake says otherwise than by default."""
        offer = None if outgoing else OFFER
        if self.secret is None:
            return offer
        return {**(offer or {}), **self.secret.proof(CONNECTOR if outgoing else LISTENER)}

    def frames_in(self, number: int, sequence: int, messages: list[Any]) -> None:
        """See ``transport.SeamSink``."""
        peer = self.peers.get(number)
        if peer is None:
            return
        try:
            peer.frames_in(messages)
        except Exception:
            logger.exception("Internal error while reading from %s", peer.address)
            self.transport.abort(number, "internal error")

    def paused(self, number: int) -> None:
        """See ``transport.SeamSink``."""
        peer = self.peers.get(number)
        if peer is not None:
            peer.mode.paused()

    def resumed(self, number: int) -> None:
        """See ``transport.SeamSink``."""
        peer = self.peers.get(number)
        if peer is not None:
            peer.mode.resumed()

    def closed(self, number: int, reason: str) -> None:
        """See ``transport.SeamSink``."""
        peer = self.peers.pop(number, None)
        if peer is not None:
            peer.closed = True
            if peer.inbound is not None:
                peer.inbound.close()
            peer.mode.closed(reason)

    def write(self, number: int, frames: Any) -> None:
        """Write one message."""
        self.transport.write(number, frames)

    # ServerPort

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.driver.clock()

    def tell(self, message: Any, source: str = "", stimulus_id: str | None = None) -> None:
        """See ``rpc.base.ServerPort``."""
        self.driver.feed(message, source, stimulus_id)

    def ask(
        self, message: Any, source: str = "", stimulus_id: str | None = None
    ) -> asyncio.Future[Any]:
        """See ``rpc.base.ServerPort``."""
        future: asyncio.Future[Any] = self.loop.create_future()

        def reply(value: Any) -> None:
            if future.done():
                return
            if isinstance(value, CoreFailure):
                future.set_exception(value)
            elif type(value) is ErrorReply:
                future.set_exception(_exception(value))
            else:
                future.set_result(value)

        request_id = self.driver.request(message, reply, source, stimulus_id)

        def done(ended: asyncio.Future[Any]) -> None:
            if ended.cancelled():
                self.driver.request_gone(request_id)

        future.add_done_callback(done)
        return future

    async def rpc_call(
        self, address: str, request: Any, timeout: float | None = None, **options: Any
    ) -> Any:
        """See ``rpc.base.ServerPort`` and ``flows.ports.FlowServer``."""
        return await self.pool.call(address, request, timeout, **options)

    async def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """See ``rpc.base.ServerPort``."""
        return await self.driver.wait_for(predicate, timeout)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """See ``rpc.base.ServerPort``."""
        task = self.loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_done)
        return task

    def _spawned_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("Error in %s", task.get_name(), exc_info=task.exception())

    # for peers

    def next_graph_id(self) -> int:
        """A number that no graph of this scheduler had."""
        self._last_graph_id += 1
        return self._last_graph_id

    def op_name(self, message: Any) -> str:
        """The op of a message, for people."""
        if isinstance(message, OddMessage | UnknownMessage):
            return str(message.op)
        if isinstance(message, dict):
            return str(message.get("op"))
        return str(type(message).__struct_config__.tag)

    def unserved(self, message: Any) -> Any:
        """The reply to a request that has no handler.

        Raises:
            Exception: becomes the reply.
        """
        if isinstance(message, OddMessage):
            raise TypeError(f"{message.op}: {message.path}: {message.error}")
        if type(message) in self.core_types:
            return self.ask(message, getattr(message, "client", None) or "")
        op = self.op_name(message)
        if isinstance(message, UnknownMessage) and self.plugins.serves(op):
            return self.plugins.answer(op, message.raw)
        if isinstance(message, UnknownMessage) and op not in TABLES["scheduler_rpc"]:
            logger.warning("No handler %s found in Scheduler", op)
            return None
        raise ValueError(f"paceline does not serve the op {op!r} yet")

    def _block(self, ops: frozenset[str]) -> None:
        """Requests that the configuration forbids fail."""

        def blocked(server: Any, message: Any, peer: Any) -> Any:
            raise ValueError(
                f"The '{self.op_name(message)}' handler has been explicitly disallowed "
                "in Scheduler, possibly due to security concerns."
            )

        for message_type in self.handlers:
            if message_type.__struct_config__.tag in ops:  # type: ignore[attr-defined]
                self.handlers[message_type] = blocked

    def route_streams(self, to_core: frozenset[type]) -> None:
        """Classes of messages that streams hand to the core; what plugins take over is not among them."""
        self.core_types = to_core
        for streams in (self.driver.worker_streams, self.driver.client_streams):
            for stream in streams.values():
                stream.route(to_core)

    def _restart_silent(self, instruction: stimuli.RestartWorkers) -> None:
        """Workers went silent: their nannies start them again, or they are removed."""
        from .flows.restart import restart_workers

        flow = restart_workers(
            self, instruction.addresses, wait_for_workers=False, on_error="return"
        )
        self.spawn(flow, "restart of silent workers")

    def _close_scheduler(self, reason: str) -> None:
        self.spawn(self.scheduler.close(reason=reason), "close")

    def start_memory_manager(self) -> None:
        """Copies that nobody needs any more are dropped from now on, where the configuration says so."""
        if memory_policies.are_custom():
            memory_policies.start(self.plugins.facade)
        elif self.state.config.amm_start:
            self.tell(AmmHandler(method="start"))

    async def profile_metadata(self, **options: Any) -> dict[str, Any]:
        """See ``flows.diagnostics.profile_metadata``."""
        from .flows.diagnostics import profile_metadata

        return await profile_metadata(self, **options)

    def worker_address(self, name: Any, resolve: bool = True) -> str:
        """See ``rpc.registration.worker_address``."""
        return worker_address(self, name, resolve)

    async def gather_on_worker(self, address: str, who_has: Mapping[Any, list[str]]) -> set[Any]:
        """See ``flows.replicate.gather_on_worker``."""
        return await replicate.gather_on_worker(self, address, who_has)

    async def delete_worker_data(self, address: str, keys: list[Any], stimulus_id: str) -> None:
        """See ``flows.replicate.delete_worker_data``."""
        await replicate.delete_worker_data(self, address, keys, stimulus_id)

    async def before_close(self) -> None:
        """The scheduler is about to close; everything still works."""
        await self.plugins_end("before_close")

    async def plugins_end(self, hook: str) -> None:
        """Wait for what plugins do at the end; their errors are theirs."""
        for error in await asyncio.gather(*self.plugins.closing(hook), return_exceptions=True):
            if isinstance(error, Exception):
                logger.error("The hook %s of a scheduler plugin failed", hook, exc_info=error)

    def part_from_all(self) -> None:
        """Tell workers to close; nobody's stream is a stream any more."""
        for stream in list(self.driver.worker_streams.values()):
            stream.send([m.Close(reason="scheduler-close"), m.CloseStream()])
            stream.close_when_written()
        for stream in list(self.driver.client_streams.values()):
            stream.close_when_written()

    async def stop(self) -> None:
        """End flows, compilers, connections of our own; what gathered goes out."""
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self.plugins.facade.close()
        self.pool.close()
        await self.compilers.stop()
        self.driver.close()
        self.flows.close()


def _exception(reply: ErrorReply) -> Exception:
    """The exception that an extension's refusal stands for."""
    kind = getattr(builtins, reply.kind, RuntimeError)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    return kind(reply.text) if reply.text else kind()
