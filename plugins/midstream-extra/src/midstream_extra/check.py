"""`midstream check RUN`: read every file of a run: every line parses, every checkpoint can be unpacked."""

from __future__ import annotations

import argparse
import tomllib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from pydantic_core import from_json

from midstream.cli import options as shared
from midstream.core.errors import RunError
from midstream.report.blocks import Block, code, text
from midstream.runs import RunDirectory
from midstream.runs.files import damaged, read_file
from midstream.runs.journal import read_records
from midstream.runs.segments import Segment

HELP = "read every file of a run; exit with 1 if one is damaged"
_TONES = {"ok": "up", "damaged": "bad", "not checked": "soft"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `check`."""
    parser.add_argument("run", help="run directory")
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Print the state of each file, with the problem and the fix; returns 1 if one is damaged."""
    # Damaged journals are in the list: they need no warning.
    run = RunDirectory.open(Path(options.run), report=lambda line: None)
    checks = verify(run)
    counts = Counter(check.state for check in checks)
    parts: list[Block | None] = []
    for check in checks:
        problem = f": {check.problem}" if check.problem else ""
        parts.append(text(f"{check.state:<13}{check.file}{problem}", _TONES[check.state]))
        parts.append(code(f"{'':<13}fix: {check.fix}" if check.fix else ""))
    total = ", ".join(f"{counts[state]:,} {state}" for state in _TONES if counts[state])
    record = {"run": str(run.root), "files": [asdict(check) for check in checks]}
    shared.show(options, record, [*parts, text(total)])
    return 1 if counts["damaged"] else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FileCheck:
    """A file of a run by its path in the directory; `problem` says what is wrong, `fix` what to do."""

    file: str
    state: str  # "ok", "damaged" or "not checked"
    problem: str = ""
    fix: str = ""


def verify(run: RunDirectory) -> list[FileCheck]:
    """Check every file of a run; in the order of their names."""
    checks = []
    for path in sorted(path for path in run.root.rglob("*") if not path.is_dir()):
        name = path.relative_to(run.root).as_posix()
        read = next((read for suffix, read in _READERS.items() if path.name.endswith(suffix)), None)
        if read is None or path.name.startswith("."):
            checks.append(FileCheck(file=name, state="not checked"))
            continue
        state, problem, fix = "ok", "", ""
        try:
            read(path)
        except (ValueError, BadZipFile) as error:
            state, problem, fix = "damaged", str(error), "restore it from a copy"
        except RunError as error:
            state, problem, fix = "damaged", error.what.removeprefix(f"{path} is damaged: "), error.fix
        checks.append(FileCheck(file=name, state=state, problem=problem, fix=fix))
    return checks


def _read_zip(path: Path) -> None:
    """Read what `torch.save` has written; it has checksums."""
    with ZipFile(path) as file:
        if (broken := file.testzip()) is not None:
            fix = "delete the checkpoint: the run resumes from the one before"
            raise damaged(path, f"{broken} is not as it was written", fix)


_READERS: dict[str, Callable[[Path], object]] = {
    ".jsonl.gz": lambda path: deque(Segment(path), maxlen=0),
    ".jsonl": lambda path: deque(read_records(path), maxlen=0),
    ".json": lambda path: from_json(read_file(path)),
    ".toml": lambda path: tomllib.loads(read_file(path).decode()),
    ".pt": _read_zip,
}
