"""Real `kill -9` of a real evaluation: it resumes, runs nothing twice, and ends with the table it would have had."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.core.trajectory import without_clocks
from midstream.runs import RunDirectory
from support.killed_evaluation import ended, finish, kill_after, start
from support.question_server import RECIPE, QuestionServer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signal 9")

SETS = {
    name: {f"{name.title()} {i:02d}: how much is {i} plus {i} ?": str(2 * i) for i in range(24)}
    for name in ("sums", "more")
}


def write_sets(directory: Path) -> list[str]:
    words = []
    for name, table in SETS.items():
        lines = [json.dumps({"question": question, "answer": answer}) for question, answer in table.items()]
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        words += ["--tasks", str(directory / f"{name}.jsonl")]
    return words


@pytest.mark.slow
@pytest.mark.parametrize(
    "counts", [(9, None), pytest.param((1, 9, 15, 23, 9, None), marks=pytest.mark.slow)], ids=["once", "five times"]
)
def test_killed_again_and_again_no_finished_run_is_asked_for_twice(tmp_path, counts):
    """Kills among the first results, in the middle, near the end of a set; after one of them a torn record."""
    rng, recipe = random.Random(2), tmp_path / "scripted.toml"
    answers = {question: answer for table in SETS.values() for question, answer in table.items()}
    wrong = dict.fromkeys(rng.sample(list(answers), 15), "no idea")
    whole, root = tmp_path / "whole", tmp_path / "killed"
    with QuestionServer(answers | wrong, broken=rng.sample(list(answers), 5), slow_s=0.02) as server:
        recipe.write_text(RECIPE.format(base_url=server.base_url))
        words = ["eval", recipe, *write_sets(tmp_path), "--out"]
        finish(*words, whole)
        kills = 0
        for count in counts:
            done = {trajectory.question for trajectory in ended(root)}
            before = server.asked.copy()
            again = ["resume", root] if count in (15, None) else [*words, root]  # both continue it
            if count is None:
                finish(*again)
            else:
                kills += kill_after(start(*again), root, count, rng.uniform(0, 0.03))
            assert not [question for question in done if server.asked[question] != before[question]]
            if count == 9:
                with (root / "results.jsonl").open("ab") as journal:
                    journal.write(b'{"set": "sums-T0.7", "traj')
    assert kills >= len(counts) - 2
    assert (root / "evaluations.jsonl").read_bytes() == (whole / "evaluations.jsonl").read_bytes()
    assert sum(result.errors for result in RunDirectory.open(root).evaluations.read()) == 5
    assert (root / "results.jsonl").read_bytes() == b""
    assert len(ended(root)) == 48


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(8,), pytest.param((4, 16), marks=pytest.mark.slow)], ids=["once", "twice"])
def test_an_in_process_planner_ends_bit_for_bit_as_if_nobody_had_killed_it(finished_run, tmp_path, counts):
    """In lockstep a batch's composition decides the last bits: waves are kept whole or not at all."""
    whole, root = tmp_path / "whole", tmp_path / "killed"
    words = ["eval", finished_run, "--count", "8", "--trials", "3", "--set", "rollout.concurrency=4", "--out"]
    assert main([*map(str, words), str(whole), "--quiet"]) == 0
    assert all(kill_after(start(*words, root), root, count, 0.01) for count in counts)
    assert main(["resume", str(root), "--quiet"]) == 0
    assert (root / "evaluations.jsonl").read_bytes() == (whole / "evaluations.jsonl").read_bytes()
    for name in ("test-T1", "test-greedy"):
        first, second = (RunDirectory.open(path).trajectories.read(name) for path in (whole, root))
        assert [without_clocks(trajectory) for trajectory in first] == [
            without_clocks(trajectory) for trajectory in second
        ]
