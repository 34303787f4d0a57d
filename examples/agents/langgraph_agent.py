"""LangGraph's ReAct agent (`create_agent`, once `create_react_agent`), with LangChain's client of OpenAI's API."""

from calculator import INSTRUCTION, calculate
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError

STEPS = 16  # of the graph: two for each call of the tool


# midstream: begin
async def solve(task, session, stream: bool = False, responses: bool = False):
    model = ChatOpenAI(
        model=session.model,
        base_url=session.base_url,
        api_key=session.api_key,
        streaming=stream,
        use_responses_api=responses,
    )
    agent = create_agent(model, [calculate], system_prompt=INSTRUCTION)
    try:
        state = await agent.ainvoke({"messages": [("user", task.question)]}, {"recursion_limit": STEPS})
    except GraphRecursionError:
        return None  # the model's doing: the run is scored
    return state["messages"][-1].text


# midstream: end
