"""Anthropic's SDK: streams messages, in a loop that runs the tools itself."""

import anthropic
from calculator import INSTRUCTION, PARAMETERS, calculate, used

TOOL = {"name": "calculate", "description": calculate.__doc__, "input_schema": PARAMETERS}
TURNS = 8


async def run(client: anthropic.AsyncAnthropic, model: str, question: str) -> str | None:
    """The model's answer; None if it still calls tools after all turns."""
    messages = [{"role": "user", "content": question}]
    for _ in range(TURNS):
        async with client.messages.stream(
            model=model, max_tokens=1024, system=INSTRUCTION, messages=messages, tools=[TOOL]
        ) as stream:
            reply = await stream.get_final_message()
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in reply.content if block.type == "text")
        found = [{"type": "tool_result", "tool_use_id": one.id, "content": used(one.name, one.input)} for one in calls]
        messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": found}]
    return None


# midstream: begin
async def solve(task, session):
    async with anthropic.AsyncAnthropic(base_url=session.anthropic_base_url, api_key=session.api_key) as client:
        return await run(client, session.model, task.question)


# midstream: end
