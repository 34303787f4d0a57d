"""Spending limits of evaluate, solve, train and resume: nothing passes them, and a higher one continues."""

from __future__ import annotations

from pathlib import Path

import pytest

import midstream as ms
from midstream.cli.main import main
from midstream.recipe.overrides import agent_recipe
from midstream.runs import RunDirectory
from midstream.runs.budget import read_spent
from support.counting import counting, write_questions
from support.errors import raises
from support.llm_server import LLMServer


@ms.tool
def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


@ms.reward
def exact(answer, gold) -> float:
    return float(answer == gold)


class Paying:
    """An agent with a model of its own, which costs half a dollar a run."""

    name = "paying"

    async def run(self, task, context):
        return ms.Trajectory(
            id=task.id, task_id=task.id, question=task.question, seed=context.seed, answer="2", cost_usd=0.5
        )

    async def close(self):
        pass


async def stubborn(question, model):
    """Continues without a reply that it does not get."""
    try:
        return await model(question)
    except ms.MidstreamError:
        return "nothing"


AGENT = ms.AgentFlow(model="ollama/m", tools=[word_count], settings={"rollout.concurrency": 1})


@pytest.fixture(autouse=True)
def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path / "questions.jsonl", 12)
    with LLMServer(counting) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.base_url.removesuffix("/v1"))
        yield server


def evaluated(**named):
    return ms.evaluate(AGENT, ms.tasks("questions.jsonl").test, reward=exact, quiet=True, **named)


def used(root):
    return sum(spent.rollouts for spent in read_spent(root / "ledger" / "spent.jsonl").values())


def test_an_evaluation_ends_at_its_limit_and_continues_with_a_higher_one(tmp_path, server):
    whole = evaluated(out="whole").evaluations
    asked = len(server.bodies)
    with raises("budget-spent", "4", "rollouts", "midstream resume part"):
        evaluated(out="part", budget="4 rollouts")
    run = ms.Run("part")
    assert (run.directory.status().state, used(run.directory.root)) == ("interrupted", 4)
    assert not run.evaluations
    assert len(run.directory.results_path.read_text().splitlines()) == 4, "what a limit ended is not kept"
    with raises("budget-spent"):
        ms.resume("part", quiet=True)
    assert ms.resume("part", budget="100 rollouts, 1000000 tokens", quiet=True).evaluations == whole
    assert used(run.directory.root) == 6
    assert len(server.bodies) == 2 * asked, "nothing ran twice"


def test_the_same_call_with_another_limit_continues():
    for limit in ("1 rollouts", "2 rollouts"):
        with raises("budget-spent", f"budget of {limit[0]} (rollouts)"):
            evaluated(out="part", budget=limit)
    assert evaluated(out="part", budget="9 rollouts").evaluations[0].tasks == 6
    with raises("budget-spent"):
        evaluated(out="free", budget="1 rollouts")
    assert evaluated(out="free").evaluations[0].tasks == 6
    assert agent_recipe(RunDirectory.open(Path("part"))).budget is None, (
        "the limits of a run are not those of its agent"
    )


@pytest.mark.parametrize("text", ["2 euros", "-1 usd", "nan usd", "inf usd", "", "usd", "1 usd,", "1 usd, 2 usd", 2])
def test_what_is_no_limit_is_refused(text):
    with raises("setting-range", repr(text)):
        evaluated(budget=text)


def test_what_an_agent_of_your_own_spends_counts():
    agent = ms.OwnAgent(Paying, settings={"rollout.concurrency": 1})
    test = ms.tasks("questions.jsonl").test
    with raises("budget-spent", "cost_usd"):
        ms.evaluate(agent, test, reward=exact, quiet=True, out="paid", budget="1 usd")
    spent = read_spent(ms.Run("paid").directory.ledger_dir / "spent.jsonl")
    assert spent["", ""].cost_usd == 1.0
    assert spent["", ""].rollouts == 2


def test_an_agent_that_continues_without_a_refused_reply_has_no_result():
    agent = ms.OwnAgent(stubborn, model="ollama/m", settings={"agent.sampling.max_tokens": 100})
    trajectory = ms.solve(agent, "How many words has 'to be or not'?", budget="10 tokens")
    assert trajectory.error.type == "BudgetError"


def test_a_question_has_a_limit_too():
    assert ms.solve(AGENT, "How many words has 'to be or not'?", budget="10 tokens").error.type == "BudgetError"
    assert ms.solve(AGENT, "How many words has 'to be or not'?", budget="1000000 tokens, 60 seconds").answer == "4"


def test_the_command_line_has_the_same_limits(tmp_path, capsys):
    agent = ["--provider", "ollama", "--model", "m", "--tasks", "questions.jsonl", "--set", "rollout.concurrency=1"]
    command = ["eval", "direct", *agent, "--reward", "exact_match", "--out", "part", "--quiet"]
    assert main([*command, "--budget", "1 rollout"]) == 1
    assert "midstream resume part" in capsys.readouterr().err
    assert main(["resume", "part", "--quiet"]) == 1
    assert main(["resume", "part", "--budget", "20 rollouts", "--quiet"]) == 0
    assert main([*command, "--budget", "two usd"]) == 2
