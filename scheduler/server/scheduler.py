"""The ``Scheduler`` class, which programs, deployments and the command line start.

It takes the options of ``distributed.Scheduler``, is awaitable, and is an async context manager.
Several schedulers in one process share no state.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import uuid
from collections.abc import Generator, Sequence
from typing import Any

from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.server.build_core import build_core
from paceline.scheduler.server.comm import addresses
from paceline.scheduler.server.comm.transport import Listener
from paceline.scheduler.server.comm.websocket import WebSocketBackend
from paceline.scheduler.server.compilers.pool import GraphCompilers, ProcessGraphCompilers
from paceline.scheduler.server.compilers.threads import ThreadGraphCompilers
from paceline.scheduler.server.durable.channel.keeper_channel import KeeperChannel
from paceline.scheduler.server.durable.durability import Durability
from paceline.scheduler.server.durable.scheduler_process import SchedulerProcess
from paceline.scheduler.server.http.dashboard import Dashboard
from paceline.scheduler.server.http.jupyter import serve_jupyter
from paceline.scheduler.server.http.server import HttpServer
from paceline.scheduler.server.http.start import start_http
from paceline.scheduler.server.journal.journal import JournalWriter
from paceline.scheduler.server.requests.state import RequestState
from paceline.scheduler.server.runtime import build, child_process, shutdown_notice
from paceline.scheduler.server.runtime.gc_policy import GcPolicy
from paceline.scheduler.server.runtime.measures import LoopLag
from paceline.scheduler.server.runtime.scheduler_file import SchedulerFile
from paceline.workers_compat import addressing, stock_classes
from paceline.workers_compat.config import config as dask_config
from paceline.workers_compat.config import preloads
from paceline.workers_compat.config.settings import texts
from paceline.workers_compat.facade import state_attributes, work_stealing
from paceline.workers_compat.security import shared_secret, unpickling
from paceline.workers_compat.security import tls_config as tls
from paceline.workers_compat.security.shared_secret import Secret

from .scheduler_options import check_options, core_config
from .server import Server

logger = logging.getLogger("distributed.scheduler")

#: Time for peers to close their connections when the scheduler closes, seconds.
CLOSE_SECONDS = 2.0


class Scheduler:
    """A scheduler in the running event loop.

    Args:
        host, port, interface, protocol: where to listen; lists listen on several.
        scheduler_file: file for the address, while the scheduler runs.
        idle_timeout: close after this time without work ("10 minutes", seconds).
        worker_ttl, allowed_failures, validate: as the configuration keys of the same names.
        dashboard, dashboard_address, http_prefix: the HTTP server.
        preload, preload_argv: modules to run at the start and end.
        contact_address: the address that a ``SpecCluster`` passes to workers, instead of
            ``Scheduler.address``.
        plugins, blocked_handlers: scheduler plugins, and ops that are refused.
        services: other servers of this process, in the form that stock accepts.
        security: a ``Security`` object of distributed, or its keywords; the configuration if None.
        journal: write every stimulus to this file.
        jupyter: serve Jupyter on the dashboard's port, to everyone who can connect to it.
        keeper: the keeper of this process, whose log is written and continued.
        own_process: manage garbage collection and the process's title; use processes of ``spawn``.
        timeout: time limit for connecting to a worker; the configuration if None.
        compile_in_threads: compile graphs in threads; ``not own_process`` if None.

    Attributes:
        build: name, version and kind of build of the scheduler, for example "paceline 0.1.0
            (compiled)".
        services: name -> server, for example "dashboard", as in stock.
    """

    default_port = 8786
    time_started = 0.0
    build = ""
    _phase = "init"
    _server: Server | None = None
    _loop_lag: LoopLag | None = None
    _gc_policy: GcPolicy | None = None
    _http: HttpServer | None = None
    _pages: Dashboard | None = None
    _file: SchedulerFile | None = None
    _jupyter_server_application: Any = None

    def __init__(
        self,
        *,
        host: Any = None,
        port: Any = 0,
        interface: Any = None,
        protocol: Any = None,
        scheduler_file: str | None = None,
        idle_timeout: Any = None,
        worker_ttl: Any = None,
        allowed_failures: int | None = None,
        validate: bool | None = None,
        dashboard: bool | None = None,
        dashboard_address: Any = None,
        http_prefix: str | None = "/",
        preload: str | Sequence[str] | None = None,
        preload_argv: Sequence[Any] = (),
        plugins: Sequence[Any] = (),
        services: dict[Any, Any] | None = None,
        contact_address: str | None = None,
        blocked_handlers: Sequence[str] | None = None,
        security: Any = None,
        journal: str | None = None,
        jupyter: bool = False,
        own_process: bool = False,
        keeper: KeeperChannel | None = None,
        spawn: child_process.Spawn = child_process.spawn,
        compile_in_threads: bool | None = None,
        timeout: Any = None,
        **other: Any,
    ) -> None:
        check_options(other)
        self.id = f"Scheduler-{uuid.uuid4()}"
        self.services, self.service_specs = dict[str, Any](), services or {}
        self.scheduler_file = scheduler_file or None
        get = dask_config.get
        self.contact_address = contact_address or get("distributed.scheduler.contact-address")
        self.plugins_to_add = list(plugins)
        self._config = core_config(idle_timeout, worker_ttl, allowed_failures, validate)
        if blocked_handlers is None:
            blocked_handlers = texts("distributed.scheduler.blocked-handlers")
        self.blocked_handlers = sorted(blocked_handlers)
        self._tls = tls.read(security)
        self.security = self._tls.security
        protocol = protocol or ("tls" if self._tls.required else None)
        where = (host, port, interface, protocol, self.default_port)
        self._start_addresses = addresses.listen_addresses(*where)
        self._http_addresses = addresses.dashboard_addresses(dashboard_address)
        given = dashboard_address is not None
        self._http_host = "" if given else addresses.address_host(self._start_addresses[0])
        self._http_prefix = http_prefix or ""
        self._dashboard = bool(dashboard_address) if dashboard is None else dashboard
        self._keeper, self._spawn = keeper, spawn if own_process else None
        in_threads = not own_process if compile_in_threads is None else compile_in_threads
        self._compile_in_threads = in_threads and unpickling.is_allowed()
        self.preloads = self._load_preloads(preload, preload_argv)
        self._listeners: list[Listener] = []
        self._finished, self._start_lock = asyncio.Event(), asyncio.Lock()
        self._journal_path = journal
        self._connect_seconds, self.jupyter = dask_config.seconds(timeout), jupyter

    def _load_preloads(self, modules: Any, argv: Any) -> Any:
        modules = modules or dask_config.get("distributed.scheduler.preload", [])
        argv = argv or dask_config.get("distributed.scheduler.preload-argv", [])
        return preloads.load(self, modules or [], argv)

    def __repr__(self) -> str:
        where = self.address if self._listeners else "not-running"
        if self._server is None:
            return f"<Scheduler {where!r}>"
        state = self._server.state
        counts = f"workers: {len(state.workers)}, cores: {state.total_nthreads}"
        return f"<Scheduler {where!r}, {counts}, tasks: {len(state.tasks)}>"

    def __getattr__(self, name: str) -> Any:
        """Look up attributes of stock's class on the facade."""
        if name.startswith("__") or self.__dict__.get("_server") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.facade, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set settings of stock's class on the facade, which passes them to the core."""
        if name in state_attributes.SETTINGS and self.__dict__.get("_server") is not None:
            setattr(self.facade, name, value)
        elif name in state_attributes.READ_ONLY:
            raise AttributeError(f"the attribute {name!r} of paceline's scheduler is read-only")
        else:
            object.__setattr__(self, name, value)

    def __await__(self) -> Generator[Any, None, Scheduler]:
        return self.start().__await__()

    async def __aenter__(self) -> Scheduler:
        return await self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # properties

    @property
    def status(self) -> Any:
        """The ``Status`` of distributed: init, running, closing, closed or failed."""
        return stock_classes.status(self._phase)

    @property
    def server(self) -> Server:
        """The server. Raise ValueError if the scheduler has not been started."""
        if self._server is None:
            raise ValueError("the scheduler has not been started")
        return self._server

    @property
    def facade(self) -> Any:
        """The attributes of stock's class, which are also attributes of this ``Scheduler``."""
        return self.server.plugins.facade

    @property
    def address(self) -> str:
        """The address of the first listener, to connect to.

        Raises:
            ValueError: the scheduler does not listen yet.
        """
        if not self._listeners:
            raise ValueError("cannot get address of non-running Server")
        return self.contact_addresses[0]

    @property
    def contact_addresses(self) -> list[str]:
        """The addresses that peers can connect to, one per listener."""
        return [listener.contact_address for listener in self._listeners]

    @property
    def listen_address(self) -> str:
        """The address of the first listener, which may be a wildcard."""
        return self._listeners[0].listen_address

    @property
    def host(self) -> str:
        """The host of the address."""
        return addresses.address_host(self.address)

    @property
    def port(self) -> int:
        """The port of the address; 0 if its scheme has none."""
        return addresses.parts(self.address)[2]

    def identity(self, n_workers: int = -1) -> dict[str, Any]:
        """Return the scheduler's identity and workers in stock's form."""
        return queries.identity(
            self.server.state,
            n_workers,
            id=self.id,
            address=self.address,
            services={name: service.port for name, service in self.services.items()},
            started=self.time_started,
            build=self.build,
            restarts=self.server.n_restarts,
            upgrades=self.server.n_upgrades,
        )

    # start

    async def start(self) -> Scheduler:
        """Start the scheduler. Do nothing if it was started before.

        Raises:
            OSError: an address is not available.
            ValueError: an address is invalid.
            RuntimeError: an earlier start failed.
        """
        async with self._start_lock:
            if self._phase == "failed":
                raise RuntimeError("Scheduler failed to start.")
            if self._phase != "init":
                return self
            try:
                await self._start()
            except BaseException as error:
                # another process continues the connections of a successor
                if self._keeper is None or not self._keeper.is_successor:
                    await self.close(reason=f"failure-to-start-{type(error)}")
                self._phase = "failed"
                raise
            self._phase = "running"
        return self

    async def _start(self) -> None:
        for address in (*self._start_addresses, self.contact_address or ""):
            addresses.check(address)
        if self._spawn is not None:
            self._gc_policy = GcPolicy()
            self._gc_policy.start()
        secret = shared_secret.configured()
        durability = Durability.open(self._keeper, self._config, self.id, secret)
        recorded = durability.recorded if durability is not None else None
        core = build_core(self._config) if recorded is None else recorded.core
        self._server = server = self._make_server(core, durability, secret)
        if self._connect_seconds:
            server.pool.connect_seconds = self._connect_seconds
        if durability is not None:
            self.id = durability.start.id
        self.time_started = server.now() if durability is None else durability.start.time
        self.build = f"paceline {build.description()}"
        self._loop_lag = LoopLag()
        self._loop_lag.on_tick = server.measures.on_tick
        http = self._start_http(server, self._loop_lag)
        await self._listen(server, http)
        stock_classes.start_services(self, addresses.address_host(self.listen_address))
        self._log_addresses()
        self._write_scheduler_file(is_successor=recorded is not None)
        for plugin in self.plugins_to_add:
            server.plugins.add(plugin)
        if self._config.work_stealing:
            stealing = work_stealing.WorkStealing(server.plugins.facade)
            stealing.begin(is_new=recorded is None)
        await self.preloads.start()
        if self.jupyter:
            os.environ["DASK_SCHEDULER_ADDRESS"] = self.contact_addresses[-1]  # kernels inherit it
        plugins = [plugin for plugin in server.plugins.by_name.values() if hasattr(plugin, "start")]
        starting = [plugin.start(self) for plugin in plugins]
        await asyncio.gather(*filter(inspect.isawaitable, starting))
        if durability is not None:
            await durability.continue_connections(server)
        server.driver.start()
        server.start_memory_manager(is_new=recorded is None)
        if durability is not None:
            server.spawn(durability.watch(server), "connection to the keeper")
        self._loop_lag.start()
        self._set_title(self.address)

    def _make_server(
        self, core: SchedulerCore, durability: Durability | None, secret: Secret | None
    ) -> Server:
        compilers: GraphCompilers = (
            ThreadGraphCompilers()
            if self._compile_in_threads
            else ProcessGraphCompilers(self._spawn or child_process.spawn)
        )
        path = self._journal_path
        server = Server(
            core,
            self,
            graph_compilers=compilers,
            request_state=RequestState(),
            blocked_handlers=frozenset(self.blocked_handlers),
            gc_policy=self._gc_policy,
            journal=JournalWriter(path, self._config) if path else None,
            tls=self._tls,
            secret=secret,
            durability=durability,
        )
        if self._spawn in (None, child_process.spawn):  # a forked process is ready at once
            compilers.start()
        return server

    async def _listen(self, server: Server, http: HttpServer) -> None:
        """Listen on all addresses. Web sockets may share the port of the HTTP server, as stock."""
        http_ports = [port for _, port in self._http_addresses]
        for address in self._start_addresses:
            scheme, host, port = addresses.parts(address, self.default_port)
            if scheme in ("ws", "wss") and port and port in http_ports:
                if http.port != port:
                    raise OSError(f"cannot listen on {address}: the port is taken")
                listener = WebSocketBackend(scheme, self._tls).share(server.transport, http)
            else:
                listener = await server.transport.listen(scheme, host, port)
            self._listeners.append(listener)

    def _start_http(self, server: Server, loop_lag: LoopLag) -> HttpServer:
        self._http, self._pages = start_http(
            server,
            loop_lag,
            self._http_addresses,
            default_host=self._http_host,
            prefix=self._http_prefix,
            dashboard=self._dashboard,
            gc_policy=self._gc_policy,
            spawn=self._spawn,
        )
        self.services["dashboard"] = self._http
        if self.jupyter:
            jupyter = self._jupyter_server_application = serve_jupyter(self._http, self.close)
            server.driver.last_activity = lambda: jupyter.web_app.last_activity().timestamp()
        return self._http

    @property
    def http_server(self) -> HttpServer | None:
        """The HTTP server; None before the start."""
        return self._http

    @property
    def http_application(self) -> Any:
        """The tornado application, to which routes can be added."""
        return self._http.application if self._http is not None else None

    @property
    def tick_interval_observed(self) -> float:
        """Time between the last two ticks of the event loop, seconds."""
        return self._loop_lag.seconds if self._loop_lag is not None else 0.0

    def _log_addresses(self) -> None:
        logger.info("Running %s", self.build)
        for contact in self.contact_addresses:
            logger.info("  Scheduler at: %25s", contact)
        for name, service in self.services.items():
            host = addressing.join_host_port(self.host)
            try:
                link = addressing.dashboard_link(host, service.port)
            except KeyError as error:
                logger.warning("Failed to format dashboard link, unknown value: %s", error)
                link = f":{service.port}"
            logger.info("%11s at:  %25s", name, link)

    def _write_scheduler_file(self, is_successor: bool) -> None:
        if self.scheduler_file:
            file = SchedulerFile(self.scheduler_file)
            file.write(self.identity(n_workers=0), is_successor)
            self._file = file

    def stop(self) -> None:
        """Stop listening, as stock's ``Server.stop``. ``close`` includes it."""
        for listener in self._listeners:
            listener.close()

    async def finished(self) -> None:
        """Wait until the scheduler has closed."""
        await self._finished.wait()

    async def close(self, timeout: float | None = None, reason: str = "unknown") -> None:
        """Ask workers to close, give peers `timeout` seconds for that, and close the scheduler."""
        if self._phase in ("closing", "closed", "failed"):
            await self.finished()
            return
        self._phase = "closing"
        if self._keeper is not None:
            self._keeper.ending()
        logger.info("Closing scheduler. Reason: %s", reason)
        self._set_title("closing")
        try:
            await self._close(CLOSE_SECONDS if timeout is None else timeout, reason)
        finally:
            self._phase = "closed"
            if self._file is not None:
                self._file.remove()
            self._finished.set()
            self._set_title("closed")

    async def _close(self, timeout: float, reason: str) -> None:
        server = self._server
        if server is not None:
            await server.run_closing_hooks("before_close")
        await self.preloads.teardown()
        if self._loop_lag is not None:
            self._loop_lag.stop()
        stock_classes.stop_services(self)
        if self._pages is not None:
            await self._pages.stop()
        self.stop()
        if server is not None:
            logger.info("Scheduler closing all comms")
            await shutdown_notice.send_notices(server, reason)
            server.close_streams()
            if self._jupyter_server_application is not None:
                await self._jupyter_server_application._cleanup()  # noqa: SLF001 - as stock
            await server.run_closing_hooks("close")
            await server.stop()
            await server.transport.close_all(timeout)
        if self._gc_policy is not None:
            self._gc_policy.stop()

    def _set_title(self, text: str) -> None:
        if self._spawn is not None:
            import setproctitle

            setproctitle.setproctitle(f"dask scheduler [{text}]")


#: A scheduler and workers on this machine, with the options of distributed's class of this name.
LocalCluster = stock_classes.local_cluster(Scheduler, SchedulerProcess)
