"""A graph that is being received: its rows, and the progress of its commit."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from paceline.protocol.compression import Buffer
from paceline.protocol.keys import Key
from paceline.protocol.payload import Payload
from paceline.scheduler.core.state.model import ClientState, TaskGroup, TaskState
from paceline.scheduler.core.state.sharing.accounts import Account
from paceline.scheduler.core.stimuli import AnnotationSet, GraphChunk, GraphCommit

from .computations import Computation
from .spans import SpanPath

#: Number of stages that process each row.
STAGES_OF_A_ROW = 5

#: Dependencies that count as one more row of a turn's budget.
EDGES_A_ROW = 16

#: Rows that ``free_rows`` removes at a time, which takes about 2 ms.
FREED_ROWS_MAX: Final = 10_000

#: Graphs with at most this number of dependencies are budgeted by rows alone.
EDGES_FREE = 10_000


@dataclass(slots=True, eq=False)
class PendingGraph:
    """Rows of one graph by number; see ``GraphChunk`` for the columns.

    A commit processes the rows in stages (``graphs.commit.STAGES``). Any turn can end between two
    rows. Columns that only *insert* needs stay in their chunks: a list of 1 M elements takes
    milliseconds to grow, and lists that are filled together grow in the same turn.

    Attributes:
        graph_id, client: number of the graph, and name of its client.
        keys, dependencies: columns of the rows.
        chunks: chunks with rows that *insert* has not processed.
        first_row: number of the first row of ``chunks[0]``.
        group_names: name and prefix of each group.
        annotation_sets: annotations that the rows refer to by number.
        external_dependencies, external_tasks: dependencies outside of the graph, as keys and as
            tasks.
        buffers: out-of-band buffers of the specifications.
        n_edges: number of dependencies of all rows.
        commit: the GraphCommit, once it has arrived.
        stimulus_id: id of the commit's stimulus.
        stage: name of the current stage; "done" after the last, when only ``free_rows`` is left.
        cursor: number of rows that the stage has processed.
        tasks: row -> TaskState, filled by *insert*.
        affects_scheduling: per annotation set, whether it has more than a value and a span.
        needed: per row, whether *activate* moves it to waiting.
        ready: tasks for *dispatch*.
        sorts_ready: whether `ready` is not in the order of priorities.
        new_tasks: tasks created by this graph.
        collisions: rows whose key is known with other dependencies.
        warned_groups: groups for which a collision was logged.
        placeholder_client: keeps external dependencies and known rows alive while the commit takes
            several turns, or None.
        dropped: whether the graph was dropped during its commit.
        needs_prune: whether *prune* has anything to do, because other turns came in between or a
            dependency failed.
        cancelled_keys: wanted keys that the client released before *register* finished.
        computation: the computation that the graph belongs to.
        spans: group -> span that its first annotated task names.
        other_spans: tasks that may name another span than their group's, with their annotations.
        generation: generation of its priorities.
        account: account of its tasks, from the begin of its commit.
        annotated_accounts: number of an annotation set that names a share group -> account.
    """

    graph_id: int
    client: str
    keys: list[Key] = field(default_factory=list)
    dependencies: list[list[int]] = field(default_factory=list)
    chunks: deque[GraphChunk] = field(default_factory=deque)
    first_row: int = 0
    group_names: list[tuple[Any, str]] = field(default_factory=list)
    n_edges: int = 0
    external_dependencies: list[Key] = field(default_factory=list)
    annotation_sets: list[AnnotationSet] = field(default_factory=list)
    affects_scheduling: list[bool] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)

    commit: GraphCommit | None = None
    stimulus_id: str = ""
    stage: str = "insert"
    cursor: int = 0
    tasks: list[TaskState] = field(default_factory=list)
    external_tasks: list[TaskState] = field(default_factory=list)
    needed: bytearray = field(default_factory=bytearray)
    ready: list[TaskState] = field(default_factory=list)
    sorts_ready: bool = False
    new_tasks: list[TaskState] = field(default_factory=list)
    collisions: dict[int, None] = field(default_factory=dict)
    warned_groups: dict[TaskGroup, None] = field(default_factory=dict)
    placeholder_client: ClientState | None = None
    dropped: bool = False
    needs_prune: bool = False
    cancelled_keys: dict[Key, None] = field(default_factory=dict)
    computation: Computation | None = None
    spans: dict[TaskGroup, SpanPath] = field(default_factory=dict)
    other_spans: list[tuple[TaskState, AnnotationSet | None]] = field(default_factory=list)
    generation: float = 0.0
    account: Account | None = None
    annotated_accounts: dict[int, Account] = field(default_factory=dict)

    @property
    def has_begun(self) -> bool:
        """Return whether its commit has begun."""
        return self.account is not None

    def next_rows(
        self, n: int, budget: int, *, backwards: bool = False, counts_edges: bool = True
    ) -> tuple[range, int]:
        """Return the rows of a stage to process in this turn, and their cost, at most `budget`.

        ``cursor`` of the `n` rows of the stage are done. A row costs 1, and so do ``EDGES_A_ROW``
        dependencies unless `counts_edges` is false. `backwards` starts with the last row.
        """
        first = self.cursor
        last = min(n, first + budget)
        rows = range(n - 1 - first, n - 1 - last, -1) if backwards else range(first, last)
        if not counts_edges or self.n_edges <= EDGES_FREE:
            return rows, len(rows)
        edges = 0
        for count, row in enumerate(rows, 1):
            edges += len(self.dependencies[row])
            if edges >= budget * EDGES_A_ROW:
                rows = rows[:count]
                break
        return rows, len(rows) + edges // EDGES_A_ROW

    def unfinished_tasks(self) -> list[TaskState]:
        """Return the tasks that the commit under way has not reached, or not finished with."""
        if self.stage == "dispatch":
            return self.ready[self.cursor :]
        if self.stage == "done" or (self.stage == "release_pins" and not self.dropped):
            return []
        return self.tasks

    def free_rows(self) -> bool:
        """Remove the last rows of a graph that is done, and return whether there are more.

        Its tasks may have been forgotten meanwhile. Freeing 1 M at once takes 0.2 s.
        """
        columns: tuple[list[Any], ...] = (
            *(self.keys, self.dependencies),
            *(self.tasks, self.new_tasks, self.ready),
        )
        for column in columns:
            del column[-FREED_ROWS_MAX:]
        n_rows = 0
        while self.chunks and n_rows < FREED_ROWS_MAX:  # of a graph dropped during *insert*
            n_rows += len(self.chunks.pop().keys)
        return bool(self.keys)

    def fits(self, budget: int) -> bool:
        """Return whether all stages together fit into one turn."""
        assert self.commit is not None
        size = len(self.keys)
        if self.n_edges > EDGES_FREE:
            size += self.n_edges // EDGES_A_ROW + 1
        return size * STAGES_OF_A_ROW + self.n_wanted < budget

    @property
    def is_new(self) -> bool:
        """Return whether none of its tasks and dependencies was known before.

        None of them can then have failed.
        """
        return not self.external_tasks and len(self.new_tasks) == len(self.keys)

    @property
    def n_wanted(self) -> int:
        """Number of keys that the client wants."""
        assert self.commit is not None
        return len(self.commit.rows) + len(self.commit.keys)

    def wanted(self, first: int = 0, last: int | None = None) -> list[Key]:
        """Return the keys that the client wants, from number `first` up to and without `last`."""
        commit = self.commit
        assert commit is not None
        n_rows = len(commit.rows)
        end = self.n_wanted if last is None else last
        keys = [self.keys[row] for row in commit.rows[first:end]]
        if end > n_rows:
            keys += commit.keys[max(0, first - n_rows) : end - n_rows]
        return keys

    def add(self, chunk: GraphChunk) -> None:
        """Append the rows of `chunk`."""
        self.chunks.append(chunk)
        self.keys += chunk.keys
        self.dependencies += chunk.dependencies
        self.n_edges += sum(map(len, chunk.dependencies))
        self.group_names += [(name, prefix) for name, prefix in chunk.new_groups]
        self.external_dependencies += chunk.new_externals
        self.buffers += chunk.buffers
        self.annotation_sets += chunk.new_annotations
        self.affects_scheduling += [each.affects_scheduling for each in chunk.new_annotations]

    def run_spec(self, chunk: GraphChunk, position: int) -> bytes | Payload | None:
        """Return the run_spec of the row at `position` of `chunk`; None if it has none."""
        header = chunk.run_specs[position]
        buffers = chunk.spec_buffers.get(position)
        if buffers is None:
            return header or None
        return Payload("pickled", header, tuple([self.buffers[i] for i in buffers]))
