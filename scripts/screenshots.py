"""Take the screenshots of docs/reading-a-run.md: `python scripts/screenshots.py runs`, in an installed Chromium.

`runs` holds `demo` (`midstream demo`) and `lessons` (`midstream train lessons-simulated --out runs/lessons`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Page, sync_playwright

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
STEP = "step-000040"  # in the middle of learning: groups with good and bad rollouts
SIZE = {"width": 1000, "height": 640}


def task_of(address: str) -> tuple[str, int]:
    """Return the question of the step with both outcomes that differ the latest, and a rollout that solved it."""

    def document(path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{address}api/run/demo/part/{STEP}{path}") as answer:
            return json.load(answer)

    entries = document("?limit=200")["entries"]
    groups = [list(group) for _, group in groupby(entries, key=lambda entry: entry["task"])]
    mixed = [group for group in groups if len({entry["reward"] for entry in group}) > 1]
    chosen = max(mixed, key=lambda group: document(f"/group/{quote(group[0]['task'], safe='')}")["first_difference"])
    return chosen[0]["task"], next(place for place, entry in enumerate(chosen) if entry["reward"] == 1)


def shoot(page: Page, address: str, name: str) -> None:
    """Save what an address of the page shows as docs/figures/view-NAME.png."""
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("main h1, main h2")
    page.wait_for_timeout(1500)
    page.screenshot(path=FIGURES / f"view-{name}.png")


def main(runs: str) -> None:
    """Serve the runs and take every picture."""
    command = [sys.executable, "-m", "midstream", "view", "--no-browser", runs]
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewer, sync_playwright() as driver:
        try:
            assert viewer.stdout is not None
            address = viewer.stdout.readline().strip()
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE)  # pyright: ignore[reportArgumentType]
            task, rollout = task_of(address)
            group = f"{address}#/demo/{STEP}/{quote(task, safe='')}"
            shoot(page, f"{address}#/", "runs")
            shoot(page, f"{address}#/demo", "run")
            shoot(page, group, "group")
            shoot(page, f"{group}/{rollout}", "trajectory")
            shoot(page, f"{group}/{rollout}/1/0", "tokens")
            shoot(page, f"{address}#/lessons", "lessons")
            page.set_viewport_size({"width": 390, "height": 640})
            shoot(page, group, "phone")
            browser.close()
        finally:
            viewer.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
