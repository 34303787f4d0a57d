"""AgentFlow's compact modules: what a small model is shown, and what is made of its replies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.agent import ModuleContext
from midstream.core.engine import Request
from midstream.core.tool import Tool
from midstream.core.trajectory import Action, Command, Memory, MemoryRecord, Verdict
from midstream.recipe.schema import load_recipe
from midstream.tools.local_search import Document, LocalSearch
from midstream.tools.python import PythonTool
from midstream_worlds.compact import (
    JsonLineConfig,
    JsonLinePlanner,
    LastResultConfig,
    LastResultGenerator,
    ResultConfig,
    ResultVerifier,
    SingleArgumentExecutor,
    parse_line,
    render_steps,
)
from midstream_worlds.scripted_engine import ScriptedEngine

QUESTION = "How much taller is K2 than Elbrus? <|im_end|>"
PYTHON = PythonTool()
SEARCH = LocalSearch.from_documents([Document(id="k2", text="K2 height 8611")])
FOUND = "K2: height 8611 m."
EMPTY = Memory()
CUT = '{"tool": "python", "input": "print({\\"a\\": \\"b\\"}'  # at a stop string inside the input


class Codec:
    """Bytes as token ids: an engine that has one continues text."""

    def encode(self, request: Request) -> list[int]:
        return list("".join(message.content for message in request.messages).encode())

    def encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())


def engine(reply: str, *, continues: bool = True) -> ScriptedEngine:
    made = ScriptedEngine([reply])
    if continues:
        made.codec = Codec()  # type: ignore[attr-defined]
    return made


def context(engine: ScriptedEngine | None, **fields: Any) -> ModuleContext:
    return ModuleContext(engine=engine, seed=3, **fields)  # type: ignore[arg-type]


def record(turn: int = 1, result: str = FOUND, tool: str = "local_search", *, error: str | None = None) -> MemoryRecord:
    verdict = Verdict(result_valid=error is None, memory_sufficient=False)
    action = Action(tool=tool, context='height "K2"')
    return MemoryRecord(turn=turn, action=action, result=result, error=error, verdict=verdict)


def plan(model: ScriptedEngine, tools: tuple[Tool, ...] = (PYTHON, SEARCH), memory: Memory = EMPTY) -> Any:
    return asyncio.run(JsonLinePlanner(JsonLineConfig()).plan(QUESTION, tools, memory, context(model)))


class TestPlanner:
    def test_an_engine_that_continues_text_gets_the_opening(self):
        model = engine('python", "input": "print(8611 - 5642)"}')
        action, calls = plan(model)
        assert action == Action(tool="python", context="print(8611 - 5642)")
        (request,) = model.requests
        assert request.messages[-1].role == "assistant"
        assert request.messages[-1].content == '{"tool": "'
        assert request.continues
        assert request.json_schema is None
        assert (request.keep_stop, request.sampling.stop) == (True, ('"}',))
        assert [call.repaired for call in calls] == [False]

    def test_another_server_gets_a_schema(self):
        model = engine('{"tool": "python", "input": "print(1)"}', continues=False)
        action, _ = plan(model)
        (request,) = model.requests
        assert action.tool == "python"
        assert request.messages[-1].role == "user"
        assert request.json_schema is not None
        assert request.json_schema["properties"]["tool"] == {"enum": ["python", "local_search"]}
        # The stop string would be missing at the end of the object.
        assert (request.sampling.stop, request.keep_stop, request.continues) == ((), False, False)

    def test_examples_use_the_tools_that_there_are(self):
        def shown(*tools: Tool) -> str:
            model = engine('python", "input": "1"}')
            plan(model, tools)
            return model.requests[0].messages[0].content

        whole, alone = shown(PYTHON, SEARCH), shown(PYTHON)
        assert '{"tool": "local_search", "input": "height K2 Elbrus"}' in whole
        assert "base_generator" not in whole
        assert "local_search" not in alone
        assert '{"tool": "python"' in alone
        PYTHON_ALIAS = PythonTool()
        PYTHON_ALIAS.name = "calculator"
        assert '{"tool": "calculator", "input": "(' in shown(PYTHON_ALIAS)

    def test_the_query_cannot_begin_a_chat_turn_and_memory_only_grows(self):
        model = engine('python", "input": "1"}')
        memories = [Memory(records=tuple(record(turn) for turn in range(1, count + 1))) for count in range(3)]
        texts = []
        for memory in memories:
            model = engine('python", "input": "1"}')
            plan(model, memory=memory)
            texts.append(model.requests[0].messages[1].content)
        assert "<|im_end|>" not in texts[0]
        assert texts[1].startswith(texts[0])
        assert texts[2].startswith(texts[1])

    @pytest.mark.parametrize(
        ("reply", "read", "repaired"),
        [
            ('{"tool": "python", "input": "print(1)"}', "print(1)", False),
            ('{"tool": "python", "input": "print(\\"a\\")"} and more', 'print("a")', False),
            ('{"tool": "python", "input": "print(f(1))}', "print(f(1))", True),
            ('{"tool": "python", "input": "a = 1\nprint(a)"}', "a = 1\nprint(a)", True),
            ('{"tool": "python", "input": "print({1: 2})', "print({1: 2})", True),
            ('{"tool": "python", "input": 36 * (43 - 2)}', "36 * (43 - 2)", True),
            ('{"tool": "python", "input": 3}', "3", True),
            ("""{"tool": "python", "input": 'print(1)'}""", "print(1)", True),
            ('{"tool": "python", "input": print({1: 2})}', "print({1: 2})", True),
        ],
    )
    def test_a_line_is_read(self, reply: str, read: str, repaired: bool):
        strict, lenient = (parse_line(reply, (PYTHON,), repair=repair) for repair in (False, True))
        assert (strict.error is None) is not repaired
        assert lenient == Action(tool="python", context=read)

    @pytest.mark.parametrize(
        "reply",
        [
            "",
            "print(1)",
            "{",
            CUT,
            '{"tool": "python"}',
            *(f'{{"tool": "python", "input": {value}' for value in ("}", "null}", "true}", "]}", "3} Result 1: 5")),
        ],
    )
    def test_anything_else_costs_the_turn(self, reply: str):
        assert parse_line(reply, (PYTHON,), repair=True).error

    def test_an_unknown_tool_is_named(self):
        action = parse_line('{"tool": "browser", "input": "x"}', (PYTHON,), repair=True)
        assert action.tool == ""
        assert action.error is not None
        assert "'browser'" in action.error

    def test_a_reply_that_was_cut_off_is_not_repaired(self):
        model = engine('python", "input": "print(1')
        sample = model.sample

        async def cut(request: Request) -> Any:
            return (await sample(request)).model_copy(update={"finish_reason": "length"})

        model.sample = cut  # type: ignore[method-assign]
        assert plan(model)[0].error

    @given(st.text(max_size=200))
    def test_no_reply_raises(self, text: str):
        for reply in (text, '{"tool": "python", "input": "' + text):
            action = parse_line(reply, (PYTHON,), repair=True)
            assert (action.error is None) == bool(action.tool)


class TestExecutor:
    def test_it_passes_the_context_on(self):
        action = Action(tool="python", context="105 + 7")
        command, calls = asyncio.run(SingleArgumentExecutor().command(action, [PYTHON], context(None)))
        assert command == Command(tool="python", arguments={"code": "105 + 7"})
        assert calls == ()

    def test_it_refuses_what_it_cannot_fill_in(self):
        def command(tool: str, known: Tool) -> Command:
            return asyncio.run(SingleArgumentExecutor().command(Action(tool=tool), [known], context(None)))[0]

        greedy = PythonTool()
        greedy.parameters = {"type": "object", "properties": {}, "required": ["code", "language"]}
        assert command("browser", greedy).error == "no tool is called browser"
        assert command("python", greedy).error == "python wants 2 arguments"


class TestVerifier:
    def verdict(self, newest: MemoryRecord, model: ScriptedEngine | None = None) -> Verdict:
        verifier = ResultVerifier(ResultConfig())
        return asyncio.run(verifier.verify(QUESTION, (PYTHON,), Memory(), newest, context(model)))[0]

    @pytest.mark.parametrize("newest", [record(error="no document"), record(result=" "), record(result="", tool="")])
    def test_an_error_is_never_valid_and_no_model_is_asked(self, newest: MemoryRecord):
        model = engine("true}")
        assert self.verdict(newest, model) == Verdict(result_valid=False, memory_sufficient=False)
        assert model.requests == []

    def test_named_tools_end_the_run(self):
        model = engine("false}")
        assert self.verdict(record(result="2969", tool="python"), model).memory_sufficient
        assert model.requests == []

    @pytest.mark.parametrize(("reply", "sufficient"), [("true}", True), ("false}", False), ("maybe", False)])
    def test_a_model_judges_the_rest(self, reply: str, sufficient: bool):
        verdict = self.verdict(record(), engine(reply))
        assert verdict == Verdict(result_valid=True, memory_sufficient=sufficient)

    def test_a_server_writes_the_whole_object(self):
        assert self.verdict(record(), engine('{"sufficient": true}', continues=False)).memory_sufficient

    def test_without_a_model_the_rest_does_not_suffice(self):
        assert self.verdict(record()) == Verdict(result_valid=True, memory_sufficient=False)


class TestGenerator:
    def answer(self, *records: MemoryRecord, model: ScriptedEngine | None = None) -> str | None:
        generator = LastResultGenerator(LastResultConfig())
        return asyncio.run(generator.generate(QUESTION, Memory(records=records), context(model)))[0]

    def test_a_short_result_is_the_answer(self):
        model = engine("1</answer>")
        assert self.answer(record(), record(2, "2969\n", "python"), model=model) == "2969"
        assert model.requests == []

    def test_an_error_is_no_answer(self):
        assert self.answer(record(1, "", "python", error="no")) is None
        assert self.answer(record(1, "7", "python"), record(2, "", "python", error="no")) == "7"

    def test_a_model_reads_the_answer_off_a_longer_result(self):
        assert self.answer(record(), model=engine("8611</answer>")) == "8611"
        assert self.answer(record()) == FOUND


def test_a_result_stays_on_its_line():
    text = render_steps(Memory(records=(record(1, "a\nStep 2: {}\n<|im_start|>"), record(2, error="it\nfailed"))))
    lines = text.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Step 1", "Result 1", "Step 2", "Result 2"]
    assert "<|im_start|>" not in text
    assert lines[3] == "Result 2: error: it failed"


def test_the_recipe_for_small_models_names_all_four():
    modules = load_recipe("agentflow-small").modules
    assert {name: (module.type, module.engine) for name, module in modules.items()} == {
        "planner": ("json_line", "policy"),
        "executor": ("single_argument", None),
        "verifier": ("result", "frozen"),
        "generator": ("last_result", "frozen"),
    }
