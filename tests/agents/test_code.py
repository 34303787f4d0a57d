"""The executor that writes programs: its prompt, its parser, and a whole run with real tools."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.agents.agentflow import AgentFlowLoop, LoopConfig
from midstream.agents.prompted import (
    ExecutorConfig,
    GeneratorConfig,
    PlannerConfig,
    PromptedExecutor,
    PromptedGenerator,
    PromptedPlanner,
    PromptedVerifier,
    VerifierConfig,
    parse_program,
)
from midstream.core.agent import ModuleContext, RunContext
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.core.trajectory import Action, Call, Command, Trajectory
from midstream.sandbox import code_runner
from midstream.sandbox.code_runner import ProgramRunner
from midstream.sandbox.tiers import choose
from midstream.tools.local_search import Document, LocalSearch
from midstream_worlds.scripted_engine import ScriptedEngine
from support.errors import coded

CONFIG = ExecutorConfig(mode="code")


def search() -> LocalSearch:
    documents = [Document(id="a", text="Amberbank height 105"), Document(id="b", text="Coldmere height 7")]
    return LocalSearch.from_documents(documents)


def write(engine: ScriptedEngine, action: Action, config: ExecutorConfig = CONFIG) -> tuple[Command, tuple[Call, ...]]:
    async def go() -> tuple[Command, tuple[Call, ...]]:
        tool = search()
        context = ModuleContext(engine=engine, seed=3, order=5, lessons="- Print once.")
        command = await PromptedExecutor(config).command(action, [tool], context)
        await tool.close()
        return command

    return asyncio.run(go())


# --- replies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("Here it is:\n\n```python\nprint(1)\n\nprint(2)\n```\nIt prints.", "print(1)\n\nprint(2)"),
        ("```\nprint(1)\n```", "print(1)"),
        ("```py\r\nprint(1)\r\n```\r\n", "print(1)\r"),
        ("``` Python3 \nprint(1)", "print(1)"),
        ("print(1)", "print(1)"),
        ("<think>\n```python\nx\n```\n</think>\n```python\nprint(1)\n```", "print(1)"),
        ("```bash\nls\n```\n```python\nprint(1)\n```", "print(1)"),
        ("```text\nno code\n```\n```\nprint(1)\n```", "print(1)"),
        ("```python\nprint(1\n```\nno:\n```python\nprint(2)\n```", "print(2)"),
        ("```python\nprint('''\n``` x\n''')\n```", "print('''\n``` x\n''')"),
        ("```python\nimport re\nre.findall('\\d', '1')\n```", "import re\nre.findall('\\d', '1')"),
        ("x = '\u2028'", "x = '\u2028'"),
    ],
)
def test_the_program_in_a_reply(reply: str, code: str):
    assert parse_program(reply, "t") == Command(tool="t", code=code)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("", "the reply holds no code"),
        ("<think>for ever", "the reply holds no code"),
        ("```python\n\n```", "the reply holds no code"),
        ("I will search.", "SyntaxError: invalid syntax (line 1: I will search.)"),
        ("```python\nx = 1\nprint(x\n```\n```python\n(\n```", "SyntaxError: '(' was never closed (line 2: print(x)"),
        ("```python\n if x:\n```", "IndentationError: unexpected indent (line 1: if x:)"),
        ("1 +", "SyntaxError: invalid syntax (line 1: 1 +)"),
        ("x = '\0'", "null bytes"),
        ("(" * 5000, "too many nested parentheses"),
        ("-" * 40_000 + "1", "Error"),
        ("x = 1\n" * 10_000, "its 60000 characters are more than 50000"),
    ],
)
def test_what_is_wrong_with_a_reply(reply: str, error: str):
    command = parse_program(reply, "t")
    assert command.code is None
    assert command.error is not None
    assert command.error.startswith("no program for t: ")
    assert error in command.error


LINES = [
    "```python",
    "```",
    "``` py",
    "print(1)",
    "x = (",
    "<think>",
    "</think>",
    "é\ud800",
    "\0",
    "   y",
    "\tif z:",
    "",
]


@given(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=20)), max_size=12).map("\n".join))
def test_any_text_is_a_program_that_compiles_or_an_error(reply: str):
    command = parse_program(reply, "t")
    assert (command.code is None) != (command.error is None)
    assert Command.model_validate_json(command.model_dump_json()) == command
    if command.code is not None:
        compile(command.code, "", "exec")


@given(
    st.lists(st.sampled_from(["x = 1", "print('a')", "if x: y", "", "# ``` no", "s = '```'"]), min_size=1).map(
        "\n".join
    )
)
def test_a_program_comes_out_of_its_fence_as_it_was(code: str):
    if code.strip():
        assert parse_program(f"Well:\n```python\n{code}\n```\n", "t").code == code


# --- asking -----------------------------------------------------------------------------------------------------------


def test_the_prompt_is_static_first_and_shows_lessons_before_the_functions():
    engine = ScriptedEngine(["print(1)"] * 2)
    for context in ("c1", "<|im_end|>"):
        write(engine, Action(sub_goal="g", tool="local_search", context=context))
    first, second = engine.requests
    assert first.role == "executor"
    assert first.messages[0] == second.messages[0]
    shown = json.loads(first.messages[0].content.splitlines()[-1])
    assert shown == {
        "function": "local_search",
        "description": search().description,
        "parameters": LocalSearch.parameters,
    }
    assert '{"function":"local_search","sub_goal":"g","context":"c1"}' in first.messages[1].content
    assert "<|im_end|>" not in second.messages[1].content
    assert "\n# Lessons from earlier tasks\n\n- Print once.\n\n# Functions\n" in first.messages[0].content


def test_a_program_that_does_not_compile_is_shown_once_and_may_be_fixed():
    action = Action(tool="local_search")
    engine = ScriptedEngine(["print(", "```python\nprint(1)\n```"])
    command, calls = write(engine, action)
    assert (command.code, command.error, len(calls)) == ("print(1)", None, 2)
    assert engine.requests[1].messages[2].content == "print("
    assert "'(' was never closed" in engine.requests[1].messages[3].content
    command, calls = write(ScriptedEngine(["print(", "print((", "1"]), action)
    assert (command.code, len(calls)) == (None, 2)
    assert command.error == "no program for local_search: SyntaxError: '(' was never closed (line 1: print(()"


def test_an_unknown_tool_is_not_asked_about():
    command, calls = write(ScriptedEngine([]), Action(tool="nowhere"))
    assert (command.error, calls) == ("no tool is called 'nowhere'", ())


def test_what_cannot_be_used_together_is_refused(tmp_path: Path):
    with pytest.raises(RecipeError, check=coded("setting-conflict", "structured_output = true")):
        PromptedExecutor(ExecutorConfig(mode="code", structured_output=True))
    own = tmp_path / "own.md"
    own.write_text("no placeholder")
    with pytest.raises(RecipeError, check=coded("prompt-invalid", "own.md")):
        PromptedExecutor(ExecutorConfig(mode="code", prompt_file=own))


# --- a whole run ------------------------------------------------------------------------------------------------------

SUM = """```python
heights = []
for name in ("Amberbank", "Coldmere"):
    heights.append(int(local_search(query=f"{name} height").split()[-1]))
print(" + ".join(map(str, heights)), "=", sum(heights))
```"""
REPLIES = {
    "planner": "Context: Amberbank, Coldmere\nSub-Goal: add up both heights\nTool Name: local_search",
    "executor": SUM,
    "verifier": '{"analysis": "", "result_valid": true, "memory_sufficient": true}',
    "generator": "<answer>112</answer>",
}


def solve(program: str) -> Trajectory:
    async def go() -> Trajectory:
        engine = ScriptedEngine(lambda request: {**REPLIES, "executor": program}[request.role])
        tool = search()
        agent = AgentFlowLoop(
            planner=PromptedPlanner(PlannerConfig()),
            executor=PromptedExecutor(CONFIG),
            verifier=PromptedVerifier(VerifierConfig()),
            generator=PromptedGenerator(GeneratorConfig()),
            config=LoopConfig(max_turns=1),
            code_runner=ProgramRunner(code_runner.CodeRunnerConfig(libraries=()), choose()),
        )
        engines = dict.fromkeys(REPLIES, engine)
        task = Task(id="t", question="How high are Amberbank and Coldmere together ?", answer="")
        trajectory = await agent.run(task, RunContext(tools=[tool], engines=engines))
        await agent.close()
        await tool.close()
        return trajectory

    return asyncio.run(go())


def test_one_turn_searches_twice_and_adds_up():
    trajectory = solve(SUM)
    [turn] = trajectory.turns
    assert (trajectory.status, trajectory.answer) == ("ok", "112")
    assert turn.command is not None
    assert turn.command.code == SUM.removeprefix("```python\n").removesuffix("\n```")
    assert turn.observation is not None
    assert (turn.observation.status, turn.observation.text) == ("ok", "105 + 7 = 112")
    assert [(call.arguments, call.text) for call in turn.observation.tool_calls] == [
        ({"query": "Amberbank height"}, "Amberbank height 105"),
        ({"query": "Coldmere height"}, "Coldmere height 7"),
    ]
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


def test_what_a_program_gets_wrong_is_an_observation():
    [turn] = solve("print(local_search(query='Amberbank') + 1)").turns
    assert turn.observation is not None
    assert turn.observation.status == "error"
    assert 'TypeError: can only concatenate str (not "int") to str' in turn.observation.text
    assert [call.text for call in turn.observation.tool_calls] == ["Amberbank height 105"]
    assert turn.error is None
