"""Compare the class of a pickled exception with names of classes."""

from __future__ import annotations

import pickle

from .compiler import unpickle
from .compiler_messages import MatchReply, MatchRequest
from .policies import full_name


def match_error(request: MatchRequest) -> MatchReply:
    """Return whether the exception of a request is an instance of one of the named classes.

    Classes are compared by their full names, because they may have been pickled by value.
    """
    try:
        error = unpickle(request.exception)
        if isinstance(error, bytes):  # workers pickle an exception before they serialize it
            error = pickle.loads(error)
    except BaseException as problem:
        text = f"{type(problem).__name__}: {problem}"
        return MatchReply(request.graph_id, False, f"it cannot be unpickled: {text}")
    names = {full_name(cls) for cls in type(error).__mro__}
    return MatchReply(request.graph_id, not names.isdisjoint(request.names))
