"""Compile graphs: turn the pickled dask expression of a client into rows for the core.

This is the half of stock's ``update_graph`` that needs no scheduler state: unpickle, materialize
tasks and annotations, cull and order. Stock pickles a task at each dispatch; here each is pickled
once, with the graph.
"""

from __future__ import annotations

import pickle
import textwrap
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from dask._expr import HLGExpr, LLGExpr
from dask._task_spec import DataNode, Task, convert_legacy_graph
from dask.core import validate_key
from dask.highlevelgraph import HighLevelGraph
from dask.utils import parse_timedelta
from distributed.client import _MapExpr
from paceline.protocol.packed_keys import decode_or
from paceline.protocol.payload import Payload, payload_header, payload_pickle
from paceline.scheduler.core.stimuli import GraphChunk, GraphCommit, GraphFailed
from paceline.workers_compat.errors import error_payloads

from .accelerators.unimported import ReferenceLoader
from .annotations import AnnotationTable, is_plain, plain_number
from .compiler_messages import CompileRequest
from .ordering import GraphIndex
from .plain_keys import plain_keys
from .rows import CHUNK_SIZE, RowTable, rows_of

#: The error of a graph that cannot be unpickled. Equal to stock's: programs search for these words.
UNREADABLE = textwrap.dedent("""\
        Error during deserialization of the task graph. This frequently
        occurs if the Scheduler and Client have different environments.
        For more information, see
        https://docs.dask.org/en/stable/deployment-considerations.html#consistent-software-environments
    """)

#: dask's conversion leaves a graph of only these classes as it is.
_READY = frozenset((Task, DataNode))


def compile_graph(
    request: CompileRequest, loader: ReferenceLoader | None = None, chunk_size: int = CHUNK_SIZE
) -> Generator[GraphChunk | GraphCommit | GraphFailed, None, None]:
    """Compile one graph: yield chunks, then exactly one ``GraphCommit`` or ``GraphFailed``.

    Errors of the user's objects, including ``SystemExit``, become ``GraphFailed``. Closing the
    iterator cancels the compilation. Without `loader`, all that a graph refers to is imported.
    """
    try:
        yield from _compile(request, loader, chunk_size)
    except GeneratorExit:
        raise
    except Exception as error:
        yield failed(request, error)
    except BaseException as error:
        # a SystemExit would end the client that receives it
        yield failed(request, _without_exit(error))


def _without_exit(error: BaseException) -> RuntimeError:
    """Wrap an error such as ``SystemExit`` that would end the process that receives it."""
    wrapped = RuntimeError(f"The task graph raised {error!r}").with_traceback(error.__traceback__)
    wrapped.__cause__ = error
    return wrapped


def failed(request: CompileRequest, error: BaseException) -> GraphFailed:
    """Return the failure of a graph in the form that stock clients deserialize."""
    exception, traceback, text = error_payloads(error)
    return GraphFailed(
        request.graph_id, list(request.keys), request.client, exception, traceback, text
    )


def _compile(
    request: CompileRequest, loader: ReferenceLoader | None, chunk_size: int
) -> Iterator[GraphChunk | GraphCommit | GraphFailed]:
    started = time.perf_counter()
    graph, by_type, culled = materialize(request, loader)
    materialized = time.perf_counter()
    submission = deserialize(request.annotations)
    wanted = plain_keys(request.keys)
    index = GraphIndex(graph)
    del graph
    needed = index.reachable(wanted)
    if culled:
        # expressions other than LLGExpr cull themselves and are ordered as a whole
        index = index.culled(needed)
    given: Any = request.internal_priority
    if isinstance(given, msgspec.Raw):  # this is not a compiler process
        given = request.internal_priority = decode_or(given, None)
    check_priorities(request)
    if given:
        priorities = index.given(given)
    else:
        priorities = index.ordered()
    in_order = index.topological(priorities)
    if len(needed) < index.size:
        reached = frozenset(needed)
        in_order = [place for place in in_order if place in reached]
    ordered_at = time.perf_counter()
    rows, external = rows_of(wanted, index, in_order)
    commit = GraphCommit(
        graph_id=request.graph_id,
        keys=external,
        rows=rows,
        client=request.client,
        user_priority=request.user_priority,
        fifo_timeout_seconds=parse_timedelta(request.fifo_timeout) or 0.0,
        submitting_task=request.submitting_task,
        actors=actor_keys(request.actors),
        received_at=request.received_at,
        materialized_seconds=materialized - started,
        ordered_seconds=ordered_at - materialized,
        code=code_or_none(request.code),
        span_metadata=plain_or_serialized(request.span_metadata),
        global_annotations=readable_annotations(submission),
        n_tasks=index.size,
    )
    table = RowTable(
        request.graph_id, index, AnnotationTable(by_type, submission, request.received_at)
    )
    yield from table.chunks(in_order, priorities, chunk_size)
    yield commit


# Deserialization


