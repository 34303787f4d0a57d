"""The examples run as users run them, and say what they should."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MINIMAL = ROOT / "examples" / "flow_grpo_minimal.py"

SMALL_NOTEBOOK = """
extends = "tool-use-135m"
name = "small"
agent = { max_tokens = 8, policy = { sampling = { max_tokens = 4 } } }
engines = { policy = { model = "model" } }
learner = { threads = 1 }
training = { steps = 1, tasks_per_step = 1, group_size = 2, loss = { kl_coefficient = 0.1 } }

[evaluation]
validation = { per_family = 1 }

[[evaluation.sets]]
name = "test"
per_family = 1
"""


def run(name: str, *arguments: str, without_torch: bool = False) -> str:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments]
    if without_torch:
        code = "import runpy, sys; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; "
        command[3:4] = ["-c", code + "runpy.run_path(sys.argv[0], run_name='__main__')", command[3]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_algorithm_fits_into_one_file():
    assert len(MINIMAL.read_text(encoding="utf-8").splitlines()) < 250


@pytest.mark.slow
def test_the_algorithm_runs():
    lines = run("flow_grpo_minimal.py", "--steps", "2", "--warm-steps", "5").splitlines()
    steps = [line for line in lines if re.fullmatch(r"step +\d+  reward [01]\.\d\d  #*", line)]
    assert len(steps) == 2


def test_wiring_by_hand_answers_without_torch_model_or_network():
    shown = run("wire_by_hand.py", without_torch=True)
    assert re.search(r"^answer +234\b", shown, re.MULTILINE)
    assert re.search(r"^reward +1\b", shown, re.MULTILINE)
    assert "verified, 3 turns" in shown


def test_an_own_tool_is_called_and_used():
    shown = run("own_tool.py", without_torch=True)
    assert "text='8.04672', ok=True" in shown
    assert "unknown unit 'leagues'" in shown
    assert "answer 29028.9" in shown


@pytest.mark.slow  # test_two_ways.py does the same in this process
def test_one_rollout_feeds_lessons_and_weights():
    shown = run("one_run_two_ways.py")
    assert re.search(r"^lessons +\d+ groups with contrast -> [1-9]\d* changes$", shown, re.MULTILINE)
    assert re.search(r"^weights +(\d+) groups with contrast -> [1-9]\d* rows", shown, re.MULTILINE)
    before, after = re.search(r"weights as they were: (\w+)", shown), re.search(r"weights now: (\w+)", shown)
    assert before
    assert after
    assert before[1] != after[1]
    assert re.search(r"^success +frozen 0\.\d\d, lessons 0\.\d\d, weights 0\.\d\d, both 0\.\d\d$", shown, re.MULTILINE)


@pytest.mark.slow
def test_the_notebook_runs_with_another_model(tmp_path, monkeypatch):
    import midstream as ms
    from support.hf_models import save_chat_model

    monkeypatch.chdir(tmp_path)
    config = save_chat_model(tmp_path / "model", "llama") / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 1024}))
    Path("small.toml").write_text(SMALL_NOTEBOOK)
    notebook = json.loads((ROOT / "examples" / "laptop.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = [[output["output_type"] for output in cell["outputs"]] for cell in cells]
    assert all("execute_result" in types for types in outputs[1:])
    assert not any("error" in types for types in outputs)
    program = "\n".join("".join(cell["source"]) for cell in cells)
    assert program.count('_ = fetch("smollm2")') == program.count("tool-use-135m") == 1
    names = {"__name__": "notebook"}
    exec(program.replace('_ = fetch("smollm2")', "").replace("tool-use-135m", "small.toml"), names)
    assert names["run"].status == "finished"
    compared = ms.compare("runs/laptop@0", "runs/laptop").found
    assert {paired.set_name for paired in compared} == {"validation", "test"}
    assert len(names["rollouts"]) == 2
