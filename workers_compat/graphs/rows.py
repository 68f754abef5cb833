"""The columns of a compiled graph: keys, groups, dependencies and pickled tasks, in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from paceline.protocol.keys import check_prefix, key_group, key_split
from paceline.protocol.payload import pickled_header
from paceline.scheduler.core.stimuli import GraphChunk

from .annotations import AnnotationTable
from .ordering import GraphIndex
from .plain_keys import plain_key
from .shared_buffers import SharedBuffers
from .spec_pickler import SpecPickler

#: Tasks in a chunk. A chunk is one turn of the core, which takes a few milliseconds.
CHUNK_SIZE = 500

#: A chunk ends early when its tasks exceed this size, so that no single message is huge.
CHUNK_MAX_NBYTES = 16 * 2**20


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
        row_of = [0] * index.size
        for row, place in enumerate(in_order):
            row_of[place] = row
        rows = sorted([row_of[place] for place in places])
    else:
        rows = [in_order.index(place) for place in places]
    return rows, sorted(external, key=repr)


class RowTable:
    """The columns of one graph, cut into chunks."""

    def __init__(self, graph_id: int, index: GraphIndex, annotations: AnnotationTable) -> None:
        self._graph_id = graph_id
        self._index = index
        self._annotations: Any = annotations
        self._is_annotated = bool(annotations)
        # place -> row, or a negative number for a key outside the graph; `_no_row` until it is used
        self._no_row = len(index.keys)
        self._numbers: list[int] = [self._no_row] * self._no_row
        self._n_rows = 0
        self._n_externals = 0
        self._groups: dict[Any, int] = {}
        self._heads: dict[Any, int] = {}
        self._prefixes: list[str] = []
        self._buffers = SharedBuffers()
        self._pickler = SpecPickler()
        self._start_chunk()

    def chunks(
        self, in_order: list[int], priorities: list[Any], chunk_size: int
    ) -> Iterator[GraphChunk]:
        """Yield all rows, cut into chunks."""
        for place in in_order:
            self._add(place, priorities[place])
            if len(self._keys) >= chunk_size or self._nbytes >= CHUNK_MAX_NBYTES:
                yield self._take_chunk()
        if self._keys:
            yield self._take_chunk()

    def _start_chunk(self) -> None:
        # the columns of the chunk, see ``GraphChunk``
        self._nbytes = 0
        self._keys: list[Any] = []
        self._row_groups: list[int] = []
        self._new_groups: list[Any] = []
        self._dependencies: list[list[int]] = []
        self._new_externals: list[Any] = []
        self._run_specs: list[bytes] = []
        self._priorities: list[Any] = []
        self._spec_buffers: dict[int, list[int]] = {}
        self._data_producers: list[int] = []
        self._row_annotations: dict[int, int] = {}

    def _take_chunk(self) -> GraphChunk:
        """Return the rows added since the last call."""
        buffers: Any = self._buffers.take_new()
        chunk = GraphChunk(
            graph_id=self._graph_id,
            keys=self._keys,
            groups=self._row_groups,
            new_groups=self._new_groups,
            dependencies=self._dependencies,
            new_externals=self._new_externals,
            run_specs=self._run_specs,
            priorities=self._priorities,
            spec_buffers=self._spec_buffers,
            buffers=buffers,
            data_producers=self._data_producers,
            annotations=self._row_annotations,
            new_annotations=self._annotations.take_new(),
        )
        self._start_chunk()
        return chunk

    def _add(self, place: int, priority: Any) -> None:
        """Add a row to the chunk."""
        index = self._index
        spec = index.specs[place]
        self._dependencies.append(self._dependency_numbers(index.dependencies[place]))
        self._numbers[place] = self._n_rows
        self._n_rows += 1
        key = plain_key(index.keys[place])
        here = len(self._keys)
        self._keys.append(key)
        group = self._group(key)
        self._row_groups.append(group)
        self._priorities.append(priority)
        data, buffers = self._pickler.dumps(spec)
        header = pickled_header(data, len(buffers))
        self._nbytes += len(header)
        self._run_specs.append(header)
        if buffers:
            self._spec_buffers[here] = [self._buffers.add(buffer) for buffer in buffers]
        if spec.data_producer:
            self._data_producers.append(here)
        if self._is_annotated:
            number = self._annotations.number(index.keys[place], self._prefixes[group])
            if number is not None:
                self._row_annotations[here] = number

    def _dependency_numbers(self, dependencies: list[int]) -> list[int]:
        """Return rows, ascending, then negative numbers of external keys in order of appearance."""
        numbers: list[int] = []
        for place in dependencies:
            number = self._numbers[place]
            if number == self._no_row:
                # in topological order, a dependency without a row is outside the graph
                self._n_externals += 1
                number = self._numbers[place] = -self._n_externals
                self._new_externals.append(plain_key(self._index.keys[place]))
            numbers.append(number)
        if len(numbers) > 1:
            numbers.sort()
            if numbers[0] < 0:
                numbers = [n for n in numbers if n >= 0] + [n for n in reversed(numbers) if n < 0]
        return numbers

    def _group(self, key: Any) -> int:
        """Return the number of the group of `key`; keys of a collection share their first item."""
        if type(key) is tuple and key and type(key[0]) is str:
            number = self._heads.get(key[0])
            if number is None:
                number = self._heads[key[0]] = self._group_number(key)
            return number
        check_prefix(key)
        return self._group_number(key)

    def _group_number(self, key: Any) -> int:
        name = key_group(key)
        number = self._groups.get(name)
        if number is None:
            number = self._groups[name] = len(self._groups)
            self._prefixes.append(key_split(key))
            self._new_groups.append((name, self._prefixes[-1]))
        return number
