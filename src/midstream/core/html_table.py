"""Tables in notebooks, where an object shows itself by `_repr_html_`."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from midstream.core.text import visible


def html_table(rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> str:
    """Rows as an HTML table, whose columns are the keys of the first, and notes under it."""

    def cell(tag: str, value: Any) -> str:
        text = "" if value is None else visible(str(value))
        return f'<{tag} style="text-align: left; white-space: pre-wrap">{html.escape(text)}</{tag}>'

    heads = list(rows[0]) if rows else []
    lines = [
        "".join(cell("th", head) for head in heads),
        *("".join(cell("td", row.get(h)) for h in heads) for row in rows),
    ]
    table = f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>" if rows else ""
    return table + "".join(f"<div>{html.escape(visible(note))}</div>" for note in notes)
