"""Compile graphs: turn the pickled dask expression of a client into rows for the core.

This is the half of stock's ``update_graph`` that needs no scheduler state: unpickle, materialize
tasks and annotations, cull and order. Stock pickles a task at each dispatch; here each is pickled
once, with the graph.
"""

from __future__ import annotations

import pickle
import textwrap
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

import msgspec
from dask._expr import LLGExpr
from dask._task_spec import DataNode, Task, convert_legacy_graph
from dask.core import validate_key
from dask.utils import parse_timedelta
from distributed.client import _MapExpr
from paceline.protocol.keys import (
    KEY_NBYTES_MAX,
    check_encodable,
    check_length,
    check_prefix,
    key_group,
    key_nbytes,
    key_split,
)
from paceline.protocol.packed_keys import decode_or
from paceline.protocol.payload import Payload, payload_header, payload_pickle, pickled_header
from paceline.scheduler.core.stimuli import GraphChunk, GraphCommit, GraphFailed
from paceline.workers_compat.errors import error_payloads

from .annotations import AnnotationTable, is_plain, plain_number
from .graph_table import CompileRequest
from .ordering import GraphIndex
from .shared_buffers import SharedBuffers
from .spec_pickler import SpecPickler

#: Tasks per chunk: what the core handles within one turn of a few milliseconds.
CHUNK_SIZE = 1000

#: A chunk ends early when its tasks exceed this size, so that no single message is huge.
CHUNK_MAX_NBYTES = 16 * 2**20

#: The error of a graph that cannot be unpickled. Equal to stock's: programs search for these words.
UNREADABLE = textwrap.dedent("""\
        Error during deserialization of the task graph. This frequently
        occurs if the Scheduler and Client have different environments.
        For more information, see
        https://docs.dask.org/en/stable/deployment-considerations.html#consistent-software-environments
    """)

_ATOMS = frozenset((str, int, float, bytes))
#: dask's conversion leaves a graph of only these classes as it is.
_READY = frozenset((Task, DataNode))
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1


def compile_graph(
    request: CompileRequest, chunk_size: int = CHUNK_SIZE
) -> Generator[GraphChunk | GraphCommit | GraphFailed, None, None]:
    """Compile one graph: yield chunks, then exactly one ``GraphCommit`` or ``GraphFailed``.

    Errors of the user's objects, including ``SystemExit``, become ``GraphFailed``. Closing the
    iterator cancels the compilation.
    """
    try:
        yield from _compile(request, chunk_size)
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
    request: CompileRequest, chunk_size: int
) -> Iterator[GraphChunk | GraphCommit | GraphFailed]:
    started = time.perf_counter()
    graph, by_type, culled = materialize(request)
    materialized = time.perf_counter()
    submission = deserialize(request.annotations)
    wanted = plain_keys(request.keys)
    index = GraphIndex(graph)
    del graph
    needed = index.reachable(wanted)
    given: Any = request.internal_priority
    if isinstance(given, msgspec.Raw):  # this is not a compiler process
        given = request.internal_priority = decode_or(given, None)
    check_priorities(request)
    if given:
        priorities = index.given(given, needed)
    else:
        # expressions other than LLGExpr cull themselves and are ordered as a whole
        priorities = index.ordered(needed if culled else list(range(index.size)))
    in_order = index.topological(needed, priorities)
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
        n_tasks=len(needed) if culled else index.size,
    )
    table = _Table(
        request.graph_id, index, AnnotationTable(by_type, submission, request.received_at)
    )
    yield from table.chunks(in_order, priorities, chunk_size)
    yield commit


# Deserialization


def materialize(
    request: CompileRequest,
) -> tuple[dict[Any, Any], dict[str, dict[Any, Any]], bool]:
    """Return tasks (key -> GraphNode), annotations (type -> key -> value) and whether to cull.

    Raises RuntimeError, with the cause, if the expression cannot be unpickled.
    """
    try:
        expr = unpickle(request.expr_ser)
    except Exception as error:
        raise RuntimeError(UNREADABLE) from error
    if isinstance(expr, dict):
        # sent by ``Client.recreate_task_locally``; stock fails with an AttributeError
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
    tasks = rename_map_keywords(expr, graph, request.keys)
    return tasks, by_type, isinstance(expr, LLGExpr)


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


def unpickle(payload: Payload) -> Any:
    """Unpickle what a client pickled. Raises what unpickling raises."""
    header = payload_header(payload)
    if payload.kind == "serialized" and header.get("serializer") != "pickle":
        return _deserialized(header, payload)
    data, buffers = payload_pickle(payload)
    writeable = tuple(header.get("writeable") or ())
    # the buffers of objects that the client can write to must be writeable
    views = [
        bytearray(buffer) if must_be_writeable and memoryview(buffer).readonly else buffer
        for buffer, must_be_writeable in zip_longest(buffers, writeable[: len(buffers)])
    ]
    return pickle.loads(data, buffers=views)


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


