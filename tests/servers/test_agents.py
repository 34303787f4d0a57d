"""Agents of other libraries (`examples/agents`) are evaluated, learn lessons and are trained, through the gateway.

    MIDSTREAM_TEST_AGENTS=1 pytest tests/servers/test_agents.py   (`make test-agents`, which installs the libraries)

A scripted server plays the model; training samples from the text model that comes with midstream.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.interface.results import Run
from midstream.lessons.commit import read_updates
from midstream.runs import RunDirectory
from midstream_worlds.tiny_text.tokenizer import load_tokenizer
from support.llm_server import Body, LLMServer, prompt_of

pytestmark = pytest.mark.skipif(
    not os.environ.get("MIDSTREAM_TEST_AGENTS"), reason="needs agent frameworks: make test-agents"
)
AGENTS = Path(__file__).parents[2] / "examples" / "agents"
FILES = ("openai_loop.py", "langgraph_agent.py", "openai_agents.py", "anthropic_agent.py", "shell_agent.sh")
# Each file as it is, and with its other ways to ask: whole or as a stream, through one API or another.
WAYS = [(name, ()) for name in FILES]
WAYS += [("langgraph_agent.py", ("agent.stream=true",)), ("openai_agents.py", ("agent.responses=false",))]
WAYS += [
    ("openai_agents.py", ("agent.stream=true",)),
    ("openai_agents.py", ("agent.responses=false", "agent.stream=true")),
]
EXPRESSIONS = {"3 * 7 + 2": "23", "4 * (7 - 9)": "-8", "10 / 4": "2.5", "-(2 + 3) * 12": "-60"}
LESSON = "Check the signs of all numbers before the answer."
USED = {"prompt_tokens": 70, "completion_tokens": 10, "total_tokens": 80}

ways = pytest.mark.parametrize(("name", "changes"), WAYS, ids=["-".join([name, *more]) for name, more in WAYS])


def served(body: Body, tool: str = "calculate", *, flawed: bool = False) -> Body:
    """A model that calls the tool once, and repeats its result; if it is flawed, on every second seed a wrong one."""
    last = body["messages"][-1]
    message: Body = {"role": "assistant", "content": None}
    if last["role"] == "tool":
        message["content"] = "0" if flawed and body["seed"] % 2 else last["content"].strip()
    else:
        [expression] = re.findall(r"What is (.*) \?", last["content"])
        call = {"name": tool, "arguments": json.dumps({"expression": expression})}
        message["tool_calls"] = [{"id": "c1", "type": "function", "function": call}]
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USED}


def reflected(body: Body) -> str | Body:
    """The flawed model, and all roles of the reflector: they propose one lesson."""
    heading = body["messages"][0]["content"].partition("\n")[0]
    if heading.startswith("# Summarise"):  # words: allow
        return json.dumps({"summary": "It calculated."})
    if heading.startswith("# "):
        change = {"kind": "add", "text": LESSON, "module": "policy", "from": [1, 2, 3, 4]}
        return json.dumps({"operations": [change]})
    return served(body, flawed=True)


def as_agent(name: str) -> list[str]:
    """The recipe of an agent, and the settings that it needs."""
    if name.endswith(".py"):
        return [f"{AGENTS / name}:solve"]
    return ["own-agent", "--set", f"agent.command={json.dumps(['sh', str(AGENTS / name)])}"]


def with_settings(changes) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def written(path, expressions):
    """A file of questions."""
    rows = [{"question": f"What is {expression} ?", "answer": answer} for expression, answer in expressions.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def questions(tmp_path):
    return written(tmp_path / "questions.jsonl", EXPRESSIONS)


def evaluated(root, questions, server, name, changes):
    options = ["--model", "m", "--base-url", server.base_url, "--tasks", str(questions), "--out", str(root)]
    prices = ["engines.model.price_prompt_usd=2", "engines.model.price_completion_usd=8", "rollout.max_attempts=1"]
    assert main(["eval", *as_agent(name), *options, "--quiet", *with_settings([*prices, *changes])]) == 0
    return list(Run(root).trajectories())


@pytest.mark.parametrize("name", FILES)
def test_ten_lines_at_most_join_an_agent_to_midstream(name):
    text = (AGENTS / name).read_text(encoding="utf-8")
    [glue] = re.findall(r"^# midstream: begin$(.*?)^# midstream: end$", text, re.DOTALL | re.MULTILINE)
    lines = [line for line in glue.splitlines() if line.strip()]
    assert 1 < len(lines) <= 10
    assert not re.search("midstream|session", text.replace(glue, "").replace("# midstream: ", ""), re.IGNORECASE)


@ways
def test_an_evaluation_has_turns_tools_tokens_and_costs(name, changes, questions, tmp_path):
    with LLMServer(served) as server:
        trajectories = evaluated(tmp_path / "run", questions, server, name, changes)
    assert len(server.bodies) == 2 * len(EXPRESSIONS)
    assert {one.question: one.answer for one in trajectories} == {
        f"What is {expression} ?": answer for expression, answer in EXPRESSIONS.items()
    }
    for one in trajectories:
        [turn], [closing] = one.turns, one.closing_calls
        expression = one.question.removeprefix("What is ").removesuffix(" ?")
        assert (one.status, one.stop_reason, one.reward.value, one.attempts) == ("ok", "answered", 1.0, 1)
        assert (turn.command.tool, turn.command.arguments) == ("calculate", {"expression": expression})
        assert (turn.observation.status, turn.observation.text) == ("ok", EXPRESSIONS[expression])
        assert [call.usage.prompt_tokens for call in one.calls] == [70, 70]
        assert [call.usage.completion_tokens for call in one.calls] == [10, 10]
        assert all(call.delivered for call in one.calls)
        assert one.cost_usd == pytest.approx(2 * (70 * 2 + 10 * 8) / 1e6)
        assert closing.messages[-1].content.strip() == EXPRESSIONS[expression]
        assert one.outcome == {}


@ways
def test_a_tool_that_is_not_there_is_the_models_fault(name, changes, questions, tmp_path):
    """A trained model makes such calls: its run is scored, and not tried again."""
    with LLMServer(lambda body: served(body, "python")) as server:
        trajectories = evaluated(tmp_path / "run", questions, server, name, changes)
    assert [(one.status, one.reward.value) for one in trajectories] == [("ok", 0.0)] * len(EXPRESSIONS)
    assert {turn.command.tool for one in trajectories for turn in one.turns} == {"python"}


@pytest.mark.parametrize("name", FILES)
def test_no_text_of_the_model_is_run(name, tmp_path):
    made = tmp_path / "made"
    hostile = (f"open('{made}', 'w')", f"$(touch {made})", f"1, system('touch {made}')", f"1; touch {made}", "1 / 0")
    questions = written(tmp_path / "hostile.jsonl", dict.fromkeys(hostile, "0"))
    with LLMServer(served) as server:
        trajectories = evaluated(tmp_path / "run", questions, server, name, ())
    observed = [turn.observation.text for one in trajectories for turn in one.turns]
    assert [text.partition(":")[0] for text in observed] == ["error"] * len(hostile)
    assert not made.exists()


@ways
def test_a_limit_is_the_models_fault(name, changes, questions, tmp_path):
    with LLMServer(served) as server:
        trajectories = evaluated(tmp_path / "run", questions, server, name, [*changes, "agent.max_calls=1"])
    assert {(one.status, one.stop_reason, one.answer) for one in trajectories} == {("ok", "turn_limit", None)}
    assert all(one.outcome["refused: call-limit"] >= 1 for one in trajectories)
    assert len(server.bodies) == len(EXPRESSIONS)


@ways
def test_lessons_of_lessons_are_in_the_system_message(name, changes, questions, tmp_path):
    small = ["lessons.tasks=4", "lessons.batch_size=4", "lessons.epochs=1", "lessons.group_size=4"]
    small += ["lessons.gate.enabled=false", "evaluation.trials=1", "rollout.max_attempts=1"]
    train = written(tmp_path / "train.jsonl", {f"{number} + 1": str(number + 1) for number in range(4)})
    sets = f"evaluation.sets=[{{ name='own', tasks={{ type='file', path='{questions}' }} }}]"
    with LLMServer(reflected) as server:
        engine = f"engines.model={{ model='m', base_url='{server.base_url}' }}"
        tasks = f"tasks={{ type='file', path='{train}', splits={{ train=1.0 }} }}"
        options = with_settings([engine, tasks, sets, *small, *changes])
        assert main(["train", *as_agent(name), "--out", str(tmp_path / "run"), "--quiet", *options]) == 0
    [update] = read_updates(RunDirectory.open(tmp_path / "run"))
    assert (update.lessons, update.broken) == (1, {})
    systems = [body["messages"][0] for body in server.bodies if body.get("tools")]
    assert {message["role"] for message in systems} == {"system"}
    taught = [message["content"] for message in systems if LESSON in message["content"]]
    # Two requests of each test task; before them are those without lessons, with the agent's own message alone.
    assert len(taught) == 2 * len(EXPRESSIONS)
    [own] = {message["content"] for message in systems} - set(taught)
    assert all(text.startswith(own) for text in taught)
    assert any("# Gold answer" in prompt_of(body) for body in server.bodies), "the critic has read runs"


REWARD = """
def parity(trajectory) -> float:
    return float(sum(len(call.completion_ids) for call in trajectory.calls) % 2)
