"""Graphs: what a client sends (a pickled dask expression) becomes rows that the core takes in.

This is the half of stock's ``update_graph`` that needs no scheduler state: unpickle, let the expression
make its tasks and annotations, cull, order; and then what stock does for each dispatch: pickle the tasks.

Must not know: the scheduler's state; pipes and processes (``compiler_child``); sockets.
"""

from __future__ import annotations

import pickle
import textwrap
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from dask._expr import LLGExpr
from dask._task_spec import DataNode, Task, convert_legacy_graph
from dask.core import validate_key
from dask.utils import parse_timedelta
from distributed.client import _MapExpr
from paceline.protocol.keys import key_group, key_split
from paceline.protocol.payload import Payload, payload_header, payload_pickle, pickled_header
from paceline.scheduler.core.stimuli import GraphChunk, GraphCommit, GraphFailed

from .annotations import AnnotationTable, closed_unless_plain, is_plain
from .errors import error_payloads
from .graph_table import CompileRequest
from .ordering import GraphIndex
from .shared_buffers import SharedBuffers
from .spec_pickler import SpecPickler

CHUNK_SIZE = 1000
"""Tasks in a chunk: what the core takes in within one turn of a few milliseconds."""

CHUNK_MAX_NBYTES = 16 * 2**20
"""A chunk ends early when its tasks' own bytes pass this size, so that no single message is huge."""

UNREADABLE = textwrap.dedent("""\
        Error during deserialization of the task graph. This frequently
        occurs if the Scheduler and Client have different environments.
        For more information, see
        https://docs.dask.org/en/stable/deployment-considerations.html#consistent-software-environments
    """)
"""What a stock client is told when its graph cannot be unpickled; word for word, programs look for it."""

_ATOMS = frozenset((str, int, float, bytes))
_READY = frozenset((Task, DataNode))
"""Of a graph of nothing but these, dask's own conversion would make the same graph again."""
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1


def compile_graph(
    request: CompileRequest, chunk_size: int = CHUNK_SIZE
) -> Iterator[GraphChunk | GraphCommit | GraphFailed]:
    """Compile one graph: some chunks, then exactly one ``GraphCommit`` or ``GraphFailed``.

    Closing the iterator gives the compile up. Errors of the user's objects, ``SystemExit`` among them,
    become ``GraphFailed``.
    """
    try:
        yield from _compiled(request, chunk_size)
    except GeneratorExit:
        raise
    except Exception as error:
        yield failed(request, error)
    except BaseException as error:
        # a SystemExit that reached the client as it is would end the client
        yield failed(request, _harmless(error))


def _harmless(error: BaseException) -> RuntimeError:
    """An error that says what was raised, in place of one that ends whoever meets it."""
    wrapped = RuntimeError(f"the task graph raised {error!r}").with_traceback(error.__traceback__)
    wrapped.__cause__ = error
    return wrapped


def failed(request: CompileRequest, error: BaseException) -> GraphFailed:
    """The failure of a graph, in the shape in which stock clients open it."""
    exception, traceback, text = error_payloads(error)
    return GraphFailed(request.graph_id, request.keys, request.client, exception, traceback, text)


def _compiled(
    request: CompileRequest, chunk_size: int
) -> Iterator[GraphChunk | GraphCommit | GraphFailed]:
    started = time.perf_counter()
    graph, by_type, culled = materialize(request)
    materialized = time.perf_counter()
    submission = opened(request.annotations)
    wanted = plain_keys(request.keys)
    index = GraphIndex(graph)
    del graph
    needed = index.reachable(wanted)
    if request.internal_priority:
        priorities = index.given(request.internal_priority, needed)
    else:
        # all expressions but LLGExpr cull themselves, and are ordered whole
        priorities = index.ordered(needed if culled else list(range(index.size)))
    in_order = index.topological(needed, priorities)
    ordered_at = time.perf_counter()
    rows, elsewhere = by_row(wanted, index, in_order)
    commit = GraphCommit(
        graph_id=request.graph_id,
        keys=elsewhere,
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
        span_metadata=plain_or_closed(request.span_metadata),
        global_annotations=described(submission),
        n_tasks=len(needed) if culled else index.size,
    )
    table = _Table(request.graph_id, index, AnnotationTable(by_type, submission))
    yield from table.chunks(in_order, priorities, chunk_size)
    yield commit


# ------------------------------------------------------------------ from bytes to tasks