def plain_key(key: Any) -> Any:
    """Return a key that msgpack can encode and that equals `key`. numpy scalars become Python's.

    Raises:
        TypeError: Not a key, as in stock's ``validate_key``.
        OverflowError: An int of more than 64 bits.
        ValueError: The key is too long or not UTF-8.
    """
    if key_nbytes(key) > KEY_NBYTES_MAX:
        check_length(key)
    kind = type(key)
    if kind is tuple:
        if _ATOMS.issuperset(map(type, key)):
            for element in key:
                if type(element) is str and not element.isascii():
                    check_encodable(element)
            return key
        return tuple([plain_key(element) for element in key])
    if kind is str or kind is bytes or kind is float:
        if kind is str and not key.isascii():
            check_encodable(key)
        return key
    if kind is int:
        if not _INT_MIN <= key <= _INT_MAX:
            raise OverflowError(f"the key {key!r} has more than 64 bits")
        return key
    return plain_key(_as_builtin(key))


def _as_builtin(key: Any) -> Any:
    """Convert an instance of a subclass, or a numpy scalar, to a builtin value."""
    kinds: tuple[type[Any], ...] = (str, bytes, bool, int, float, tuple)
    for plain in kinds:
        if isinstance(key, plain):
            return int(key) if plain is bool else plain(key)
    item = getattr(key, "item", None)
    if item is not None and type(key).__module__ == "numpy":
        return item()
    raise TypeError(f"Unexpected key type {type(key)} (value: {key!r})")


def check_priorities(request: CompileRequest) -> None:
    """Raise TypeError or ValueError for a priority that is not a number, or NaN."""
    for given in (request.internal_priority, request.user_priority):
        for value in given.values() if isinstance(given, dict) else (given,):
            if value is not None:
                plain_number(value)


def plain_keys(keys: Iterable[Any]) -> list[Any]:
    """Return keys that msgpack can encode."""
    return [plain_key(key) for key in keys]


def actor_keys(actors: Any) -> Any:
    """Return True, None, or the keys of actors."""
    if actors is None or isinstance(actors, bool):
        return actors or None
    return plain_keys(actors)


def rows_of(
    wanted: Iterable[Any], index: GraphIndex, in_order: list[int]
) -> tuple[list[int], list[Any]]:
    """Return the rows of wanted keys, ascending, and the keys without a row, by their repr."""
    places = []
    external = []
    for key in dict.fromkeys(wanted):
        place = index.places.get(key, index.size)
        if place < index.size:
            places.append(place)
        else:
            external.append(key)
    if len(places) > 1:
        row_of = {place: row for row, place in enumerate(in_order)}
        rows = sorted([row_of[place] for place in places])
    else:
        rows = [in_order.index(place) for place in places]
    return rows, sorted(external, key=repr)


# Rows


class _Table:
    """The columns of one graph, cut into chunks."""

    def __init__(self, graph_id: int, index: GraphIndex, annotations: AnnotationTable) -> None:
        self._graph_id = graph_id
        self._index = index
        self._annotations = annotations
        self._is_annotated = bool(annotations)
        # place -> row, or a negative number for a key outside the graph; None until it is used
        self._numbers: list[int | None] = [None] * len(index.keys)
        self._n_rows = 0
        self._n_externals = 0
        self._groups: dict[str, int] = {}
        self._heads: dict[Any, int] = {}
        self._prefixes: list[str] = []
        self._buffers = SharedBuffers()
        self._pickler = SpecPickler()

    def chunks(
        self, in_order: list[int], priorities: Mapping[int, int], chunk_size: int
    ) -> Iterator[GraphChunk]:
        """Yield all rows, cut into chunks."""
        chunk = self._new_chunk()
        nbytes = 0
        for place in in_order:
            nbytes += self._add(chunk, place)
            chunk.priorities.append(priorities[place])
            if len(chunk.keys) >= chunk_size or nbytes >= CHUNK_MAX_NBYTES:
                yield self._complete(chunk)
                chunk = self._new_chunk()
                nbytes = 0
        if chunk.keys:
            yield self._complete(chunk)

    def _new_chunk(self) -> GraphChunk:
        return GraphChunk(self._graph_id, [], [], [], [], [], [], [])

    def _complete(self, chunk: GraphChunk) -> GraphChunk:
        chunk.buffers = self._buffers.take_new()  # type: ignore[assignment]
        chunk.new_annotations = self._annotations.take_new()
        return chunk

    def _add(self, chunk: GraphChunk, place: int) -> int:
        """Add a row and return its size in bytes."""
        index = self._index
        spec = index.specs[place]
        dependencies = index.dependencies[place]
        chunk.dependencies.append(
            self._dependency_numbers(chunk, dependencies) if dependencies else []
        )
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
            number = self._annotations.number(index.keys[place], self._prefixes[chunk.groups[-1]])
            if number is not None:
                chunk.annotations[here] = number
        return len(header)

    def _dependency_numbers(self, chunk: GraphChunk, dependencies: list[int]) -> list[int]:
        """Return rows, ascending, then negative numbers of external keys in order of appearance."""
        numbers = []
        for place in dependencies:
            number = self._numbers[place]
            if number is None:
                # in topological order, a dependency without a row is outside the graph
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
        """Return the number of the group of `key`; keys of a collection share their first item."""
        if type(key) is tuple and key and type(key[0]) is str:
            number = self._heads.get(key[0])
            if number is None:
                number = self._heads[key[0]] = self._group_number(chunk, key)
            return number
        check_prefix(key)
        return self._group_number(chunk, key)

    def _group_number(self, chunk: GraphChunk, key: Any) -> int:
        name = key_group(key)
        number = self._groups.get(name)
        if number is None:
            number = self._groups[name] = len(self._groups)
            self._prefixes.append(key_split(key))
            chunk.new_groups.append((name, self._prefixes[-1]))
        return number
