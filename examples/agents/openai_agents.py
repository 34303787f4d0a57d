"""OpenAI's Agents SDK, through the Responses API (its default) or chat completions, whole or as a stream."""

from agents import Agent, MaxTurnsExceeded, ModelBehaviorError, OpenAIProvider, RunConfig, Runner, function_tool
from calculator import INSTRUCTION, calculate

AGENT = Agent(name="calculator", instructions=INSTRUCTION, tools=[function_tool(calculate)])


# midstream: begin
async def solve(task, session, responses: bool = True, stream: bool = False):
    provider = OpenAIProvider(base_url=session.base_url, api_key=session.api_key, use_responses=responses)
    config = RunConfig(model=session.model, model_provider=provider, tracing_disabled=True)
    try:
        if not stream:
            return (await Runner.run(AGENT, task.question, run_config=config, max_turns=8)).final_output
        result = Runner.run_streamed(AGENT, task.question, run_config=config, max_turns=8)
        async for _ in result.stream_events():
            pass
        return result.final_output
    except (MaxTurnsExceeded, ModelBehaviorError):  # the model's doing, e.g. an unknown tool: the run is scored
        return None


# midstream: end
