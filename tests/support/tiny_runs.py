"""Runs of each kind through the command line, in this process: a fraction of a second each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.lessons.commit import read_updates
from midstream.runs import RunDirectory
from support.lesson_sessions import TINY, trajectories

TRAINING = {
    "tasks.countries": 20,
    "engines.policy.hidden_size": 8,
    "warm_start.transcripts": 4,
    "warm_start.steps": 1,
    "warm_start.batch_size": 2,
    "agent.max_turns": 1,
    "agent.planner.sampling.max_tokens": 3,
    "training.steps": 2,
    "training.tasks_per_step": 1,
    "training.minibatches": 1,
    "training.group_size": 2,
    "training.checkpoint_every": 1,
    "training.validate_every": 2,
    "evaluation.temperatures": "[0.0]",
    "evaluation.validation": '{name="validation",split="validation",per_family=1,seed=7}',
    "evaluation.sets": '[{name="test",split="test",per_family=1,seed=9}]',
}
LESSONS_TABLE = {**TINY, "evaluation.sets": '[{name="test",split="test",count=2}]'}


def commands(ten_steps: Path) -> dict[str, list[str]]:
    """The command that begins a run of each kind, without its directory."""
    return {
        "training": ["train", str(ten_steps), "--quiet", *settings(TRAINING)],
        "lessons": ["train", "lessons-simulated", "--quiet", *settings(LESSONS_TABLE)],
        "evaluation": [
            "eval", "lessons-simulated", "--quiet", "--count", "2",
            "--set", "rollout.concurrency=1", "--set", "evaluation.temperatures=[0.7,0.0]",
        ],
    }  # fmt: skip


def settings(table: Mapping[str, object]) -> list[str]:
    return [word for key, value in table.items() for word in ("--set", f"{key}={value}")]


def numbers_of(root: Path) -> dict[str, object]:
    """What a run has found out, without times, what was spent, and trajectories."""
    files = ("metrics.jsonl", "evaluations.jsonl", "lessons/lessons.json", "policy/model.safetensors")
    found: dict[str, object] = {name: (root / name).read_bytes() for name in files if (root / name).exists()}
    updates = [record.model_copy(update={"spent": None}) for record in read_updates(RunDirectory(root))]
    return found | {"updates": updates, "state": RunDirectory(root).status().state}


def result_of(root: Path) -> dict[str, object]:
    """The numbers of a run with its trajectories, without clocks, and its recipe."""
    return numbers_of(root) | {"trajectories": trajectories(root), "recipe": (root / "recipe.toml").read_bytes()}


class Cli:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
        self.capsys, self.caplog = capsys, caplog

    def __call__(self, *words: object) -> tuple[int, str, str]:
        """The exit code, what the command prints, and its warnings and errors."""
        self.capsys.readouterr()
        self.caplog.clear()
        code = main([str(word) for word in words])
        out, errors = self.capsys.readouterr()
        return code, out, errors + self.caplog.text

    def verify(self, run: Path) -> list[str]:
        """The files that `midstream check RUN` calls damaged."""
        _, out, errors = self("check", run, "--json")
        files = json.loads(out)["files"] if out else [{"file": "no run", "problem": errors, "state": "damaged"}]
        return [f"{file['file']}: {file['problem']}" for file in files if file["state"] == "damaged"]
