"""The client `openai` in a loop that runs the tools itself."""

import json

import openai
from calculator import INSTRUCTION, PARAMETERS, calculate, used

TOOL = {"name": "calculate", "description": calculate.__doc__, "parameters": PARAMETERS}
TURNS = 8


async def run(client: openai.AsyncOpenAI, model: str, question: str) -> str | None:
    """The model's answer; None if it still calls tools after all turns."""
    messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": question}]
    for _ in range(TURNS):
        reply = await client.chat.completions.create(
            model=model, messages=messages, tools=[{"type": "function", "function": TOOL}]
        )
        message = reply.choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            found = used(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    return None


# midstream: begin
async def solve(task, session):
    async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
        return await run(client, session.model, task.question)


# midstream: end
