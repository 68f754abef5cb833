"""distributed's dashboard pages, two of them replaced, and pages of share groups and of memory.

Replaced are task groups and the event loop's profile. distributed sorts groups with ``dask.order``
and expects dependencies first, which ``dask.order`` does not guarantee (2026.8: the page fails for
many graphs); the replacement computes its own layout. The event loop is sampled only while its
profile is read; the replacement keeps reading, and redraws when the first samples arrive. Importing
this module imports bokeh.
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
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import applications, template_variables
from tornado.ioloop import IOLoop

from .group_layout import layout
from .memory_tables import MemoryTables
from .share_tables import ShareTables
from .tables import Tables

#: Milliseconds between updates of the page of groups.
UPDATE_MILLISECONDS = 200
#: Milliseconds between updates of the pages of share groups and of memory.
TABLES_MILLISECONDS = 500
#: Milliseconds between reads of the profile of the event loop.
PROFILE_MILLISECONDS = 2_000
#: A profile with fewer periods is redrawn automatically; later, when the user presses the button.
PROFILE_PERIODS = 30


class GroupGraph(TaskGroupGraph):
    """Task groups as boxes, and arrows between them."""

    def update_layout(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (group -> x and y of its box), (group -> groups that its arrows start from)."""
        groups = self.scheduler.task_groups
        links = {
            name: [other.name for other in group.dependencies if other.name != name]
            for name, group in groups.items()
        }
        where, links = layout(links)
        nodes = {name: {"x": x, "y": y} for name, (x, y) in where.items()}
        arrows = {
            name: {"nstart": set(others), "nend": [name] * len(set(others))}
            for name, others in links.items()
        }
        return nodes, arrows


def groups_page(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Fill the page of task groups."""
    graph = GroupGraph(scheduler, sizing_mode="stretch_both")
    graph.update()
    add_periodic_callback(doc, graph, UPDATE_MILLISECONDS)
    doc.add_root(graph.root)
    _decorate(doc, "Dask: Task Groups Graph", extra)


def loop_profile_page(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Fill the page of the event loop's profile."""
    loop_profile_plot(scheduler, extra, doc)
    _decorate(doc, "Dask: Profile of Event Loop", extra)


def shares_page(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Fill the page of share groups."""
    _show_tables(ShareTables(scheduler, sizing_mode="stretch_both"), doc)
    _decorate(doc, "Dask: Shares", extra)


def memory_page(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Fill the page of what tasks are expected to take in memory."""
    _show_tables(MemoryTables(scheduler, sizing_mode="stretch_both"), doc)
    _decorate(doc, "Dask: Memory", extra)


def _show_tables(tables: Tables, doc: Any) -> None:
    tables.update()
    add_periodic_callback(doc, tables, TABLES_MILLISECONDS)
    doc.add_root(tables.root)


def _decorate(doc: Any, title: str, extra: dict[str, Any]) -> None:
    doc.title = title
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)
    doc.theme = BOKEH_THEME


def loop_profile_plot(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Fill a page that has only the plot of the event loop's profile."""
    plot = ProfileServer(scheduler, sizing_mode="stretch_both", doc=doc)
    doc.add_root(plot.root)
    plot.trigger_update()
    doc.theme = BOKEH_THEME
    reference = weakref.ref(plot)

    def redraw() -> None:
        plot = reference()
        if plot is None or plot.start is not None:  # the user selected a time range
            return
        drawn = len(plot.ts_source.data["time"])
        if len(plot.log) > drawn and drawn < PROFILE_PERIODS:
            plot.trigger_update()

    doc.add_periodic_callback(redraw, PROFILE_MILLISECONDS)


def make_application(scheduler: Any, prefix: str) -> Any:
    """Return a tornado application that shows `scheduler`, started in the running loop.

    `prefix` is the prefix of every path.
    """
    variables = menu(template_variables(scheduler))
    application = BokehApplication(pages(), scheduler, prefix=prefix, template_variables=variables)
    application.initialize(IOLoop.current())
    application.start()
    return application


def menu(variables: dict[str, Any]) -> dict[str, Any]:
    """Return distributed's template `variables`, with the pages and plots that paceline adds."""
    names = [name for name in variables["pages"] if name != "info"]
    plots = [
        *variables["plots"],
        {"url": "individual-shares", "name": "Shares"},
        {"url": "individual-memory", "name": "Memory"},
    ]
    return {
        **variables,
        "pages": [*names, "shares", "memory", "info"],
        "plots": sorted(plots, key=lambda plot: str(plot["name"])),
    }


def pages() -> dict[str, Callable[..., Any]]:
    """Return path -> the function that fills its document."""
    own = {
        "/groups": groups_page,
        "/individual-groups": individual_doc(GroupGraph, UPDATE_MILLISECONDS),
        "/shares": shares_page,
        "/individual-shares": individual_doc(ShareTables, TABLES_MILLISECONDS),
        "/memory": memory_page,
        "/individual-memory": individual_doc(MemoryTables, TABLES_MILLISECONDS),
        "/profile-server": loop_profile_page,
        "/individual-profile-server": loop_profile_plot,
    }
    return {**applications, **own}
