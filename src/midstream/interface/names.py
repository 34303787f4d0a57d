"""Tables for notebooks, and data frames."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from midstream.core.errors import UnsupportedError


def shown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as an HTML table, whose columns are the keys of the first."""
    if not rows:
        return "<p>nothing yet</p>"
    heads = "".join(f"<th>{html.escape(str(key))}</th>" for key in rows[0])
    lines = [
        "<tr>" + "".join(f"<td>{html.escape(str(row.get(key, '')))}</td>" for key in rows[0]) + "</tr>" for row in rows
    ]
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as a pandas data frame. Raises `UnsupportedError` without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise UnsupportedError(
            "a data frame needs pandas, not installed here", code="missing-extra", fix="pip install pandas"
        ) from error
    return pandas.DataFrame(list(rows))
