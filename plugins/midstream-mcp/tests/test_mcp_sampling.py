"""Servers that ask back: for a model, which the table's engine is, and for roots."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from midstream.core.engine import ORDER, Engine, Request
from midstream.core.errors import (
    BudgetError,
    EngineError,
    InfrastructureError,
    PromptTooLongError,
    RecipeError,
    RefusedError,
    ToolServerError,
)
from midstream.core.tool import ToolResult
from midstream.core.tool_calls import call_tool
from midstream.core.trajectory import Call, Message, Trajectory
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.rollout import rollout
from midstream.runs.budget import Budget, BudgetConfig, budgeted
from midstream_mcp import session as mcp_session
from midstream_mcp import tools as mcp
from support.errors import coded, raises
from test_mcp import SERVERS, close, free_port, serving

ASKING = (sys.executable, str(SERVERS / "asking.py"))


class Model(Engine):
    """Calls `reply` with a request, keeps it, and answers with the text that it returns."""

    token_exact = False

    def __init__(self) -> None:
        self.name, self.requests = "model", list[Request]()
        self.reply: Callable[[Request], Any] = lambda request: f"re: {request.messages[-1].content}"

    async def sample(self, request: Request) -> Call:
        self.requests.append(request)
        text = self.reply(request)
        return request.answered(self.name, await text if asyncio.iscoroutine(text) else text, finish_reason="stop")


def failed(kind: type[InfrastructureError], request: Request) -> InfrastructureError:
    return kind("the model is down", calls=(request.answered("model", ""),))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(free_port(), ASKING) as address:
        yield address


def over(transport: str, url: str, **settings: Any) -> mcp.McpConfig:
    peer: dict[str, Any] = {"command": (*ASKING, "stdio")} if transport == "stdio" else {"url": url}
    return mcp.McpConfig(**peer, **{"timeout_s": 20, "prefix": "", **settings})


Asked = tuple[list[mcp.McpTool], Model]


@pytest.fixture(scope="module", params=["stdio", "http"])
def connected(request: pytest.FixtureRequest, url: str) -> Iterator[Asked]:
    model = Model()
    made = mcp.make(over(request.param, url, roots=(Path(__file__).parent,)), "desk", model)
    yield made, model
    close(made)


@pytest.fixture
def asked(connected: Asked, monkeypatch: pytest.MonkeyPatch) -> Asked:
    made, model = connected
    monkeypatch.setattr(mcp_session, "PAUSE_S", 0.05)
    model.requests, model.reply = [], Model().reply
    return made, model


def all_of(tools: Sequence[mcp.McpTool], *calls: tuple[str, dict[str, Any]]) -> list[ToolResult | BaseException]:
    """The outcomes of calls at once."""
    by_name = {tool.name: tool for tool in tools}

    async def one(order: int, name: str, arguments: dict[str, Any]) -> ToolResult:
        ORDER.set(order)
        return await call_tool(by_name[name], arguments)

    async def run() -> list[ToolResult | BaseException]:
        calling = (asyncio.create_task(one(order, *call)) for order, call in enumerate(calls))
        return await asyncio.gather(*calling, return_exceptions=True)

    return asyncio.run(run())


def call(tools: Sequence[mcp.McpTool], name: str, /, **arguments: Any) -> ToolResult:
    [result] = all_of(tools, (name, arguments))
    if isinstance(result, BaseException):
        raise result
    return result


# --- a model ----------------------------------------------------------------------------------------------------------


def test_the_engine_answers_and_its_calls_are_the_tools(asked):
    tools, model = asked
    result = call(tools, "ask", question="hi", times=2)
    assert result.text == "re: hi (model, endTurn); re: hi (model, endTurn)"
    assert [(one.role, one.messages) for one in result.calls] == 2 * [
        ("desk.ask", (Message(role="user", content="hi"),))
    ]
    # Equal requests are sampled again, and the same call has the same seeds.
    first, second = (request.seed for request in model.requests)
    assert first != second
    call(tools, "ask", question="hi", times=2)
    assert [request.seed for request in model.requests] == 2 * [first, second]
    call(tools, "ask", question="hi", times=1)
    assert model.requests[-1].seed not in (first, second)  # of a call with other arguments


def test_a_requests_sampling_is_honored_up_to_the_tables_limit(asked):
    tools, model = asked
    model.reply = lambda request: "<think>three</think> four"
    result = call(tools, "ask_in_full")
    [request] = model.requests
    assert [(message.role, message.content) for message in request.messages] == [
        ("system", "Count."),
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three"),
    ]
    assert request.sampling.model_dump() == {"temperature": 0.5, "top_p": 1.0, "max_tokens": 2048, "stop": ("four",)}
    assert result.text == "four (model, endTurn)"
    assert result.calls[0].completion == "<think>three</think> four"


def test_what_no_engine_gives_is_refused(asked):
    tools, model = asked
    image, context, tokens, empty, offered = call(tools, "ask_oddly").text.splitlines()
    assert image == "error -32602: only messages of text are supported, not image"
    assert context.startswith("error -32602: includeContext 'thisServer'")
    assert tokens == "error -32602: maxTokens is 0, not at least 1"
    assert empty.endswith("not an empty list")
    assert "tools" in offered
    assert model.requests == []


def test_a_call_has_a_limit_of_requests_which_are_made_one_after_another(asked):
    tools, model = asked
    under_way = most = 0

    async def reply() -> str:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return "x"

    model.reply = lambda request: reply()
    result = call(tools, "ask_at_once", question="hi", times=18)
    assert result.text.count("x (model") == len(result.calls) == len(model.requests) == 16
    assert result.text.count("error -32600: too many requests for a model in one call of a tool: 16 are allowed") == 2
    assert most == 1


def test_two_runs_at_once_get_their_own_calls(asked):
    tools, model = asked
    both = asyncio.Event()

    async def reply(request: Request) -> str:
        if len(model.requests) == 2:
            both.set()
        await both.wait()  # as an engine that samples when every trajectory has asked
        return request.messages[-1].content.upper()

    model.reply = reply
    first, second = all_of(tools, ("ask", {"question": "one"}), ("ask", {"question": "two"}))
    for result, text in ((first, "ONE"), (second, "TWO")):
        assert isinstance(result, ToolResult)
        assert result.text == f"{text} (model, endTurn)"
        assert [one.completion for one in result.calls] == [text]
    assert {request.messages[-1].content: request.order for request in model.requests} == {"one": 0, "two": 1}


def test_a_failed_engine_fails_the_call_with_the_requests_before_it(asked):
    tools, model = asked

    def reply(request: Request) -> str:
        if len(model.requests) == 2:
            raise failed(EngineError, request)
        return "well"

    model.reply = reply
    with pytest.raises(ToolServerError, match=r"the model of tool desk\.ask failed: the model is down") as caught:
        call(tools, "ask", question="hi", times=3)
    assert [one.completion for one in caught.value.calls] == ["well", ""]
    model.reply = lambda request: "again"
    assert call(tools, "ask", question="hi").text == "again (model, endTurn)"


@pytest.mark.parametrize("connected", ["http"], indirect=True)
def test_an_engine_that_refuses_every_request_is_no_failure_of_the_tool(asked):
    tools, model = asked

    def reply(request: Request) -> str:
        raise failed(RefusedError, request)

    model.reply = reply
    with pytest.raises(RefusedError):
        call(tools, "ask", question="hi")


def test_a_prompt_that_is_too_long_is_the_servers_error(asked):
    tools, model = asked

    def reply(request: Request) -> str:
        raise failed(PromptTooLongError, request)

    model.reply = reply
    result = call(tools, "ask", question="hi")
    assert result.text == "error -32602: the request is too long: the model is down"
    assert len(result.calls) == 1


def test_requests_count_toward_the_budget(url):
    budget, model = Budget(BudgetConfig(calls=2)), Model()
    made = mcp.make(over("http", url), "desk", budgeted(model, budget))
    with pytest.raises(BudgetError) as caught:
        call(made, "ask", question="hi", times=3)
    close(made)
    assert [one.completion for one in caught.value.calls] == ["re: hi", "re: hi"]
    assert budget.spent().calls == len(model.requests) == 2


def test_the_time_of_a_call_includes_the_models(url):
    model, cancelled = Model(), list[str]()

    async def reply(request: Request) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(request.messages[-1].content)
            raise
        return ""

    model.reply = reply
    made = mcp.make(over("http", url, timeout_s=0.5), "desk", model)
    assert call(made, "ask", question="hi") == ToolResult(text="ask: no result within 0.5 s", ok=False)
    model.reply = lambda request: "quick"
    assert call(made, "ask", question="hi").text == "quick (model, endTurn)"
    close(made)
    assert cancelled == ["hi"]


def test_a_server_that_does_not_wait_for_the_model_gets_no_reply(asked):
    tools, model = asked
    model.reply = lambda request: asyncio.sleep(60, "late")
    assert call(tools, "ask_and_leave") == ToolResult(text="left")
    assert [request.messages[-1].content for request in model.requests] == ["slow"]


def test_a_key_that_the_server_repeats_reaches_no_model(url, monkeypatch):
    monkeypatch.setenv("MIDSTREAM_TEST_KEY", "s3cret-value")
    model = Model()
    made = mcp.make(over("http", url, headers_env={"X-Key": "MIDSTREAM_TEST_KEY"}), "desk", model)
    assert call(made, "ask", question="a s3cret-value").text == "re: a *** (model, endTurn)"
    close(made)
    assert "s3cret" not in repr(model.requests)


@pytest.mark.parametrize("tool", ["ask", "ask_and_raise", "roots"])
def test_without_an_engine_and_roots_requests_are_refused(url, tool):
    made = mcp.make(over("http", url), "desk")
    result = call(made, tool, **({"question": "hi"} if tool == "ask" else {}))
    close(made)
    assert result.ok == (tool == "ask")
    assert ("List roots not supported" if tool == "roots" else "Sampling not supported") in result.text
    assert result.calls == ()


def test_input_that_a_call_requires_is_sent_with_the_next_attempt(tmp_path):
    """2026-07-28, whose servers send no requests."""
    command, model = (sys.executable, "-S", str(SERVERS / "hostile.py"), "modern"), Model()
    made = mcp.make(mcp.McpConfig(command=command, prefix="", roots=(tmp_path,)), "modern", model)
    result = call(made, "echo", text="ask")
    assert result.text == f"s ['re: hello', '{tmp_path.as_uri()}']"
    assert [one.role for one in result.calls] == ["modern.echo"]
    assert call(made, "echo", text="wait").text == "echo: modern"
    close(made)
    made = mcp.make(mcp.McpConfig(command=command, prefix=""), "modern")
    refused = call(made, "echo", text="ask")
    close(made)
    assert refused == ToolResult(
        text="echo: it requires input that is not available here: Sampling not supported", ok=False
    )


# --- roots ------------------------------------------------------------------------------------------------------------


def test_roots_are_file_addresses(asked):
    tools, _ = asked
    assert call(tools, "roots").text == f"tests {Path(__file__).parent.as_uri()}"


def test_a_root_that_is_not_there_is_refused(tmp_path):
    config = over("stdio", "", roots=(tmp_path, tmp_path / "none"))
    with pytest.raises(RecipeError, check=coded("file-not-found", "tools.desk.roots", "none", fix="correct the path")):
        mcp.make(config, "desk", Model())


# --- in a recipe ------------------------------------------------------------------------------------------------------

PARTS = '''
async def agent(question, tools):
    """What the server's tools say."""
    return f'{await tools["desk_ask"](question=question)} {await tools["desk_roots"]()}'

