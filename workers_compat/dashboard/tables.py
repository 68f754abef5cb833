"""Tables of the dashboard's own pages. Importing this module imports bokeh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

from bokeh.layouts import column
from bokeh.models import ColumnDataSource
from bokeh.models.widgets.markups import Div
from bokeh.models.widgets.tables import DataTable, NumberFormatter, StringFormatter, TableColumn
from distributed.dashboard.components import DashboardComponent

#: Tables do not cover the menu when it is open.
BELOW_MENU = ".bk-data-table { z-index: 0; }"

#: Widths of columns, relative to each other: of text, of numbers at least, and per character of
#: the titles of numbers.
TEXT_WIDTH = 240
NUMBER_WIDTH = 80
TITLE_WIDTH = 9

#: Formats of numbers, as bokeh's ``NumberFormatter`` takes them; "" for text.
TEXT = ""
COUNT = "0,0"
NUMBER = "0.[000]"
PERCENT = "0.0 %"
SECONDS = "0,0.0"
NBYTES = "0.0 b"
GIB_SECONDS = "0,0.00"


#: Field -> (title, format) of the columns of a table.
Columns: TypeAlias = Mapping[str, tuple[str, str]]


class Tables(DashboardComponent):
    """A heading, and tables below it. Subclasses set `columns`, and call ``show`` in ``update``.

    Attributes:
        columns: the columns of each table.
    """

    columns: ClassVar[tuple[Columns, ...]]

    def __init__(self, scheduler: Any, **options: Any) -> None:
        self.scheduler = scheduler
        self.heading = Div(text="", width_policy="max")
        self.sources = [ColumnDataSource({name: [] for name in each}) for each in self.columns]
        tables = map(make_table, self.sources, self.columns)
        self.root = column(self.heading, *tables, **options)

    def show(self, heading: str, *rows: list[dict[str, Any]]) -> None:
        """Show `heading`, and the rows of each table."""
        self.heading.text = heading
        for source, columns, each in zip(self.sources, self.columns, rows, strict=True):
            source.data = column_data(columns, each)


def make_table(source: ColumnDataSource, columns: Columns) -> DataTable:
    """Return a table of the rows in `source`."""
    return DataTable(
        source=source,
        columns=[
            TableColumn(
                field=field,
                title=title,
                formatter=NumberFormatter(format=number) if number else StringFormatter(),
                width=max(NUMBER_WIDTH, TITLE_WIDTH * len(title)) if number else TEXT_WIDTH,
            )
            for field, (title, number) in columns.items()
        ],
        reorderable=False,  # needs jquery-ui
        sortable=True,
        index_position=None,
        sizing_mode="stretch_both",
        stylesheets=[BELOW_MENU],
    )


def column_data(names: Iterable[str], rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return field -> values of `rows`, for the fields `names`."""
    return {name: [row[name] for row in rows] for name in names}
