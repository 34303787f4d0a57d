"""What `midstream doctor` found out about the machine: the records, and the screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from midstream.core.data import Frozen
from midstream.report.numbers import counted, visible

Status = Literal["ok", "warning", "failed", "not checked"]
DEMO = ("MS201", "MS301")  # what the offline demo cannot do without
_KINDS = {"MS41": "attacks", "MS50": "server"}
_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "not checked": "dim"}


class Check(Frozen):
    """One thing that was looked at. docs/doctor.md explains every `code`; `fix` is a line to paste, if one helps."""

    code: str
    what: str
    status: Status
    words: str
    fix: str = ""


def machine_screen(checks: Sequence[Check]) -> RenderableType:
    """One line a check, then what mends, unbroken so that it can be pasted; the conclusion last, where it stays seen.

    To be printed with `crop=False`.
    """
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in _folded(checks):
        status, words = Text(check.status, _COLOURS[check.status]), Text(visible(check.words))
        if check.status == "not checked":
            words.stylize("dim")
        if check.fix and check.status == "ok":
            words.append(f": {visible(check.fix)}", "dim")
        table.add_row(status, Text(check.code, "dim"), Text(visible(check.what)), words)
    parts = [Text("This machine", "bold"), table]
    for check in checks:
        if check.fix and check.status in ("warning", "failed"):
            parts += [
                Text(f"\nTo fix {check.code}, {visible(check.what)}:"),
                _whole(f"  {visible(check.fix)}", "bold"),
            ]
    return Group(*parts, Text(), *(_whole(visible(line)) for line in _conclusion(checks)))


def _whole(line: str, style: str = "") -> Text:
    return Text(line, style, no_wrap=True, overflow="ignore")


def _folded(checks: Sequence[Check]) -> Iterator[Check]:
    """Attacks that were all held back, or checks that were not made for one reason, as one line."""
    for (kind, status, reason), group in groupby(checks, _kin):
        [first, *more] = group
        if not more or not kind:
            yield from (first, *more)
        elif status == "ok":
            words = f"{len(more) + 1} held back: {', '.join(one.what for one in (first, *more))}"
            yield first.model_copy(update={"what": kind, "words": words})
        else:
            yield first.model_copy(update={"what": kind, "words": reason})


def _kin(check: Check) -> tuple[str, Status, str]:
    """What checks that may stand on one line have in common; those without a kind never do."""
    kind = _KINDS.get(check.code[:4], "")
    if check.status == "not checked":
        return kind, check.status, check.words
    return (kind if check.status == "ok" and kind == _KINDS["MS41"] else ""), check.status, ""


def _conclusion(checks: Sequence[Check]) -> Iterator[str]:
    counts = {status: sum(check.status == status for check in checks) for status in _COLOURS}
    failed, warnings = counts["failed"], counts["warning"]
    yield f"{failed or 'Nothing'} failed, {counted(warnings, 'warning') if warnings else 'no warnings'}."
    lacking = [check.code for check in checks if check.code in DEMO and not _will_do(check)]
    if lacking:
        yield f"The offline demo will not run yet: see {' and '.join(lacking)}."
    else:
        yield "The offline demo will run without key, GPU or network: midstream demo"


def _will_do(check: Check) -> bool:
    """Whether the demo can do with it: little room on the disk is enough for it, half an extra is not."""
    return check.status == "ok" or (check.code == "MS301" and check.status == "warning")