async def asks_too(question, tools, model):
    return await agent(question, tools) + await model(question)

def model(messages):
    if "broken" in messages[-1]["content"]:
        raise RuntimeError("out of flux")
    return f"re: {messages[-1]['content']}"
'''


@pytest.fixture
def recipe(tmp_path: Path, url: str) -> Path:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "data").mkdir()
    (tmp_path / "tasks.jsonl").write_text('{"question": "one", "answer": "1"}\n{"question": "two", "answer": "2"}\n')
    (tmp_path / "recipe.toml").write_text(
        f"""
        name = "asking"
        agent = {{ type = "parts.py:agent" }}
        engines.model = {{ type = "parts.py:model" }}
        tools.desk = {{ type = "mcp", url = "{url}", engine = "model", roots = ["data"] }}
        tasks = {{ type = "file", path = "tasks.jsonl" }}
        reward = {{ type = "exact_match" }}
        rollout = {{ max_attempts = 1 }}
        """
    )
    return tmp_path / "recipe.toml"


def run(recipe: Path, *settings: str, question: str = "", **build: Any) -> list[Trajectory]:
    async def go() -> list[Trajectory]:
        async with Build(load_recipe(str(recipe), settings), **build) as built:
            tasks = built.source.tasks("test")
            if question:
                tasks = [tasks[0].model_copy(update={"question": question})]
            groups = await rollout(built.environment(), tasks, seed=1)
        return [one for group in groups for one in group.trajectories]

    return asyncio.run(go())


def test_a_runs_trajectory_has_the_calls_and_is_replayed_without_them(recipe, tmp_path):
    found = run(recipe, record=tmp_path / "kept")
    for trajectory, text in zip(found, ("one", "two"), strict=True):
        assert trajectory.answer == f"re: {text} (model, endTurn) data {(tmp_path / 'data').as_uri()}"
        assert [[one.role for one in turn.calls] for turn in trajectory.turns] == [["desk.ask"], []]
    (tmp_path / "parts.py").write_text(PARTS.replace("def model(messages):", "def model(messages):\n    1 / 0"))
    replayed = run(recipe, replay=tmp_path / "kept")
    assert [one.answer for one in replayed] == [one.answer for one in found]
    assert [one.calls for one in replayed] == [one.calls for one in found]


def test_a_run_ends_with_its_budget_and_its_engine(recipe):
    budget = Budget(BudgetConfig(calls=1))
    first, second = sorted(run(recipe, "rollout.concurrency=1", budget=budget), key=lambda one: one.status == "error")
    assert (first.status, second.status) == ("ok", "error")
    assert second.error is not None
    assert second.error.type == "BudgetError"
    [broken] = run(recipe, question="broken")
    assert (broken.status, broken.reward) == ("error", None)
    assert broken.error is not None
    assert "the model of tool desk.ask failed" in broken.error.message


def test_a_recipe_names_roots_next_to_it_and_an_engine_that_is_there(recipe):
    assert load_recipe(str(recipe)).tools["desk"].config.roots == (recipe.parent / "data",)
    with raises("unknown-engine", "tools.desk.engine", "none"):
        Build(load_recipe(str(recipe), ["tools.desk.engine=none"]))


@pytest.mark.slow
def test_an_engine_that_waits_for_every_trajectory_answers_servers_the_same_each_time(recipe, tmp_path):
    pytest.importorskip("transformers")
    from support.hf_models import save_chat_model

    policy = f'engines.policy={{type="transformers_local", model="{save_chat_model(tmp_path / "model", "llama")}"}}'
    frozen = ("engines.model.type=reference", "engines.model.engine=policy", "tools.desk.max_tokens=6")
    agent = (f"agent.type={tmp_path}/parts.py:asks_too", "agent.engine=policy", "agent.sampling.max_tokens=8")
    found, again = (run(recipe, policy, *frozen, *agent) for _ in range(2))
    assert [[call.role for call in one.calls] for one in found] == 2 * [["desk.ask", "policy"]]
    sampled = [[call.completion_ids for call in one.calls] for one in found]
    assert all(min(map(len, ids)) > 0 for ids in sampled)
    assert [[call.completion_ids for call in one.calls] for one in again] == sampled
