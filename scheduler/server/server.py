"""The server: connections, the driver, request handlers, the pool and graph compilers."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from paceline.protocol import messages as m
from paceline.protocol.framing import HANDSHAKE_LIMITS
from paceline.scheduler.core import instructions
from paceline.scheduler.core.stimuli import ErrorMatched
from paceline.scheduler.server.comm.backends import backends
from paceline.scheduler.server.comm.transport import Comm, Transport
from paceline.scheduler.server.durable.log.recorder import Recorder
from paceline.scheduler.server.peers.connection_factory import ConnectionFactory
from paceline.scheduler.server.peers.outgoing_rpc import OutgoingRpc
from paceline.scheduler.server.peers.peer import HandshakeHandler, Peer
from paceline.scheduler.server.peers.pool import Pool
from paceline.scheduler.server.requests import diagnostics, replicate
from paceline.scheduler.server.requests.handler_parts import worker_address
from paceline.scheduler.server.requests.restart import restart_stuck_worker, restart_workers
from paceline.scheduler.server.runtime.log_limits import LogLimits
from paceline.scheduler.server.runtime.measures import Measures
from paceline.scheduler.server.server_api import ServerApi, op_name
from paceline.workers_compat.config import config
from paceline.workers_compat.facade import stock_plugins
from paceline.workers_compat.facade.plugins import Plugins
from paceline.workers_compat.facade.scheduler_facade import SchedulerFacade
from paceline.workers_compat.graphs.compiler_messages import MatchReply, MatchRequest
from paceline.workers_compat.security.tls_config import Tls

from .driver import Driver
from .requests import build_handlers

if TYPE_CHECKING:
    from paceline.scheduler.core.core import SchedulerCore
    from paceline.scheduler.server.compilers.pool import GraphCompilers
    from paceline.scheduler.server.durable.durability import Durability
    from paceline.scheduler.server.journal.journal import JournalWriter
    from paceline.scheduler.server.requests.state import RequestState
    from paceline.scheduler.server.runtime.gc_policy import GcPolicy
    from paceline.scheduler.server.server_api import Handler, OwningScheduler
    from paceline.workers_compat.security.shared_secret import Secret

logger = logging.getLogger("distributed.scheduler")

#: Turns of the event loop for the replies of requests that have ended when the scheduler closes. A
#: function of a client may close it.
REPLY_TURNS = 5


class Server(ServerApi):
    """Serves peers.

    Args:
        scheduler: the ``Scheduler`` object that owns the server.
        blocked_handlers: ops that are refused.
        journal: records every stimulus, or None.
        secret: the secret that peers must know, or None.
        durability: records what happens; None for a scheduler that is not durable.

    Attributes:
        pool: the outgoing connections.
    """

    def __init__(
        self,
        core: SchedulerCore,
        scheduler: OwningScheduler,
        *,
        graph_compilers: GraphCompilers,
        request_state: RequestState,
        blocked_handlers: frozenset[str] = frozenset(),
        gc_policy: GcPolicy | None = None,
        journal: JournalWriter | None = None,
        tls: Tls | None = None,
        secret: Secret | None = None,
        durability: Durability | None = None,
    ) -> None:
        super().__init__()
        self.durability = durability
        self.recorder = durability.recorder if durability is not None else Recorder()
        self._log_limits = LogLimits()
        self.core = core
        self.state = core.state
        self.scheduler = scheduler
        self.request_state = request_state
        self.plugins: Plugins = SchedulerFacade(self, scheduler).plugin_host
        self.driver: Driver = Driver(
            core, close_scheduler=self._close_scheduler, gc_policy=gc_policy, recorder=self.recorder
        )
        self.driver.instructions |= self._instructions()
        self.driver.record_sinks.append(self.plugins.on_records)
        self.measures = Measures(self.driver)
        self._journal = journal
        if journal is not None:
            self.driver.add_observer(journal)
            self.plugins.writes = journal.turn_writes
        elif durability is not None:
            self.plugins.writes = durability.recorder.turn_writes
        self.secret = secret
        tls = tls or Tls()
        self.transport: Transport = Transport(
            self._opened,
            backends(tls, durability.backend if durability is not None else None),
            HANDSHAKE_LIMITS,
            require_encryption=tls.required,
            scratch=durability.scratch if durability is not None else None,
        )
        self.pool = Pool(self)
        self.graph_compilers = graph_compilers
        self.handlers: dict[type, Handler] = build_handlers()
        self.rpc_counts: defaultdict[type[Any], int] = defaultdict(int)
        self.recorder.shuffles = stock_plugins.SuspendedShufflePlugin(self.plugins)
        shuffle_plugin = stock_plugins.shuffle_worker_plugin()
        request_state.worker_plugins[stock_plugins.SHUFFLE] = shuffle_plugin
        request_state.worker_plugins.update(config.worker_plugins())
        self._block(blocked_handlers)
        self._memory_manager = stock_plugins.PolicyManager(self.plugins.facade)
        self.core_types: frozenset[type] = frozenset(core.handlers)
        self._connections = ConnectionFactory(secret)
        self.graph_ids, self._match_ids = itertools.count(1), itertools.count(-1, -1)
        self._matching: set[tuple[Any, int]] = set()

    @property
    def n_restarts(self) -> int:
        """The number of scheduler processes before this one that died."""
        return self.durability.n_restarts if self.durability is not None else 0

    @property
    def n_upgrades(self) -> int:
        """The number of scheduler processes before this one that were replaced on purpose."""
        return self.durability.n_upgrades if self.durability is not None else 0

    def _opened(self, comm: Comm) -> Peer:
        """Start the handshake on a new connection."""
        outgoing = comm.facts.outgoing
        connection = self._connections.outgoing() if outgoing else self._connections.accepted()
        peer = Peer(self, comm, connection)
        peer.handler = OutgoingRpc(peer) if outgoing else HandshakeHandler(peer)
        comm.write(connection.start())
        return peer

    async def rpc_call(
        self, address: str, request: Any, timeout: float | None = None, **options: Any
    ) -> Any:
        return await self.pool.call(address, request, timeout, **options)

    def remove_connections(self, address: str) -> None:
        self.pool.remove(address)

    def _block(self, ops: frozenset[str]) -> None:
        """Refuse requests with ``ops``, which the configuration forbids."""

        def blocked(server: Any, message: Any, peer: Any) -> Any:
            raise ValueError(
                f"The '{op_name(message)}' handler has been explicitly disallowed "
                "in Scheduler, possibly due to security concerns."
            )

        for message_type in self.handlers:
            if message_type.__struct_config__.tag in ops:  # type: ignore[attr-defined]
                self.handlers[message_type] = blocked

    def route_streams(self, core_types: frozenset[type]) -> None:
        """Set the classes of stream messages that go to the core and not to plugins."""
        self.core_types = core_types

    def _instructions(self) -> dict[type, Callable[[Any], None]]:
        """Return class of an instruction -> function, for those that need the server."""
        return {
            instructions.RestartSilentWorkers: self._restart_silent,
            instructions.RestartStuckWorker: self._restart_stuck,
            instructions.MatchError: self._match_error,
        }

    def _restart_silent(self, instruction: instructions.RestartSilentWorkers) -> None:
        """Let the nannies of silent workers restart them, or remove the workers."""
        restart = restart_workers(
            self,
            instruction.addresses,
            wait_for_workers=False,
            on_error="return",
            stimulus_id=f"check-worker-ttl-{self.now()}",
        )
        self.spawn(restart, "restart of silent workers")

    def _restart_stuck(self, instruction: instructions.RestartStuckWorker) -> None:
        """Drain a worker with a thread that does not end, and let its nanny restart it."""
        self.spawn(restart_stuck_worker(self, instruction.address), "restart of a stuck worker")

    def _match_error(self, instruction: instructions.MatchError) -> None:
        """Let a graph compiler compare the class of an exception, unless it is doing so."""
        key, run_id = run_of = instruction.key, instruction.run_id
        if run_of in self._matching:
            return
        self._matching.add(run_of)

        def on_reply(reply: Any, frames: Any = None) -> None:
            self._matching.discard(run_of)
            is_match = isinstance(reply, MatchReply)
            problem = reply.problem if is_match else reply.text
            self.driver.feed(ErrorMatched(key, run_id, is_match and reply.matches, problem))

        request = MatchRequest(next(self._match_ids), instruction.exception, instruction.names)
        self.graph_compilers.compile(request, on_reply)

    def _close_scheduler(self, reason: str) -> None:
        self.spawn(self.scheduler.close(reason=reason), "close")

    def start_memory_manager(self, is_new: bool) -> None:
        """Start the active memory manager if the configuration enables it.

        The one of the core continues by itself unless the scheduler `is_new`.
        """
        manager = self._memory_manager
        if self.state.config.amm_start and (is_new or manager.is_custom):
            manager.start()

    async def profile_metadata(self, **options: Any) -> dict[str, Any]:
        return await diagnostics.profile_metadata(self, **options)

    def worker_address(self, name: Any, resolve: bool = True) -> str:
        return worker_address(self, name, resolve)

    async def gather_on_worker(self, address: str, who_has: Mapping[Any, list[str]]) -> set[Any]:
        return await replicate.gather_on_worker(self, address, who_has)

    async def delete_worker_data(self, address: str, keys: list[Any], stimulus_id: str) -> None:
        await replicate.delete_worker_data(self, address, keys, stimulus_id)

    async def run_closing_hooks(self, hook: str) -> None:
        """Run the hook ``before_close`` or ``close`` of all plugins. Log their errors."""
        for error in await asyncio.gather(
            *self.plugins.closing_hooks(hook), return_exceptions=True
        ):
            if isinstance(error, Exception):
                logger.error("The hook %s of a scheduler plugin failed", hook, exc_info=error)

    def close_streams(self) -> None:
        """Ask workers to close, and end all streams."""
        for stream in list(self.driver.worker_streams.values()):
            stream.send([m.Close(reason="scheduler-close"), m.CloseStream()])
            stream.close_when_written()
        for stream in list(self.driver.client_streams.values()):
            stream.close_when_written()

    async def stop(self) -> None:
        """Cancel background tasks, stop the compilers and the pool, and flush the driver."""
        for _ in range(REPLY_TURNS):
            await asyncio.sleep(0)
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self.plugins.facade.close()
        self.pool.close()
        await self.graph_compilers.stop()
        self.driver.close()
        if self._journal is not None:
            self._journal.close()
        self.request_state.close()
        self._log_limits.close()
