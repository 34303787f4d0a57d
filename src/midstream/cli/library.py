"""`midstream library`: look at what an agent has learned, compare versions, go back, edit, merge, export.

Only `validate` asks a model (`cli/library_validation.py`). Every change makes a new version of a run's library:
nothing is lost, and `rollback` undoes it. A change that prompts show makes the library unproven.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from midstream.cli import library_edit, library_validation
from midstream.cli.results import recipe_of
from midstream.core.errors import UsageError
from midstream.practice.changes import merged
from midstream.practice.history import VERSIONS, read_library
from midstream.practice.library import Library, render_modules
from midstream.practice.library_text import to_json, to_markdown
from midstream.practice.operations import Operation, diff
from midstream.recipe.check import check
from midstream.recipe.library import check_shown, history, read, shows_lessons, split
from midstream.recipe.schema import MODULES, to_toml
from midstream.report.library_view import diff_screen, library_screen, size_of, validation_screen, versions_screen
from midstream.report.numbers import visible
from midstream.report.practice_data import spent_text
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write


def library(options: argparse.Namespace) -> int:
    """Run `midstream library ACTION`; returns the exit code."""
    return ACTIONS[options.action](options)


# --- looking ----------------------------------------------------------------------------------------------------------


def _show(options: argparse.Namespace) -> int:
    found = read(options.named)
    if options.json:
        print(to_json(found), end="")
    elif options.markdown:
        print(to_markdown(found), end="")
    else:
        _print(library_screen(f"{options.named}: {size_of(found)}", found))
    return 0


def _versions(options: argparse.Namespace) -> int:
    path = Path(options.run)
    if path.is_file():
        raise _no_versions(path)
    found = history(path).all()
    if not found:
        read_library(path)  # says that there is none
    if options.json:
        print(json.dumps([one.model_dump(mode="json", exclude={"library"}) for one in found]))
    else:
        _print(versions_screen(found))
    return 0


def _no_versions(path: Path) -> UsageError:
    return UsageError(f"{path} has no versions", cause="a file holds one library", fix="name a practice run")


def _diff(options: argparse.Namespace) -> int:
    found = diff(read(options.first), read(options.second))
    if options.json:
        print(found.model_dump_json())
    else:
        _print(diff_screen(found, f"{options.first} and {options.second} hold the same lessons"))
    return 0


# --- changing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a library that can be changed is kept: a run's versions, or a JSON file."""

    path: Path
    library: Library
    run: RunDirectory | None = None

    @property
    def modules(self) -> list[str]:
        """The modules that may have lessons."""
        agent = recipe_of(self.run).agent if self.run else None
        every = MODULES["agentflow"] if agent is None else MODULES[agent.type]
        return [name for name in every if agent is None or shows_lessons(agent, name)]

    def check(self, changed: Library) -> None:
        """Refuse lessons for a module of the run's agent that shows none."""
        if self.run is not None:
            check_shown(recipe_of(self.run).agent, render_modules(changed), str(self.path))

    def save(
        self,
        changed: Library,
        *,
        by: str,
        operations: tuple[Operation, ...] = (),
        note: str = "",
        draft: Path | None = None,
    ) -> str:
        """Keep the changed library; returns the words for where it is now. `draft` holds what a person wrote.

        Raises:
            UsageError: it has changed since it was read; only a run is locked while an editor is open.
        """
        if read_library(self.path) != self.library:
            raise UsageError(
                f"nothing is changed: {self.path} has changed meanwhile",
                cause="another midstream, or an editor, wrote it",
                fix="make the change again" + (f"; what you wrote is in {draft}" if draft else ""),
            )
        if self.path.is_dir():
            version = history(self.path).add(changed, by=by, operations=operations, note=note)
            return f"{self.path}@{version.number}"
        atomic_write(self.path, to_json(changed).encode())
        return str(self.path)


@contextmanager
def held(named: str) -> Iterator[Place]:
    """The library of a run or of a JSON file, to be changed; nobody else works in the run meanwhile."""
    path, number = split(named)
    if number is not None or (path.suffix != ".json" and not path.is_dir()):
        raise UsageError(
            f"{named} cannot be changed",
            cause="versions never change, and only a run or a .json file keeps all that a library holds",
            fix=f"name the run: {path}" if number is not None else "midstream library export FILE.md FILE.json",
        )
    if path.name == "library.json" and (path.parent / VERSIONS).exists():  # for people: made anew from the versions
        path = path.parent
    path = path.parent if (path.parent / "run.json").exists() else path  # its library/
    if not (path / "run.json").exists():
        yield Place(path=path, library=read_library(path))
        return
    run = RunDirectory.open(path)
    with run.lock():
        yield Place(path=path, library=read_library(path), run=run)


