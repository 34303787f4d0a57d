"""What the studies share: their options, their errors, tables on the terminal and numbers on disk."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from midstream.core.errors import MidstreamError, RecipeError
from midstream.core.terminal import Terminal
from midstream.recipe.schema import Recipe
from midstream.report.study_tables import StudyRow, study_tables
from midstream.runs.files import atomic_write
from midstream.study import check_seeds


def parser(description: str, *, out: str, recipe: str = "") -> argparse.ArgumentParser:
    """The options of every study; `recipe` is the default of `--recipe`, "" for no such option."""
    parsed = argparse.ArgumentParser(description=description.partition("\n")[0])
    if recipe:
        parsed.add_argument("--recipe", default=recipe, help=f"whose (default: {recipe})")
    parsed.add_argument("--seeds", type=int, default=3, help="training seeds of each recipe (default 3)")
    parsed.add_argument("--out", type=Path, default=Path(out), help=f"directory, of which nothing is repeated ({out})")
    parsed.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some of the arms or analyses")
    parsed.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parsed.add_argument("--json", action="store_true", help="print numbers instead of tables")
    parsed.add_argument("--quiet", action="store_true", help="no progress")
    return parsed


def run(study: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> int:
    """Run a study; returns the exit code: 0 done, 1 failed, 130 interrupted."""
    try:
        check_seeds(options.seeds)
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
        for place, table in enumerate(study_tables(rows, head, title)):
            table.title = table.title if place == 0 else None
            Terminal().print(table)


def require_set(recipe: Recipe) -> None:
    """Refuse a recipe without an evaluation set before anything is learned."""
    if not recipe.evaluation.sets:
        raise RecipeError(
            f"recipe {recipe.name!r} has no evaluation set",
            code="missing-key",
            fix="add [[evaluation.sets]], as recipes/training-free-simulated.toml has it",
        )
