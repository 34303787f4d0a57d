"""The commands of `benchmarks/large_runs.py` on small runs: memory does not grow with the number of trajectories."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import large_runs

from midstream.cli.main import main
from midstream.runs import RunDirectory
from support.peak_memory import growth_of_memory


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The evaluations of 4,000 trajectories; no server would answer the one under way."""
    root = tmp_path_factory.mktemp("large")
    large_runs.make_evaluations(root, 4_000, port=9)
    return root


def test_show_reads_no_more_than_it_shows(root, capsys):
    [wanted] = RunDirectory.open(root / "a").trajectories.open("test-greedy").at([3_000])
    commands = [
        ("show", root / "under-way"),
        ("show", root / "under-way", wanted.id),
        ("show", root / "a", wanted.id),
        ("show", root / "a", "--wrong", "--json"),
    ]
    main(["show", str(root / "b")])  # loads what every command loads
    for words in commands:
        with growth_of_memory() as growth:
            assert main([str(word) for word in words]) == 0
        assert growth.mb < 15, words  # all trajectories take more than 100 MB
    shown = " ".join(capsys.readouterr().out.split())
    assert "test-greedy, 3,990 runs so far" in shown
    assert wanted.question in shown
    assert shown.count('"task_id"') == 1_334


@pytest.mark.slow
def test_the_benchmark_runs(capsys, monkeypatch):
    monkeypatch.setattr(large_runs, "UNDER_WAY", 100)
    monkeypatch.setattr(sys, "argv", ["large_runs.py", "--sizes", "300", "3000"])
    large_runs.main()
    rows = {line[:24].strip(): line[24:].split("/") for line in capsys.readouterr().out.splitlines()}
    for name in ("show, under way", "show ID", "show --tasks --json", "compare", "resume", "report, training"):
        small, large = (float(cell.split()[0]) for cell in rows[name][1:])
        assert large < small + 25, name
