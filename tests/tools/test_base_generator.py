import asyncio

import pytest

from midstream.core.errors import EngineError, ToolServerError
from midstream.core.protocols import Request, Tool, ToolResult
from midstream.core.trajectory import Call, ErrorInfo, Message
from midstream.tools.base_generator import BaseGenerator, Config


class Echo:
    name = "echo"
    token_exact = False

    def __init__(self, error: str = "", raises: bool = False) -> None:
        self.requests: list[Request] = []
        self.error, self.raises = error, raises

    async def sample(self, request: Request) -> Call:
        self.requests.append(request)
        if self.raises:
            raise EngineError("no connection")
        error = ErrorInfo(type="EngineError", message=self.error) if self.error else None
        return Call(role=request.role, completion=f" {request.messages[0].content} \n", error=error)

    async def close(self) -> None:
        raise AssertionError("the engine is not the tool's to close")


def call(engine: Echo, query: str, config: Config | None = None) -> ToolResult:
    async def go() -> ToolResult:
        tool = BaseGenerator(engine, config)
        assert isinstance(tool, Tool)
        try:
            return await tool.call({"query": query})
        finally:
            await tool.close()

    return asyncio.run(go())


def test_asks_the_engine_directly():
    engine = Echo()
    assert call(engine, "Name a prime.", Config(max_tokens=9)) == ToolResult(text="Name a prime.")
    (request,) = engine.requests
    assert request.messages == (Message(role="user", content="Name a prime."),)
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.0, 9)


def test_same_request_same_seed():
    engine = Echo()
    for query in ("a", "a", "b"):
        call(engine, query)
    first, again, other = (request.seed for request in engine.requests)
    assert first == again != other


def test_no_answer_is_an_answer():
    assert call(Echo(), "  ") == ToolResult(text="the model gave no answer", ok=False)


@pytest.mark.parametrize("engine", [Echo(raises=True), Echo(error="no connection")])
def test_a_broken_engine_is_an_error(engine: Echo):
    with pytest.raises(ToolServerError, match="'echo' failed: no connection"):
        call(engine, "a")
