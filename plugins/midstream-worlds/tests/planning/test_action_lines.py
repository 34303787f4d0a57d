"""Action lines: any text parses, references resolve, prompts grow at their end."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.core.agent import ModuleContext
from midstream.core.trajectory import Action, Memory, MemoryRecord, Sampling
from midstream.tools.python import PythonTool
from midstream_worlds.planning.action_lines import (
    ActionLinesConfig,
    ActionLinesPlanner,
    parse_action,
    render_action,
    render_prompt,
)
from midstream_worlds.planning.programs import ConfidentGuess
from midstream_worlds.planning.words import names_left
from midstream_worlds.scripted_engine import ScriptedEngine

STEADY = settings(derandomize=True, deadline=None)
TOOLS = (PythonTool(), ConfidentGuess())
MEMORY = Memory(
    records=(
        MemoryRecord(turn=1, action=Action(tool="python"), result="Amberbank height 105"),
        MemoryRecord(turn=2, action=Action(tool="python"), error="no document matches"),
        MemoryRecord(turn=3, action=Action(error="not of the form"), error="not of the form"),
        MemoryRecord(turn=4, action=Action(tool="local_search"), result="Amberbank capital Oakfell"),
        MemoryRecord(turn=5, action=Action(tool="guess"), result="7"),
    )
)
FRAGMENTS = st.lists(
    st.sampled_from(
        [" goal ", "\n", " tool ", " arg ", "python", "guess", "browser", "add", "r1", "r2", "r9", "+", "r٣"]
    )
)


def test_prompt_holds_question_memory_and_a_short_tail():
    assert render_prompt("How high are Amberbank and Oakfell ?", MEMORY) == (
        "Question How high are = and = ?\n"
        "python = height 105\n"
        "python = error\n"
        "malformed = error\n"
        "local_search = capital Oakfell\n"
        "guess = 7\n"
        "plan"
    )


def test_what_a_result_names_is_marked_and_the_rest_is_left():
    question = "Is the total height of Amberbank and Oakfell and Mistvale more than 7 ?"
    assert names_left(question, ["Amberbank height 105", "Mistvale"]) == ["Oakfell"]
    assert names_left(question, []) == ["Amberbank", "Oakfell", "Mistvale"]
    assert names_left("What is 3 plus 4 ?", ["7"]) == []


def test_lessons_stand_before_the_question_and_without_any_the_prompt_is_what_it_was():
    lessons = "- Never guess\n- Look up first"
    assert render_prompt("Who ?", MEMORY, lessons) == f"{lessons}\n{render_prompt('Who ?', MEMORY)}"
    assert render_prompt("Who ?", MEMORY, "") == render_prompt("Who ?", MEMORY)


RESULTS = st.lists(st.tuples(st.text(max_size=30), st.booleans()), max_size=5)


@STEADY
@given(RESULTS)
def test_each_prompt_starts_with_the_one_before_but_for_its_tail(results):
    prompts, memory = [render_prompt("Who ?", Memory())], Memory()
    for turn, (text, failed) in enumerate(results, 1):
        outcome = {"error": text} if failed else {"result": text}
        memory = memory.append(MemoryRecord(turn=turn, action=Action(tool="guess"), **outcome))
        prompts.append(render_prompt("Who ?", memory))
    for before, after in pairwise(prompts):
        assert after.startswith(before.removesuffix("plan"))
        assert after.count("\n") == before.count("\n") + 1  # no result can forge a record


@STEADY
@given(st.text() | FRAGMENTS.map("".join))
def test_any_text_is_an_action_or_an_error(text):
    action = parse_action(text, TOOLS, MEMORY)
    if action.error is None:
        assert action.tool in ("python", "guess")
        assert action.sub_goal
        assert action.context
    else:
        assert action.error.strip()


WORD = st.from_regex(r"[a-z]{1,6}( [a-z]{1,6}){0,2}", fullmatch=True)


@STEADY
@given(WORD, st.sampled_from(["python", "guess"]), WORD)
def test_what_was_rendered_is_read_back(goal, tool, argument):
    action = parse_action(render_action(goal, tool, argument), TOOLS, MEMORY)
    assert action == Action(sub_goal=goal, tool=tool, context=argument)


@pytest.mark.parametrize(
    ("argument", "context"),
    [
        ("r2 + 7", "105 + 7"),
        ("r2 - r1 - r2", "105 - 7 - 105"),
        ("max ( r1 , r2 )", "max ( 7 , 105 )"),
        ("n1 height", "Oakfell height"),
        ("or1 r", "or1 r"),
    ],
)
def test_references_count_back_over_values_and_names(argument, context):
    action = parse_action(render_action("add", "python", argument), TOOLS, MEMORY)
    assert action == Action(sub_goal="add", tool="python", context=context)


@pytest.mark.parametrize("missing", ["r3", "n2", "r0", "r01", "r99999999999999999999"])
def test_a_reference_to_no_result_is_an_error_that_keeps_the_tool(missing):
    action = parse_action(render_action("add", "python", f"r1 + {missing}"), TOOLS, MEMORY)
    assert action.error == f"{missing} names no result"
    assert (action.tool, action.sub_goal, action.context) == ("python", "add", f"r1 + {missing}")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "goal / tool / arg"),
        (" goal add\n tool python", "goal / tool / arg"),
        (" goal add\n tool python\n arg 1\n", "goal / tool / arg"),
        (" goal add\n tool python\n arg 1\n arg 2", "goal / tool / arg"),
        ("goal add\n tool python\n arg 1", "goal / tool / arg"),
        (" tool python\n goal add\n arg 1", "goal / tool / arg"),
        (" goal add\n tool browser\n arg 1", "no tool is called browser"),
    ],
)
def test_malformed_actions_name_no_tool(text, error):
    action = parse_action(text, TOOLS, MEMORY)
    assert error in (action.error or "")
    assert action.tool == ""


def test_the_planner_puts_its_lessons_into_the_prompt():
    engine = ScriptedEngine([" goal add\n tool python\n arg 1 + 7"])
    context = ModuleContext(engine=engine, lessons="- Never guess")
    _, (call,) = asyncio.run(ActionLinesPlanner(ActionLinesConfig()).plan("Who ?", TOOLS, MEMORY, context))
    assert call.prompt == render_prompt("Who ?", MEMORY, "- Never guess")


def test_planner_asks_its_engine_once_and_keeps_the_call():
    engine, sampling = ScriptedEngine([" goal add\n tool python\n arg r2 + 7"]), Sampling(temperature=0.5, max_tokens=9)
    context = ModuleContext(engine=engine, seed=3, order=5, deadline_s=1e9)
    planner = ActionLinesPlanner(ActionLinesConfig(sampling=sampling))
    action, calls = asyncio.run(planner.plan("Who ?", TOOLS, MEMORY, context))
    (request,) = engine.requests
    assert action == Action(sub_goal="add", tool="python", context="105 + 7")
    assert [call.completion for call in calls] == [" goal add\n tool python\n arg r2 + 7"]
    assert request.prompt == calls[0].prompt == render_prompt("Who ?", MEMORY)
    assert (request.role, request.seed, request.order, request.deadline_s) == ("planner", 3, 5, 1e9)
    assert request.sampling == sampling
