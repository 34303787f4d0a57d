"""`run.json`, what a run was started with, and `status.json`, its state."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import JsonValue
from pydantic_core import from_json, to_jsonable_python

from midstream.components import own
from midstream.components.own import OwnComponent
from midstream.core.data import Frozen
from midstream.core.errors import RunError, did_you_mean
from midstream.core.secrets import refuse_secrets, without_secrets
from midstream.core.text import shorten
from midstream.core.version import __version__
from midstream.runs.files import damaged, read_file

RUN_FORMAT = 6
"""The version of the run directory's layout and records; raised by any change that older code would misread."""

RunState = Literal["running", "interrupted", "finished", "failed"]
# These settings are listed first: if they differ, two runs are hard to compare.
_FIRST = (
    "agent.type", "agent.template", "tools", "agent.max_turns", "evaluation", "reward", "tasks", "rollout", "sandbox",
)  # fmt: skip
_PACKAGES = ("torch", "transformers", "peft", "numpy", "pydantic", "aiohttp")


class EvaluationInfo(Frozen):
    """The subject of an evaluation, in addition to its recipe; resuming it requires all of this unchanged.

    `run` and `step` name the checkpoint (None: the recipe's agent as it is), `checkpoint` is its digest. `tasks` holds
    for each set its number of tasks and their digest. The last four are options.
    """

    run: str | None = None
    step: int | None = None
    checkpoint: str | None = None
    tasks: dict[str, str] = {}
    unsafe: bool = False
    record: str | None = None
    replay: str | None = None
    cache: str | None = None


class RunInfo(Frozen):
    """The settings and the environment that a run was started with; written once.

    `git_commit` is the commit of the working directory, with "-dirty" after it if tracked files differ, None outside
    git. `argv` is without what looks like a secret; `resolved` has none (`core/secrets.py`). `packages` holds the
    installed packages that can change a result; `resolved` is the recipe with every default and override filled in;
    `own` are the user's components in it. `lessons` is the digest of the lessons that `agent.lessons` puts into the
    prompts, "" for none. A directory with `evaluation` holds an evaluation and no training run.
    """

    format: int
    midstream: str
    python: str
    platform: str
    packages: dict[str, str]
    git_commit: str | None
    recipe_name: str
    seed: int
    argv: tuple[str, ...]
    created_at: str
    resolved: dict[str, JsonValue]
    own: tuple[OwnComponent, ...] = ()
    lessons: str = ""
    evaluation: EvaluationInfo | None = None

    @property
    def kind(self) -> Literal["training", "lessons", "evaluation"]:
        """The work that the directory holds."""
        if self.evaluation is not None:
            return "evaluation"
        # A run may learn both: it is a training run, with a lesson set.
        return "lessons" if self.resolved.get("training") is None and self.resolved.get("lessons") else "training"


class Learned(Frozen):
    """Tasks that a run learned from, or decided on, by `core.task.task_keys`, without the keys of earlier records."""

    purpose: str  # "training", "warm start", "validation", "lessons" or "gate"
    keys: tuple[str, ...]


class RunStatus(Frozen):
    """The state of a run. `step` counts finished training steps, `updated_at` is ISO 8601 in UTC."""

    state: RunState
    message: str = ""
    step: int | None = None
    updated_at: str = ""


def collect_info(
    recipe_name: str,
    seed: int,
    resolved: Mapping[str, object],
    evaluation: EvaluationInfo | None = None,
    lessons: str = "",
) -> RunInfo:
    """The `RunInfo`, which has the arguments, of what starts now in this process.

    Raises `RecipeError` if the recipe, which may be made in Python, has a secret.
    """
    refuse_secrets(resolved)
    packages: dict[str, str] = {}
    plugins = {point.dist.name for point in importlib.metadata.entry_points(group="midstream.components") if point.dist}
    for name in (*_PACKAGES, *sorted(plugins)):
        with suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return RunInfo(
        format=RUN_FORMAT,
        midstream=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        packages=packages,
        git_commit=git_commit(Path.cwd()),
        recipe_name=recipe_name,
        seed=seed,
        argv=without_secrets(sys.argv),
        created_at=utc_now(),
        resolved=to_jsonable_python(resolved, inf_nan_mode="strings"),
        own=tuple(own.used(resolved)),
        lessons=lessons,
        evaluation=evaluation,
    )


def parse_info(path: Path) -> RunInfo:
    """Read `run.json`. Raises `RunError` if it is missing, damaged, or of another format version."""
    try:
        raw = from_json(read_file(path))
        found = raw["format"]
        if found == RUN_FORMAT:
            # Runs of this format have it from before votes left the core.
            raw.pop("votes", None)
            return RunInfo.model_validate(raw)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunError(
            f"{path.parent} is not a run directory: it has no {path.name}",
            code="not-a-run",
            fix=f"{_meant(path.parent)}give the directory that `--out` named when it was started",
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        problem = f"it has no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise damaged(path, problem) from error
    writer = raw.get("midstream", "of an unknown version")
    raise RunError(
        f"{path.parent} has run format {found}; this midstream {__version__} reads {RUN_FORMAT}",
        code="run-format",
        fix=f'use that version (`pip install "midstream=={writer}"`), or start a new run with another --out',
    )


def _meant(root: Path) -> str:
    """The beginning of a fix for a misspelt run directory: a run here, in a directory here, or next to it."""
    places = (("*/run.json", Path()), ("*/*/run.json", Path()), ("*/run.json", root.parent))
    with suppress(OSError):
        return did_you_mean(root, [str(info.parent) for pattern, place in places for info in place.glob(pattern)])
    return ""


def git_commit(directory: Path) -> str | None:
    """The commit checked out in `directory`, "-dirty" appended if tracked files differ; None outside git."""
    command = ["git", "-C", str(directory), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def utc_now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def differing_settings(ours: Mapping[str, object], theirs: Mapping[str, object]) -> list[str]:
    """Every setting in which two resolved recipes differ, as "agent.max_turns: 3 | 10"; names are ignored."""
    left, right = _flat(ours), _flat(theirs)

    def rank(key: str) -> int:
        return next((place for place, start in enumerate(_FIRST) if key.startswith(start)), len(_FIRST))

    keys = sorted((key for key in {**left, **right} if left.get(key) != right.get(key)), key=rank)
    return [f"{key}: {shorten(left.get(key, '-'), 60)} | {shorten(right.get(key, '-'), 60)}" for key in keys]


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """ "agent.max_turns" -> "3"; the recipe's name and description are left out."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if not prefix and key in ("name", "description"):
            continue
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = json.dumps(value, sort_keys=True)
    return flat
