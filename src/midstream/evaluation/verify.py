"""Check the files of a run by reading all of them: every line parses, every checkpoint can be unpacked."""

from __future__ import annotations

import tomllib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile, ZipFile

from pydantic_core import from_json

from midstream.core.errors import RunError
from midstream.runs import RunDirectory
from midstream.runs.files import damaged, read_file
from midstream.runs.journal import read_records
from midstream.runs.segments import Segment


@dataclass(frozen=True, kw_only=True, slots=True)
class FileCheck:
    """A file of a run by its path in the directory; `problem` says what is wrong, `fix` what to do."""

    file: str
    state: Literal["ok", "damaged", "not checked"]
    problem: str = ""
    fix: str = ""


def verify(run: RunDirectory) -> list[FileCheck]:
    """Check every file of a run; in the order of their names."""
    files = sorted(path for path in run.root.rglob("*") if not path.is_dir())
    return [_check(path, path.relative_to(run.root).as_posix()) for path in files]


def _check(path: Path, name: str) -> FileCheck:
    read = next((read for suffix, read in _READERS.items() if path.name.endswith(suffix)), None)
    if read is None or path.name.startswith("."):
        return FileCheck(file=name, state="not checked")
    try:
        read(path)
    except (ValueError, BadZipFile) as error:
        return FileCheck(file=name, state="damaged", problem=str(error), fix="restore it from a copy")
    except RunError as error:
        problem = error.what.removeprefix(f"{path} is damaged: ")
        return FileCheck(file=name, state="damaged", problem=problem, fix=error.fix)
    return FileCheck(file=name, state="ok")


def _read_zip(path: Path) -> None:
    """Read what `torch.save` has written; it has checksums."""
    with ZipFile(path) as file:
        if (broken := file.testzip()) is not None:
            raise damaged(path, f"{broken} is not as it was written", _DELETE)


_DELETE = "delete the checkpoint: the run resumes from the one before"
_READERS: dict[str, Callable[[Path], object]] = {
    ".jsonl.gz": lambda path: deque(Segment(path), maxlen=0),
    ".jsonl": lambda path: deque(read_records(path), maxlen=0),
    ".json": lambda path: from_json(read_file(path)),
    ".toml": lambda path: tomllib.loads(read_file(path).decode()),
    ".pt": _read_zip,
}
