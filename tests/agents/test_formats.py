"""Replies of models, well-formed and not: any text gives a value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue

from midstream.agents import formats
from midstream.agents.formats import parse_action, parse_answer, parse_verdict
from midstream.core.tool import ToolResult
from midstream.core.trajectory import Action, Command, Verdict

SEARCH_SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


@dataclass
class FakeTool:
    name: str
    description: str = "finds things"
    parameters: Mapping[str, Any] = field(default_factory=lambda: SEARCH_SCHEMA)
    timeout_s: float = 1.0
    output_tokens: int = 100_000

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        return ToolResult(text=json.dumps(dict(arguments)))

    async def close(self) -> None: ...


SEARCH = FakeTool("local_search")


def parse_command(text: str, tool: FakeTool, *, repair: bool = False) -> Command:
    return formats.parse_command(text, tool, repair=repair)


TOOLS = (SEARCH, FakeTool("python"), FakeTool("Web Page"))
WANTED = Action(sub_goal="find the height", tool="local_search", context="Amberbank")
FRAGMENTS = (
    "Justification:",
    "Context:",
    "Sub-Goal:",
    "Tool Name:",
    "tool:",
    "**",
    "\n",
    "```",
    "```json\n",
    "<think>",
    "</think>",
    "{",
    "}",
    '"query":',
    '"x"',
    "[" * 50,
    '{"a":' * 50,
    "1e999",
    "NaN",
    '"\\ud800"',
    "\ud800",
    "Conclusion: STOP",
    "result_valid",
    "<answer>",
    "</answer>",
    "local_search",
    "9" * 5000,
    " ",
)
replies = st.one_of(st.text(), st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))


@pytest.mark.parametrize(
    "reply",
    [
        "Justification: unknown\nContext: Amberbank\nSub-Goal: find the height\nTool Name: local_search",
        "**Tool Name:** `local_search`\n\n**Sub-Goal:** find the height\n\n**Context:** Amberbank",
        "```\nContext: Amberbank\nSub-Goal: find the height\nTool Name: Local Search\n```",
        "## 1. Context:\nAmberbank\n## 2. Sub-Goal:\nfind the height\n## 3. Tool Name:\nLOCAL_SEARCH",
        "<think>\nTool Name: python\n</think>\nContext: Amberbank\nSub goal: find the height\nTool: 'local-search'.",
        "Context: Amberbank\nSub_Goal: find the height\n- Tool Name: local_search (the index)\n\nTool Name: python",
        "context : Amberbank\nSUB-GOAL : find the height\ntool name : <local_search>",
        "### Context\nAmberbank\n### Sub-Goal\nfind the height\n### Tool Name\nlocal_search",
        "1. **Context**\nAmberbank\n2. **Sub-Goal**\nfind the height\n3. **Tool Name**\nlocal_search",
        "Context: Amberbank\nSub-Goal: find the height\nTool Name: local_search\n\n# Tool use is free\n**tool** x",
    ],
)
def test_an_action_in_many_clothes(reply: str):
    assert parse_action(reply, TOOLS) == WANTED


def test_a_context_may_have_many_lines():
    reply = "Context: first\n- second: {x}\n\nthird\nSub-Goal: g\nTool Name: Web_Page"
    action = parse_action(reply, TOOLS)
    assert (action.context, action.tool) == ("first\n- second: {x}\n\nthird", "Web Page")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("I will search.", "no section Sub-Goal: and no section Tool Name: (tools: local_search, python, Web Page)"),
        ("Sub-Goal: g", "no section Tool Name: (tools: local_search"),
        ("Sub-Goal:\nTool Name: python", "no section Sub-Goal:"),
        ("Sub-Goal: g\nTool Name: google", "no tool is called 'google' (tools: local_search, python, Web Page)"),
        ("Sub-Goal: g\nTool Name: **", "no section Tool Name:"),
        ("<think>Sub-Goal: g\nTool Name: python", "no section Sub-Goal:"),
    ],
)
def test_a_malformed_action_says_what_was_wrong(reply: str, error: str):
    action = parse_action(reply, TOOLS)
    assert action.error is not None
    assert error in action.error
    assert action.tool == ""


@pytest.mark.parametrize(
    "reply",
    [
        '{"query": "height"}',
        'Here it is:\n```json\n{"query": "height"}\n```\nDone {"query": "other"}.',
        'I use {braces} and then {"query": "height"}',
        '{"name": "local_search", "arguments": {"query": "height"}}',
        '<think>{"query": "no"}</think> {"query": "height"} trailing',
        '{"wrong": 1} then {"query": "height"}',
    ],
)
def test_arguments_in_many_clothes(reply: str):
    assert parse_command(reply, SEARCH) == Command(tool="local_search", arguments={"query": "height"})


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("search for it", "holds no JSON object"),
        ('{"query": 7}', 'at $.query: 7 is not of type "string"'),
        ("{}", '"query" is a required property'),
        ('{"query": "x", "limit": 3}', "unknown arguments limit (known: query)"),
        ('{"query": "\\ud800"}', "holds no JSON object"),
        ('{"query": NaN}', "holds no JSON object"),
    ],
)
def test_invalid_arguments_say_what_was_wrong(reply: str, error: str):
    command = parse_command(reply, SEARCH)
    assert command.error is not None
    assert error in command.error
    assert command.arguments == {}


@pytest.mark.parametrize("reply", ["{'query': 'height'}", '{"name": "search", "arguments": {"query": "height",}}'])
def test_a_repaired_command_satisfies_the_same_schema(reply: str):
    assert parse_command(reply, SEARCH).error is not None
    assert parse_command(reply, SEARCH, repair=True) == Command(tool="local_search", arguments={"query": "height"})


@pytest.mark.parametrize("reply", ["{'query': 7}", "{'quest': 'height'}", '{"query": "height', "{'query': , 'a': 1}"])
def test_a_repair_that_the_schema_refuses_stays_an_error(reply: str):
    command = parse_command(reply, SEARCH, repair=True)
    assert command.error is not None
    assert command.arguments == {}


def test_an_argument_named_arguments_is_no_envelope():
    tool = FakeTool("call", parameters={"type": "object", "properties": {"arguments": {"type": "object"}}})
    assert parse_command('{"arguments": {"a": 1}}', tool).arguments == {"arguments": {"a": 1}}


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (
            '{"analysis": "ok", "result_valid": true, "memory_sufficient": false}',
            Verdict(result_valid=True, memory_sufficient=False, analysis="ok"),
        ),
        (
            'So:\n```json\n{"result_valid": "False", "memory_sufficient": "true"}\n```',
            Verdict(result_valid=False, memory_sufficient=True),
        ),
        (
            "Nothing is missing.\n\n**Conclusion:** STOP",
            Verdict(result_valid=True, memory_sufficient=True, analysis="Nothing is missing."),
        ),
        (
            "Conclusion: STOP would be early.\nConclusion: continue",
            Verdict(result_valid=True, memory_sufficient=False, analysis="Conclusion: STOP would be early."),
        ),
        ("STOP", None),
        ('{"result_valid": true}', None),
        ('{"result_valid": 1, "memory_sufficient": 0}', None),
    ],
)
def test_verdicts(reply: str, verdict: Verdict | None):
    assert parse_verdict(reply) == verdict


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("{'result_valid': True, 'memory_sufficient': False}", Verdict(result_valid=True, memory_sufficient=False)),
        (
            '{"analysis": "it says "yes" twice", "result_valid": true "memory_sufficient": false,}',
            Verdict(result_valid=True, memory_sufficient=False, analysis='it says "yes" twice'),
        ),
        ('{"analysis": "all there", "result_valid": true, "memory_sufficient": tru', None),
        ('{"analysis": "all there", "result_valid": true, "memory_sufficient": true', None),
        ('{"analysis": "all there", "result_valid": true,}', None),
        ('{"analysis": "a", "result_valid": true or false, "memory_sufficient": true}', None),
        ("{'analysis': 'a', 'result_valid': , 'memory_sufficient': True}", None),
        ("result_valid: true, memory_sufficient: true", None),
    ],
)
def test_a_repaired_verdict_says_what_the_model_did(reply: str, verdict: Verdict | None):
    assert parse_verdict(reply) is None
    assert parse_verdict(reply, repair=True) == verdict


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<answer> 112 </answer>", "112"),
        ("<answer>1</answer> no, <ANSWER>112</ANSWER>.", "112"),
        ("so <answer>112", "112"),
        ("<answer>112<answer>", "112"),
        ("<answer>112</answer> <answer>", "112"),
        (" 112 \n", "112"),
        ("<think>7</think>\n112", "112"),
        ("<think>is it 7", ""),
        ("", ""),
    ],
)
def test_answers(reply: str, answer: str):
    assert parse_answer(reply) == answer


@given(reply=replies)
@example(reply="{" * 100_000)
@example(reply='{"query":' * 30_000)
@example(reply="[" * 100_000 + "{")
@example(reply='{"query":' + "[" * 200 + "]" * 200 + "}")
@example(reply="Tool Name:\n\x1c\nSub-Goal: \x85")
@example(reply="Tool Name: (\nSub-Goal: x")
@example(reply="\t" * 50_000)
@example(reply="*" * 50_000)
@example(reply="# " * 50_000)
def test_any_text_gives_a_value_that_can_be_stored(reply: str):
    action, command = parse_action(reply, TOOLS), parse_command(reply, SEARCH)
    assert Action.model_validate_json(action.model_dump_json()) == action
    assert bool(action.error) != bool(action.tool)
    assert Command.model_validate_json(command.model_dump_json()) == command
    verdict = parse_verdict(reply)
    assert verdict is None or Verdict.model_validate_json(verdict.model_dump_json()) == verdict
    parse_answer(reply).encode()
    repaired = parse_command(reply, SEARCH, repair=True)
    assert Command.model_validate_json(repaired.model_dump_json()) == repaired
    parse_verdict(reply, repair=True)
