"""Tables of the dashboard's own pages. Importing this module imports bokeh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bokeh.models import ColumnDataSource
from bokeh.models.widgets.tables import DataTable, NumberFormatter, StringFormatter, TableColumn

#: Tables do not cover the menu when it is open.
BELOW_MENU = ".bk-data-table { z-index: 0; }"

#: Widths of columns, relative to each other: of text, of numbers at least, and per character of
#: the titles of numbers.
TEXT_WIDTH = 220
NUMBER_WIDTH = 80
TITLE_WIDTH = 8

#: Formats of numbers, as bokeh's ``NumberFormatter`` takes them; "" for text.
TEXT = ""
COUNT = "0,0"
NUMBER = "0.[000]"
PERCENT = "0.0 %"
SECONDS = "0,0.0"
NBYTES = "0.0 b"
GIB_SECONDS = "0,0.00"


def make_table(source: ColumnDataSource, columns: Mapping[str, tuple[str, str]]) -> DataTable:
    """Return a table of the rows in `source`; `columns` maps fields to titles and formats."""
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