def materialize(
    request: CompileRequest, loader: ReferenceLoader | None
) -> tuple[dict[Any, Any], dict[str, dict[Any, Any]], bool]:
    """Return tasks (key -> GraphNode), annotations (type -> key -> value) and whether to cull.

    Raises RuntimeError, with the cause, if the expression cannot be unpickled.
    """
    if loader is not None:
        try:
            graph, by_type, culled = _materialize(request, loader.loads)
            if not loader.modules or not (by_type or loader.has_stale_references()):
                return graph, by_type, culled
        except Exception:
            if not loader.modules:
                raise
        # references do not suffice: for instances of a class, for annotations, which may contain
        # exception classes, and if imported code may compare its functions with references
    return _materialize(request, pickle.loads)


def _materialize(
    request: CompileRequest, loads: Callable[..., Any]
) -> tuple[dict[Any, Any], dict[str, dict[Any, Any]], bool]:
    """Materialize a graph that is unpickled by `loads`."""
    try:
        expr = unpickle(request.expr_ser, loads)
    except Exception as error:
        raise RuntimeError(UNREADABLE) from error
    if isinstance(expr, dict):
        # sent by ``Client.recreate_task_locally``; stock fails with an AttributeError
        expr = LLGExpr(expr)
    for each in expr.walk():
        if isinstance(each, HLGExpr):
            _shield_classes(each.hlg)
    graph = expr.__dask_graph__()
    if request.validate:
        for key in graph:
            validate_key(key)
    by_type: dict[str, dict[Any, Any]] = {}
    for name, values in expr.__dask_annotations__().items():
        if values:
            by_type.setdefault(name, {}).update(values)
    if type(graph) is not dict or not _READY.issuperset(map(type, graph.values())):
        graph = convert_legacy_graph(graph)
    tasks = rename_map_keywords(expr, graph, request.keys)
    return tasks, by_type, isinstance(expr, LLGExpr)


def _shield_classes(graph: HighLevelGraph) -> None:
    """Replace the classes in ``retry_on`` annotations of layers by functions that return them.

    dask calls annotations that are callable, with the key, and an exception class is callable.
    """
    for layer in graph.layers.values():
        found = (layer.annotations or {}).get("retry_on")
        if isinstance(found, type):
            layer.annotations = {**layer.annotations, "retry_on": _Constant(found)}


@dataclass(frozen=True, slots=True)
class _Constant:
    """An annotation that has the same value for all keys. Equal ones do not prevent fusion."""

    value: Any

    def __call__(self, key: Any) -> Any:
        """Return the value."""
        return self.value


def rename_map_keywords(
    expr: Any, graph: dict[Any, Any], wanted: Collection[Any]
) -> dict[Any, Any]:
    """Return the graph of ``Client.map`` with unique keys for its large keyword arguments.

    Stock's client uses the bare name of the keyword as the key, so a second call would get the
    value of the first as long as that is in memory. The new key starts with this name, followed by
    the first wanted key, which no other call shares.
    """
    if not isinstance(expr, _MapExpr) or not expr.kwargs:
        return graph
    renamed = {
        name: f"{name}-of-{next(iter(wanted), None)}"
        for name in expr.kwargs
        if isinstance(graph.get(name), DataNode) and name not in wanted
    }
    if not renamed:
        return graph
    return {
        renamed.get(key, key): DataNode(renamed[key], node.value)
        if key in renamed
        else node.substitute(renamed)
        for key, node in graph.items()
    }


def unpickle(payload: Payload, loads: Callable[..., Any] = pickle.loads) -> Any:
    """Unpickle what a client pickled, with `loads`. Raises what unpickling raises."""
    header = payload_header(payload)
    if payload.kind == "serialized" and header.get("serializer") != "pickle":
        return _deserialized(header, payload)
    data, buffers = payload_pickle(payload)
    return loads(data, buffers=buffers)


def _deserialized(header: dict[str, Any], payload: Payload) -> Any:
    """Deserialize an expression of another family than pickle with distributed."""
    from distributed.protocol.compression import decompress
    from distributed.protocol.serialize import merge_and_deserialize

    frames = list(payload.frames)
    if header.get("compression"):
        frames = decompress(header, frames)
    return merge_and_deserialize(header, frames)


def deserialize(value: Any) -> Any:
    """Return `value`, deserialized if it is a payload."""
    return unpickle(value) if isinstance(value, Payload) else value


def plain_or_serialized(value: Any) -> Any:
    """Return a payload's value if msgpack can encode it, else the payload."""
    if not isinstance(value, Payload):
        return value
    try:
        inner = unpickle(value)
    except Exception:
        return value
    return inner if is_plain(inner) else value


def code_or_none(code: Any) -> Any:
    """Return source lines as they were sent, or None if they are empty."""
    if not isinstance(code, Payload):
        return code or None
    try:
        return code if unpickle(code) else None
    except Exception:
        return None


def readable_annotations(submission: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the annotations of a submission for display, with the repr of functions."""
    if not submission:
        return None
    return {name: value if is_plain(value) else repr(value) for name, value in submission.items()}


# Keys and order


def check_priorities(request: CompileRequest) -> None:
    """Raise TypeError or ValueError for a priority that is not a number, or NaN."""
    for given in (request.internal_priority, request.user_priority):
        for value in given.values() if isinstance(given, dict) else (given,):
            if value is not None:
                plain_number(value)


def actor_keys(actors: Any) -> Any:
    """Return True, None, or the keys of actors."""
    if actors is None or isinstance(actors, bool):
        return actors or None
    return plain_keys(actors)
