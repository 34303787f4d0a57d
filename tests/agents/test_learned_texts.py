"""Where learned texts take effect: instructions, examples, descriptions of tools and marked texts, in each agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import JsonValue

import midstream as ms
from midstream.agents import prompted
from midstream.agents.agentflow import AgentFlowLoop, LoopConfig
from midstream.agents.own_agent import own_agent
from midstream.agents.rendering import prompt_text
from midstream.core.agent import lessons_digest
from midstream.core.stream_template import load_template
from midstream.core.task import Task
from midstream.core.text import neutral
from midstream.core.texts import Text
from midstream.core.tool import PerRun, Renamed, Tool, ToolResult, described
from midstream.gateway.settings import ServeConfig
from midstream.rollout import Environment, RolloutConfig, rollout
from midstream_worlds.scripted_engine import ScriptedEngine
from support.gateway_sessions import Model, ask, chat, client
from support.interleaved import QUESTION, Shout, Typist, play
from support.rollouts import StubReward

LAST = "<think>c</think><answer>5</answer>"
TOKEN, ESCAPED = "<|im_end|>", "\\u003c|im_end|>"


class Search(Tool):
    """A tool with one text argument."""

    timeout_s, output_tokens, name, description = 1.0, 100, "search", "Searches an encyclopedia."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
    }

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        return ToolResult(text="57")


SEARCH = Search()


class Fresh(Search):
    """A tool that is made for each run."""

    def for_run(self, run):
        return Search()

    def probabilities(self, progress):
        return {}


def rolled(agent, engines, lessons, tools=(SEARCH,)):
    """The trajectory of one rollout with learned texts."""
    environment = Environment(
        agent=agent, tools=tools, engines=engines, reward=StubReward(), config=RolloutConfig(max_attempts=1),
        lessons=lessons,
    )  # fmt: skip
    task = Task(id="t", question="How many seats?", answer="57")
    [[trajectory]] = [group.trajectories for group in asyncio.run(rollout(environment, [task], group_size=1, seed=1))]
    assert trajectory.error is None
    assert trajectory.lessons == lessons_digest(lessons)
    return trajectory


# --- AgentFlow ---

REPLIES = [
    "Justification: it is missing\nContext: seats\nSub-Goal: find them\nTool Name: search",
    '{"query": "seats"}',
    '{"analysis": "57.", "result_valid": true, "memory_sufficient": true}',
    "<answer>57</answer>",
]
ROLES = ("planner", "executor", "verifier", "generator")


def asked(lessons, tools=(SEARCH,)):
    """The system and the user message of each module, by its name."""
    engine = ScriptedEngine(REPLIES)
    flow = AgentFlowLoop(
        planner=prompted.PromptedPlanner(prompted.PlannerConfig()),
        executor=prompted.PromptedExecutor(prompted.ExecutorConfig()),
        verifier=prompted.PromptedVerifier(prompted.VerifierConfig()),
        generator=prompted.PromptedGenerator(prompted.GeneratorConfig()),
        config=LoopConfig(),
    )
    rolled(flow, dict.fromkeys(ROLES, engine), lessons, tools)
    return {request.role: [message.content for message in request.messages] for request in engine.requests}


def test_a_module_s_instructions_are_replaced_and_keep_their_places():
    before, own = asked({}), prompted.PromptedPlanner(prompted.PlannerConfig()).instructions
    text = f"Plan {TOKEN} well.\n{{{{lessons}}}}\n{{{{tools}}}}"
    after = asked({"planner.prompt": text, "planner": "- Look {{tools}} first."})
    lesson = "# Lessons from earlier tasks\n\n- Look {{tools}} first."
    assert after["planner"][0].startswith(f"Plan {ESCAPED} well.\n{lesson}\n\n\n" + '{"name":"search"')
    assert after["planner"][1] == before["planner"][1]
    assert {name: after[name] for name in ROLES[1:]} == {name: before[name] for name in ROLES[1:]}
    # The text that is there at first says the same as none.
    assert asked({"planner.prompt": own.rstrip("\n")}) == before
    assert asked({"verifier.prompt": "Judge.\n{{tools}}"})["verifier"][0].startswith('Judge.\n{"name":"search"')


def test_examples_stand_after_the_lessons():
    texts = {"planner": "- One.", "planner.examples": f"Query: a\n\nIt was {TOKEN} found."}
    [system, _] = asked(texts)["planner"]
    shown = (
        f"# Lessons from earlier tasks\n\n- One.\n\n# Examples of good runs\n\nQuery: a\n\nIt was {ESCAPED} found.\n\n"
    )
    assert shown in system
    alone, _ = asked({"planner.examples": "Query: a"})["planner"]
    assert "Lessons from" not in alone
    assert "# Examples of good runs\n\nQuery: a\n\n# Tools" in alone


@pytest.mark.parametrize("tools", [(Search(),), (Fresh(),)], ids=["plain", "per run"])
def test_every_module_reads_the_learned_description(tools):
    before, after = asked({}, tools), asked({"tools.search": f"Knows seats {TOKEN}.", "tools.other": "x"}, tools)
    for role in ("planner", "executor"):
        assert [text.replace("Searches an encyclopedia.", f"Knows seats {ESCAPED}.") for text in before[role]] == after[
            role
        ]
        assert ESCAPED in "".join(after[role])


@pytest.mark.parametrize("inner", [Search(), Fresh()], ids=["plain", "per run"])
def test_an_aliased_tool_has_a_description_of_its_own_name(inner):
    alias = Renamed(inner, "find")
    [same] = described([alias], {"tools.search": "Learned."})
    assert same is alias
    [found] = described([alias], {"tools.find": "Learned."})
    assert (found.name, found.description, inner.description) == ("find", "Learned.", "Searches an encyclopedia.")
    assert isinstance(found, PerRun) == isinstance(inner, Fresh)
    if isinstance(found, PerRun):
        made = found.for_run(None)
        assert (made.name, made.description) == ("find", "Learned.")
    assert asyncio.run(found.call({})).text == "57"


@pytest.mark.parametrize("role", ["planner", "executor", "executor_code", "verifier", "generator", "analyst"])
def test_no_shipped_instructions_change_where_tokens_are_escaped(role):
    text = prompt_text(role)
    assert text
    assert neutral(text) == text


# --- one stream ---


def opening(template, lessons, **more):
    engine = ScriptedEngine([LAST])
    play(engine, template=template, run={"lessons": lessons}, **more)
    return [message.content for message in engine.requests[0].messages], engine.requests[0].prompt


EXAMPLE = f"Question: 1 + 1 {TOKEN}?\n<python>\nprint(1 + 1)\n</python>\n<output>\n2\n</output>\n<answer>2</answer>"


def test_the_stream_s_instructions_keep_its_marks_and_escape_chat_tokens():
    template, before = load_template("artist-math"), opening("artist-math", {})[0]
    text = f"Use <python>code</python> {TOKEN}.\n{{{{lessons}}}}{{{{tools}}}}"
    [system, user] = opening("artist-math", {"policy.prompt": text, "policy": "- Add."})[0]
    assert system.startswith(f"Use <python>code</python> {ESCAPED}.\n# Lessons from earlier tasks\n\n- Add.\n\n")
    assert user == before[1]
    assert opening("artist-math", {"policy.prompt": template.instructions.rstrip("\n")})[0] == before
    assert load_template("artist-math") == template


def test_an_example_of_a_stream_keeps_its_marks_and_escapes_chat_tokens():
    [system, _] = opening("artist-math", {"policy.examples": EXAMPLE})[0]
    assert f"{EXAMPLE.replace(TOKEN, ESCAPED)}\n\n" in system
    assert "Examples of good runs" not in system


def test_a_prompt_of_plain_text_keeps_its_line_break():
    def prompt(lessons):
        engine = Typist("<answer>5</answer>|")
        play(engine, template="small", run={"lessons": lessons})
        request = engine.requests[0]
        return request.prompt or engine.codec.decode(request.prompt_ids)

    before = prompt({})
    assert before.endswith(f"Question: {QUESTION}\n")
    learned = "Answer.\n\n{{lessons}}Question: {{query}}"
    shown = prompt({"policy.prompt": learned, "policy.examples": EXAMPLE, "policy": "- Add."})
    lessons = f"# Lessons from earlier tasks\n\n- Add.\n\n{EXAMPLE.replace(TOKEN, ESCAPED)}\n\n"
    assert shown == f"Answer.\n\n{lessons}Question: {QUESTION}\n"
    assert prompt({"policy.prompt": load_template("small").instructions.rstrip("\n")}) == before


def test_a_learned_description_is_offered_to_a_stream():
    lessons = {"tools.python": f"Calculates {TOKEN}."}
    [system, _] = opening("artist-math", lessons, tools=described([Shout()], lessons))[0]
    assert f"Calculates {ESCAPED}." in system
    assert "shouts" not in system


# --- agents of your own ---


@pytest.fixture
def marked(monkeypatch):
    monkeypatch.setattr(Text, "marked", {})
    return ms.text("system", "Be careful.")


def test_an_agent_behind_the_gateway_gets_lessons_and_examples_and_reads_its_texts(marked):
    async def solve(question, session):
        async with client() as http:
            status, reply = await ask(http, session.anthropic_base_url, chat(f"{marked} {question}"))
        assert status == 200, reply
        return "57"

    def messages(lessons):
        made = own_agent("agent", "python:solve", solve)().build(None)
        made.gateway.config = ServeConfig()
        model = Model()
        rolled(made, {"policy": model}, lessons, ())
        asyncio.run(made.gateway.close())
        return [(message.role, message.content) for message in model.requests[0].messages]

    assert messages({}) == [("user", "Be careful. How many seats?")]
    texts = {"policy": "- Count.", "policy.examples": f"Q {TOKEN}\nA", "texts.system": "Be quick."}
    assert messages(texts) == [
        (
            "system",
            f"# Lessons from earlier tasks\n\n- Count.\n\n# Examples of good runs\n\nQ {ESCAPED}\nA",
        ),
        ("user", "Be quick. How many seats?"),
    ]


def test_a_function_reads_its_texts_lessons_examples_and_tools(marked):
    seen = {}

    async def solve(question, model, tools, lessons):
        seen.update(lessons=lessons, tools={name: tool.description for name, tool in tools.items()})
        return await model(f"{marked} {question}")

    def prompt(lessons):
        engine = ScriptedEngine(["57"])
        rolled(own_agent("agent", "python:solve", solve)().build(None), {"policy": engine}, lessons)
        return engine.requests[0].messages[0].content

    assert prompt({}) == "Be careful. How many seats?"
    assert seen == {"lessons": "", "tools": {"search": "Searches an encyclopedia."}}
    texts = {"policy": "- Count.", "policy.examples": "Q\nA", "texts.system": "Be quick.", "tools.search": "Finds."}
    assert prompt(texts) == "Be quick. How many seats?"
    assert seen == {"lessons": "- Count.\n\nQ\nA", "tools": {"search": "Finds."}}


def lesson(number, place, text):
    return {"id": f"L{number}", "module": place, "text": text}


def test_a_lesson_set_in_a_recipe_reaches_a_function_in_a_thread(tmp_path, marked):
    def solve(question, model):
        return model(f"{marked} {question}")

    engine = ScriptedEngine(lambda request: request.messages[0].content)
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "2 + 2 ?", "answer": "4"}), encoding="utf-8")
    (tmp_path / "set.json").write_text(json.dumps({"lessons": [lesson(1, "texts.system", "Be\nquick.")]}))
    agent = ms.OwnAgent(solve, model=engine, settings={"agent.lessons": str(tmp_path / "set.json")})
    run = ms.evaluate(agent, ms.tasks(tmp_path / "q.jsonl").test, out=tmp_path / "run", quiet=True)
    [trajectory] = run.trajectories()
    assert trajectory.answer == "Be\nquick. 2 + 2 ?"
    assert trajectory.lessons == lessons_digest({"texts.system": "Be\nquick."})
    assert run.prompts()["texts.system"].messages() == [{"role": "system", "content": "Be\nquick."}]
