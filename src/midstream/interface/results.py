"""Runs as objects: what they measured, their trajectories, lessons and agent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from midstream.core.errors import UnsupportedError
from midstream.core.metrics import EvaluationResult
from midstream.core.terminal import plain_text
from midstream.core.text import html_table
from midstream.core.trajectory import Trajectory
from midstream.exports import Origin, table_rows
from midstream.interface.agents import AgentSpec
from midstream.lessons.lesson_set import Lesson
from midstream.process import allow_event_loop, build_for
from midstream.recipe.inputs import run_table
from midstream.recipe.overrides import agent_recipe
from midstream.recipe.prompts import Prompt, prompts_of
from midstream.report.draw import draw
from midstream.report.numbers import dollars, number, percent
from midstream.report.run import run_blocks
from midstream.runs import RunDirectory
from midstream.view.bundle import write_runs


class Run:
    """A training run, a lesson run or an evaluation on disk; printed, it is the screen of `midstream show`.

        run = Run("runs/mine")
        run.evaluations[-1].success, [lesson.text for lesson in run.lessons], run.frame()

    Args:
        path: the run directory. Raises `RunError` if it holds no run.
    """

    def __init__(self, path: str | os.PathLike[str] | RunDirectory) -> None:
        self.directory = path if isinstance(path, RunDirectory) else RunDirectory.open(Path(path))

    def __getattr__(self, name: str) -> Any:
        """A method of an installed package, by the entry points `midstream.run`, such as `run.score(reward)`."""
        if not name.startswith("_") and (points := entry_points(group="midstream.run", name=name)):
            return partial(next(iter(points)).load(), self)
        raise AttributeError(f"a run has no attribute {name!r}")

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.root

    @property
    def status(self) -> str:
        """The status of the run: "running", "interrupted", "failed" or "finished"."""
        return self.directory.status().state

    @property
    def agent(self) -> RunAgent:
        """The agent as the run left it, with its weights or lessons; `solve` and `evaluate` take it."""
        return RunAgent(self.directory)

    @property
    def evaluations(self) -> list[EvaluationResult]:
        """Every evaluation, in the order of the run."""
        return self.directory.evaluations.read()

    @property
    def lessons(self) -> list[Lesson]:
        """The lessons that a run has learned, those in the prompts alone."""
        if not self.directory.lessons_dir.exists():
            return []
        from midstream.lessons.access import read

        return list(read(self.path).rendered)

    @property
    def report(self) -> Path:
        """The page of the run, one HTML file, which is written if it is not there."""
        if not self.directory.report_path.exists():
            write_runs([self.directory.root], self.directory.report_path)
        return self.directory.report_path

    @allow_event_loop
    def prompts(self) -> dict[str, Prompt]:
        """The prompts of the run's agent, with its lessons, as midstream sends them: for a program without midstream.

        run.prompts()["planner"].messages(query="How high is K2?", memory="")
        """
        with build_for(agent_recipe(self.directory), {}) as build:
            return prompts_of(build)

    def trajectories(self, part: str = "*") -> Iterator[Trajectory]:
        """Read the trajectories, one after the other.

        Args:
            part: a pattern of the run's parts, such as "eval-*" or "step-*".
        """
        return (trajectory for _, trajectory in self._of(part))

    def frame(self, part: str = "*") -> Any:
        """A pandas data frame with a row for each trajectory of the parts: what `export` writes to parquet files.

        The trajectory itself, as JSON, is left out. Needs pandas.
        """
        try:
            import pandas
        except ImportError as error:
            what, fix = "a data frame needs pandas, not installed here", "pip install pandas"
            raise UnsupportedError(what, code="missing-extra", fix=fix) from error
        about = {"run": self.path.name, "recipe": self.directory.info().recipe_name, "module": ""}
        rows = (row for name, found in self._of(part) for row in table_rows(Origin(part=name, **about), found))
        return pandas.DataFrame(rows).drop(columns="trajectory", errors="ignore")

    def _of(self, pattern: str) -> Iterator[tuple[str, Trajectory]]:
        parts = self.directory.trajectories.parts().items()
        return ((name, trajectory) for name, part in parts if fnmatchcase(name, pattern) for trajectory in part)

    def __repr__(self) -> str:
        return f"<{self.directory.info().kind.removesuffix('s')} run {self.path}: {self.status}>"

    def __str__(self) -> str:
        return plain_text(draw(run_blocks(self.directory)))

    def _repr_html_(self) -> str:
        rows = [
            {
                "set": result.set_name,
                "sampling": result.sampling,
                "step": result.step,
                "tasks": result.tasks,
                "success": percent(result.success),
                "95% interval": " to ".join(map(percent, result.interval)) if result.interval else "",
                "errors": result.errors,
                "tokens": number(result.prompt_tokens + result.completion_tokens),
                "cost": dollars(result.cost_usd),
            }
            for result in self.evaluations
        ]
        return html_table(rows, [repr(self).strip("<>"), *(f"{lesson.id}: {lesson.text}" for lesson in self.lessons)])


class RunAgent(AgentSpec):
    """The agent of a run, with its newest weights or lessons."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory, self._table = directory, run_table(directory)