def _edit(options: argparse.Namespace) -> int:
    with held(options.named) as place:
        edit = library_edit.edited(place.library, options, place.modules)
        place.check(edit.library)
        after, where = place.library, str(place.path)
        if not diff(after, edit.library).empty:
            after = edit.library
            where = place.save(after, by="edit", operations=edit.operations, note=edit.note, draft=edit.draft)
    if edit.draft is not None:
        edit.draft.unlink()
    return _changed(options, place.library, after, where)


def _rollback(options: argparse.Namespace) -> int:
    with held(options.run) as place:
        if not place.path.is_dir():
            raise _no_versions(place.path)
        version = history(place.path).rollback(options.number)
    return _changed(options, place.library, version.library, f"{place.path}@{version.number}")


def _merge(options: argparse.Namespace) -> int:
    if options.out is not None:
        first = read(options.named)
        made, notes = merged(None, first, read(options.other))
        _write(options.out, made)
        return _changed(options, first, made, str(options.out), notes)
    with held(options.named) as place:
        made, notes = merged(None, place.library, read(options.other))
        place.check(made)
        same = made == place.library
        where = str(place.path) if same else place.save(made, by="merge", note=f"with {options.other}")
    return _changed(options, place.library, made, where, notes)


def _export(options: argparse.Namespace) -> int:
    found = read(options.named)
    _write(options.out, found)
    if not options.quiet:
        _print(Text(visible(f"{options.out}: {size_of(found)}")))
    return 0


def _write(path: Path, found: Library) -> None:
    if path.suffix not in (".json", ".md"):
        name = path.parent / (path.stem or "lessons")
        raise UsageError(
            f"{path} is neither .json nor .md",
            cause="a .json file holds all of a library, a .md file its lessons to read and edit",
            fix=f"name it {name}.json or {name}.md",
        )
    atomic_write(path, (to_json(found) if path.suffix == ".json" else to_markdown(found)).encode())


def _validate(options: argparse.Namespace) -> int:
    """0 if the library helps the agent, 1 if no test says so."""
    with held(options.named) as place:
        recipe = library_validation.recipe_for(options, place.run)
        if options.dry_run:
            print(f"{to_toml(check(recipe))}\n# At most {library_validation.most(recipe)}")
            return 0
        kept = place.path / "validation" if place.run else place.path.with_suffix(".validation")
        done = library_validation.validated(place.library, recipe, place.run, kept, options)
        after = done.found.applied(place.library, done.agent)
        where = place.save(after, by="validation", note=f"{done.found.test.verdict} for {done.agent}")
        if place.run is not None:
            place.run.trajectories.write_evaluation(f"validation-{split(where)[1]}", done.trajectories)
        shutil.rmtree(kept)
    if options.json:
        made = {"library": where, "agent": done.agent, "validation": done.found.model_dump(mode="json")}
        print(json.dumps({**made, "spent": done.spent.model_dump(), "notes": done.notes}))
    else:
        _print(validation_screen(after, done.found, done.agent))
        for line in done.notes:
            _print(Text(visible(f"warning: {line}"), "yellow"))
        _print(Text(visible(f"{where}, spent {spent_text(done.spent)}")))
        if harm := [name for name, effect in done.found.effects.items() if effect.interval[1] < 0]:
            taken_out = " ".join(f"--delete {name}" for name in harm)
            _print(Text(f"without what harms: midstream library edit {shlex.quote(str(place.path))} {taken_out}"))
    return 0 if done.found.test.verdict == "better" else 1


def _changed(
    options: argparse.Namespace, before: Library, after: Library, where: str, notes: list[str] | None = None
) -> int:
    """Say what a command changed, and where the outcome is."""
    found = diff(before, after)
    if options.json:
        made = {"library": where, "changed": found.model_dump(mode="json"), "notes": notes or []}
        print(json.dumps({**made, "proven_for": after.proven_for}))
        return 0
    _print(diff_screen(found, "nothing is changed"))
    for line in notes or []:
        _print(Text(visible(line), "yellow"))
    _print(Text(visible(f"{where}: {size_of(after)}")))
    if before.proven_for and not after.proven_for and after.rendered:
        fix = f"midstream library validate {shlex.quote(str(split(where)[0]))}"
        _print(Text(visible(f"unproven now, because prompts have changed: {fix}"), "yellow"))
    return 0


def _print(what: RenderableType) -> None:
    Console().print(what, soft_wrap=isinstance(what, Text))


ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "show": _show,
    "versions": _versions,
    "diff": _diff,
    "rollback": _rollback,
    "edit": _edit,
    "merge": _merge,
    "export": _export,
    "validate": _validate,
}
