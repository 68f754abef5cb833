"""The dashboard's pages: distributed's, but for the graph of task groups and the profile of the event loop.

distributed sorts groups with ``dask.order`` and expects dependencies first, which ``dask.order`` does not promise (2026.8: its
page fails for many graphs). Ours places them itself. The event loop is sampled only while somebody asks: ours keeps asking, and
is drawn again as the first samples come. Importing this imports bokeh.

Must not know: which scheduler is shown.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from distributed.dashboard.components.scheduler import (
    BOKEH_THEME,
    ProfileServer,
    TaskGroupGraph,
    add_periodic_callback,
    env,
    individual_doc,
)
from distributed.dashboard.scheduler import applications

from .shapes import placed

#: Milliseconds between looks at the groups.
UPDATE_MILLISECONDS = 200
#: Milliseconds between questions for the profile of the event loop.
PROFILE_MILLISECONDS = 2_000
#: A profile of fewer periods is drawn again as they come; later, when somebody presses the button.
PROFILE_PERIODS = 30


class GroupGraph(TaskGroupGraph):
    """Task groups as boxes, and arrows between them."""

    def update_layout(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Where boxes and arrows are. (group -> x and y), (group -> the groups that its arrows come from)."""
        groups = self.scheduler.task_groups
        links = {
            name: [other.name for other in group.dependencies if other.name != name]
            for name, group in groups.items()
        }
        where, links = placed(links)
        nodes = {name: {"x": x, "y": y} for name, (x, y) in where.items()}
        arrows = {
            name: {"nstart": set(others), "nend": [name] * len(set(others))} for name, others in links.items()
        }
        return nodes, arrows


def groups_page(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """The page of task groups."""
    graph = GroupGraph(scheduler, sizing_mode="stretch_both")
    doc.title = "Dask: Task Groups Graph"
    graph.update()
    add_periodic_callback(doc, graph, UPDATE_MILLISECONDS)
    doc.add_root(graph.root)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)
    doc.theme = BOKEH_THEME


def loop_profile_page(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """The page of the event loop's profile."""
    loop_profile_plot(scheduler, extra, doc)
    doc.title = "Dask: Profile of Event Loop"
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)


def loop_profile_plot(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """The same, alone."""
    plot = ProfileServer(scheduler, sizing_mode="stretch_both", doc=doc)
    doc.add_root(plot.root)
    plot.trigger_update()
    doc.theme = BOKEH_THEME
    found = weakref.ref(plot)

    def look() -> None:
        plot = found()
        if plot is None or plot.start is not None:  # or somebody chose a time
            return
        drawn = len(plot.ts_source.data["time"])
        if len(plot.log) > drawn and drawn < PROFILE_PERIODS:
            plot.trigger_update()

    doc.add_periodic_callback(look, PROFILE_MILLISECONDS)


def pages() -> dict[str, Callable[..., Any]]:
    """Path -> what makes its document."""
    own = {
        "/groups": groups_page,
        "/individual-groups": individual_doc(GroupGraph, UPDATE_MILLISECONDS),
        "/profile-server": loop_profile_page,
        "/individual-profile-server": loop_profile_plot,
    }
    return {**applications, **own}
