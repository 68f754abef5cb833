"""Pages for those who know a token.

It is given as ``Authorization: Bearer TOKEN`` (Prometheus and scripts), or once as ``?token=TOKEN`` in the address, which a browser then
keeps as a cookie and is sent on without. ``/health`` stays open: what asks it holds no secrets.

Must not know: what the pages say.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tornado import httputil, web
from tornado.httputil import url_concat

COOKIE = "paceline-token"
FIELD = "token"


class TokenGate:
    """Looks at requests before any page does.

    Args:
        token: what must be known.
        open_paths: that everybody may see.
    """

    def __init__(self, token: str, open_paths: Sequence[str] = ()) -> None:
        self._token = token
        # what a browser keeps is no token: it opens pages, and cannot be given to Prometheus or put in a link
        self._cookie = hashlib.sha256(b"paceline-cookie\n" + token.encode()).hexdigest()
        self._open = frozenset(open_paths)

    def refusing(
        self, request: httputil.HTTPServerRequest
    ) -> tuple[type[web.RequestHandler], dict[str, Any]] | None:
        """The handler that answers instead of the page, and its arguments; None where the request may pass."""
        if request.path in self._open or self._knows(request):
            return None
        given = request.query_arguments.get(FIELD)
        if given and _same(given[-1], self._token):
            return KeepToken, {"cookie": self._cookie}
        return Refused, {}

    def _knows(self, request: httputil.HTTPServerRequest) -> bool:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(token.strip(), self._token):
            return True
        kept = request.cookies.get(COOKIE)
        return kept is not None and _same(kept.value, self._cookie)


def _same(given: str | bytes, expected: str) -> bool:
    """Compared in a time that does not tell how much of it is right."""
    data = given if isinstance(given, bytes) else given.encode("utf-8", "surrogateescape")
    return hmac.compare_digest(data, expected.encode())


class Refused(web.RequestHandler):
    """Whoever does not know the token."""

    def prepare(self) -> None:
        self.set_status(401)
        self.set_header("WWW-Authenticate", 'Bearer realm="paceline"')
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish("This page asks for a token: add ?token=... to the address, or the header Authorization: Bearer ...\n")


class KeepToken(web.RequestHandler):
    """A right token in the address: a cookie, and the address without it."""

    def initialize(self, cookie: str) -> None:
        self._cookie = cookie

    def prepare(self) -> None:
        secure = self.request.protocol == "https"
        self.set_cookie(COOKIE, self._cookie, httponly=True, samesite="Lax", secure=secure)
        where = urlsplit(self.request.uri or "/")
        rest = [(name, value) for name, value in parse_qsl(where.query) if name != FIELD]
        self.redirect(url_concat("/" + where.path.lstrip("/"), rest))