"""


@pytest.mark.parametrize("name", FILES)
def test_weights_are_trained(name, tmp_path):
    (tmp_path / "rewards.py").write_text(REWARD, encoding="utf-8")
    sampling = "{ temperature = 1.0, max_tokens = 40 }"
    agent = f"type = {json.dumps(f'{AGENTS / name}:solve')}"
    if name.endswith(".sh"):
        agent = f'type = "command", command = {json.dumps(["sh", str(AGENTS / name)])}'
    changes = [f'agent={{ {agent}, engine = "policy", sampling = {sampling} }}']
    changes += [f"reward={{ type='{tmp_path / 'rewards.py'}:parity' }}", "rollout.max_attempts=1"]
    changes += ["training.steps=1", "training.tasks_per_step=2", "training.group_size=4", "training.minibatches=1"]
    changes += ["tasks.families=['arith']", "learner.threads=1", "evaluation.sets=[]"]
    changes += ["evaluation.validation={ name='validation', split='validation', per_family=1 }"]
    root = tmp_path / "run"
    recipe = str(AGENTS / "tiny.toml")
    assert main(["train", recipe, "--out", str(root), "--quiet", *with_settings(changes)]) == 0
    run = Run(root)
    [metrics] = RunDirectory.open(root).metrics.read()
    trajectories = list(run.trajectories("step-*"))
    calls = [call for one in trajectories for call in one.calls]
    assert run.status == "finished"
    assert (metrics.trajectories, metrics.trajectories_error) == (8, 0)
    assert 0 < metrics.rows <= len(calls)
    assert len(calls) >= 8
    assert metrics.grad_norm > 0
    assert metrics.logprob_gap < 1e-4
    assert all(call.prompt_ids and len(call.completion_ids) == len(call.logprobs) > 0 for call in calls)
    for one in trajectories:  # the prompt as the model read it: the agent's own, with its tool and the question
        prompt = load_tokenizer().decode(list(one.calls[0].prompt_ids))
        assert '"calculate"' in prompt
        assert one.question in prompt
