"""A Jupyter server beside the scheduler's pages, in this process (``--jupyter``).

Whoever reaches the HTTP port can run any code in this process then, as with stock's option of this name: only where the port is
protected otherwise.

Must not know: the scheduler, but how to close it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tornado import web

from .server import HttpServer

#: Where it is served, below the prefix.
BASE = "jupyter"


def serve_jupyter(http: HttpServer, close: Callable[..., Coroutine[Any, Any, None]]) -> Any:
    """Serve Jupyter below ``/jupyter``. Returns its ``ServerApp``.

    Raises:
        ImportError: it is not installed; says what to do.
    """
    try:
        from jupyter_server.auth import authorized
        from jupyter_server.base.handlers import JupyterHandler
        from jupyter_server.serverapp import ServerApp
        from traitlets.config import Config
    except ImportError as error:
        raise ImportError(
            "the option jupyter needs Jupyter: pip install 'paceline[jupyter]'"
        ) from error

    class Shutdown(JupyterHandler):  # type: ignore[misc]
        """Jupyter's button "shut down" ends the scheduler, as with stock."""

        auth_resource = "server"

        @web.authenticated
        @authorized  # type: ignore[untyped-decorator]
        async def post(self) -> None:
            self.log.info("Shutting down on /api/shutdown request.")
            await close(reason="jupyter-requested-shutdown")

    base = f"{http.prefix}/{BASE}"
    options = {"base_url": base, "token": "", "allow_remote_access": True}
    app = ServerApp.instance(config=Config({"ServerApp": options}))
    app.initialize(new_httpserver=False, argv=[])
    shutdown = web.Application([(rf"{base}/api/shutdown", Shutdown)])
    shutdown.settings = app.web_app.settings
    http.application.add_application(shutdown)
    http.application.add_application(app.web_app)
    return app
