"""Every version of a library on disk, with the changes that led to it: `library/versions.jsonl` of a run directory.

versions.jsonl              one Version a line, append-only
library.json, library.md    the newest one, for people; written again with each version
library.lock                held while a version is added
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from midstream.core.data import Frozen
from midstream.core.errors import RunError, UsageError
from midstream.practice.library import Library, next_number
from midstream.practice.library_text import from_json, from_markdown, to_json, to_markdown
from midstream.practice.operations import Operation
from midstream.runs.files import atomic_write, damaged, storage_errors
from midstream.runs.journal import Journal, read_models
from midstream.runs.lock import exclusive_lock

VERSIONS = "versions.jsonl"


class Version(Frozen):
    """One version of a library.

    `parent` is the version before it (of a rollback the one that it left), `update` the run's update that made it, 0 if
    none did; `by`: "learning", "edit", "rollback", "merge", "import", "start".
    """

    number: int
    parent: int | None = None
    by: str = "learning"
    update: int = 0
    operations: tuple[Operation, ...] = ()
    note: str = ""
    library: Library


class History:
    """The versions of one library, in a directory; the newest is the current one. Numbers count from 1.

    Several processes may read. A writer that has not seen the newest version is refused, because its library would undo
    the other's changes.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.path = directory, directory / VERSIONS
        self._stamp: tuple[int, int] | None = None  # size and time of the file when it was read
        self._versions: list[Version] = []
        self._seen: int | None = None  # the newest number that the caller has read

    def all(self) -> Sequence[Version]:
        """Every version, the oldest first; none in a new directory.

        Raises:
            RunError: the journal is damaged.
        """
        versions = self._read()
        self._seen = len(versions)
        return tuple(versions)

    def current(self) -> Version | None:
        """The newest version, None in a new directory; raises as `all`."""
        versions = self.all()
        return versions[-1] if versions else None

    def get(self, number: int) -> Version:
        """One version.

        Raises:
            RunError: there is no such number.
        """
        versions = self.all()
        if not 1 <= number <= len(versions):
            has = f"its versions are 1 to {len(versions)}" if versions else "it has none yet"
            raise RunError(
                f"{self.directory} has no version {number} of its library: {has}",
                code="no-library",
                fix=f"midstream library versions {self.directory}",
            )
        return versions[number - 1]

    def add(
        self, library: Library, *, by: str, update: int = 0, operations: tuple[Operation, ...] = (), note: str = ""
    ) -> Version:
        """Add a version, safe on disk on return.

        Raises:
            RunError: another process is adding one, or has added one since this object read last.
            StorageError: the write failed.
        """
        with storage_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(self.directory / "library.lock"):
            before = self._read()
            if self._seen is not None and self._seen != len(before):
                raise RunError(
                    f"the library in {self.directory} has changed meanwhile: it was version {self._seen}, now it is "
                    f"{len(before)}",
                    code="library-changed",
                    cause="another midstream learned or edited in the same run directory",
                    fix=f"midstream library diff shows the change; make yours again on version {len(before)}",
                )
            version = Version(
                number=len(before) + 1,
                parent=len(before) or None,
                by=by,
                update=update,
                operations=operations,
                note=note,
                library=library,
            )
            with Journal(self.path) as journal:
                journal.append(version)
            self._versions = [*before, version]
            self._stamp, self._seen = self._file_stamp(), version.number
            self.write_files()
        return version

    def rollback(self, number: int) -> Version:
        """Make version `number` the current one again, as a new version; raises as `get` and `add`.

        Lessons are numbered on from the newest version, so that no id is given twice.
        """
        library = self.get(number).library
        latest = max(next_number(version.library) for version in self._versions)
        library = library.model_copy(update={"next_number": latest})
        return self.add(library, by="rollback", note=f"back to version {number}")

    def write_files(self) -> None:
        """Write the newest version's `library.json` and `library.md`, which a crash in `add` may have prevented."""
        current = self.current()
        if current is not None:
            atomic_write(self.directory / "library.json", to_json(current.library).encode())
            atomic_write(self.directory / "library.md", to_markdown(current.library).encode())

    def _read(self) -> list[Version]:
        """The versions on disk; the file is read only if it has changed."""
        stamp = self._file_stamp()
        if stamp != self._stamp:
            versions = read_models(self.path, Version)
            for place, version in enumerate(versions, start=1):
                if version.number != place:
                    raise damaged(self.path, f"line {place} holds version {version.number}")
            self._versions, self._stamp = versions, stamp
        return self._versions

    def _file_stamp(self) -> tuple[int, int] | None:
        if not self.path.exists():
            return None
        stat = self.path.stat()
        return stat.st_size, stat.st_mtime_ns


def read_library(path: Path) -> Library:
    """The library in a JSON or Markdown (.md) file, or the current one of a run directory or of its `library/`.

    Raises:
        RunError: there is no library.
        UsageError: the file does not hold a library.
    """
    if path.is_dir():
        for directory in (path / "library", path):
            if (directory / VERSIONS).exists() and (version := History(directory).current()):
                return version.library
        raise RunError(
            f"{path} holds no library",
            code="no-library",
            cause="it is no practice run, or one that has not begun",
            fix="name the run directory of `midstream train RECIPE` with [practice], or a library file",
        )
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors on Windows write a byte order mark
    except (OSError, UnicodeDecodeError) as failure:
        missing = isinstance(failure, FileNotFoundError)
        raise RunError(
            f"{path} does not exist" if missing else f"{path} cannot be read: {failure}",
            code="file-not-found" if missing else "file-unreadable",
            fix="name a practice run, or a .json or .md file with a library",
        ) from failure
    try:
        return from_markdown(text) if path.suffix.lower() in (".md", ".markdown") else from_json(text)
    except UsageError as failure:
        what = f"{path}: {failure.what}"
        raise UsageError(what, code=failure.code, cause=failure.cause, fix=failure.fix) from failure
