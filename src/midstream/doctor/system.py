"""The place where runs go, and how many files a process may open."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from pathlib import Path

from midstream.report.doctor import Check, Status

RUNS = Path("runs")
LITTLE_MB, TOO_LITTLE_MB = 2048, 64  # a demo leaves about 30 MB, a LoRA adapter's checkpoints some hundreds
FILES_EACH = 4  # of a trajectory under way: a connection to the model, one of a tool, the two of a program's channel
FILES_BESIDE = 64  # standard streams, the run directory, workers, libraries


def check_runs(root: Path = RUNS) -> Check:
    """MS301: the run directories' place can be written to, and has room."""
    place = root
    try:
        place = root.absolute()  # which fails where this directory is gone, and `exists` where it may not be searched
        while not place.exists() and place != place.parent:
            place = place.parent
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"midstream")
            file.flush()
            os.fsync(file.fileno())
        free_mb = shutil.disk_usage(place).free >> 20
    except OSError as failure:
        words = f"{place} cannot be written to: {failure.strerror or failure}"
        return _runs("failed", words, "cd to a directory of your own, or give every run --out DIRECTORY")
    words = f"{free_mb / 1024:,.1f} GiB free in {place}"
    if free_mb < LITTLE_MB:
        fix = f"du -xh -d 1 {shlex.quote(str(place))} | sort -h   # what takes the room; or give runs --out DIRECTORY"
        return _runs("failed" if free_mb < TOO_LITTLE_MB else "warning", words, fix)
    return _runs("ok", words)


def _runs(status: Status, words: str, fix: str = "") -> Check:
    return Check(code="MS301", what="runs", status=status, words=words, fix=fix)


def check_open_files(concurrency: int) -> Check:
    """MS302: a process may open enough files for that many trajectories at once."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return Check(code="MS302", what="open files", status="not checked", words="this system has no such limit")
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    wanted = FILES_BESIDE + FILES_EACH * concurrency
    if allowed == resource.RLIM_INFINITY or allowed >= wanted:
        words = "no limit" if allowed == resource.RLIM_INFINITY else f"{allowed:,} allowed"
        return Check(code="MS302", what="open files", status="ok", words=words)
    words = f"{allowed:,} allowed; {concurrency} trajectories at once may take {wanted:,}"
    return Check(code="MS302", what="open files", status="warning", words=words, fix="ulimit -n 4096")
