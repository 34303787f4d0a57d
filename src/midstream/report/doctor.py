"""Results of `midstream doctor`: what was looked at, in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from midstream.core.data import Frozen
from midstream.report.blocks import Block, cell, code, table, text
from midstream.report.numbers import counted

Status = Literal["ok", "warning", "failed"]
_STATUS_TONES = {"ok": "up", "warning": "warn", "failed": "bad"}


class Check(Frozen):
    """One thing that was looked at. docs/doctor.md explains every `code`; `fix` is a line to paste, if one helps."""

    code: str
    what: str
    status: Status
    words: str
    fix: str = ""


def machine_blocks(checks: Sequence[Check]) -> list[Block | None]:
    """One row a check, the fixes to be pasted, the conclusion last."""
    rows = [(cell(check.status, _STATUS_TONES[check.status]), check.code, check.what, check.words) for check in checks]
    found = [table("This machine", ("status", "code", "check", "found"), rows, left=4)]
    for check in checks:
        if check.fix and check.status in ("warning", "failed"):
            found.append(code(f"To fix {check.code}, {check.what}:\n  {check.fix}"))
    failed, warnings = (sum(check.status == status for check in checks) for status in ("failed", "warning"))
    conclusion = f"{failed or 'Nothing'} failed, {counted(warnings, 'warning') if warnings else 'no warnings'}."
    return [*found, text(conclusion)]
