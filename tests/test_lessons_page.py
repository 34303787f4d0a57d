"""docs/lessons.md, "Texts that can be learned": its agent and its recipe, learned by GEPA, against a scripted model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.lessons.access import read
from support.llm_server import LLMServer

PAGE = (Path(__file__).parents[1] / "docs" / "lessons.md").read_text(encoding="utf-8")
PART = PAGE.partition("\n## Texts that can be learned\n")[2].partition("\n## ")[0]
CAREFUL = "You count money, and answer with digits."


def reply(body):
    """Answers with the number if the system message asks for digits; as a writer of texts, asks for them."""
    system, *others = [message["content"] for message in body["messages"]]
    if not others:
        return f"=== text ===\n{CAREFUL}\n=== end ==="
    number = re.search(r"\d+", others[-1])
    return number[0] if number and "digits" in system else "a number of coins"


def test_gepa_learns_the_text_of_the_pages_agent(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gepa")
    monkeypatch.chdir(tmp_path)
    blocks = dict(re.findall(r"^```(python|toml)\n(.*?)^```$", PART, re.DOTALL | re.MULTILINE))
    Path("my_agent.py").write_text(blocks["python"], encoding="utf-8")
    Path("texts.toml").write_text(blocks["toml"], encoding="utf-8")
    questions = ({"question": f"How much are {number} coins?", "answer": str(number)} for number in range(100, 240))
    Path("questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions), encoding="utf-8")
    small = ("lessons.tasks=6", "lessons.batch_size=6", "lessons.epochs=1", "lessons.group_size=2")
    small += ("lessons.skip_uniform=false", "lessons.search_rollouts=24", "lessons.gate.tasks=20", "budget=false")
    with LLMServer(reply) as server:
        changes = (*small, f"engines.model.base_url={server.base_url}", "engines.model.model=m")
        words = [word for change in changes for word in ("--set", change)]
        assert main(["train", "texts.toml", "--out", "run", "--quiet", *words]) == 0
    capsys.readouterr()
    [lesson] = read("run").rendered
    assert (lesson.module, lesson.text) == ("texts.system", CAREFUL)
    assert main(["lessons", "export", "run"]) == 0
    assert CAREFUL in capsys.readouterr().out
