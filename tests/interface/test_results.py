"""A run as an object: how it is shown, and the agent that it left."""

from __future__ import annotations

from pathlib import Path

import midstream as ms


def test_a_notebook_shows_a_row_for_each_evaluation(finished_run: Path) -> None:
    run = ms.Run(finished_run)
    shown = run._repr_html_()
    assert shown.count("<tr>") == 1 + len(run.evaluations)
    for result in run.evaluations:
        assert f">{result.sampling}<" in shown


def test_printed_it_names_what_it_was_evaluated_on_and_its_agent_is_that_of_the_run(finished_run: Path) -> None:
    run = ms.Run(finished_run)
    text = str(run)
    assert "Success on test" in text
    assert "\x1b" not in text
    assert run.agent.directory is run.directory
    assert run.agent.table()["agent"] == run.directory.info().resolved["agent"]
