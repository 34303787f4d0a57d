import asyncio

import pytest

from midstream.core.engine import Request
from midstream.core.errors import EngineError, PromptTooLongError, ToolServerError
from midstream.core.tool import Tool, ToolResult
from midstream.core.trajectory import Call, Message
from midstream.tools.base_generator import BaseGenerator, BaseGeneratorConfig


class Echo:
    name = "echo"
    token_exact = False

    def __init__(self, failure: EngineError | None = None) -> None:
        self.requests: list[Request] = []
        self.failure = failure

    async def sample(self, request: Request) -> Call:
        self.requests.append(request)
        if self.failure is not None:
            self.failure.calls = (Call(role=request.role, failures=("reset",)),)
            raise self.failure
        return Call(role=request.role, completion=f" {request.messages[0].content} \n")

    async def close(self) -> None:
        raise AssertionError("the engine is not the tool's to close")


def call(engine: Echo, query: str, config: BaseGeneratorConfig | None = None) -> ToolResult:
    async def go() -> ToolResult:
        tool = BaseGenerator(config or BaseGeneratorConfig(), engine)
        assert isinstance(tool, Tool)
        try:
            return await tool.call({"query": query})
        finally:
            await tool.close()

    return asyncio.run(go())


def test_asks_the_engine_directly():
    engine = Echo()
    asked = Call(role="base_generator", completion=" Name a prime. \n")
    assert call(engine, "Name a prime.", BaseGeneratorConfig(max_tokens=9)) == ToolResult(
        text="Name a prime.", calls=(asked,)
    )
    (request,) = engine.requests
    assert request.messages == (Message(role="user", content="Name a prime."),)
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.0, 9)


def test_thoughts_are_no_part_of_the_answer():
    assert call(Echo(), "<think>2? 3?</think> 2").text == "2"
    assert not call(Echo(), "<think>for ever").ok


def test_same_request_same_seed():
    engine = Echo()
    for query in ("a", "a", "b"):
        call(engine, query)
    first, again, other = (request.seed for request in engine.requests)
    assert first == again != other


def test_no_answer_is_an_answer():
    result = call(Echo(), "  ")
    assert (result.text, result.ok, len(result.calls)) == ("the model gave no answer", False, 1)


def test_a_broken_engine_is_an_error_that_keeps_its_call():
    broken = EngineError("no connection", cause="it is down", fix="start it")
    broken.retryable = False
    with pytest.raises(ToolServerError) as caught:
        call(Echo(broken), "a")
    assert [call.failures for call in caught.value.calls] == [("reset",)]
    assert (caught.value.cause, caught.value.fix, caught.value.retryable) == ("it is down", "start it", False)


def test_a_request_too_long_for_the_model_is_an_answer():
    result = call(Echo(PromptTooLongError("9000 tokens do not fit")), "a")
    assert (result.text, result.ok) == ("the request is too long: 9000 tokens do not fit", False)
    assert len(result.calls) == 1


def test_trajectories_ask_the_reference_in_this_process_in_one_batch(tmp_path):
    """Neither waits for the other, and what each gets depends on its request alone."""
    from midstream.core.engine import ORDER
    from midstream.engines.local.engine import ReferencePolicy, TransformersLocal
    from midstream.engines.local.pretrained import load_model
    from support.hf_models import save_chat_model

    model, tokenizer = load_model(str(save_chat_model(tmp_path / "model", "llama")), "float32", "cpu")

    async def texts(queries: tuple[str, ...]) -> list[str]:
        engine = TransformersLocal(model, tokenizer)
        tool = BaseGenerator(BaseGeneratorConfig(max_tokens=8), ReferencePolicy(engine, "frozen"))

        async def asks(order: int, query: str) -> str:
            ORDER.set(order)
            try:
                return (await tool.call({"query": query})).text
            finally:
                engine.leave(order)

        for order in range(len(queries)):
            engine.join(order)
        return await asyncio.gather(*(asyncio.create_task(asks(*each)) for each in enumerate(queries)))

    both = asyncio.run(asyncio.wait_for(texts(("ab", "cd")), 60))
    assert both == [asyncio.run(texts((query,)))[0] for query in ("ab", "cd")]
