"""Every version of a library on disk, with what led to it: `library/versions.jsonl` of a run directory.

versions.jsonl              one Version a line, only ever added to
library.json, library.md    the newest one, for people; made anew with each version
library.lock                held while a version is added
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from midstream.core.data import Frozen
from midstream.core.errors import RunError, UsageError
from midstream.practice.library import Library, next_number
from midstream.practice.library_text import from_json, from_markdown, to_markdown
from midstream.practice.operations import Operation
from midstream.runs.files import atomic_write, storage_errors
from midstream.runs.journal import Journal, read_models
from midstream.runs.lock import exclusive_lock

VERSIONS = "versions.jsonl"
_MARKDOWN = (".md", ".markdown")


class Version(Frozen):
    """One version. `parent` is the one before it (a rollback's is the version that it left), `update` the run's update
    that made it, 0 where none did; `by`: "learning", "edit", "rollback", "merge", "import", "start"."""

    number: int
    parent: int | None = None
    by: str = "learning"
    update: int = 0
    operations: tuple[Operation, ...] = ()
    note: str = ""
    library: Library


class History:
    """The versions of one library, in a directory; the newest is the current one. Numbers count from 1.

    Several processes may read. One that adds a version after another added one it has not seen is refused: its library
    would undo the other's.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stamp: tuple[int, int] | None = None  # of the file as it was read last
        self._versions: list[Version] = []
        self._seen: int | None = None  # the newest number that whoever holds this object knows of

    @property
    def path(self) -> Path:
        """The journal of versions."""
        return self.directory / VERSIONS

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
            RunError: there is none of that number.
        """
        versions = self.all()
        if not 1 <= number <= len(versions):
            has = f"its versions are 1 to {len(versions)}" if versions else "it has none yet"
            raise RunError(
                f"{self.directory} has no version {number} of its library",
                cause=has,
                fix=f"midstream library versions {self.directory}",
            )
        return versions[number - 1]

    def add(
        self, library: Library, *, by: str, update: int = 0, operations: tuple[Operation, ...] = (), note: str = ""
    ) -> Version:
        """Keep a new version, safe on disk on return.

        Raises:
            RunError: another process is adding one, or has added one since this object read last.
            StorageError: the disk refuses.
        """
        with storage_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(self.directory / "library.lock"):
            before = self._read()
            if self._seen is not None and self._seen != len(before):
                raise self._overtaken(len(before))
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

        Numbers of lessons go on from where they are: an id that a later version gave is not given again.
        """
        library = self.get(number).library
        latest = max(next_number(one.library) for one in self._versions)
        library = library.model_copy(update={"next_number": latest})
        return self.add(library, by="rollback", note=f"back to version {number}")

    def write_files(self) -> None:
        """Write the newest version's `library.json` and `library.md`, also where a crash kept `add` from it."""
        current = self.current()
        if current is None:
            return
        atomic_write(self.directory / "library.json", f"{current.library.model_dump_json(indent=2)}\n".encode())
        atomic_write(self.directory / "library.md", to_markdown(current.library).encode())

    def _read(self) -> list[Version]:
        """The versions on disk; read anew only if the file has changed."""
        stamp = self._file_stamp()
        if stamp != self._stamp:
            self._versions = read_models(self.path, Version)
            self._stamp = stamp
            self._check_numbers()
        return self._versions

    def _file_stamp(self) -> tuple[int, int] | None:
        if not self.path.exists():
            return None
        stat = self.path.stat()
        return stat.st_size, stat.st_mtime_ns

    def _check_numbers(self) -> None:
        for place, one in enumerate(self._versions, start=1):
            if one.number != place:
                raise RunError(
                    f"{self.path} is damaged: line {place} holds version {one.number}",
                    cause="lines were taken out or put in by hand",
                    fix="restore the file from a copy",
                )

    def _overtaken(self, newest: int) -> RunError:
        return RunError(
            f"the library in {self.directory} has changed meanwhile: it was version {self._seen}, now it is {newest}",
            cause="another midstream learned or edited in the same run directory",
            fix=f"midstream library diff to see what it did, then make the change again on version {newest}",
        )


def read_library(path: Path) -> Library:
    """The library in a JSON or Markdown (.md) file, or the current one of a run directory or a `library/` in one.

    Raises:
        RunError: there is none.
        UsageError: the file does not hold a library.
    """
    if path.is_dir():
        return _newest(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # as some editors on Windows write it
    except (OSError, UnicodeDecodeError) as failure:
        missing = isinstance(failure, FileNotFoundError)
        raise RunError(
            f"{path} does not exist" if missing else f"{path} cannot be read: {failure}",
            cause="the path is misspelt" if missing else "it is no text file, or this user may not read it",
            fix="name a practice run, or a .json or .md file with a library",
        ) from failure
    try:
        return from_markdown(text) if path.suffix.lower() in _MARKDOWN else from_json(text)
    except UsageError as failure:
        raise UsageError(f"{path}: {failure.what}", cause=failure.cause, fix=failure.fix) from failure


def _newest(directory: Path) -> Library:
    for place in (directory / "library", directory):
        if (place / VERSIONS).exists() and (version := History(place).current()):
            return version.library
    raise RunError(
        f"{directory} holds no library",
        cause="it is no practice run, or one that has not begun",
        fix="name the run directory of `midstream train RECIPE` with [practice], or a library file",
    )
