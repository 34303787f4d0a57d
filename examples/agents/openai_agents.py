"""OpenAI's Agents SDK, through the Responses API (its default) or chat completions, whole or as a stream."""

from calculator import INSTRUCTION, calculate
from openai import AsyncOpenAI

from agents import Agent, MaxTurnsExceeded, ModelBehaviorError, OpenAIProvider, RunConfig, Runner, function_tool

AGENT = Agent(name="calculator", instructions=INSTRUCTION, tools=[function_tool(calculate)])
TURNS = 8


async def run(question: str, config: RunConfig, stream: bool) -> str | None:
    """The agent's answer."""
    if not stream:
        return (await Runner.run(AGENT, question, run_config=config, max_turns=TURNS)).final_output
    result = Runner.run_streamed(AGENT, question, run_config=config, max_turns=TURNS)
    async for _ in result.stream_events():
        pass
    return result.final_output


# midstream: begin
async def solve(task, session, responses: bool = True, stream: bool = False):
    async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
        provider = OpenAIProvider(openai_client=client, use_responses=responses)
        config = RunConfig(model=session.model, model_provider=provider, tracing_disabled=True)
        try:
            return await run(task.question, config, stream)
        except (MaxTurnsExceeded, ModelBehaviorError):  # the model's doing, e.g. an unknown tool: the run is scored
            return None


# midstream: end
