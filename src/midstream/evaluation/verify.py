"""Check every file of a run: against its checksum, and against what other files say of it."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from midstream.core.errors import RunError
from midstream.evaluation.settings import result_name
from midstream.runs import RunDirectory, checksums
from midstream.runs.checkpoint import find_damage
from midstream.runs.damage import file_damage, has_checksums, journal_damage, tail_of
from midstream.runs.files import damaged
from midstream.runs.info import Extent
from midstream.runs.journal import read_records, skip_damage
from midstream.runs.segments import Segment

_COPY = "restore it from a copy"
_MANY = 1 << 20  # bytes


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
    """Check every file of a run by reading all of it; in the order of their names."""
    damage, segments, extents = run.damage(), _segments(run), run.extents()
    names = {path.relative_to(run.root).as_posix() for path in run.root.rglob("*") if path.is_file()}
    names = {"/".join(name.split("/")[:2]) if name.startswith("checkpoints/") else name for name in names}
    checks: list[FileCheck] = []
    for name in sorted(names | damage.keys() | segments.keys()):
        path, error, reason = run.root / name, damage.get(name), ""
        if not path.exists():
            fix = error.fix if error else f"{_COPY}; training does not need it, only reports and comparisons do"
            checks.append(FileCheck(file=name, state="missing", problem="what it held is lost", fix=fix))
            continue
        if error is None:
            error, reason = _check(run, name, segments, extents)
        if error is not None:
            problem = error.what.removeprefix(f"{path} is damaged: ")
            checks.append(FileCheck(file=name, state="damaged", problem=problem, fix=error.fix))
        else:
            checks.append(FileCheck(file=name, state="not checked" if reason else "ok", problem=reason))
    return checks


def _check(
    run: RunDirectory, name: str, segments: dict[str, int | None], extents: dict[str, Extent]
) -> tuple[RunError | None, str]:
    """The damage of a file that exists and whose extent is right, and the reason if it cannot be checked."""
    path = run.root / name
    if "/.tmp-" in name or path.suffix == ".tmp":
        return None, "a crash left it; nothing reads it"
    if path.suffix == ".jsonl":
        error = None if path in run.journals else journal_damage(path, None)
        if not (tail_of(path) or b"\n").endswith(b"\n"):
            return error, "a crash cut its last record short, which nothing reads; resume removes it"
        if has_checksums(path):
            return error, ""
        if run.info().format > 1:
            return error, "its last line is not a record, and nothing reads it"
        return error, "no checksums (made by an older midstream)"
    if name.startswith("checkpoints/"):
        problem = find_damage(path)
        set_aside = f"delete it when you no longer need it: rm -r {path}"
        return damaged(path, problem, set_aside if ".corrupt" in name else _COPY) if problem else None, ""
    if name.endswith(".jsonl.gz"):
        return _segment_damage(path, segments.get(name)), ""
    if name in extents:
        return file_damage(path, extents[name]), ""
    if path.suffix != ".json" or name.startswith("policy/"):  # weights have extents once the run is finished
        return None, "it can be made again" if path == run.report_path else "it has no checksum"
    try:
        checksums.read_object(path.read_bytes())
    except ValueError as error:
        return damaged(path, str(error).splitlines()[0]), ""
    return None, "" if has_checksums(path) else "it has no checksum"


def _segments(run: RunDirectory) -> dict[str, int | None]:
    """The files of trajectories that the records of a run speak of, and how many each must hold, if that is known."""
    of_evaluation, counts = run.info().kind == "evaluation", dict[Path, int | None]()
    for result in run.evaluations.read(skip_damage):
        name = result_name(result.set_name, result.sampling, None if of_evaluation else result.step)
        counts[run.trajectories.path(name)] = result.tasks * result.trials
    for path in (run.metrics.path, run.updates_path):
        for _, _, record in read_records(path, skip_damage):
            counts[run.trajectories.path(int(record["step"]))] = record.get("trajectories")
    return {path.relative_to(run.root).as_posix(): count for path, count in counts.items()}


def _segment_damage(path: Path, count: int | None) -> RunError | None:
    """Read a file of trajectories to its end."""
    fix = f"{_COPY}, or delete it: training does not need it, only reports and comparisons do"
    found, segment = 0, Segment(path)
    try:
        with gzip.open(path) as file:
            while part := file.read(_MANY):
                found += part.count(b"\n")
        said = {len(segment), sum(1 for _ in segment.entries()), found if count is None else count}
    except RunError as error:
        return error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        return damaged(path, str(error), fix)
    return None if said == {found} else damaged(path, f"it holds {found:,} trajectories, not {max(said):,}", fix)
