"""`midstream demo --text`: questions about a country that the user names, asked of the model that was just trained."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from pathlib import Path

import pexpect
import pytest

from midstream.cli.main import main
from midstream_worlds.demo import QUESTIONS
from support.hf_models import save_chat_model

SMALL = "learner.threads=1 tasks.regions=2 training.steps=1 training.tasks_per_step=2 training.group_size=2"
SMALL += " evaluation.sets=[] evaluation.validation.per_family=1"


TINY = """tasks.countries=40 engines.policy.hidden_size=32 warm_start.transcripts=60 warm_start.steps=10
warm_start.min_copy_rate=0 training.steps=6 training.tasks_per_step=2 training.group_size=2
evaluation.validation.per_family=1 evaluation.sets=[{name="test",per_family=1}]"""

# An untrained model, and replies of four tokens: what the command does around them.
SHORT = """learner.threads=1 tasks.regions=2 tasks.families=["lookup"] training.steps=1 training.minibatches=1
training.tasks_per_step=1 training.group_size=2 agent.max_tokens=8 agent.policy.sampling.max_tokens=4
engines.policy={type="tiny_text",weights="copying",hidden_size=32,layers=2,heads=2} evaluation.at=none"""


class Typed(io.StringIO):
    """What a user types at a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def demo(tmp_path, capsys, monkeypatch):
    """Run the command in an empty directory, and return what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(stdin, changes=SMALL):
        monkeypatch.setattr("sys.stdin", stdin)
        settings = [word for setting in changes.split() for word in ("--set", setting)]
        assert main(["demo", "--text", *settings]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.slow
def test_without_a_terminal_the_questions_are_given(demo):
    text = demo(io.StringIO("never read"))
    assert "Zorbania are in the atlas now" in text
    assert text.count("$ midstream solve --planner runs/demo-text --set ") == 3
    assert text.index("How high is Mount Everest?") < text.rindex("I do not know.") < text.index("\nNext\n")


@pytest.mark.slow
def test_it_says_how_long_it_takes_and_ends_on_one_screen(tmp_path):
    """In a terminal of 100 columns and 40 lines."""
    settings = [word for setting in TINY.split() for word in ("--set", setting)]
    command = [sys.executable, "-m", "midstream", "demo", *settings]
    with pexpect.spawn(shlex.join(command), cwd=tmp_path, dimensions=(40, 100), timeout=120, encoding="utf-8") as ended:
        ended.expect(pexpect.EOF)
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", ended.before)
    lines = [line.rstrip() for line in shown.splitlines()]
    start = " ".join(lines[:6])
    assert "about 4 minutes on 2 cores" in start
    assert "warm start, evaluation before training, 6 training steps, evaluation after training" in start
    for phase in ("warm start: step", "evaluation before training: test", r"training step \d of 6", "evaluation after"):
        assert any(re.search(f"now.*{phase}", line) for line in lines), phase
    last = lines[max(place for place, line in enumerate(lines) if line.startswith("Success on test")) :]
    assert len(last) <= 40
    assert max(map(len, last)) <= 100
    assert "View    midstream view runs/demo" in last
    assert last[-4] == "Next"
    assert len([line for line in last if " midstream " in line]) == 4


@pytest.mark.slow
def test_a_user_names_the_country_and_asks(demo):
    text = demo(Typed("Height\nÅlvköping-Ost\nWhat is 45 plus 17?\n\n"))
    assert "the atlas cannot have a place named 'Height'" in text
    height = text.split("Ålvköping-Ost are in the atlas now")[1].split("$ midstream solve")[0]
    answers = re.findall(r"(?m)^ +answer +(\S+)", text)
    assert len(answers) == 4
    assert answers[0] in height
    assert answers[3] == "62"


def test_a_real_model_is_trained_and_asked_before_and_after(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = Path(save_chat_model(tmp_path / "model", "llama")) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 1024}))
    changes = ["steps=1", "tasks_per_step=1", "group_size=2", "loss.kl_coefficient=0.1"]
    settings = [*(f"training.{change}" for change in changes), "learner.threads=1", "agent.max_tokens=8"]
    settings += ["agent.policy.sampling.max_tokens=4", "evaluation.sets=[]", "evaluation.validation.per_family=1"]
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["demo", "--real", "--model", "local/model", "--quiet", *words]) == 0
    text = capsys.readouterr().out
    before = text.index("Before: midstream solve --recipe tool-use-small --model local/model")
    assert before < text.index("After: midstream solve --planner runs/demo-real") < text.index("\nNext\n")


def test_the_questions_are_about_an_atlas_with_the_users_country(demo, monkeypatch):
    monkeypatch.setattr("midstream_worlds.demo.QUESTIONS", QUESTIONS[:1])
    text = demo(Typed("Height\nÅlvköping-Ost\nWhat is 45 plus 17?\n\n"), SHORT)
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("$ midstream solve ")]
    assert [command[-1] for command in commands] == ["How high is Ålvköping-Ost?", "What is 45 plus 17?"]
    for command in commands:
        assert command[command.index("--planner") + 1] == "runs/demo-text"
        assert command[command.index("--set") + 1] == 'tasks.places=["Ålvköping-Ost"]'
    documents = text.split(commands[0][-1])[0].splitlines()
    assert len([line for line in documents if line.startswith("  ") and "Ålvköping-Ost" in line]) >= 3


def test_a_model_without_real_is_refused(capsys):
    assert main(["demo", "--model", "local/model"]) == 2
    assert "option-without-effect" in capsys.readouterr().err
