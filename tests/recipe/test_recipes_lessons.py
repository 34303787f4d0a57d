"""The ReAct recipes of Training-Free GRPO, small, against a server: calls, operations, lessons in the prompt."""

from __future__ import annotations

import json

from midstream.cli.main import main
from midstream.lessons.commit import read_updates
from midstream.runs import RunDirectory
from support.llm_server import Body, LLMServer, prompt_of

LESSONS = ["When a sum has two terms, add them.", "When a sum is asked for, check it twice."]


def questions(path, start):
    rows = [{"question": f"What is {i} plus 1 ?", "answer": str(i + 1)} for i in range(start, start + 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def played(body: Body) -> str | Body:
    """The agent's model, right on every second seed after one call, and all roles of the reflector."""
    heading = body["messages"][0]["content"].partition("\n")[0]
    if heading.startswith("# Summarise"):  # words: allow
        return json.dumps({"summary": "It added."})
    if heading.startswith("# "):
        texts = LESSONS[:1] if heading.startswith("# Merge") else LESSONS
        changes = [{"kind": "add", "text": text, "module": "policy", "from": [1, 2]} for text in texts]
        return json.dumps({"operations": changes})
    if body["messages"][-1]["role"] == "tool":
        result = body["messages"][-1]["content"].strip()
        return result if body["seed"] % 2 else "0"
    number = body["messages"][1]["content"].split()[2]
    call = {"name": "python", "arguments": json.dumps({"code": f"print({number} + 1)"})}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": call}]}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


def test_react_learns_by_one_operation_a_group_and_without_grades(tmp_path):
    with LLMServer(played) as server:
        train, test = questions(tmp_path / "train.jsonl", 10), questions(tmp_path / "test.jsonl", 50)
        changes = [
            f"tasks={{ type='file', path='{train}', splits={{ train=1.0 }} }}",
            f"evaluation.sets=[{{ name='own', tasks={{ type='file', path='{test}' }} }}]",
            f"engines.model={{ provider='vllm', model='m', base_url='{server.base_url}' }}",
            "lessons.tasks=2",
            "lessons.batch_size=2",
            "lessons.epochs=1",
            "evaluation.trials=1",
            "lessons.truth=none",
            "reward.type=numeric",
        ]
        options = [word for change in changes for word in ("--set", change)]
        run = str(tmp_path / "run")
        assert main(["train", "lessons-math-released", *options, "--out", run, "--quiet"]) == 0
        bodies = server.bodies
    [update] = read_updates(RunDirectory.open(tmp_path / "run"))
    assert update.lessons == 1
    beyond = [outcome.operation.text for outcome in update.proposed if "beyond the 1 changes" in outcome.refused]
    assert beyond == LESSONS[1:] * 2
    asked = [body for body in bodies if body.get("tools")]
    assert {tool["function"]["name"] for body in asked for tool in body["tools"]} == {"python"}
    with_lesson = [body for body in asked if LESSONS[0] in prompt_of(body)]
    assert {body["temperature"] for body in with_lesson} == {0.3}, "they are in the last evaluation's prompts"
    assert {body["temperature"] for body in asked} == {0.3, 0.7}
    roles = [prompt_of(body) for body in bodies if not body.get("tools")]
    assert all("nothing is graded" in text for text in roles if "# Gold answer" in text)
