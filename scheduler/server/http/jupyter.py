"""A Jupyter server in the scheduler's process (``--jupyter``).

Every client of the HTTP port can run any code in this process, as with stock's option of this name.
Use it only if access to the port is restricted.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tornado import web

from .server import HttpServer

#: Path below the prefix.
BASE = "jupyter"


def serve_jupyter(http: HttpServer, close: Callable[..., Coroutine[Any, Any, None]]) -> Any:
    """Serve Jupyter below ``/jupyter``, and return its ``ServerApp``.

    Its button "shut down" calls ``close``. Raises ImportError if Jupyter is not installed.
    """
    try:
        from jupyter_server.auth import authorized
        from jupyter_server.base.handlers import JupyterHandler
        from jupyter_server.serverapp import ServerApp
        from traitlets.config import Config
    except ImportError as error:
        raise ImportError("--jupyter needs Jupyter: pip install 'paceline[jupyter]'") from error

    class Shutdown(JupyterHandler):  # type: ignore[misc]
        """Close the scheduler when Jupyter is shut down, as in stock."""

        auth_resource = "server"

        @web.authenticated
        @authorized  # type: ignore[untyped-decorator]
        async def post(self) -> None:
            self.log.info("Shutting down on /api/shutdown request.")
            await close(reason="jupyter-requested-shutdown")

    base = f"{http.prefix}/{BASE}"
    options = {"base_url": base, "token": "", "allow_remote_access": True}
    app = ServerApp.instance(config=Config({"ServerApp": options}))
    app.init_signal = lambda: None  # its handlers stop the event loop, and ask on terminals
    app.initialize(new_httpserver=False, argv=[])
    shutdown = web.Application([(rf"{base}/api/shutdown", Shutdown)])
    shutdown.settings = app.web_app.settings
    http.application.add_application(shutdown)
    http.application.add_application(app.web_app)
    return app
