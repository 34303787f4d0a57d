"""`agent.type = "direct"`: the model alone, with and without tools, from the command line to its trajectories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from midstream.cli.main import main
from midstream.core.metrics import Tally
from midstream.core.trajectory import Trajectory
from midstream.recipe.schema import load_recipe
from support.errors import coded, printed
from support.llm_server import LLMServer, completion, prompt_of

QUESTION = "What is 45 plus 17 ?"
REPLY = "<think>carry the one</think>45 and 17 make 62.\n<answer>62</answer>"


def run(capsys: pytest.CaptureFixture[str], command: str, *arguments: str) -> str:
    """Standard output of a command that succeeds."""
    capsys.readouterr()
    assert main([command, *arguments]) == 0
    return capsys.readouterr().out


def solved(capsys: pytest.CaptureFixture[str], server: LLMServer, *more: str) -> Trajectory:
    at = ("--recipe", "direct", "--base-url", server.base_url, "--model", "m", "--json")
    return Trajectory.model_validate_json(run(capsys, "solve", QUESTION, *at, *more))


def test_one_question_is_one_reply(capsys: pytest.CaptureFixture[str]):
    with LLMServer(lambda body: REPLY) as server:
        trajectory = solved(capsys, server)
    [body] = server.bodies
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["messages"][1]["content"] == QUESTION
    assert "tools" not in body
    assert (trajectory.agent, trajectory.turns, trajectory.stop_reason) == ("direct", (), "answered")
    assert trajectory.answer == "62"
    assert trajectory.final == "45 and 17 make 62.\n<answer>62</answer>"


def test_a_reply_without_tags_is_the_answer(capsys: pytest.CaptureFixture[str]):
    with LLMServer(lambda body: "62") as server:
        assert solved(capsys, server).answer == "62"


def test_without_tools_nothing_is_a_call(capsys: pytest.CaptureFixture[str]):
    invented = '<tool_call>{"name": "add", "arguments": {}}</tool_call>\nIt is 62.'
    with LLMServer(lambda body: invented) as server:
        trajectory = solved(capsys, server)
    assert (len(server.bodies), trajectory.turns, trajectory.answer) == (1, (), "It is 62.")
    assert trajectory.final == invented


def test_with_tools_the_model_calls_them_in_its_own_form(capsys: pytest.CaptureFixture[str]):
    def reply(body: Any) -> Any:
        if body["messages"][-1]["role"] == "tool":
            return f"It says {body['messages'][-1]['content']}. <answer>62</answer>"
        answer = completion(body, "")
        call = {"id": "c1", "type": "function", "function": {"name": "python", "arguments": '{"code": "45 + 17"}'}}
        answer["choices"][0] |= {"message": {"role": "assistant", "content": "", "tool_calls": [call]}}
        return answer

    with LLMServer(reply) as server:
        trajectory = solved(capsys, server, "--tools", "python")
    assert server.bodies[0]["tools"][0]["function"]["name"] == "python"
    assert [turn.command.tool for turn in trajectory.turns if turn.command] == ["python"]
    assert (trajectory.answer, trajectory.final) == ("62", "It says 62. <answer>62</answer>")


@pytest.mark.parametrize(
    "form", ["```json\n{}\n```", "I call it.\n```json {}```\n<answer>50</answer>", "<answer>{}</answer>", "{}"]
)
@pytest.mark.parametrize("setting", ["malformed", "run"])
def test_a_call_outside_its_marks_is_no_answer(capsys: pytest.CaptureFixture[str], form: str, setting: str):
    call = '{"name": "python", "arguments": {"code": "45 + 17"}}'

    def reply(body: Any) -> str:
        return form.replace("{}", call) if len(body["messages"]) == 2 else "<answer>62</answer>"

    with LLMServer(reply) as server:
        trajectory = solved(capsys, server, "--tools", "python", "--set", f"agent.stray_calls={setting}")
    use = Tally([trajectory]).tools()
    assert trajectory.answer == "62"
    expected = ({"malformed": 1.0}, 1.0) if setting == "malformed" else ({"python": 1.0}, 0)
    assert (use.share, use.error_rate) == expected
    result = server.bodies[1]["messages"][-1]
    assert result["role"] == "user"
    assert ("stands outside" if setting == "malformed" else "62") in result["content"]


def test_json_that_names_no_tool_is_an_answer(capsys: pytest.CaptureFixture[str]):
    said = '<answer>{"name": "Ann", "arguments": {}}</answer>'
    with LLMServer(lambda body: said) as server:
        assert solved(capsys, server, "--tools", "python").answer == '{"name": "Ann", "arguments": {}}'


def test_it_is_evaluated_and_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Both agents on the same questions: one knows half of the answers, the other none."""
    questions = tmp_path / "sums.jsonl"
    sums = {f"How much is {i} plus {i} ?": str(2 * i) for i in range(20)}
    questions.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in sums.items()))

    def knows_half(body: Any) -> str:
        number, answer = next((i, a) for i, (q, a) in enumerate(sums.items()) if q in prompt_of(body))
        return f"I add. <answer>{answer if number % 2 else 'no idea'}</answer>"

    for name, reply in (("half", knows_half), ("none", lambda body: "<answer>-1</answer>")):
        with LLMServer(reply) as server:
            run(
                capsys, "eval", "direct", "--tasks", str(questions), "--out", str(tmp_path / name), "--quiet", "--json",
                "--base-url", server.base_url, "--model", "m",
            )  # fmt: skip
        assert len(server.bodies) == 20
    [found] = json.loads(run(capsys, "compare", str(tmp_path / "none"), str(tmp_path / "half"), "--json"))["compared"]
    assert found["difference"] == pytest.approx(0.5)


def test_no_tools_is_an_option_of_every_agent_that_can_do_without(capsys: pytest.CaptureFixture[str]):
    for command in (("solve", QUESTION, "--recipe", "direct"), ("eval", "gazetteer-direct")):
        assert "[tools.python]" in run(capsys, *command, "--tools", "python", "--dry-run")
        out = run(capsys, *command, "--tools", "none", "--set", "tools.python.timeout_s=3", "--dry-run")
        assert "tools.python" not in out
    assert "of 0 turns" in out
    assert main(["solve", QUESTION, "--tools", "none", "--dry-run"]) == 2
    assert coded("setting-conflict")(printed(capsys.readouterr().err))
    for tools, named in (("none", "recipe direct"), ("base_generator", "agent.tools")):
        assert main(["solve", QUESTION, "--recipe", "artist-prompted", "--model", "m", "--tools", tools]) == 2
        error = printed(capsys.readouterr().err)
        assert coded("unknown-tool", "artist-math", "python", tools)(error)
        assert named in error.fix


def test_its_weights_can_be_trained(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    recipe = tmp_path / "alone.toml"
    engine = 'type = "transformers_local"\nmodel = "Qwen/Qwen2.5-1.5B-Instruct"'
    recipe.write_text(
        f'name = "alone"\nextends = "gazetteer-direct"\n[training]\nsteps = 2\n[engines.model]\n{engine}\n'
    )
    out = run(capsys, "train", str(recipe), "--dry-run")
    assert "of 0 turns: training, 2 steps" in out
    assert "Memory of engine model" in out


def test_the_type_alone_makes_the_agent():
    agent = load_recipe("direct").agent
    assert (agent.type, getattr(agent, "template", "")) == ("direct", "direct")
