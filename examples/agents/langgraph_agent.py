"""LangGraph's ReAct agent (`create_agent`, once `create_react_agent`), with LangChain's client of OpenAI's API."""

from calculator import INSTRUCTION, calculate
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from openai import DefaultAsyncHttpxClient

STEPS = 16  # of the graph: two for each call of the tool


# midstream: begin
async def solve(task, session, stream: bool = False):
    address = {"base_url": session.base_url, "api_key": session.api_key}
    async with DefaultAsyncHttpxClient() as http:  # that of ChatOpenAI itself would outlive the run
        model = ChatOpenAI(model=session.model, **address, http_async_client=http, streaming=stream)
        agent = create_agent(model, [calculate], system_prompt=INSTRUCTION)
        try:
            state = await agent.ainvoke({"messages": [("user", task.question)]}, {"recursion_limit": STEPS})
        except GraphRecursionError:  # the model's doing: the run is scored
            return None
        return state["messages"][-1].text


# midstream: end
