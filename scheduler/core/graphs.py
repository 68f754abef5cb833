"""A graph that is being taken in: its rows as they came, and how far its commit has come.

Must not know: what a commit does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paceline.protocol.keys import Key
from paceline.protocol.payload import Payload

from .spans import SpanPath
from .state import ClientState, Computation, TaskGroup, TaskState
from .stimuli import AnnotationSet, GraphChunk, GraphCommit


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
        cursor: next row of that stage.
        tasks: row -> its TaskState, filled by *insert*.
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
    group_names: list[tuple[str, str]] = field(default_factory=list)
    dependencies: list[list[int]] = field(default_factory=list)
    externals: list[Key] = field(default_factory=list)
    run_specs: list[bytes | Payload] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    data_producers: set[int] = field(default_factory=set)
    annotations: dict[int, int] = field(default_factory=dict)
    annotation_sets: list[AnnotationSet] = field(default_factory=list)
    buffers: list[bytes] = field(default_factory=list)

    commit: GraphCommit | None = None
    stimulus_id: str = ""
    stage: str = "insert"
    cursor: int = 0
    tasks: list[TaskState] = field(default_factory=list)
    external_tasks: list[TaskState] = field(default_factory=list)
    resolved_groups: list[TaskGroup | None] = field(default_factory=list)
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

    def add(self, chunk: GraphChunk) -> None:
        """Take in a chunk's columns."""
        first = len(self.keys)
        self.keys += chunk.keys
        self.groups += chunk.groups
        self.group_names += [(name, prefix) for name, prefix in chunk.new_groups]
        self.dependencies += chunk.dependencies
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
