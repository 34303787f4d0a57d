"""Check every file of a run by reading all of it: against its digest, or what else says whether it is whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from midstream.core.errors import RunError
from midstream.runs import RunDirectory
from midstream.runs.checkpoint import find_damage
from midstream.runs.files import damaged
from midstream.runs.journal import read_records
from midstream.runs.segments import Segment


@dataclass(frozen=True, kw_only=True, slots=True)
class FileCheck:
    """A file of a run by its path in the directory; of a checkpoint and what it holds the directory.

    `problem` says what is wrong or why it is not checked, `fix` what to do.
    """

    file: str
    state: Literal["ok", "damaged", "missing", "not checked"]
    problem: str = ""
    fix: str = ""


def verify(run: RunDirectory) -> list[FileCheck]:
    """Check every file of a run; in the order of their names."""
    damage, known = run.damage(whole=True), run.digests()
    names = {path.relative_to(run.root).as_posix() for path in run.root.rglob("*") if path.is_file()}
    names = {"/".join(name.split("/")[:2]) if name.startswith("checkpoints/") else name for name in names}
    checks: list[FileCheck] = []
    for name in sorted(names | damage.keys()):
        path, error, reason = run.root / name, damage.get(name), ""
        if error is not None and not path.exists():
            checks.append(FileCheck(file=name, state="missing", problem="what it held is lost", fix=error.fix))
            continue
        if error is None and name not in known and name != run.status_path.name:
            error, reason = _check(run, path)
        if error is not None:
            problem = error.what.removeprefix(f"{path} is damaged: ")
            checks.append(FileCheck(file=name, state="damaged", problem=problem, fix=error.fix))
        else:
            checks.append(FileCheck(file=name, state="not checked" if reason else "ok", problem=reason))
    return checks


def _check(run: RunDirectory, path: Path) -> tuple[RunError | None, str]:
    """The damage of a file that has no digest, and why it is not checked if nothing can be said of it."""
    if path.name.startswith(".tmp-") or path.suffix == ".tmp":
        return None, "a crash left it; nothing reads it"
    if path.parent == run.checkpoints.root:
        problem = find_damage(path)
        set_aside = f"delete it when you no longer need it: rm -r {path}"
        fix = set_aside if ".corrupt" in path.name else "restore it from a copy"
        return damaged(path, problem, fix) if problem else None, ""
    try:
        if path.suffix == ".jsonl":
            for _ in read_records(path):
                pass
            return None, "it has no digest; its lines are readable"
        if path.name.endswith(".jsonl.gz"):
            for _ in Segment(path):
                pass
            return None, ""
    except RunError as error:
        return error, ""
    return None, "it can be made again" if path == run.report_path else "it has no digest"
