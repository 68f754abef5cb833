"""The token of the HTTP pages (``paceline.http.token``).

Scripts and Prometheus send ``Authorization: Bearer TOKEN``. A browser opens ``?token=TOKEN`` once
and keeps a cookie. The cookie is accepted only from pages of the same origin, so that other sites
cannot use it. ``/health`` needs no token.

The scheduler's process and the dashboard's process both check each request, because both handle
requests to the same port.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tornado import httputil, routing, web
from tornado.httputil import url_concat

#: Name of the cookie.
COOKIE = "paceline-token"
#: Name of the query argument.
FIELD = "token"
#: Port of an origin, or of a pattern for origins, without one, as in bokeh.
DEFAULT_PORT = ":80"


class TokenGate:
    """Check requests for the token before a page handles them.

    Paths in `open_paths` need no token. `origins` are patterns of other origins (``host`` or
    ``host:port``) whose pages may use the cookie.
    """

    def __init__(
        self, token: str, open_paths: Sequence[str] = (), origins: Sequence[str] = ()
    ) -> None:
        self._token = token
        # The cookie is not the token: it opens pages, but is useless in a link or for Prometheus.
        self._cookie = hashlib.sha256(b"paceline-cookie\n" + token.encode()).hexdigest()
        self._open = frozenset(open_paths)
        # "*", the default for bokeh's websockets, is not a list of trusted origins.
        self._origins = [_with_port(each.lower()) for each in origins if each != "*"]

    def refusing(
        self, request: httputil.HTTPServerRequest
    ) -> tuple[type[web.RequestHandler], dict[str, Any]] | None:
        """Return the handler that replaces the page, and its arguments; None if allowed."""
        if request.path in self._open or self._is_allowed(request):
            return None
        given = request.query_arguments.get(FIELD)
        if given and _same(given[-1], self._token):
            return KeepToken, {"cookie": self._cookie}
        return Refused, {}

    def _is_allowed(self, request: httputil.HTTPServerRequest) -> bool:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(token.strip(), self._token):
            return True
        kept = request.cookies.get(COOKIE)
        return kept is not None and _same(kept.value, self._cookie) and self._is_own_page(request)

    def _is_own_page(self, request: httputil.HTTPServerRequest) -> bool:
        """Return whether the request comes from a page of this server or of a configured origin."""
        if not is_foreign(request):
            return True
        origin = _with_port(urlsplit(request.headers["Origin"]).netloc.lower())
        return any(fnmatchcase(origin, pattern) for pattern in self._origins)


class GatedRouter(routing.Router):
    """Serve the requests to an application that a gate allows; all requests without a gate."""

    def __init__(self, application: web.Application, gate: TokenGate | None) -> None:
        self._application = application
        self._gate = gate

    def find_handler(self, request: httputil.HTTPServerRequest, **kwargs: Any) -> Any:
        refusing = self._gate.refusing(request) if self._gate is not None else None
        if refusing is not None:
            return self._application.get_handler_delegate(request, *refusing)
        return self._application.find_handler(request, **kwargs)


def is_foreign(request: httputil.HTTPServerRequest) -> bool:
    """Return whether a page of another origin sent the request. Only browsers send an origin."""
    origin = request.headers.get("Origin")
    return (
        origin is not None
        and urlsplit(origin).netloc.lower() != request.headers.get("Host", "").lower()
    )


def _with_port(netloc: str) -> str:
    return netloc if ":" in netloc else netloc + DEFAULT_PORT


def _same(given: str | bytes, expected: str) -> bool:
    """Compare in a time that does not depend on the number of equal characters."""
    data = given if isinstance(given, bytes) else given.encode("utf-8", "surrogateescape")
    return hmac.compare_digest(data, expected.encode())


@web.stream_request_body
class Refused(web.RequestHandler):
    """Respond with status 401. The body of the request is discarded."""

    def data_received(self, chunk: bytes) -> None:
        """See tornado."""

    def prepare(self) -> None:
        self.set_status(401)
        self.set_header("WWW-Authenticate", 'Bearer realm="paceline"')
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(
            "This page requires a token. "
            "Add ?token=... to the URL or the header Authorization: Bearer ...\n"
        )


class KeepToken(web.RequestHandler):
    """Set the cookie, and redirect to the same address without the token."""

    def initialize(self, cookie: str) -> None:
        self._cookie = cookie

    def prepare(self) -> None:
        secure = self.request.protocol == "https"
        self.set_cookie(COOKIE, self._cookie, httponly=True, samesite="Lax", secure=secure)
        where = urlsplit(self.request.uri or "/")
        rest = [(name, value) for name, value in parse_qsl(where.query) if name != FIELD]
        self.redirect(url_concat("/" + where.path.lstrip("/"), rest))
