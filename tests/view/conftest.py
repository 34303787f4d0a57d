from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.cli.main import main
from support.evaluations import write
from support.tiny_runs import commands
from support.viewing import Client, viewing

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")  # while it is open, its event loop is the thread's, and `asyncio.run` refuses
def browser() -> Iterator[Any]:
    """A Chromium without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on PATH")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, finished_run: Path, ten_steps: Path) -> Path:
    """A directory of a run of each kind. Read them; don't change them."""
    root = tmp_path_factory.mktemp("viewed")
    (root / "training").symlink_to(finished_run)
    assert main([*commands(ten_steps)["lessons"], "--out", str(root / "deeper" / "lessons")]) == 0
    write(root / "evaluation", {f"t{i}": [float(i < 5), 1.0] for i in range(8)}, sampling="T=1")
    return root


@pytest.fixture(scope="session")
def client(runs: Path) -> Iterator[Client]:
    """A client of a server that shows them."""
    with viewing(runs) as client:
        yield client
