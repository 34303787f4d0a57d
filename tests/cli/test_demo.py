"""`midstream demo --text`: questions about a country that the user names, asked of the model that was just trained."""

from __future__ import annotations

import io
import re

import pytest

from midstream.cli.main import main

SMALL = "learner.threads=1 tasks.regions=2 training.steps=1 training.tasks_per_step=2 training.group_size=2"
SMALL += " evaluation.sets=[] evaluation.validation.per_family=1"


class Typed(io.StringIO):
    """What a user types at a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def demo(tmp_path, capsys, monkeypatch):
    """Run the command in an empty directory, and return what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(stdin):
        monkeypatch.setattr("sys.stdin", stdin)
        settings = [word for setting in SMALL.split() for word in ("--set", setting)]
        assert main(["demo", "--text", "--quiet", *settings]) == 0
        return capsys.readouterr().out

    return run


def test_without_a_terminal_the_questions_are_given(demo):
    text = demo(io.StringIO("never read"))
    assert "Zorbania are in the atlas now" in text
    assert text.count("$ midstream solve --planner runs/demo-text --set ") == 3
    assert text.index("How high is Mount Everest?") < text.rindex("I do not know.") < text.index("\nNext\n")


def test_a_user_names_the_country_and_asks(demo):
    text = demo(Typed("Height\nÅlvköping-Ost\nWhat is 45 plus 17?\n\n"))
    assert "the atlas cannot have a place named 'Height'" in text
    height = text.split("Ålvköping-Ost are in the atlas now")[1].split("$ midstream solve")[0]
    answers = re.findall(r"(?m)^ +answer +(\S+)", text)
    assert len(answers) == 4
    assert answers[0] in height
    assert answers[3] == "62"
