"""An evaluation without a model: a project of `midstream init`, whose stand-in guesses half of its answers."""

from __future__ import annotations

from pathlib import Path

import pytest

import midstream as ms
from midstream.cli.main import main


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ci") / "project"
    assert main(["init", str(place), "--kind", "evaluate", "--quiet"]) == 0
    (place / "strict.py").write_text("def odd(answer):\n    return float(int(answer) % 2)\n", encoding="utf-8")
    return place


@pytest.fixture(scope="session")
def evaluation(project: Path) -> ms.Run:
    """24 runs of 8 tasks, 13 of which are right."""
    return ms.evaluate(str(project / "offline.toml"), out=project / "first", quiet=True)
