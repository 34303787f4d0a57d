"""A page that is open while its server ends and another one takes its place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from midstream.runs import RunDirectory
from support.viewing import viewing


def test_an_open_page_finds_the_server_again_and_shows_what_was_written_meanwhile(
    finished_run: Path, tmp_path: Path, browser: Any
):
    page = browser.new_page()
    whole, growing = RunDirectory(finished_run), RunDirectory(tmp_path / "growing")
    shutil.copytree(finished_run, growing.root)
    growing.rewind(4)
    growing.set_status("running")
    with viewing(growing.root, token="kept") as client:
        page.goto(f"{client.address}#/growing")
        page.get_by_text("live", exact=True).wait_for()
        page.get_by_role("link", name="step 4").wait_for()
        page.evaluate("document.querySelector('details').open = true; scrollTo(0, 300)")
    page.get_by_text("no connection").wait_for()
    growing.trajectories.write(5, whole.trajectories.read(5))
    for name in ("metrics", "timings"):
        for record in getattr(whole, name).read():
            if record.step == 5:
                getattr(growing, name).append(record)
    with viewing(growing.root, token="kept", port=client.port):
        page.get_by_role("link", name="step 5").wait_for(timeout=15_000)
        page.get_by_text("live", exact=True).wait_for()
        steps = page.get_by_role("link", name="step").all_inner_texts()
        assert len(steps) == len(set(steps))
        assert page.evaluate("document.querySelector('details').open")
        assert page.evaluate("scrollY") == 300
        page.goto("about:blank")  # lets the server end
