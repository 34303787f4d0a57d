"""Directories that are made once a test run, whichever worker needs them first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The directory of this name, which `make` has filled, and which no test may change."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    path, done = root / f"shared-{name}", root / f"shared-{name}.done"
    with FileLock(f"{path}.lock"):
        if not done.exists():
            # Of a worker that failed to make it.
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            make(path)
            done.touch()
    return path
