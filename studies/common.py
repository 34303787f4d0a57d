"""What the studies share: their options, their errors, tables on the terminal and numbers on disk."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from rich import box
from rich.table import Table
from rich.text import Text

from midstream.core.errors import MidstreamError, RecipeError, UsageError
from midstream.core.terminal import Terminal
from midstream.recipe.check import resolve
from midstream.recipe.schema import Recipe, load_recipe
from midstream.report.draw import show
from midstream.runs.files import atomic_write
from midstream_extra.study_tables import StudyRow, study_blocks

ResultT = TypeVar("ResultT", bound=BaseModel)


def parser(description: str, *, out: str, recipe: str = "") -> argparse.ArgumentParser:
    """The options of every study; `recipe` is the default of `--recipe`, "" for no such option."""
    parsed = argparse.ArgumentParser(description=description.partition("\n")[0])
    if recipe:
        parsed.add_argument("--recipe", default=recipe, help=f"whose (default: {recipe})")
    parsed.add_argument("--seeds", type=int, default=3, help="training seeds of each recipe (default 3)")
    parsed.add_argument("--out", type=Path, default=Path(out), help=f"directory, of which nothing is repeated ({out})")
    parsed.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some of the arms or analyses")
    parsed.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help="settings of the recipe"
    )
    parsed.add_argument("--json", action="store_true", help="print numbers instead of tables")
    parsed.add_argument("--quiet", action="store_true", help="no progress")
    return parsed


def plain_table(title: Text | None = None, *, left: Sequence[str] = (), right: Sequence[str] = ()) -> Table:
    """A Rich table in the style of midstream's; `left` are heads of text, `right` those of numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    table.box, table.show_edge = box.SIMPLE_HEAD, False
    for head in left:
        table.add_column(head)
    for head in right:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def run(study: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> int:
    """Run a study; returns the exit code: 0 done, 1 failed, 130 interrupted."""
    try:
        if options.seeds is not None and options.seeds < 1:
            raise UsageError(f"a study with seeds = {options.seeds} runs nothing", code="empty-value", fix="--seeds 3")
        study(options)
    except MidstreamError as error:
        print(f"error[{error.code}]: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; give the same command again: what is done is not repeated", file=sys.stderr)
        return 130
    return 0


def reporter(options: argparse.Namespace) -> Callable[[str], None]:
    """A function that prints what is done now, unless `--quiet`."""
    console = Terminal(stderr=True)
    return lambda text: None if options.quiet else console.print(text, highlight=False)


def records(rows: Sequence[StudyRow]) -> list[dict[str, Any]]:
    """Rows as JSON values."""
    return [{"name": row.name, "metric": row.metric, "values": row.values} for row in rows]


def write_json(path: Path, record: Any) -> None:
    """Write the numbers of a study."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, (json.dumps(record, indent=1) + "\n").encode())


def print_tables(found: Mapping[str, Sequence[StudyRow]], titles: Mapping[str, tuple[str, str]]) -> None:
    """Print a table an analysis, in pieces that fit the terminal; `titles` maps it to its title and first column."""
    for name, rows in found.items():
        title, head = titles[name]
        show(study_blocks(rows, head, title))


def require_set(recipe: Recipe) -> None:
    """Refuse a recipe that is not evaluated before and after it learns, before anything is learned."""
    if not recipe.evaluation.sets:
        raise RecipeError(
            f"recipe {recipe.name!r} has no evaluation set",
            code="missing-key",
            fix="add [[evaluation.sets]], as the recipe lessons-simulated has it",
        )
    if recipe.evaluation.at != "both":
        raise RecipeError(
            f"recipe {recipe.name!r} has evaluation.at = {recipe.evaluation.at!r}",
            code="setting-conflict",
            cause="a study compares before and after",
            fix='set evaluation.at = "both"',
        )


def workshop_recipe(options: argparse.Namespace) -> Recipe:
    """The recipe of a study in the simulated workshop. Raises `RecipeError` for another one."""
    recipe = load_recipe(options.recipe, options.overrides)
    if recipe.tasks.type != "workshop" or recipe.lessons is None:
        raise RecipeError(
            f"recipe {recipe.name!r} does not learn lessons in the simulated workshop",
            code="wrong-kind-of-recipe",
            cause="only there the worth of a lesson is known exactly",
            fix="name lessons-simulated, or a file that extends it",
        )
    require_set(recipe)
    return recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A piece of a study: a recipe with changes, and the directory of its result."""

    recipe: str
    overrides: tuple[str, ...]
    root: Path

    @property
    def path(self) -> Path:
        """The file of the result, named after everything that decides it."""
        key = json.dumps(resolve(load_recipe(self.recipe, self.overrides)), sort_keys=True)
        return self.root / f"{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}.json"


def results(
    jobs: Sequence[Job], make: Callable[[Job], ResultT], model: type[ResultT], report: Callable[[str], None], what: str
) -> list[ResultT]:
    """The result of each job, in order: read where it was made before, else made on all cores and written.

    `make` is a function of a module, which other processes import.
    """
    found = {job: _read(job, model) for job in jobs}
    missing = [job for job, result in found.items() if result is None]
    report(f"{what}: {len(missing)} of {len(jobs)} to make")
    if missing:
        missing[0].root.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(min(os.cpu_count() or 1, len(missing)), mp_context=get_context("spawn")) as pool:
            found |= zip(missing, pool.map(partial(_written, make), missing), strict=True)
    return [result for result in found.values() if result is not None]


def _written(make: Callable[[Job], ResultT], job: Job) -> ResultT:
    """The result of a job, made and written; in the job's process, so that one that ended is kept whatever follows."""
    result = make(job)
    atomic_write(job.path, result.model_dump_json().encode() + b"\n")
    return result


def _read(job: Job, model: type[ResultT]) -> ResultT | None:
    try:
        return model.model_validate_json(job.path.read_bytes())
    except (FileNotFoundError, ValidationError):  # not there yet, or of an earlier version
        return None
