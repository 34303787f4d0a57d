"""A table of the terminal whose numbers are whole on any screen."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import takewhile

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table

_FOLDED = 16  # cells of a column of text in a table that has no room
_WIDE = 10_000  # cells: no limit


class WholeTable(Table):
    """A table that cuts no number: one that is too wide for its place becomes several, each with the first columns."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield Rich's lines of each part."""
        first, *others = self.columns
        frame = [first, *takewhile(lambda column: column.justify == "left", others)]
        groups: list[list[Column]] = []
        for column in self.columns[len(frame) :]:
            # A column whose head begins with a line break continues the one before it.
            if groups and str(column.header).startswith("\n"):
                groups[-1].append(column)
            else:
                groups.append([column])
        parts = [frame]
        for group in groups:
            if parts[-1] != frame and self._least_width([*parts[-1], *group], console, options) > options.max_width:
                parts.append(frame)
            parts[-1] = [*parts[-1], *group]
        for part in parts:
            table = self._part(part)
            table.title = self.title if part is parts[0] else None
            table.caption = self.caption if part is parts[-1] else None
            yield from super(WholeTable, table).__rich_console__(console, options)

    def _part(self, columns: Sequence[Column]) -> WholeTable:
        """The table with these of its columns; numbers stay whole, and text is folded rather than cut."""
        table = copy(self)
        table.columns = [
            replace(column, _index=place, no_wrap=column.no_wrap or column.justify == "right", overflow="fold")
            for place, column in enumerate(columns)
        ]
        return table

    def _least_width(self, columns: Sequence[Column], console: Console, options: ConsoleOptions) -> int:
        """Cells that these columns need; one of text can be folded to `_FOLDED`."""
        table, wide = self._part(columns), options.update(width=_WIDE)
        ranges = [table._measure_column(console, wide, column) for column in table.columns]
        pairs = zip(ranges, table.columns, strict=True)
        least = (each.maximum if column.no_wrap else min(each.minimum, _FOLDED) for each, column in pairs)
        return sum(least) + table._extra_width
