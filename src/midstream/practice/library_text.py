"""A library read from a file or a directory, and written as JSON. Its Markdown is `markdown.py`'s."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from midstream.core.errors import RunError, UsageError
from midstream.core.lessons import digest
from midstream.practice.history import VERSIONS, History
from midstream.practice.library import Lesson, Library, Origin, next_number, number, proven, render_modules
from midstream.practice.markdown import parse

_MARKDOWN = (".md", ".markdown")


def to_json(library: Library) -> str:
    """The whole library: `from_json(to_json(library)) == library`."""
    return f"{library.model_dump_json(indent=2)}\n"


def from_json(text: str) -> Library:
    """The library that `to_json` wrote, or a person after it: with other words than those that were proven, unproven.

    Raises:
        UsageError: it is no library; says what is wrong where.
    """
    try:
        library = Library.model_validate_json(text)
    except ValidationError as failure:
        first = failure.errors(include_url=False)[0]
        place = ".".join(str(one) for one in first["loc"]) or "the file"
        raise UsageError(
            f"{place}: {first['msg']}",
            cause="it is no library as midstream writes it",
            fix="midstream library export RUN FILE.json shows the form",
        ) from failure
    library = library.model_copy(update={"next_number": next_number(library)})
    return library if library.proven_lessons == digest(render_modules(library)) else proven(library, "")


def from_markdown(text: str) -> Library:
    """A library of the lessons in a Markdown text, imported: with their ids, and new ids where they have none.

    Raises:
        UsageError: the text is not such Markdown, or has an id twice.
    """
    entries, origin = parse(text), Origin(source="imported")
    free = 1 + max((number(one.id) for one in entries if one.id), default=0)
    lessons: dict[str, Lesson] = {}
    for one in entries:
        if one.id in lessons:
            raise UsageError(f"line {one.line}: {one.id} stands here a second time", fix="give each lesson its own id")
        name = one.id or f"L{free}"
        free += not one.id
        module = one.module or "planner"
        lessons[name] = Lesson(id=name, text=one.text, module=module, state=one.state, origin=origin)
    return Library(lessons=tuple(lessons.values()), next_number=free)


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