def materialize(
    request: CompileRequest,
) -> tuple[dict[Any, Any], dict[str, dict[Any, Any]], bool]:
    """The tasks of a graph (key -> GraphNode), their annotations (type -> key -> value), and whether what
    nobody needs is to be left out.

    Raises RuntimeError, with its cause, when the expression cannot be unpickled, and what the
    expression itself raises.
    """
    try:
        expr = unpickled(request.expr_ser)
    except Exception as error:
        raise RuntimeError(UNREADABLE) from error
    if isinstance(expr, dict):
        # ``Client.recreate_task_locally`` asks so for what a task takes; stock answers with an AttributeError
        expr = LLGExpr(expr)
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
    tasks = keywords_apart(expr, graph, request.keys)
    return tasks, by_type, isinstance(expr, LLGExpr)


def keywords_apart(expr: Any, graph: dict[Any, Any], wanted: Collection[Any]) -> dict[Any, Any]:
    """The graph of ``Client.map`` with large keyword arguments under keys of their own.

    Stock's client calls such an argument's key by the bare name of the keyword, so that a second call
    would get the first one's value while that is alive. What it is called here begins with that name, and goes on
    with the first of the keys that were asked for, which a call shares with no other.
    """
    if not isinstance(expr, _MapExpr) or not expr.kwargs:
        return graph
    apart = {
        name: f"{name}-of-{next(iter(wanted), None)}"
        for name in expr.kwargs
        if isinstance(graph.get(name), DataNode) and name not in wanted
    }
    if not apart:
        return graph
    return {
        apart.get(key, key): DataNode(apart[key], node.value)
        if key in apart
        else node.substitute(apart)
        for key, node in graph.items()
    }


def unpickled(payload: Payload) -> Any:
    """What a client pickled. Raises whatever unpickling raises."""
    header = payload_header(payload)
    if payload.kind == "serialized" and header.get("serializer") != "pickle":
        return _deserialized(header, payload)
    data, buffers = payload_pickle(payload)
    writeable = header.get("writeable") or ()
    views = [
        bytearray(buffer) if _must_copy(buffer, index, writeable) else buffer
        for index, buffer in enumerate(buffers)
    ]
    return pickle.loads(data, buffers=views)


def _must_copy(buffer: Any, index: int, writeable: Collection[bool]) -> bool:
    """Whether the client's object can be written to, while our bytes cannot."""
    return index < len(writeable) and tuple(writeable)[index] and memoryview(buffer).readonly


def _deserialized(header: dict[str, Any], payload: Payload) -> Any:
    """An expression that was not simply pickled: distributed's own families know it."""
    from distributed.protocol.compression import decompress
    from distributed.protocol.serialize import merge_and_deserialize

    frames = list(payload.frames)
    if header.get("compression"):
        frames = decompress(header, frames)
    return merge_and_deserialize(header, frames)


def opened(value: Any) -> Any:
    """A plain value as it is, a closed one opened."""
    return unpickled(value) if isinstance(value, Payload) else value


def plain_or_closed(value: Any) -> Any:
    """A closed value opened if msgpack can carry what is in it; else as it was."""
    if not isinstance(value, Payload):
        return value
    try:
        inner = unpickled(value)
    except Exception:
        return value
    return inner if is_plain(inner) else value


def code_or_none(code: Any) -> Any:
    """Source lines as they were sent; None where there are none, closed or not."""
    if not isinstance(code, Payload):
        return code or None
    try:
        return code if unpickled(code) else None
    except Exception:
        return None


