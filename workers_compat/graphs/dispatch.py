"""Pass the requests to a graph compiler to the functions that handle them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .accelerators.unimported import ReferenceLoader
from .compiler import compile_graph
from .compiler_messages import CompileRequest, MatchRequest
from .match_error import match_error


def replies(
    request: CompileRequest | MatchRequest, loader: ReferenceLoader | None = None
) -> Generator[Any, None, None]:
    """Yield the replies to a request. See ``compile_graph``."""
    if isinstance(request, MatchRequest):
        yield match_error(request)
    else:
        yield from compile_graph(request, loader)
