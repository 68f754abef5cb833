"""A graph that is being taken in: its rows as they came, and how far its commit has come.

Must not know: what a commit does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paceline.protocol.keys import Key
from paceline.protocol.payload import Payload

from .groups import Computation, TaskGroup
from .spans import SpanPath
from .state import ClientState, TaskState
from .stimuli import AnnotationSet, GraphChunk, GraphCommit

#: A row is looked at this many times before its graph is done.
STAGES_OF_A_ROW = 5

#: So many dependencies count as one more row.
EDGES_A_ROW = 16

#: Nobody counts the dependencies of a graph that has no more than this.
EDGES_FREE = 10_000


@dataclass(slots=True, eq=False)
class PendingGraph:
    """Rows of one graph, by number; see ``GraphChunk`` for the columns.

    The commit goes through the stages *insert* (rows become tasks, dependencies first), *claim* (the client
    wants its keys), *wish* (what is needed, from the wanted keys down), *wake* (needed tasks to waiting, dependencies first), *sweep* (back to released
    what is not needed after all) and *place* (what can run goes to workers, best priority first), each a row at a
    time, so that any turn can end between two rows; then *unpin* lets go of what was held. A graph that is dropped in
    between goes to *unpin* at once, and from there to *undo*.

    Attributes:
        graph_id, client: whose it is.
        commit: the GraphCommit, once it came.
        stage: name of the stage under way.
        n_edges: how many dependencies all rows have.
        cursor: next row of that stage.
        tasks: row -> its TaskState, filled by *insert*.
        says_more: per annotation set, whether it says anything beside a value and a span.
        needed: per row, whether *wake* is to wake it.
        ready: tasks that *place* places.
        new_tasks: tasks that this graph made.
        collisions: rows whose key is known with other dependencies.
        pin: holds externals and known rows while the commit takes several turns, or None.
        dropped: it was given up while it was being committed.
        sweeps: other turns came between, or a dependency has failed: *sweep* has something to do.
        withdrawn: wanted keys that the client gave up before *claim* was through.
        spans: group -> span that its first annotated task names.
        other_spans: tasks that may name another span than their group's, with their annotations.
        generation: of its priorities.
    """

    graph_id: int
    client: str
    keys: list[Key] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    group_names: list[tuple[Any, str]] = field(default_factory=list)
    dependencies: list[list[int]] = field(default_factory=list)
    n_edges: int = 0
    externals: list[Key] = field(default_factory=list)
    run_specs: list[bytes | Payload] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    data_producers: set[int] = field(default_factory=set)
    annotations: dict[int, int] = field(default_factory=dict)
    annotation_sets: list[AnnotationSet] = field(default_factory=list)
    says_more: list[bool] = field(default_factory=list)
    buffers: list[bytes] = field(default_factory=list)

    commit: GraphCommit | None = None
    stimulus_id: str = ""
    stage: str = "insert"
    cursor: int = 0
    tasks: list[TaskState] = field(default_factory=list)
    external_tasks: list[TaskState] = field(default_factory=list)
    needed: bytearray = field(default_factory=bytearray)
    ready: list[TaskState] = field(default_factory=list)
    new_tasks: list[TaskState] = field(default_factory=list)
    collisions: dict[int, None] = field(default_factory=dict)
    warned_groups: dict[TaskGroup, None] = field(default_factory=dict)
    pin: ClientState | None = None
    dropped: bool = False
    sweeps: bool = False
    withdrawn: dict[Key, None] = field(default_factory=dict)
    computation: Computation | None = None
    spans: dict[TaskGroup, SpanPath] = field(default_factory=dict)
    other_spans: list[tuple[TaskState, AnnotationSet | None]] = field(default_factory=list)
    generation: float = 0.0

    def rows_up(self, end: int, budget: int) -> tuple[int, int]:
        """Up to which row a stage goes in this turn, and what that takes of the budget: a row is one, and so are so
        many dependencies.
        """
        first = self.cursor
        last = min(end, first + budget)
        if self.n_edges <= EDGES_FREE:
            return last, last - first
        edges = 0
        for row in range(first, last):
            edges += len(self.dependencies[row])
            if edges >= budget * EDGES_A_ROW:
                last = row + 1
                break
        return last, last - first + edges // EDGES_A_ROW

    def rows_down(self, budget: int) -> tuple[int, int]:
        """Down to which row a stage goes in this turn, when it goes from the last to the first; else as ``rows_up``."""
        first = self.cursor
        last = max(0, first - budget)
        if self.n_edges <= EDGES_FREE:
            return last, first - last
        edges = 0
        for row in range(first - 1, last - 1, -1):
            edges += len(self.dependencies[row])
            if edges >= budget * EDGES_A_ROW:
                last = row
                break
        return last, first - last + edges // EDGES_A_ROW

    def fits(self, budget: int) -> bool:
        """Whether all stages together take no more than one turn."""
        assert self.commit is not None
        size = len(self.keys)
        if self.n_edges > EDGES_FREE:
            size += self.n_edges // EDGES_A_ROW + 1
        return size * STAGES_OF_A_ROW + self.n_wanted < budget

    @property
    def is_new(self) -> bool:
        """Whether none of its tasks, and of what they depend on, was known before: nothing of it can have failed by now."""
        return not self.external_tasks and len(self.new_tasks) == len(self.keys)

    @property
    def n_wanted(self) -> int:
        """How many keys the client asked for."""
        assert self.commit is not None
        return len(self.commit.rows) + len(self.commit.keys)

    def wanted(self, first: int = 0, last: int | None = None) -> list[Key]:
        """Keys that the client asked for, from the ``first`` on to the one before the ``last``."""
        commit = self.commit
        assert commit is not None
        n_rows = len(commit.rows)
        end = self.n_wanted if last is None else last
        keys = [self.keys[row] for row in commit.rows[first:end]]
        if end > n_rows:
            keys += commit.keys[max(0, first - n_rows) : end - n_rows]
        return keys

    def add(self, chunk: GraphChunk) -> None:
        """Take in a chunk's columns."""
        first = len(self.keys)
        self.keys += chunk.keys
        self.groups += chunk.groups
        self.group_names += [(name, prefix) for name, prefix in chunk.new_groups]
        self.dependencies += chunk.dependencies
        self.n_edges += sum(map(len, chunk.dependencies))
        self.externals += chunk.new_externals
        self.priorities += chunk.priorities
        self.buffers += chunk.buffers
        specs: list[Any] = list(chunk.run_specs)
        for row, ids in chunk.spec_buffers.items():
            specs[row] = Payload("pickled", specs[row], tuple(self.buffers[i] for i in ids))
        self.run_specs += specs
        self.data_producers.update(first + row for row in chunk.data_producers)
        for row, number in chunk.annotations.items():
            self.annotations[first + row] = number
        self.annotation_sets += chunk.new_annotations
        self.says_more += [said.says_more for said in chunk.new_annotations]