def described(submission: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Annotations of a submission for people to read: functions by their repr."""
    if not submission:
        return None
    return {name: value if is_plain(value) else repr(value) for name, value in submission.items()}


# ------------------------------------------------------------------ keys and order


def plain_key(key: Any) -> Any:
    """A key as msgpack can carry it, equal to the given one: numpy's scalars become Python's.

    Raises TypeError as stock's ``validate_key`` would, and OverflowError for an int beyond 64 bits.
    """
    kind = type(key)
    if kind is tuple:
        if _ATOMS.issuperset(map(type, key)):
            return key
        return tuple([plain_key(element) for element in key])
    if kind is str or kind is bytes or kind is float:
        return key
    if kind is int:
        if not _INT_MIN <= key <= _INT_MAX:
            raise OverflowError(f"the key {key!r} has more than 64 bits")
        return key
    for plain in (str, bytes, bool, int, float, tuple):
        if isinstance(key, plain):
            return plain_key(int(key) if plain is bool else plain(key))
    item = getattr(key, "item", None)
    if item is not None and type(key).__module__ == "numpy":
        return plain_key(item())
    raise TypeError(f"Unexpected key type {type(key)} (value: {key!r})")


def plain_keys(keys: Iterable[Any]) -> list[Any]:
    """Keys as msgpack can carry them."""
    return [plain_key(key) for key in keys]


def actor_keys(actors: Any) -> Any:
    """True, None, or the keys of actors."""
    if actors is None or isinstance(actors, bool):
        return actors or None
    return plain_keys(actors)


def by_row(
    wanted: Iterable[Any], index: GraphIndex, in_order: list[int]
) -> tuple[list[int], list[Any]]:
    """Rows of wanted keys, in order; and the keys without a row, by their text."""
    here = []
    elsewhere = []
    for key in dict.fromkeys(wanted):
        place = index.places.get(key, index.size)
        if place < index.size:
            here.append(place)
        else:
            elsewhere.append(key)
    if len(here) > 1:
        row_of = {place: row for row, place in enumerate(in_order)}
        rows = sorted([row_of[place] for place in here])
    else:
        rows = [in_order.index(place) for place in here]
    return rows, sorted(elsewhere, key=repr)


# ------------------------------------------------------------------ from tasks to rows


class _Table:
    """The columns of one graph while they are cut into chunks."""

    def __init__(self, graph_id: int, index: GraphIndex, annotations: AnnotationTable) -> None:
        self._graph_id = graph_id
        self._index = index
        self._annotations = annotations
        self._is_annotated = bool(annotations)
        # place -> row, or, negative, the number of a key that is not in the graph; None before it is met
        self._numbers: list[int | None] = [None] * len(index.keys)
        self._n_rows = 0
        self._n_externals = 0
        self._groups: dict[str, int] = {}
        self._heads: dict[Any, int] = {}
        self._buffers = SharedBuffers()
        self._pickler = SpecPickler()

    def chunks(
        self, in_order: list[int], priorities: Mapping[int, int], chunk_size: int
    ) -> Iterator[GraphChunk]:
        """All rows, cut into chunks."""
        chunk = self._new_chunk()
        nbytes = 0
        for place in in_order:
            nbytes += self._add(chunk, place)
            chunk.priorities.append(priorities[place])
            if len(chunk.keys) >= chunk_size or nbytes >= CHUNK_MAX_NBYTES:
                yield self._finished(chunk)
                chunk = self._new_chunk()
                nbytes = 0
        if chunk.keys:
            yield self._finished(chunk)

    def _new_chunk(self) -> GraphChunk:
        return GraphChunk(self._graph_id, [], [], [], [], [], [], [])

    def _finished(self, chunk: GraphChunk) -> GraphChunk:
        chunk.buffers = self._buffers.take_new()  # type: ignore[assignment]
        chunk.new_annotations = self._annotations.take_new()
        return chunk

    def _add(self, chunk: GraphChunk, place: int) -> int:
        """Add a row; returns the bytes it takes."""
        index = self._index
        spec = index.specs[place]
        dependencies = index.dependencies[place]
        chunk.dependencies.append(self._known(chunk, dependencies) if dependencies else [])
        self._numbers[place] = self._n_rows
        self._n_rows += 1
        key = plain_key(index.keys[place])
        here = len(chunk.keys)
        chunk.keys.append(key)
        chunk.groups.append(self._group(chunk, key))
        data, buffers = self._pickler.dumps(spec)
        header = pickled_header(data, len(buffers))
        chunk.run_specs.append(header)
        if buffers:
            chunk.spec_buffers[here] = [self._buffers.add(buffer) for buffer in buffers]
        if spec.data_producer:
            chunk.data_producers.append(here)
        if self._is_annotated:
            number = self._annotations.number(index.keys[place])
            if number is not None:
                chunk.annotations[here] = number
        return len(header)

    def _known(self, chunk: GraphChunk, dependencies: list[int]) -> list[int]:
        """Dependencies as numbers: rows ascending, then keys that are not in the graph, first met first."""
        numbers = []
        for place in dependencies:
            number = self._numbers[place]
            if number is None:
                # topological order: whatever has no row by now has none at all
                self._n_externals += 1
                number = self._numbers[place] = -self._n_externals
                chunk.new_externals.append(plain_key(self._index.keys[place]))
            numbers.append(number)
        if len(numbers) > 1:
            numbers.sort()
            if numbers[0] < 0:
                numbers = [n for n in numbers if n >= 0] + [n for n in reversed(numbers) if n < 0]
        return numbers

    def _group(self, chunk: GraphChunk, key: Any) -> int:
        """The number of a key's group. Keys of one collection share the first element, and so the group."""
        if type(key) is tuple and key and type(key[0]) is str:
            number = self._heads.get(key[0])
            if number is None:
                number = self._heads[key[0]] = self._group_number(chunk, key)
            return number
        return self._group_number(chunk, key)

    def _group_number(self, chunk: GraphChunk, key: Any) -> int:
        name = key_group(key)
        number = self._groups.get(name)
        if number is None:
            number = self._groups[name] = len(self._groups)
            chunk.new_groups.append((name, key_split(key)))
        return number


__all__ = [
    "CHUNK_SIZE",
    "UNREADABLE",
    "closed_unless_plain",
    "compile_graph",
    "failed",
    "materialize",
    "opened",
    "plain_key",
]
